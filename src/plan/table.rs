//! How a plan prints: a table with one line a candidate.

use super::planner::{Plan, Verdict, Weighed};
use crate::device::spec::{ConvGeometry, DenseLayout, SparseProduct};
use crate::device::{Query, Ranking};
use crate::memory::format_bytes;
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cap = self.cap.map_or("none".to_owned(), format_bytes);
        writeln!(f, "{} on {}, workspace cap {cap}", self.operation, self.device)?;
        let times = match self.ranking {
            Ranking::Predicted => "predicted ms",
            Ranking::Measured => "ms",
        };
        let names = self.weighed.iter().map(|w| w.candidate.to_string().chars().count());
        let width = names.max().unwrap_or(0).max(44);
        writeln!(f, "  {:<width$} {:>16} {:>12}  verdict", "algorithm", "workspace bytes", times)?;
        let mut any_predicted = false;
        for weighed in &self.weighed {
            let candidate = &weighed.candidate;
            let seconds = weighed.measured.unwrap_or(candidate.seconds);
            let predicted = self.ranking == Ranking::Measured && weighed.measured.is_none();
            any_predicted |= predicted;
            writeln!(
                f,
                "  {candidate:<width$} {:>16} {:>11.3}{}  {}",
                candidate.workspace,
                seconds * 1e3,
                if predicted { "?" } else { " " },
                self.reason(weighed),
            )?;
        }
        if any_predicted {
            writeln!(f, "  ? predicted: it was not timed")?;
        }
        Ok(())
    }
}

impl Plan {
    fn reason(&self, weighed: &Weighed) -> String {
        match &weighed.verdict {
            Verdict::Taken => "taken".into(),
            Verdict::Slower => {
                let time = |w: &Weighed| w.measured.unwrap_or(w.candidate.seconds);
                if weighed.measured.is_none() && self.weighed[self.taken].measured.is_some() {
                    "slower by far, as predicted".into()
                } else if time(weighed) <= time(&self.weighed[self.taken]) {
                    "no faster by 5 %, more workspace".into()
                } else {
                    "slower".into()
                }
            }
            Verdict::OverCap => {
                let over = weighed.candidate.workspace - self.cap.unwrap_or(0);
                format!("rejected: {over} bytes over the cap")
            }
            Verdict::NotDeterministic => "rejected: not deterministic".into(),
            Verdict::Failed(why) => format!("rejected: failed ({why})"),
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Query::Gemm(spec, dtype) => {
                write!(f, "matmul {dtype}: {}×{}×{}", spec.m, spec.k, spec.n)?;
                if spec.batch != 1 { write!(f, ", batch {}", spec.batch) } else { Ok(()) }
            }
            Query::Conv(pass, geometry, dtype) => {
                write!(f, "conv1d {} {dtype}: {geometry}", pass.name())
            }
            Query::Sparse(spec, dtype) => {
                let (what, size) = match spec.product {
                    SparseProduct::Forward => ("A·X", spec.width),
                    SparseProduct::Transposed => ("Aᵀ·G", spec.width),
                    SparseProduct::Sampled => ("sampled G·Xᵀ", spec.width),
                };
                let layout = match spec.layout {
                    DenseLayout::Columns => "as columns",
                    DenseLayout::Rows => "as rows",
                };
                let (rows, cols, nnz) = (spec.rows, spec.cols, spec.nnz);
                write!(
                    f,
                    "sparse {what} {dtype}: {rows}×{cols}, nnz {nnz}, {size} vectors {layout}"
                )?;
                if spec.accumulate { write!(f, ", added to the result") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for ConvGeometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}×{}→{}, L {}→{}, K {}",
            self.batch,
            self.in_channels,
            self.out_channels,
            self.in_length,
            self.out_length,
            self.kernel
        )?;
        if self.stride != 1 {
            write!(f, ", stride {}", self.stride)?;
        }
        if self.dilation != 1 {
            write!(f, ", dilation {}", self.dilation)?;
        }
        if self.groups != 1 {
            write!(f, ", {} groups", self.groups)?;
        }
        if self.pad_left + self.pad_right > 0 {
            write!(f, ", padding {}+{}", self.pad_left, self.pad_right)?;
        }
        Ok(())
    }
}
