//! What is to be done, in words that every device understands: the geometry of a convolution, the
//! kinds of elementwise function, and so on. Arguments have been checked before one of these exists.

/// The sizes of one 1-d convolution: `x [batch, in_channels, in_length]`,
/// `w [out_channels, in_channels/groups, kernel]`, `y [batch, out_channels, out_length]`, where
/// `y[n,o,l] = Σ w[o,c,k] · x[n, c + group(o)·in_channels/groups, l·stride + k·dilation - pad_left]`
/// and what lies outside `x` is zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConvGeometry {
    /// Samples, N.
    pub batch: usize,
    /// Channels of `x`, a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of `y`, a multiple of `groups`.
    pub out_channels: usize,
    /// Length of `x`.
    pub in_length: usize,
    /// Length of `y`.
    pub out_length: usize,
    /// Kernel taps, K.
    pub kernel: usize,
    /// Step of the window along `x`.
    pub stride: usize,
    /// Distance between taps along `x`.
    pub dilation: usize,
    /// Independent groups of channels.
    pub groups: usize,
    /// Zeros before `x`.
    pub pad_left: usize,
    /// Zeros after `x`.
    pub pad_right: usize,
}

/// The three products that a convolution and its gradients consist of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConvPass {
    /// `y` from `x` and `w` (and a bias).
    Forward,
    /// `dx` from `dy` and `w`.
    InputGradient,
    /// `dw` from `x` and `dy`.
    WeightGradient,
}

impl ConvPass {
    /// All three, in the order in which a step runs them.
    pub const ALL: [ConvPass; 3] =
        [ConvPass::Forward, ConvPass::WeightGradient, ConvPass::InputGradient];

    /// The name that a plan prints.
    pub const fn name(self) -> &'static str {
        match self {
            ConvPass::Forward => "forward",
            ConvPass::InputGradient => "input gradient",
            ConvPass::WeightGradient => "weight gradient",
        }
    }
}

/// An elementwise function of one operand. Parameters are in the function, so that one method of a
/// device serves them all.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Unary {
    /// `a·x + b`; also negation and the forms with one scalar operand.
    Affine(f64, f64),
    /// `a / x`.
    Reciprocal(f64),
    /// `x²`.
    Square,
    /// `√x`; saves its result.
    Sqrt,
    /// `eˣ`; saves its result.
    Exp,
    /// `ln x`.
    Ln,
    /// `max(x, 0)`; saves its result.
    Relu,
    /// `x` where positive, else `slope·x`.
    LeakyRelu(f64),
    /// `x/2·(1 + erf(x/√2))`, Hendrycks and Gimpel 2016.
    Gelu,
    /// `x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`, the same paper's approximation.
    GeluTanh,
    /// `x·sigmoid(x)`.
    Silu,
    /// `1/(1 + e⁻ˣ)`; saves its result.
    Sigmoid,
    /// `tanh x`; saves its result.
    Tanh,
    /// `x` limited to an interval; the gradient is 1 inside and on its ends.
    Clamp(f64, f64),
    /// `|x|`; the gradient at 0 is 0.
    Abs,
}

impl Unary {
    /// Whether the gradient is taken from the result and not from the operand.
    pub const fn saves_result(self) -> bool {
        matches!(self, Unary::Sqrt | Unary::Exp | Unary::Relu | Unary::Sigmoid | Unary::Tanh)
    }
}

/// An elementwise function of two operands, which broadcast.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
    /// `(a - b)²`.
    SquaredError,
    /// `|a - b|`; the gradient where they are equal is 0.
    AbsoluteError,
    /// `½d²` for `|d| ≤ δ`, else `δ(|d| - ½δ)`, with `d = a - b` (Huber 1964).
    Huber(f64),
    /// `max(a, 0) - a·b + ln(1 + e^-|a|)`: binary cross-entropy of the logit `a` and the target `b`.
    BceWithLogits,
}

/// A comparison; its result is i32, 1 where it holds and 0 elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// `a = b`.
    Equal,
    /// `a ≠ b`.
    NotEqual,
    /// `a < b`.
    Less,
    /// `a ≤ b`.
    LessOrEqual,
    /// `a > b`.
    Greater,
    /// `a ≥ b`.
    GreaterOrEqual,
}

/// Which operand of a two-operand function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The first.
    Left,
    /// The second.
    Right,
}

/// A distribution that tensors are filled from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    /// Uniform on `[low, high)`.
    Uniform(f64, f64),
    /// Normal with mean and standard deviation.
    Normal(f64, f64),
}

