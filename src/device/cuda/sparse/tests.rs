//! Every candidate of every product, in every form, forced in turn, against a naive sum in f64: into
//! poisoned memory, with a poisoned workspace, under the shared memory of small chips as well.

use super::job::{Job, Method};
use crate::device::cuda::testing;
use crate::device::philox::Stream;
use crate::device::spec::{DenseLayout, Form, SparseProduct, SparseSpec, StoredSpec};
use crate::device::{Query, Terms};
use crate::memory::{Purpose, Taker};
use crate::plan::Candidate;
use crate::sparse::{Stored, tiled};
use crate::{CudaOptions, DType, Device, Tensor};
use std::collections::HashMap;

/// A GPU whose blocks have so much shared memory, or `None` where a missing one may be skipped.
fn gpu(shared_per_block: Option<usize>) -> Option<Device> {
    testing::gpu_with(CudaOptions { poison: true, shared_per_block, ..Default::default() })
}

/// A matrix by its entries, row by row with columns ascending.
struct Entries {
    rows: usize,
    cols: usize,
    offsets: Vec<usize>,
    columns: Vec<i32>,
    values: Vec<f64>,
}

impl Entries {
    /// Rows with so many entries at places that follow from `seed`.
    fn new(cols: usize, lengths: &[usize], seed: u64) -> Entries {
        let stream = Stream { seed, stream: 5 };
        let (mut offsets, mut columns) = (vec![0], Vec::new());
        let mut drawn = 0;
        for &length in lengths {
            let length = length.min(cols);
            let mut row = std::collections::BTreeSet::new();
            if length * 2 > cols {
                row.extend((0..cols as i32).take(length));
            }
            while row.len() < length {
                row.insert((stream.uniform(drawn) * cols as f64) as i32);
                drawn += 1;
            }
            columns.extend(row);
            offsets.push(columns.len());
        }
        let values = numbers(columns.len(), seed + 1);
        Entries { rows: lengths.len(), cols, offsets, columns, values }
    }

    fn transposed(&self) -> Entries {
        let mut by_row: Vec<Vec<(i32, f64)>> = vec![Vec::new(); self.cols];
        for row in 0..self.rows {
            for e in self.offsets[row]..self.offsets[row + 1] {
                by_row[self.columns[e] as usize].push((row as i32, self.values[e]));
            }
        }
        let mut offsets = vec![0];
        for row in &by_row {
            offsets.push(offsets[offsets.len() - 1] + row.len());
        }
        let (columns, values) = by_row.into_iter().flatten().unzip();
        Entries { rows: self.cols, cols: self.rows, offsets, columns, values }
    }

    fn stored(&self, dtype: DType) -> Stored {
        use crate::sparse::assemble::from_csr;
        let (rows, cols) = (self.rows, self.cols);
        macro_rules! stored {
            ($t:ty, $from:expr) => {{
                let values: Vec<$t> = self.values.iter().map($from).collect();
                let built = from_csr(rows, cols, &self.offsets, &self.columns, values, false);
                Stored::from_arrays(rows, cols, built.unwrap().csr).unwrap()
            }};
        }
        match dtype {
            DType::F64 => stored!(f64, |&v| v),
            DType::F16 => stored!(half::f16, |&v| half::f16::from_f64(v)),
            DType::BF16 => stored!(half::bf16, |&v| half::bf16::from_f64(v)),
            _ => stored!(f32, |&v| v as f32),
        }
    }
}

fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let stream = Stream { seed, stream: 1 };
    // Sixteenths, which every dtype holds.
    (0..n as u64).map(|i| (stream.uniform(i) * 32.0).floor() / 16.0 - 1.0).collect()
}

fn tensor(data: &[f64], shape: [usize; 2], dtype: DType, device: &Device) -> Tensor {
    let data = Tensor::from_vec(data.to_vec(), shape, &Device::cpu()).unwrap();
    data.to_dtype(dtype).unwrap().to(device).unwrap()
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F16 => 3e-3,
        DType::BF16 => 1.5e-2,
        _ => 1e-5,
    }
}

