//! One physical GPU, shared by all the devices of this process that compute on it: its context, what
//! it can do, the kernels loaded on it, and the libraries' handles.

#[cfg(test)]
mod tests;

use super::cublas::Cublas;
use super::cudnn::Cudnn;
use super::cusparse::Cusparse;
use super::error::{Check, unavailable};
use super::kernels::{Family, Kernel};
use super::libraries;
use crate::error::{Error, Result};
use cudarc::driver::{result, sys};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A GPU and everything of it that is shared.
pub(super) struct Gpu {
    context: sys::CUcontext,
    pub(super) properties: Properties,
    /// The chip and the libraries, for people.
    pub(super) description: String,
    modules: Mutex<HashMap<(Family, &'static str), Module>>,
    functions: Mutex<HashMap<(Kernel, &'static str), Function>>,
    /// The library's handle, with a lock that whoever enqueues work through it holds.
    pub(super) cublas: Option<Mutex<Cublas>>,
    pub(super) cudnn: Option<Mutex<Cudnn>>,
    pub(super) cusparse: Option<Mutex<Cusparse>>,
    /// What the libraries took when they started and no device has been charged with yet.
    uncharged: AtomicU64,
}

/// What a GPU can do.
#[derive(Clone, Debug)]
pub(super) struct Properties {
    pub(super) ordinal: usize,
    pub(super) name: String,
    /// `(major, minor)`.
    pub(super) compute_capability: (u32, u32),
    pub(super) multiprocessors: usize,
    /// Bytes of its memory.
    pub(super) memory_bytes: usize,
    /// Most bytes of shared memory that a block may be given.
    pub(super) shared_per_block: usize,
    /// Bytes of the second-level cache.
    pub(super) cache_bytes: usize,
    /// Core clock in kHz.
    pub(super) clock_khz: usize,
    /// Memory clock in kHz and bus width in bits.
    pub(super) memory_clock_khz: usize,
    pub(super) memory_bus_bits: usize,
}

/// A stretch of code in which a GPU's context is the thread's; the one before comes back when it ends.
#[must_use = "the context is current only until this is dropped"]
pub(super) struct Entered(Option<sys::CUcontext>);

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: it was this thread's context when the stretch began (or there was none).
            unsafe { sys::cuCtxSetCurrent(before) };
        }
    }
}

#[derive(Clone, Copy)]
struct Module(sys::CUmodule);

/// A kernel, ready to launch.
#[derive(Clone, Copy)]
pub(super) struct Function(pub(super) sys::CUfunction);

// SAFETY: contexts, modules and functions of the driver may be used from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above; what is not thread-safe in the libraries is behind a lock.
unsafe impl Sync for Gpu {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({:?})", self.properties)
    }
}

impl Gpu {
    /// The GPU `ordinal`; every call gives the same one.
    pub(super) fn open(ordinal: usize) -> Result<Arc<Gpu>> {
        static OPEN: OnceLock<Mutex<HashMap<usize, Arc<Gpu>>>> = OnceLock::new();
        let mut open = OPEN.get_or_init(Mutex::default).lock();
        if let Some(gpu) = open.get(&ordinal) {
            return Ok(gpu.clone());
        }
        let gpu = Arc::new(Gpu::start(ordinal)?);
        open.insert(ordinal, gpu.clone());
        Ok(gpu)
    }

    fn start(ordinal: usize) -> Result<Gpu> {
        libraries::driver().map_err(|reason| unavailable(ordinal, reason))?;
        let because = |error: result::DriverError| unavailable(ordinal, format!("{:?}", error.0));
        let count = result::device::get_count().map_err(because)?;
        if ordinal >= count.max(0) as usize {
            return Err(unavailable(ordinal, format!("GPUs that the driver sees: {count}")));
        }
        let device = result::device::get(ordinal as c_int).map_err(because)?;
        let properties = Properties::read(ordinal, device).map_err(because)?;
        let (major, minor) = properties.compute_capability;
        if (major, minor) < (7, 5) {
            let reason = format!("compute capability {major}.{minor}; 7.5 or later is needed");
            return Err(unavailable(ordinal, reason));
        }
        // SAFETY: the device was just given by the driver. The primary context is kept for the life
        // of the process, so that its order of destruction against other users never matters.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(because)?;
        let mut gpu = Gpu {
            context,
            properties,
            modules: Mutex::default(),
            functions: Mutex::default(),
            description: String::new(),
            cublas: None,
            cudnn: None,
            cusparse: None,
            uncharged: AtomicU64::new(0),
        };
        let entered = gpu.enter()?;
        let (free, _) = gpu.memory()?;
        let cublas = libraries::cublas().and_then(|()| Cublas::new().map_err(|e| e.to_string()));
        let cudnn = libraries::cudnn().and_then(|version| {
            Cudnn::new().map(|cudnn| (cudnn, version)).map_err(|error| error.to_string())
        });
        let cusparse =
            libraries::cusparse().and_then(|()| Cusparse::new().map_err(|e| e.to_string()));
        gpu.description = describe(&gpu.properties, &cublas, &cudnn, &cusparse);
        gpu.cublas = cublas.ok().map(Mutex::new);
        gpu.cudnn = cudnn.ok().map(|(cudnn, _)| Mutex::new(cudnn));
        gpu.cusparse = cusparse.ok().map(Mutex::new);
        let (left, _) = gpu.memory()?;
        gpu.uncharged.store(free.saturating_sub(left), Ordering::Relaxed);
        drop(entered);
        Ok(gpu)
    }

