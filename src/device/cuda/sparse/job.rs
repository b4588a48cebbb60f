//! What a candidate consists of, and how its workspace is laid out.

use crate::device::cuda::kernels::Kernel;
use crate::device::spec::{DenseLayout, Form, SparseProduct, SparseSpec, StoredSpec};
use crate::dtype::DType;
use crate::plan::Candidate;
use crate::sparse::tiled;

/// Threads of a block of the kernels that have nothing in shared memory.
pub(super) const THREADS: usize = 256;

/// A kernel, or a library's algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    /// Gathers one vector after the other.
    RowsOne,
    /// Gathers vectors that lie side by side, a warp a row.
    RowsWide,
    /// Gathers vectors that lie side by side, a few lanes a row.
    RowsShort,
    /// Gathers with equal shares of the entries.
    RowsSplit,
    /// Gathers by strips in shared memory.
    Strips,
    /// Scatters by atomics, with equal shares of the entries.
    Scatter,
    /// Scatters by strips, with atomics in shared memory.
    StripsScatter,
    /// Scatters by strips, row after row.
    StripsOrdered,
    /// Scatters into ranges of columns, row after row.
    RowsOrdered,
    /// The sampled product.
    Sampled,
    /// cuSPARSE: the algorithm of this index in those that take the call.
    Library(u8),
}

impl Method {
    /// Our own, by their codes; those of a library follow.
    const OWN: [Method; 10] = [
        Method::RowsOne,
        Method::RowsWide,
        Method::RowsShort,
        Method::RowsSplit,
        Method::Strips,
        Method::Scatter,
        Method::StripsScatter,
        Method::StripsOrdered,
        Method::RowsOrdered,
        Method::Sampled,
    ];

    fn code(self) -> u32 {
        match self {
            Method::Library(index) => Method::OWN.len() as u32 + u32::from(index),
            own => Method::OWN.iter().position(|&method| method == own).unwrap_or(0) as u32,
        }
    }

    fn of(code: u32) -> Method {
        let own = Method::OWN.get(code as usize).copied();
        own.unwrap_or_else(|| Method::Library((code as usize - Method::OWN.len()) as u8))
    }

    /// Whether a run gives the same bits as any other; a library's algorithm says so itself.
    pub(super) fn repeats(self) -> bool {
        !matches!(self, Method::Scatter | Method::StripsScatter)
    }
}

/// One way to compute a product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Job {
    pub(super) method: Method,
    /// By the transposed copy.
    pub(super) stored_transpose: bool,
    /// Vectors that are brought side by side in the workspace at a time; 0 leaves them where they
    /// are.
    pub(super) block: usize,
    /// Into how many parts the work is cut whose sums are added up after it; for
    /// [`Method::RowsSplit`] the entries of a part, for a library its buffer's bytes.
    pub(super) parts: usize,
    /// Bytes of a chunk of a streamed matrix; 0 where kernels read the host's memory themselves.
    pub(super) chunk: usize,
}

const TRANSPOSE_BIT: u32 = 1 << 8;

impl Job {
    pub(super) fn new(method: Method) -> Job {
        Job { method, stored_transpose: false, block: 0, parts: 1, chunk: 0 }
    }

    /// A candidate's code and parameters.
    pub(super) fn encode(&self) -> (u32, [usize; 4]) {
        let transpose = if self.stored_transpose { TRANSPOSE_BIT } else { 0 };
        (self.method.code() | transpose, [self.block, self.parts, self.chunk, 0])
    }

    pub(super) fn decode(candidate: &Candidate) -> Job {
        let [block, parts, chunk, _] = candidate.params;
        Job {
            method: Method::of(candidate.code & !TRANSPOSE_BIT),
            stored_transpose: candidate.code & TRANSPOSE_BIT != 0,
            block,
            parts,
            chunk,
        }
    }

    /// Bytes of the parts of its workspace: vectors that are read, sums or results that are not
    /// where they belong, partial sums or a library's buffer, chunks.
    fn bytes(&self, problem: &Problem) -> [u64; 4] {
        let (size, sum) = (problem.dtype.size() as u64, sum_size(problem.dtype) as u64);
        let product = |sizes: &[u64]| {
            let all = sizes.iter().fold(1u64, |all, &size| all.saturating_mul(size));
            all.div_ceil(ALIGN).saturating_mul(ALIGN)
        };
        let (rows, cols) = (problem.rows as u64, problem.cols as u64);
        let (block, parts) = (self.block as u64, self.parts as u64);
        let streams = product(&[2, self.chunk as u64]);
        let (moved, sums, partial) = match self.method {
            Method::RowsOne | Method::Sampled => (0, 0, 0),
            Method::RowsWide | Method::RowsShort => (product(&[cols, block, size]), 0, 0),
            Method::RowsSplit => {
                let vectors = if self.block > 0 { block } else { problem.width as u64 };
                let carries = (problem.nnz as u64).div_ceil(parts.max(1));
                (product(&[cols, block, size]), 0, product(&[carries, 2, vectors, sum]))
            }
            Method::Strips if self.has_partial_sums(problem) => {
                (0, 0, product(&[parts, rows, sum]))
            }
            Method::Strips => (0, 0, 0),
            Method::Scatter => (0, product(&[cols, block, sum]), 0),
            Method::StripsScatter | Method::StripsOrdered | Method::RowsOrdered => {
                let partial = self.has_partial_sums(problem);
                let partial = if partial { product(&[parts, cols, sum]) } else { 0 };
                (0, product(&[cols, block, sum]), partial)
            }
            Method::Library(_) => {
                let (from, to) = (problem.from() as u64, problem.to() as u64);
                (product(&[from, block, size]), product(&[to, block, size]), product(&[parts]))
            }
        };
        [moved, sums, partial, streams]
    }

