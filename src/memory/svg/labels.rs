//! What is written into the picture: the phases above the plot, and the peak, the lines and the
//! purposes' names inside it, so that no label covers another.

use super::Picture;
use super::canvas::{Canvas, Frame, INK, Lettering, PAPER, Side};
use super::columns::{room, total};
use super::phases::blocks;
use super::scale::{readable, thousands};
use crate::error::Result;
use crate::memory::{Purpose, format_bytes};
use plotters::prelude::RGBColor;

impl Picture<'_> {
    /// Rows of boxes above the plot. Neighbours differ in lightness.
    pub(super) fn phases(&self, canvas: &mut Canvas<'_>) -> Result<()> {
        let [left, _, right, _] = self.plot;
        let em = self.em;
        let mut before = "";
        for (i, (name, row)) in self.rows.iter().enumerate() {
            let top = self.rows_top + 1.5 * em * i as f64;
            let (middle, bottom) = (top + 0.7 * em, top + 1.4 * em);
            if *name != before {
                canvas.text(name, left - 0.6 * em, middle, &Lettering::new(em, Side::End))?;
                before = name;
            }
            let width = right - left;
            let blocks = blocks(row, self.columns.points, width, width / 150.0);
            for (i, block) in blocks.iter().enumerate() {
                let shade = match block.name.as_str() {
                    _ if block.phases > 1 => 176,
                    "forward" if *name == "passes" => 232,
                    "backward" if *name == "passes" => 200,
                    "recompute" if *name == "passes" => 216,
                    _ if *name == "passes" => 184,
                    _ if i % 2 == 0 => 226,
                    _ => 206,
                };
                let (from, to) = ((left + block.left).round(), (left + block.right).round());
                // A pixel of paper is left between neighbours.
                let to = (to - 1.0).max(from + 1.0);
                canvas.rectangle([from, top, to, bottom], &RGBColor(shade, shade, shade))?;
                let label = match block.phases {
                    1 => block.name.clone(),
                    many => format!("{} {name}", thousands(many)),
                };
                let style = Lettering::new(0.95 * em, Side::Middle);
                // A low, wide picture would have room for more labels than one looks at.
                let labelled = to - from >= width / 80.0;
                if let Some(label) = style.fit(&label, to - from - 0.2 * em).filter(|_| labelled) {
                    canvas.text(&label, (from + to) / 2.0, middle, &style)?;
                }
            }
        }
        Ok(())
    }

    /// The peak, the limit and the cap, each with its label at a free place.
    pub(super) fn lines(&mut self, canvas: &mut Canvas<'_>) -> Result<()> {
        let em = self.em;
        let [left, top, right, bottom] = self.plot;
        let bold = Lettering { bold: true, ..Lettering::new(em, Side::Middle) };
        let peak = total(&self.columns.at_peak);
        let (x, y) = (
            (self.x(self.columns.peak_at) + self.x(self.columns.peak_at + 1)) / 2.0,
            self.scale.y(peak),
        );
        let text = format!("peak {}", readable(peak));
        let half = bold.width(&text) / 2.0 + 0.2 * em;
        let middle = x.min(right - half).max(left + half);
        let frame = [middle - half, y - 1.75 * em, middle + half, y - 0.55 * em];
        self.taken.push(frame);
        let mut labels = vec![(text, frame, bold)];

        let style = Lettering::new(em, Side::Middle);
        let cap = if right - left < 36.0 * em { "cap" } else { "workspace cap" };
        let lines = [("limit", self.timeline.limit), (cap, self.timeline.workspace_cap)];
        for (name, bytes) in lines {
            let Some(bytes) = bytes.filter(|&bytes| self.scale.holds(bytes)) else { continue };
            let y = self.scale.y(bytes.into());
            canvas.dashes(left, right, y)?;
            let text = format!("{name} {}", format_bytes(bytes));
            let width = style.width(&text) + 0.4 * em;
            let at = |x: f64, y: f64| [x, y, x + width, y + 1.2 * em];
            let (start, end) = (left + 0.4 * em, right - width - 0.4 * em);
            let (above, below) = (y - 1.4 * em, y + 0.2 * em);
            let places = [at(end, above), at(start, above), at(end, below), at(start, below)];
            let inside = |frame: &Frame| frame[1] >= top && frame[3] <= bottom;
            let mut places = places.into_iter().filter(inside);
            if let Some(frame) = places.find(|frame| self.is_free(frame)) {
                self.taken.push(frame);
                labels.push((text, frame, style));
            }
            self.taken.push([left, y - 0.2 * em, right, y + 0.2 * em]);
        }
        for (text, frame, style) in labels {
            canvas.patch(&text, frame, &style)?;
        }
        let (x, y, size) = (x.round() as i32, y as i32 - 1, (0.4 * em) as i32);
        canvas.area(vec![(x, y), (x - size, y - size), (x + size, y - size)], INK)
    }

    fn is_free(&self, frame: &Frame) -> bool {
        let apart = |other: &Frame| {
            frame[2] <= other[0]
                || other[2] <= frame[0]
                || frame[3] <= other[1]
                || other[3] <= frame[1]
        };
        self.taken.iter().all(apart)
    }

    /// Purposes' names inside their areas, where they fit.
    pub(super) fn names(&mut self, canvas: &mut Canvas<'_>) -> Result<()> {
        let em = self.em;
        let column_width = self.x(1) - self.x(0);
        let mut below = vec![self.plot[3]; self.columns.live.len()];
        for purpose in self.columns.purposes.clone() {
            let tops: Vec<f64> = self.columns.tops(purpose).map(|top| self.scale.y(top)).collect();
            let edges: Vec<(f64, f64)> = tops.iter().copied().zip(below).collect();
            below = tops;
            let colour = if is_dark(purpose) { PAPER } else { INK };
            let style = Lettering { colour, ..Lettering::new(em, Side::Middle) };
            let width = style.width(purpose.name());
            let Some((first, end, top, bottom)) =
                room(&edges, column_width, width + 0.6 * em, 1.3 * em)
            else {
                continue;
            };
            let x = (self.x(first) + self.x(end)) / 2.0;
            for part in [0.5, 0.25, 0.75] {
                let y = top + part * (bottom - top);
                let frame = [x - width / 2.0, y - 0.6 * em, x + width / 2.0, y + 0.6 * em];
                if frame[1] >= top && frame[3] <= bottom && self.is_free(&frame) {
                    self.taken.push(frame);
                    canvas.text(purpose.name(), x, y, &style)?;
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Whether white is easier to read on a purpose's colour than black.
fn is_dark(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Parameter | Purpose::Workspace | Purpose::Optimiser)
}