    /// Makes the GPU's context the calling thread's until what is returned is dropped: nothing here
    /// assumes the current device, and a caller's own stays what it was.
    pub(super) fn enter(&self) -> Result<Entered> {
        let mut before = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        unsafe { sys::cuCtxGetCurrent(&mut before) }.check("cuCtxGetCurrent")?;
        if before == self.context {
            return Ok(Entered(None));
        }
        // SAFETY: the context was retained and is never released.
        unsafe { sys::cuCtxSetCurrent(self.context) }.check("cuCtxSetCurrent")?;
        // To CUDA's runtime, a thread without a context is on the first GPU already.
        let stays = before.is_null() && self.properties.ordinal == 0;
        Ok(Entered((!stays).then_some(before)))
    }

    pub(super) fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// Free and total bytes of the GPU, as the driver says.
    pub(super) fn memory(&self) -> Result<(u64, u64)> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for the results.
        unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }.check("cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }

    /// What the libraries took when they started, once.
    pub(super) fn take_uncharged(&self) -> u64 {
        self.uncharged.swap(0, Ordering::Relaxed)
    }

    /// A kernel as built for elements of `scalar`.
    pub(super) fn function(&self, kernel: Kernel, scalar: &'static str) -> Result<Function> {
        if let Some(function) = self.functions.lock().get(&(kernel, scalar)) {
            return Ok(*function);
        }
        let module = self.module(kernel.family, scalar)?;
        let name =
            CString::new(kernel.name).map_err(|_| Error::driver("capgrad", "a kernel's name"))?;
        // SAFETY: the module is loaded and never unloaded.
        let function =
            unsafe { result::module::get_function(module.0, name) }.map_err(|error| {
                Error::driver("cuModuleGetFunction", format!("{}: {error:?}", kernel.name))
            })?;
        self.functions.lock().insert((kernel, scalar), Function(function));
        Ok(Function(function))
    }

    /// The newest variant of a family's PTX that the chip and the driver take.
    fn module(&self, family: Family, scalar: &'static str) -> Result<Module> {
        // Held while loading: the driver compiles the PTX, which two threads should not both do.
        let mut modules = self.modules.lock();
        if let Some(module) = modules.get(&(family, scalar)) {
            return Ok(*module);
        }
        let _entered = self.enter()?;
        let (major, minor) = self.properties.compute_capability;
        let mut failure = None;
        for text in family.variants(scalar, major * 10 + minor) {
            match load(text) {
                Ok(module) => {
                    modules.insert((family, scalar), module);
                    return Ok(module);
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            Error::driver("kernels", format!("{} is not built for {scalar}", family.name()))
        }))
    }
}

fn describe(
    properties: &Properties,
    cublas: &Result<Cublas, String>,
    cudnn: &Result<(Cudnn, usize), String>,
    cusparse: &Result<Cusparse, String>,
) -> String {
    let (major, minor) = properties.compute_capability;
    let cublas = match cublas {
        Ok(cublas) => format!("version {}", cublas.version()),
        Err(reason) => reason.clone(),
    };
    let cudnn = match cudnn {
        Ok((_, version)) => format!("version {version}"),
        Err(reason) => reason.clone(),
    };
    let cusparse = match cusparse {
        Ok(cusparse) => format!("version {}", cusparse.version()),
        Err(reason) => reason.clone(),
    };
    let (name, driver) = (&properties.name, driver_version());
    format!(
        "{name}, compute capability {major}.{minor}; driver: {driver}; cuBLAS: {cublas}; \
         cuDNN: {cudnn}; cuSPARSE: {cusparse}"
    )
}

/// The driver's own version where the system tells it, and the CUDA that it is for.
fn driver_version() -> String {
    let mut cuda = 0;
    // SAFETY: a valid place for the result.
    let _ = unsafe { sys::cuDriverGetVersion(&mut cuda) };
    let cuda = format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
    // Only Linux has this file: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ...`.
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    match text.lines().next().and_then(|line| line.split_whitespace().find(number)) {
        Some(version) => format!("{version}, {cuda}"),
        None => cuda,
    }
}

/// How many GPUs the driver sees; none without a driver.
pub(super) fn count() -> usize {
    let count = libraries::driver().ok().and_then(|()| result::device::get_count().ok());
    count.unwrap_or(0).max(0) as usize
}

fn load(text: &str) -> Result<Module> {
    let text = CString::new(text).map_err(|_| Error::driver("capgrad", "PTX"))?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is a string that ends in zero, as PTX must; there are no options.
    unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    }
    .check("cuModuleLoadDataEx")?;
    Ok(Module(module))
}

impl Properties {
    fn read(ordinal: usize, device: sys::CUdevice) -> Result<Properties, result::DriverError> {
        use sys::CUdevice_attribute::*;
        let attribute = |attribute| {
            // SAFETY: the device was given by the driver.
            let value = unsafe { result::device::get_attribute(device, attribute) }?;
            Ok(value.max(0) as usize)
        };
        let major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Properties {
            ordinal,
            name: result::device::get_name(device)?,
            compute_capability: (major as u32, minor as u32),
            multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            // SAFETY: the device was given by the driver.
            memory_bytes: unsafe { result::device::total_mem(device) }?,
            shared_per_block: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            cache_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            clock_khz: attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            memory_bus_bits: attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        })
    }
}