/// A window that slides along the last axis of `[rows, in_length]`, for pooling.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolGeometry {
    /// Batch times channels.
    pub rows: usize,
    /// Length of the input.
    pub in_length: usize,
    /// Length of the output.
    pub out_length: usize,
    /// Width of the window.
    pub kernel: usize,
    /// Step of the window.
    pub stride: usize,
    /// Padding on both sides: never the maximum; for the average it counts as zeros.
    pub padding: usize,
}

/// What a pooling window yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pool {
    /// The largest element (the first of equals), NaN if there is one.
    Max,
    /// The sum over the window divided by its width, padding counted as zeros.
    Average,
}

/// A strided window onto a contiguous tensor: element `(i, j, …)` of the window is element
/// `offset + i·strides[0] + j·strides[1] + …` of the tensor.
#[derive(Clone, Debug)]
pub struct Window {
    /// Offset of the window's first element.
    pub offset: usize,
    /// Stride along each axis of the window, in elements.
    pub strides: smallvec::SmallVec<[usize; 4]>,
}

/// How one operand of a matrix product lies in memory: element `(batch, row, column)` is at
/// `batch·strides.0 + row·strides.1 + column·strides.2`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Strided {
    /// Distance between matrices; 0 repeats one.
    pub batch: usize,
    /// Distance between rows.
    pub row: usize,
    /// Distance between columns.
    pub col: usize,
}

/// `out[b, i, j] (+)= Σ_p a[b, i, p] · b[b, p, j]`, `out` row-major and contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GemmSpec {
    /// Number of matrices.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Layout of the first operand, `[m, k]`.
    pub a: Strided,
    /// Layout of the second operand, `[k, n]`.
    pub b: Strided,
}

/// A product with a sparse matrix `A [rows, cols]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SparseProduct {
    /// `A · X`.
    Forward,
    /// `Aᵀ · G`.
    Transposed,
    /// `Σ_j G[row, j] · X[col, j]` at every stored entry: the gradient for the values.
    Sampled,
}

/// How the dense side of a sparse product lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DenseLayout {
    /// `[k, width]`, a vector a column: `matmul`.
    Columns,
    /// `[width, k]`, a vector a row: `apply`.
    Rows,
}

/// How the entries of a sparse matrix are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Compressed rows: offsets, 32-bit columns, values.
    Csr,
    /// Column strips of so many columns, each compressed rows of its own whose columns are 16-bit
    /// numbers counted from the strip's first: `sparse::tiled`.
    Tiled {
        /// Columns of a strip.
        strip: usize,
    },
    /// Compressed rows in the host's pinned memory, from where products copy them in chunks.
    Streamed,
}

/// One stored matrix, as the planner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoredSpec {
    /// How its entries are kept.
    pub form: Form,
    /// Entries of its longest row.
    pub longest: usize,
    /// Rows that have entries.
    pub filled: usize,
    /// Share of the entries (of 65,535) whose group of eight neighbouring columns has no other among
    /// the 4,096 entries around them: small where the rows nearby have entries at the same places.
    pub fresh_groups: u16,
    /// The same for the columns themselves.
    pub fresh_columns: u16,
}

/// One sparse product, as the planner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SparseSpec {
    /// Which product.
    pub product: SparseProduct,
    /// Layout of the dense operands and of a dense result.
    pub layout: DenseLayout,
    /// Number of vectors on the dense side.
    pub width: usize,
    /// Rows of A.
    pub rows: usize,
    /// Columns of A.
    pub cols: usize,
    /// Stored entries of A.
    pub nnz: usize,
    /// A as it is stored.
    pub stored: StoredSpec,
    /// The transposed copy of A that is resident too, if one is.
    pub transpose: Option<StoredSpec>,
    /// Whether the values are given apart from the matrix, row by row, whatever its form.
    pub values_apart: bool,
    /// Whether the product is added to what the result holds.
    pub accumulate: bool,
}

/// One optimiser update of one parameter, in place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Update {
    /// `v ← momentum·v + g + decay·p; p ← p - rate·(v or, with Nesterov, g + momentum·v)`.
    Sgd {
        /// Learning rate.
        rate: f64,
        /// Momentum; 0 needs no state.
        momentum: f64,
        /// Weight decay, added to the gradient.
        decay: f64,
        /// Nesterov's form of the momentum.
        nesterov: bool,
    },
    /// Adam (Kingma and Ba 2015), or AdamW (Loshchilov and Hutter 2019) when `decoupled`.
    Adam {
        /// Learning rate.
        rate: f64,
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// Weight decay.
        decay: f64,
        /// Whether the decay acts on the parameter and not on the gradient.
        decoupled: bool,
        /// `1 - beta1^t`.
        correction1: f64,
        /// `1 - beta2^t`.
        correction2: f64,
    },
}