/// Rows of one matrix with its entries' lengths: even, empty rows, one long row, short and long.
fn matrices() -> Vec<Entries> {
    let lengths = |n: usize, f: fn(usize) -> usize| (0..n).map(f).collect::<Vec<_>>();
    vec![
        Entries::new(500, &lengths(70, |_| 100), 1),
        Entries::new(61, &lengths(300, |i| if i % 3 == 0 { i % 17 } else { 0 }), 2),
        Entries::new(9000, &lengths(40, |i| if i == 7 { 7000 } else { i % 4 }), 3),
        Entries::new(20_000, &lengths(1500, |i| 20 + i % 13), 4),
        Entries::new(3, &lengths(2500, |i| i % 3), 5),
        Entries::new(4, &lengths(1, |_| 0), 6),
    ]
}

struct Case<'a> {
    device: &'a Device,
    entries: &'a Entries,
    stored: Stored,
    transpose: Option<Stored>,
    apart: Option<Tensor>,
    dtype: DType,
}

impl Case<'_> {
    fn reference(&self, spec: &SparseSpec, first: &[f64], second: &[f64]) -> Vec<f64> {
        let (e, n) = (self.entries, spec.width);
        let at = |index: usize, v: usize, length: usize| match spec.layout {
            DenseLayout::Columns => index * n + v,
            DenseLayout::Rows => v * length + index,
        };
        let mut out = match spec.product {
            SparseProduct::Forward => vec![0.0; e.rows * n],
            SparseProduct::Transposed => vec![0.0; e.cols * n],
            SparseProduct::Sampled => vec![0.0; e.columns.len()],
        };
        for row in 0..e.rows {
            for k in e.offsets[row]..e.offsets[row + 1] {
                let (column, value) = (e.columns[k] as usize, e.values[k]);
                for v in 0..n {
                    let (r, c) = (at(row, v, e.rows), at(column, v, e.cols));
                    match spec.product {
                        SparseProduct::Forward => out[r] += value * first[c],
                        SparseProduct::Transposed => out[c] += value * first[r],
                        SparseProduct::Sampled => out[k] += first[r] * second[c],
                    }
                }
            }
        }
        out
    }

    /// Every candidate of a product under a few caps.
    fn check(&self, spec: SparseSpec, seen: &mut HashMap<String, usize>) {
        let (e, n) = (self.entries, spec.width);
        let lengths = match spec.product {
            SparseProduct::Forward => (e.cols, 0, e.rows * n),
            SparseProduct::Transposed => (e.rows, 0, e.cols * n),
            SparseProduct::Sampled => (e.rows, e.cols, e.columns.len()),
        };
        let (first, second) = (numbers(lengths.0 * n, 11), numbers(lengths.1 * n, 12));
        let before = numbers(lengths.2, 13);
        let mut expected = self.reference(&spec, &first, &second);
        if spec.accumulate {
            expected.iter_mut().zip(&before).for_each(|(out, before)| *out += before);
        }
        let values = self.apart.as_ref().unwrap_or(&self.stored.values);
        let query = Query::Sparse(spec, self.dtype);
        for cap in [u64::MAX, 150_000, 0] {
            // Once from the second element of what they lie in, where nothing is aligned.
            let skipped = usize::from(cap == 150_000);
            let put = |data: &[f64]| {
                let all = [&vec![f64::NAN; skipped], data].concat();
                tensor(&all, [1, all.len()], self.dtype, self.device)
                    .flat()
                    .rows(skipped, data.len())
            };
            let (first, second) = (put(&first), put(&second));
            let mut operands = self.stored.arrays(values);
            if let Some(transpose) = self.transpose.as_ref().filter(|_| spec.transpose.is_some()) {
                operands.extend(transpose.arrays(&transpose.values));
            }
            operands.push(&first);
            if spec.product == SparseProduct::Sampled {
                operands.push(&second);
            }
            let terms = Terms { cap, allow_tf32: false };
            let candidates = self.device.backend().candidates(&query, terms);
            let free = |c: &&Candidate| c.workspace == 0;
            assert!(candidates.iter().any(|c| free(&c) && c.deterministic), "{query}");
            for candidate in candidates.iter().filter(|c| c.workspace <= cap) {
                assert!(candidate.seconds.is_finite() && candidate.seconds > 0.0);
                let library = matches!(Job::decode(candidate).method, Method::Library(_));
                if library && operands[0].dtype() == DType::I64 {
                    // It is not offered for as many entries as have such offsets.
                    continue;
                }
                let what = format!("{query}, {}, {}", candidate.name, candidate.split);
                let out = match spec.accumulate {
                    true => put(&before),
                    false => put(&vec![f64::NAN; before.len()]),
                };
                let bytes = candidate.workspace as usize;
                let workspace = (bytes > 0).then(|| {
                    self.device.allocate(bytes, Purpose::Workspace, Taker::of("test")).unwrap()
                });
                let run = |out: &Tensor| {
                    let backend = self.device.backend();
                    backend.run(&query, candidate, &operands, out, workspace.as_ref()).unwrap();
                };
                run(&out);
                let got = out.to_f64_vec().unwrap();
                let (mut error, mut norm) = (0.0, 0.0);
                for (got, expected) in got.iter().zip(&expected) {
                    error += (got - expected).powi(2);
                    norm += expected * expected;
                }
                let limit = tolerance(self.dtype) * f64::sqrt(norm);
                assert!(f64::sqrt(error) <= limit, "{what}: {} over {limit}", f64::sqrt(error));
                if candidate.deterministic && !spec.accumulate {
                    let again = put(&vec![f64::NAN; before.len()]);
                    run(&again);
                    let bits = |x: &Tensor| {
                        let x = x.to_f64_vec().unwrap();
                        x.into_iter().map(f64::to_bits).collect::<Vec<_>>()
                    };
                    assert!(bits(&out) == bits(&again), "{what}: other bits");
                }
                let Job { method, chunk, .. } = Job::decode(candidate);
                let chunks = if chunk > 0 { "chunks" } else { "whole" };
                let form = match spec.stored.form {
                    Form::Csr => "csr",
                    Form::Tiled { .. } => "tiled",
                    Form::Streamed => "streamed",
                };
                let method = if library { "Library".into() } else { format!("{method:?}") };
                *seen.entry(format!("{method} {form} {chunks}")).or_default() += 1;
            }
        }
    }
}