    /// Whether sums of parts are kept apart and added up by another kernel.
    pub(super) fn has_partial_sums(&self, problem: &Problem) -> bool {
        match self.method {
            // A half that is added to strip by strip would be rounded as often.
            Method::Strips => self.parts > 1 || (problem.is_half() && problem.strips() > 1),
            // Others are added to the result by atomics.
            Method::StripsScatter => self.parts > 1 && problem.is_half(),
            Method::StripsOrdered | Method::RowsOrdered => self.parts > 1,
            _ => false,
        }
    }

    pub(super) fn workspace(&self, problem: &Problem) -> u64 {
        self.bytes(problem).iter().fold(0, |all, &bytes| all.saturating_add(bytes))
    }

    /// Where the parts of its workspace begin.
    pub(super) fn space(&self, problem: &Problem, begin: u64) -> Space {
        let [moved, sums, partial, _] = self.bytes(problem);
        Space {
            moved: begin,
            sums: begin + moved,
            partial: begin + moved + sums,
            chunks: begin + moved + sums + partial,
        }
    }
}

/// Parts of a workspace begin at multiples of this.
const ALIGN: u64 = 256;

/// Addresses of the parts of a workspace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) moved: u64,
    pub(super) sums: u64,
    pub(super) partial: u64,
    pub(super) chunks: u64,
}

/// Bytes of the type in which elements are added up.
pub(super) fn sum_size(dtype: DType) -> usize {
    dtype.size().max(4)
}

/// A product in terms of the matrix that is read for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub(super) dtype: DType,
    /// Whether it goes from rows to columns.
    pub(super) scatters: bool,
    pub(super) layout: DenseLayout,
    pub(super) width: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) nnz: usize,
    pub(super) stored: StoredSpec,
    /// Whether the values lie row by row though the matrix does not.
    pub(super) apart: bool,
    pub(super) accumulate: bool,
}

impl Problem {
    pub(super) fn new(spec: &SparseSpec, dtype: DType, by_transpose: bool) -> Problem {
        let transpose = spec.transpose.filter(|_| by_transpose);
        let (rows, cols) = match transpose {
            Some(_) => (spec.cols, spec.rows),
            None => (spec.rows, spec.cols),
        };
        let stored = transpose.unwrap_or(spec.stored);
        let tiled = matches!(stored.form, Form::Tiled { .. });
        Problem {
            dtype,
            scatters: spec.product == SparseProduct::Transposed && transpose.is_none(),
            layout: if spec.width == 1 { DenseLayout::Rows } else { spec.layout },
            width: spec.width,
            rows,
            cols,
            nnz: spec.nnz,
            stored,
            apart: spec.values_apart && tiled,
            accumulate: spec.accumulate,
        }
    }

    pub(super) fn is_half(&self) -> bool {
        self.dtype.size() < 4
    }

    /// Length of a vector that is read.
    pub(super) fn from(&self) -> usize {
        if self.scatters { self.rows } else { self.cols }
    }

    /// Length of a vector of the result.
    pub(super) fn to(&self) -> usize {
        if self.scatters { self.cols } else { self.rows }
    }

    pub(super) fn strips(&self) -> usize {
        match self.stored.form {
            Form::Tiled { strip } => tiled::strips(self.cols, strip),
            _ => 0,
        }
    }

    /// Whether there are several vectors, each contiguous.
    pub(super) fn vectors_apart(&self) -> bool {
        self.layout == DenseLayout::Rows && self.width > 1
    }

    /// Where vector `index` of a dense side begins.
    pub(super) fn vector(&self, side: Side, address: u64, index: usize) -> u64 {
        address + index as u64 * side.apart * self.dtype.size() as u64
    }

    /// How a dense side of vectors of `length` elements lies.
    pub(super) fn side(&self, length: usize) -> Side {
        match self.layout {
            DenseLayout::Rows => Side { step: 1, apart: length as u64 },
            DenseLayout::Columns => Side { step: self.width as u64, apart: 1 },
        }
    }
}

/// Element (index, vector) is at `index·step + vector·apart`: `Side` of `kernels/sparse.cuh`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Side {
    pub(super) step: u64,
    pub(super) apart: u64,
}

/// How many neighbouring vectors a lane takes at once where `side by side` ones have `ld` elements
/// between them, and how many lanes share the vectors.
pub(super) fn lanes(dtype: DType, ld: usize, vectors: usize, addresses: &[u64]) -> (usize, usize) {
    let most = (16 / sum_size(dtype)).min(4);
    let fits = |&v: &usize| {
        v <= most
            && ld.is_multiple_of(v)
            && vectors.is_multiple_of(v)
            && addresses.iter().all(|address| address.is_multiple_of((v * sum_size(dtype)) as u64))
    };
    let each = [4, 2].into_iter().find(fits).unwrap_or(1);
    (each, vectors.div_ceil(each).clamp(1, 32).next_power_of_two())
}

/// Of kernels for one, two and four neighbouring vectors the one for `each`.
pub(super) fn by_width([one, two, four]: [Kernel; 3], each: usize) -> Kernel {
    match each {
        4 => four,
        2 => two,
        _ => one,
    }
}
