//! Which of NVIDIA's libraries are on this machine. They are looked for once, at run time; one that
//! is missing, too old, or lacks a function that is called here counts as absent, so that nothing
//! later can trip over it.

use cudarc::{cublas, cudnn, cusparse, driver};
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
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuMemGetInfo_v2",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAttribute",
    "cuMemPoolGetAttribute",
    "cuMemPoolTrimTo",
    "cuMemPoolSetAccess",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuFuncSetAttribute",
    "cuStreamWaitEvent",
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

const CUSPARSE: &[&str] = &[
    "cusparseCreate",
    "cusparseGetVersion",
    "cusparseSetStream",
    "cusparseSetPointerMode",
    "cusparseCreateConstCsr",
    "cusparseDestroySpMat",
    "cusparseCreateDnVec",
    "cusparseDestroyDnVec",
    "cusparseCreateDnMat",
    "cusparseDestroyDnMat",
    "cusparseSpMV_bufferSize",
    "cusparseSpMV",
    "cusparseSpMM_bufferSize",
    "cusparseSpMM",
];

/// Whether the driver is there and answers, or why not.
pub(super) fn driver() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let find = || {
        // SAFETY: opening the driver's library runs its initialisers, as any program that uses it
        // does.
        if !unsafe { driver::sys::is_culib_present() } {
            // SAFETY: as above; it is asked again for what the loader says.
            let why = unsafe { Library::new("libcuda.so.1") }.err().map(said);
            return Err(format!("no CUDA driver was found ({})", why.unwrap_or_default()));
        }
        // SAFETY: the library is there, as was just seen.
        missing(unsafe { driver::sys::culib() }, DRIVER).map_or(Ok(()), |name| {
            Err(format!("libcuda.so is too old or no driver: it has no {name}"))
        })?;
        driver::result::init()
            .map_err(|error| format!("the CUDA driver does not start: {:?}", error.0))
    };
    FOUND.get_or_init(find).clone()
}

/// Whether cuBLAS can be used, or why not.
pub(super) fn cublas() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let look = || {
        // SAFETY: as for the driver.
        find(&["libcublasLt.so", "libcublas.so"], || unsafe { cublas::sys::is_culib_present() })?;
        // SAFETY: the library is there, as was just seen.
        lacks(missing(unsafe { cublas::sys::culib() }, CUBLAS))
    };
    FOUND.get_or_init(look).clone()
}

/// The version of cuDNN (90100 is 9.1.0), 9 or later, or why it cannot be used.
pub(super) fn cudnn() -> Result<usize, String> {
    static FOUND: OnceLock<Result<usize, String>> = OnceLock::new();
    let look = || {
        // SAFETY: as for the driver.
        find(&["libcudnn.so"], || unsafe { cudnn::sys::is_culib_present() })?;
        // SAFETY: the library is there, as was just seen.
        lacks(missing(unsafe { cudnn::sys::culib() }, CUDNN))?;
        // SAFETY: the library and the function are there, as was just seen.
        let version = unsafe { cudnn::sys::cudnnGetVersion() };
        if version < 90000 {
            return Err(format!("version {version} was found; 9 or later is needed"));
        }
        Ok(version)
    };
    FOUND.get_or_init(look).clone()
}

/// Whether cuSPARSE can be used, or why not.
pub(super) fn cusparse() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let look = || {
        // The library links itself to the first, which may lie in a folder that the loader does not
        // know.
        let names = ["libnvJitLink.so", "libcusparse.so"];
        // SAFETY: as for the driver.
        find(&names, || unsafe { cusparse::sys::is_culib_present() })?;
        // SAFETY: the library is there, as was just seen.
        lacks(missing(unsafe { cusparse::sys::culib() }, CUSPARSE))
    };
    FOUND.get_or_init(look).clone()
}

/// NCCL's library, or why it cannot be used.
#[cfg(feature = "nccl")]
pub(super) fn nccl() -> Result<&'static Library, String> {
    static FOUND: OnceLock<Result<Library, String>> = OnceLock::new();
    let look = || {
        // What the folders had is known by the first of these names from then on.
        let names = ["libnccl.so.2", "libnccl.so"];
        // SAFETY: as for the driver.
        let open = || names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
        find(&["libnccl.so"], || open().is_some())?;
        open().ok_or_else(|| "libnccl.so.2 was there and is gone".to_owned())
    };
    FOUND.get_or_init(look).as_ref().map_err(Clone::clone)
}

fn lacks(name: Option<&str>) -> Result<(), String> {
    name.map_or(Ok(()), |name| Err(format!("the library that was found has no {name}")))
}

/// Makes a library's files known to the loader: those of the folders that the caller names first,
/// then what the loader finds by itself, then those of the usual folders.
fn find(names: &[&str], present: impl Fn() -> bool) -> Result<(), String> {
    let mut failures = open_from(&named_folders(), names);
    if present() {
        return Ok(());
    }
    failures.extend(open_from(&usual_folders(), names));
    if present() {
        return Ok(());
    }
    let file = names.last().copied().unwrap_or_default();
    let failures = failures.join("; ");
    let why = if failures.is_empty() { String::new() } else { format!(" ({failures})") };
    Err(format!("{file} was not found; {FOLDERS} can name its folder{why}"))
}

/// What the loader said: it names the file.
fn said(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn missing(library: &Library, names: &'static [&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| {
        // SAFETY: the symbol is only looked for, not used.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
    })
}

/// Opens libraries, each from the first folder that has a usable one; once a file is open, a request
/// for its name finds it. Says what could not be opened.
fn open_from(folders: &[PathBuf], names: &[&str]) -> Vec<String> {
    let mut failures = Vec::new();
    for name in names {
        for file in folders.iter().filter_map(|folder| newest(folder, name)) {
            // SAFETY: as for the driver. The handle is leaked: the library stays.
            match unsafe { Library::new(&file) } {
                Ok(library) => {
                    std::mem::forget(library);
                    break;
                }
                Err(error) => failures.push(said(error)),
            }
        }
    }
    failures
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

/// The folders that the caller names.
fn named_folders() -> Vec<PathBuf> {
    std::env::var_os(FOLDERS).map_or(Vec::new(), |list| std::env::split_paths(&list).collect())
}

/// Where the libraries may lie beside the loader's own places: in the wheels of the Python environment
/// in force or of the user, and in the toolkit.
fn usual_folders() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(|name| std::env::var_os(name).map(PathBuf::from))
        .collect();
    // The `python3` that would run here.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).find(|folder| folder.join("python3").exists());
    roots.extend(python.as_deref().and_then(Path::parent).map(Path::to_path_buf));
    roots.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    let mut found = Vec::new();
    for lib in roots.iter().flat_map(|root| [root.join("lib"), root.join("lib64")]) {
        for python in children(&lib, "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let wheels = children(&python.join(packages).join("nvidia"), "");
                found.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
            }
        }
    }
    found.extend(["/usr/local/cuda/lib64", "/usr/local/cuda/lib"].map(PathBuf::from));
    found
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