fn each(
    device: &Device,
    entries: &Entries,
    dtype: DType,
    widths: &[usize],
    seen: &mut HashMap<String, usize>,
) {
    let strip = |cols| tiled::strip_on(device, dtype, cols, 30).map(|strip| Form::Tiled { strip });
    let forms = [
        Some((Form::Csr, Form::Csr)),
        strip(entries.cols).zip(strip(entries.rows)),
        Some((Form::Streamed, Form::Streamed)),
    ];
    let here = entries.stored(dtype);
    let turned = entries.transposed().stored(dtype);
    let by_row = here.values.to(device).unwrap();
    for (form, of_transpose) in forms.into_iter().flatten() {
        let stored = here.on(device, form).unwrap();
        // There and back.
        let back = stored.on(&Device::cpu(), Form::Csr).unwrap();
        let of = |stored: &Stored| stored.values_by_row().unwrap().to_f64_vec().unwrap();
        assert_eq!(of(&stored), of(&here));
        assert_eq!(of(&back), of(&here));
        let transpose = turned.on(device, of_transpose).unwrap();
        for apart in [false, true] {
            let case = Case {
                device,
                entries,
                stored: stored.clone(),
                transpose: (!apart).then(|| transpose.clone()),
                apart: apart.then(|| by_row.clone()),
                dtype,
            };
            for (turn, &width) in widths.iter().enumerate() {
                for layout in [DenseLayout::Rows, DenseLayout::Columns] {
                    let products =
                        [SparseProduct::Forward, SparseProduct::Transposed, SparseProduct::Sampled];
                    for product in products {
                        let transpose: Option<StoredSpec> =
                            case.transpose.as_ref().map(|stored| stored.spec);
                        let spec = stored.product(product, layout, width, transpose);
                        let accumulate = (turn + usize::from(apart)) % 2 == 1;
                        case.check(SparseSpec { values_apart: apart, accumulate, ..spec }, seen);
                    }
                }
            }
        }
    }
}

