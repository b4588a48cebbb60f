//! What a caller can choose about a device.

/// Options of a new CPU device.
///
/// ```
/// use capgrad::{CpuOptions, Device};
/// # fn main() -> capgrad::Result<()> {
/// let one_thread = Device::new_cpu(CpuOptions { threads: Some(1), ..Default::default() })?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads that compute; `None` shares the process-wide rayon pool, one thread a core.
    pub threads: Option<usize>,
    /// Fills new memory with NaN patterns before it is handed out, so that a result that was not
    /// written shows. For tests: it costs time.
    pub poison: bool,
}

/// Options of a new CUDA device.
///
/// ```
/// use capgrad::{CudaOptions, Device};
/// // An `Err` where there is no GPU.
/// let device = Device::new_cuda(0, CudaOptions { poison: true, ..Default::default() });
/// ```
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Fills new memory with NaN patterns before it is handed out, so that a result that was not
    /// written shows. For tests: it costs time.
    pub poison: bool,
    /// Most bytes of shared memory that a block of a kernel takes; the chip's own if left out. Column
    /// strips of sparse matrices are as wide as it allows. For tests, which try what smaller chips
    /// have.
    pub shared_per_block: Option<usize>,
    /// Leaves cuBLAS, cuDNN and cuSPARSE out, as on a machine without them: all is computed by this
    /// crate's own kernels. Those of dense operations are deterministic, need no workspace, and add up
    /// long sums in short stretches; large products are many times slower. Sparse products may add up by
    /// atomics and take workspace up to the cap, as with the libraries.
    pub kernels_only: bool,
    /// Copies from other CUDA devices come by way of pinned memory of the host, as they do where two
    /// GPUs do not reach each other. For tests.
    pub through_host: bool,
}

/// How candidates within the cap are ranked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ranking {
    /// By the time that a model predicts.
    #[default]
    Predicted,
    /// By the time of a few runs when a shape comes for the first time; the answer is kept. Those that the
    /// model predicts to take 8 times as long as another are not run.
    Measured,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) cap: Option<u64>,
    pub(super) ranking: Ranking,
    pub(super) deterministic: bool,
    pub(super) allow_tf32: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cap: Some(super::DEFAULT_WORKSPACE_CAP),
            ranking: Ranking::default(),
            deterministic: false,
            allow_tf32: false,
        }
    }
}
