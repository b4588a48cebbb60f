//! What can go wrong, one variant a cause, with the numbers inside.

use crate::dtype::DType;
use crate::memory::{ByPurpose, Purpose};
use crate::shape::Shape;

/// The result of every fallible call of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation was refused.
///
/// Whatever fails leaves tensors, parameters, optimiser state and the meter as they were.
///
/// ```
/// use capgrad::{DType, Device, Error, Tensor};
/// let device = Device::cpu();
/// let error = Tensor::from_vec(vec![1.0f32; 5], [2, 3], &device).unwrap_err();
/// assert!(matches!(error, Error::Length { expected: 6, got: 5, .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes that do not go together.
    #[error("{op}: {reason} (shapes {})", list(shapes))]
    Shape {
        /// The operation that was asked for.
        op: &'static str,
        /// The shapes of its operands, in order.
        shapes: Vec<Shape>,
        /// What is wrong with them, and what would be right.
        reason: String,
    },
    /// Data whose length is not what the shape says.
    #[error("{op}: shape {shape} holds {expected} elements, but {got} were given")]
    Length {
        /// The operation that was asked for.
        op: &'static str,
        /// The shape that was asked for.
        shape: Shape,
        /// Elements that the shape holds.
        expected: usize,
        /// Elements that were given.
        got: usize,
    },
    /// A dtype that the operation does not take.
    #[error("{op}: dtype {got} is not supported here, expected {expected}")]
    DType {
        /// The operation that was asked for.
        op: &'static str,
        /// The dtype that was given.
        got: DType,
        /// What the operation takes.
        expected: &'static str,
    },
    /// Two operands of different dtypes.
    #[error("{op}: operands have dtypes {left} and {right}; convert one with `to_dtype`")]
    DTypeMismatch {
        /// The operation that was asked for.
        op: &'static str,
        /// The first operand's dtype.
        left: DType,
        /// The other operand's dtype.
        right: DType,
    },
    /// Two operands on different devices.
    #[error("{op}: operands are on {left} and on {right}; {}", together(left, right))]
    DeviceMismatch {
        /// The operation that was asked for.
        op: &'static str,
        /// The first operand's device.
        left: String,
        /// The other operand's device.
        right: String,
    },
    /// A convolution or pooling window longer than the padded input.
    #[error(
        "{op}: a kernel of {kernel} taps with dilation {dilation} spans {span}, more than the \
         padded input of length {padded_length}; pad more or use a shorter kernel"
    )]
    KernelTooLong {
        /// The operation that was asked for.
        op: &'static str,
        /// Taps of the kernel.
        kernel: usize,
        /// Distance between taps.
        dilation: usize,
        /// `dilation · (kernel - 1) + 1`.
        span: usize,
        /// Length of the input with its padding.
        padded_length: usize,
    },
    /// An argument outside its range.
    #[error("{op}: {argument} = {value}: {reason}")]
    Argument {
        /// The operation that was asked for.
        op: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// What was given.
        value: String,
        /// What it must be.
        reason: String,
    },
    /// A size that cannot be represented.
    #[error(
        "{op}: a tensor of shape {shape} and dtype {dtype} has more bytes than can be addressed"
    )]
    TooLarge {
        /// The operation that was asked for.
        op: &'static str,
        /// The shape that was asked for.
        shape: Shape,
        /// The dtype that was asked for.
        dtype: DType,
    },
    /// No candidate fits the workspace cap.
    #[error(
        "{op}: no algorithm fits the workspace cap of {cap} bytes; the smallest needs {smallest} \
         bytes: raise the cap to that"
    )]
    WorkspaceCap {
        /// The operation that was asked for.
        op: &'static str,
        /// The cap in force, in bytes.
        cap: u64,
        /// The smallest workspace that any candidate needs, in bytes.
        smallest: u64,
    },
    /// A request that would take a device over its memory limit.
    #[error(
        "{op} on {device}: {requested} bytes of {purpose} memory were asked for, with {live} bytes live \
         under a limit of {limit} bytes ({} bytes too many); alive: {}; {}",
        (*live).saturating_add(*requested).saturating_sub(*limit),
        alive.listed(),
        advice(*purpose, alive)
    )]
    MemoryLimit {
        /// The device's name.
        device: String,
        /// The operation that asked.
        op: &'static str,
        /// What the memory was for.
        purpose: Purpose,
        /// Bytes asked for.
        requested: u64,
        /// Bytes that were live.
        live: u64,
        /// Those bytes by purpose.
        alive: Box<ByPurpose>,
        /// The tightest limit in force, in bytes.
        limit: u64,
    },
    /// A fault that was asked for with [`Device::inject_fault`](crate::Device::inject_fault).
    #[error("{op} on {device}: {what} failed, as `inject_fault` asked")]
    Injected {
        /// The device's name.
        device: String,
        /// The operation that met it.
        op: &'static str,
        /// What failed.
        what: &'static str,
    },
    /// The machine itself has no more memory.
    #[error("{device}: the system refused {requested} bytes; set a memory limit below what it has")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Bytes asked for.
        requested: u64,
    },
    /// A call of a device's driver or library that failed.
    #[error("{call} failed with {status}; if a kernel has failed, start the process again")]
    Driver {
        /// The call, or the kernel.
        call: String,
        /// What it returned.
        status: String,
    },
    /// Every candidate was tried and failed.
    #[error("{op}: every algorithm within the cap failed; the last one said: {last}")]
    NoCandidate {
        /// The operation that was asked for.
        op: &'static str,
        /// The last one's error.
        last: String,
    },
    /// Arrays that do not describe a sparse matrix.
    #[error("sparse matrix: {0}")]
    Sparse(#[from] crate::sparse::BuildError),
    /// A device that is not there.
    #[error("device {device} is not available: {reason}")]
    DeviceNotAvailable {
        /// What was asked for.
        device: String,
        /// Why it cannot be had.
        reason: String,
    },
    /// A gradient was asked of a value that no tape has recorded.
    #[error(
        "{op}: this value is not recorded: put the data on a tape (`Tape::constant`, or \
         `Tape::variable` for its gradient), stay outside `no_grad`, and keep the tape alive until \
         `backward`"
    )]
    NotRecorded {
        /// The operation that was asked for.
        op: &'static str,
    },
    /// Operands of one operation recorded on two tapes.
    #[error("{op}: operands are recorded on two different tapes; `detach` one of them")]
    TapeMismatch {
        /// The operation that was asked for.
        op: &'static str,
    },
    /// A graph that an earlier `backward` has already taken.
    #[error(
        "backward: the graph was already taken by an earlier backward (at `{op}`); use \
         `backward_retained` for the earlier one"
    )]
    GraphTaken {
        /// The recorded operation at which this was found.
        op: &'static str,
    },
    /// A saved tensor was changed between forward and backward.
    #[error(
        "backward of {op}: a tensor that it saved has been changed in place since the forward \
         pass (by an optimiser step, say); run the forward pass again"
    )]
    SavedValueChanged {
        /// The recorded operation.
        op: &'static str,
    },
    /// Analytic and numeric gradients differ.
    #[error(
        "gradient check: input {input}, element {element}: backward gives {analytic}, finite \
         differences give {numeric}"
    )]
    GradientMismatch {
        /// Which input.
        input: usize,
        /// Which element of it, in row-major order.
        element: usize,
        /// What `backward` gave.
        analytic: f64,
        /// What central differences gave.
        numeric: f64,
    },
    /// Reading or writing a file failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Ranks of a run that did not come together, or one that died or failed.
    #[error("{op} on rank {rank} of {world_size}: {reason}")]
    Communication {
        /// The operation that was asked for.
        op: &'static str,
        /// This process's rank.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
        /// What happened, and to whom.
        reason: String,
    },
    /// An error raised by a user's own operation.
    #[error("{op}: {source}")]
    Custom {
        /// The operation's name.
        op: String,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// An error of a user's own operation.
    ///
    /// ```
    /// let error = capgrad::Error::custom("ray transform", "the grid is empty");
    /// assert_eq!(error.to_string(), "ray transform: the grid is empty");
    /// ```
    pub fn custom(
        op: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error::Custom { op: op.into(), source: source.into() }
    }

    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn driver(call: impl Into<String>, status: impl Into<String>) -> Self {
        Error::Driver { call: call.into(), status: status.into() }
    }

    pub(crate) fn communication(
        op: &'static str,
        rank: usize,
        world_size: usize,
        reason: impl Into<String>,
    ) -> Self {
        Error::Communication { op, rank, world_size, reason: reason.into() }
    }

    pub(crate) fn shape(op: &'static str, shapes: &[&Shape], reason: impl Into<String>) -> Self {
        Error::Shape {
            op,
            shapes: shapes.iter().map(|s| (*s).clone()).collect(),
            reason: reason.into(),
        }
    }

    pub(crate) fn argument(
        op: &'static str,
        argument: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> Self {
        Error::Argument { op, argument, value: value.to_string(), reason: reason.into() }
    }
}

/// How operands of two devices come together.
fn together(left: &str, right: &str) -> &'static str {
    if left.starts_with("dry ") || right.starts_with("dry ") {
        "make model, optimiser and data within the step, on the dry device that it is given"
    } else {
        "move one with `to`"
    }
}