#[test]
fn every_candidate_is_right() {
    let Some(device) = gpu(None) else { return };
    let mut seen = HashMap::new();
    for entries in matrices() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            each(&device, &entries, dtype, &[1, 2, 5, 8, 36], &mut seen);
        }
    }
    let mut kinds: Vec<_> = seen.into_iter().collect();
    kinds.sort();
    eprintln!("{kinds:#?}");
    let has = |name: &str| kinds.iter().any(|(kind, _)| kind == name);
    for kind in [
        "RowsOne csr whole",
        "RowsOne tiled whole",
        "RowsOne streamed whole",
        "RowsOne streamed chunks",
        "RowsWide csr whole",
        "RowsWide tiled whole",
        "RowsWide streamed chunks",
        "RowsShort csr whole",
        "RowsSplit csr whole",
        "Strips tiled whole",
        "Scatter csr whole",
        "Scatter tiled whole",
        "Scatter streamed chunks",
        "StripsScatter tiled whole",
        "StripsOrdered tiled whole",
        "RowsOrdered csr whole",
        "RowsOrdered streamed whole",
        "RowsOrdered streamed chunks",
        "Sampled csr whole",
        "Sampled tiled whole",
        "Sampled streamed whole",
        "Sampled streamed chunks",
    ] {
        assert!(has(kind), "{kind} was never tried");
    }
}

/// Every kernel once on a small matrix: few launches, so that tools that slow them down can watch all.
#[test]
fn small_products_launch_every_kernel() {
    let Some(device) = gpu(Some(6 << 10)) else { return };
    let entries = Entries::new(2500, &(0..64).map(|i| i % 40).collect::<Vec<_>>(), 7);
    let mut seen = HashMap::new();
    each(&device, &entries, DType::F32, &[1, 4], &mut seen);
    assert!(seen.keys().any(|kind| kind == "StripsOrdered tiled whole"));
}

/// The strips of chips with 64, 99 and 163 KB of shared memory a block, and of one that has hardly any,
/// which makes many strips of small matrices.
#[test]
fn strips_fit_small_chips() {
    for shared in [3 << 10, 64 << 10, 99 << 10, 163 << 10] {
        let Some(device) = gpu(Some(shared)) else { return };
        let mut seen = HashMap::new();
        let entries = Entries::new(70_001, &(0..300).map(|i| 30 + i % 7).collect::<Vec<_>>(), 9);
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let strip = tiled::strip_on(&device, dtype, entries.cols, 30).unwrap();
            assert!((strip + 32) * dtype.size().max(4) <= shared);
            each(&device, &entries, dtype, &[1, 3], &mut seen);
        }
        assert!(seen.keys().any(|kind| kind == "Strips tiled whole"));
    }
}

/// Offsets of 64 bits, which matrices of few entries do not have, read as such.
#[test]
fn wide_offsets_are_read() {
    let Some(device) = gpu(None) else { return };
    let entries = Entries::new(300, &[40, 0, 7, 300, 1], 3);
    let mut seen = HashMap::new();
    for form in [Form::Csr, Form::Streamed] {
        let stored = entries.stored(DType::F32).widened().on(&device, form).unwrap();
        let case = Case {
            device: &device,
            entries: &entries,
            stored,
            transpose: None,
            apart: None,
            dtype: DType::F32,
        };
        for product in [SparseProduct::Forward, SparseProduct::Transposed, SparseProduct::Sampled] {
            for width in [1, 4] {
                let spec = case.stored.product(product, DenseLayout::Rows, width, None);
                case.check(spec, &mut seen);
            }
        }
    }
}
