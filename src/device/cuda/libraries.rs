//! Which of NVIDIA's libraries are on this machine. They are looked for once, at run time; one that
//! is missing, too old, or lacks a function that is called here counts as absent, so that nothing
//! later can trip over it.

use cudarc::{cublas, cudnn, driver};
use libloading::Library;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Folders to look in first, separated like `PATH`.
const FOLDERS: &str = "CAPGRAD_CUDA_LIBRARY_PATH";

/// The functions of the driver that are called; drivers from 11.2 on have them.
const DRIVER: &[&str] = &[
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAttribute",
    "cuMemPoolGetAttribute",
    "cuMemPoolTrimTo",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuGetErrorName",
    "cuGetErrorString",
];

const CUBLAS: &[&str] = &[
    "cublasCreate_v2",
    "cublasSetStream_v2",
    "cublasSetWorkspace_v2",
    "cublasSetMathMode",
    "cublasGemmStridedBatchedEx",
    "cublasGetVersion_v2",
];

const CUDNN: &[&str] = &[
    "cudnnGetVersion",
    "cudnnCreate",
    "cudnnSetStream",
    "cudnnCreateTensorDescriptor",
    "cudnnSetTensor4dDescriptorEx",
    "cudnnDestroyTensorDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnSetFilter4dDescriptor",
    "cudnnDestroyFilterDescriptor",
    "cudnnCreateConvolutionDescriptor",
    "cudnnSetConvolution2dDescriptor",
    "cudnnSetConvolutionMathType",
    "cudnnSetConvolutionGroupCount",
    "cudnnDestroyConvolutionDescriptor",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnConvolutionForward",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
];

/// Whether the driver is there and answers, or why not.
pub(super) fn driver() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let find = || {
        // SAFETY: opening the driver's library runs its initialisers, as any program that uses it
        // does.
        if !unsafe { driver::sys::is_culib_present() } {
            return Err("no CUDA driver was found (libcuda.so)".to_owned());
        }
        // SAFETY: the library is there, as was just seen.
        missing(unsafe { driver::sys::culib() }, DRIVER)
            .map_or(Ok(()), |name| Err(format!("the CUDA driver is too old: it has no {name}")))?;
        driver::result::init().map_err(|error| format!("the CUDA driver does not start: {error:?}"))
    };
    FOUND.get_or_init(find).clone()
}

/// Whether cuBLAS can be used.
pub(super) fn cublas() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        open_from_folders(&["libcublasLt.so", "libcublas.so"]);
        // SAFETY: as for the driver.
        unsafe {
            cublas::sys::is_culib_present() && missing(cublas::sys::culib(), CUBLAS).is_none()
        }
    })
}

/// Whether cuDNN 9 or later can be used.
pub(super) fn cudnn() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        open_from_folders(&["libcudnn.so"]);
        // SAFETY: as for the driver.
        let found = unsafe {
            cudnn::sys::is_culib_present() && missing(cudnn::sys::culib(), CUDNN).is_none()
        };
        // SAFETY: the library and the function are there, as was just seen.
        found && unsafe { cudnn::sys::cudnnGetVersion() } >= 90000
    })
}

fn missing(library: &Library, names: &'static [&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| {
        // SAFETY: the symbol is only looked for, not used.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
    })
}

/// Opens libraries from the folders of Python wheels and toolkits, where the loader does not look.
/// Once one is open, a request for its name finds it.
fn open_from_folders(names: &[&str]) {
    for name in names {
        let file = folders().iter().find_map(|folder| newest(folder, name));
        // SAFETY: as for the driver. The handle is leaked: the library stays.
        if let Some(library) = file.and_then(|file| unsafe { Library::new(file) }.ok()) {
            std::mem::forget(library);
        }
    }
}

/// The file `name.N` with the largest N, or `name` itself.
fn newest(folder: &Path, name: &str) -> Option<PathBuf> {
    let version = |path: &Path| -> Option<u32> {
        let rest = path.file_name()?.to_str()?.strip_prefix(name)?;
        if rest.is_empty() { Some(0) } else { rest.strip_prefix('.')?.parse().ok() }
    };
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|path| version(path).is_some()).max_by_key(|path| version(path))
}

/// Where the libraries may lie: the folders that the caller names, those of the Python environment
/// in force, and the toolkit's.
fn folders() -> &'static [PathBuf] {
    static FOLDERS_FOUND: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS_FOUND.get_or_init(|| {
        let mut found: Vec<PathBuf> = match std::env::var_os(FOLDERS) {
            Some(list) => std::env::split_paths(&list).collect(),
            None => Vec::new(),
        };
        let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .iter()
            .filter_map(|name| std::env::var_os(name).map(PathBuf::from))
            .collect();
        // The `python3` that would run here, which may be a link into its environment.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let python = std::env::split_paths(&path).find(|folder| folder.join("python3").exists());
        roots.extend(python.as_deref().and_then(Path::parent).map(Path::to_path_buf));
        for root in roots {
            for lib in children(&root.join("lib"), "python3") {
                let wheels = lib.join("site-packages").join("nvidia");
                found.extend(children(&wheels, "").into_iter().map(|wheel| wheel.join("lib")));
            }
        }
        found.extend(["/usr/local/cuda/lib64", "/usr/local/cuda/lib"].map(PathBuf::from));
        found
    })
}

/// The folders in `folder` whose names begin so, the last first: of two versions the newer.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let begins =
        |name: Option<&OsStr>| name.is_some_and(|n| n.to_string_lossy().starts_with(prefix));
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir() && begins(path.file_name()))
        .collect();
    found.sort();
    found.reverse();
    found
}