/// What would make room, by what was asked for and by what there is most of.
fn advice(purpose: Purpose, alive: &ByPurpose) -> &'static str {
    let most = Purpose::ALL.into_iter().max_by_key(|&purpose| alive[purpose]);
    match (purpose, most) {
        _ if alive.total() == 0 => "raise the limit, or use a smaller batch",
        (Purpose::Workspace, _) => "lower the workspace cap: an algorithm with less runs then",
        (Purpose::Sparse, _) => {
            "raise the limit, or move the matrix with `SparseForm::Streamed` or without \
             `StoredTranspose::Always`"
        }
        (_, Some(Purpose::Activation)) => {
            "use `checkpoint`, a smaller batch (`max_batch` finds the largest), or raise the limit"
        }
        (_, Some(Purpose::Sparse)) => {
            "move the matrix with `SparseForm::Streamed`, to another device, or raise the limit"
        }
        (_, Some(Purpose::Workspace)) => "lower the workspace cap, or raise the limit",
        _ => {
            "raise the limit, lower the workspace cap, use `checkpoint`, or a smaller batch \
             (`max_batch` finds the largest)"
        }
    }
}

fn list(shapes: &[Shape]) -> String {
    shapes.iter().map(Shape::to_string).collect::<Vec<_>>().join(" and ")
}
