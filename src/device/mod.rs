//! Where tensors live and operations run: the handle that callers hold, its settings, and the one
//! trait that a kind of device implements.

mod backend;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod dry;
mod options;
pub(crate) mod philox;
pub(crate) mod spec;

pub(crate) use backend::{Backend, Buffer, Query, Terms};
pub use dry::Fit;
pub use options::{CpuOptions, CudaOptions, Ranking};
pub use spec::{ConvGeometry, ConvPass};

use crate::distributed::{Rendezvous, Transport};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::memory::{Fault, LimitGuard, Meter, Purpose, Report, Reservation, Scope, Taker};
use crate::plan::{Candidate, CapGuard, Plan, Planner, Tf32Guard};
use crate::tensor::{Storage, Tensor, host_memory};
use options::Settings;
use parking_lot::{Mutex, RwLock};
use philox::Stream;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The workspace cap of a new device: 64 MiB.
pub const DEFAULT_WORKSPACE_CAP: u64 = 64 << 20;

/// A place where tensors live and operations run, with its own meter, memory limit, workspace cap
/// and plans. A handle: clones are the same device.
///
/// ```
/// use capgrad::{DType, Device, MIB, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::best()?;
/// device.set_workspace_cap(64 * MIB);
/// let x = Tensor::rand([2, 3], DType::F32, &device)?;
/// println!("{}", device.report());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    name: String,
    backend: Box<dyn Backend>,
    meter: Meter,
    planner: Planner,
    settings: RwLock<Settings>,
    seed: AtomicU64,
    streams: AtomicU64,
    /// Whose memory the host's part is, where that is another device's.
    host: Option<Device>,
    /// Of a dry device: only workspaces that could take it over so many bytes are planned.
    planned_over: AtomicU64,
    /// Of a dry device: figures that are bounds.
    bounds: Mutex<Vec<String>>,
    #[cfg(feature = "serde")]
    asked: dry::profile::Asked,
}

impl Device {
    /// The process-wide CPU device: every call gives the same one.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::with_backend("cpu".into(), cpu::Cpu::shared())).clone()
    }

    /// Another CPU device, with a meter, limit and cap of its own. Tensors of different devices do
    /// not mix.
    ///
    /// # Errors
    /// [`Error::Argument`] for zero threads or more than 4096; [`Error::DeviceNotAvailable`] where the
    /// threads cannot be started.
    pub fn new_cpu(options: CpuOptions) -> Result<Device> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let backend = cpu::Cpu::new(&options)?;
        let name = format!("cpu#{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Ok(Device::with_backend(name, backend))
    }

    /// The CUDA device `ordinal`, in the driver's numbering: every call gives the same one.
    ///
    /// ```
    /// use capgrad::{Device, Error};
    /// match Device::cuda(0) {
    ///     Ok(device) => assert_eq!(device.name(), "cuda:0"),
    ///     Err(error) => assert!(matches!(error, Error::DeviceNotAvailable { .. })),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceNotAvailable`] without a driver or such a GPU, for one older than compute
    /// capability 7.5, and where the crate was built without its feature `cuda`;
    /// [`Error::Driver`] where the driver fails.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        static OPEN: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock();
        if let Some((_, device)) = open.iter().find(|(known, _)| *known == ordinal) {
            return Ok(device.clone());
        }
        let device = open_cuda(format!("cuda:{ordinal}"), ordinal, &CudaOptions::default())?;
        open.push((ordinal, device.clone()));
        Ok(device)
    }

    /// Another device on the GPU `ordinal`, with a stream, pool of memory, meter, limit and cap of
    /// its own. Tensors of different devices do not mix.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    pub fn new_cuda(ordinal: usize, options: CudaOptions) -> Result<Device> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        open_cuda(format!("cuda:{ordinal}#{count}"), ordinal, &options)
    }

    /// The fastest device there is: the first GPU that can be used, else [`Device::cpu`].
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::OutOfMemory`] where a GPU that can be used is there and its driver
    /// fails, or its memory is taken: to go on with the CPU unasked would hide it.
    pub fn best() -> Result<Device> {
        for ordinal in 0..cuda_count() {
            match Device::cuda(ordinal) {
                Err(Error::DeviceNotAvailable { .. }) => {}
                other => return other,
            }
        }
        Ok(Device::cpu())
    }

    fn with_backend(name: String, backend: impl Backend + 'static) -> Device {
        Device::with_meter(Meter::new(name.clone()), name, backend)
    }

    fn with_meter(meter: Meter, name: String, backend: impl Backend + 'static) -> Device {
        Device::with_host(meter, name, backend, None)
    }

    fn with_host(
        meter: Meter,
        name: String,
        backend: impl Backend + 'static,
        host: Option<Device>,
    ) -> Device {
        Device(Arc::new(Inner {
            meter,
            name,
            backend: Box::new(backend),
            planner: Planner::default(),
            settings: RwLock::default(),
            seed: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            host,
            planned_over: AtomicU64::new(0),
            bounds: Mutex::default(),
            #[cfg(feature = "serde")]
            asked: Default::default(),
        }))
    }

    /// All that times depend on.
    #[cfg(feature = "serde")]
    pub(crate) fn identity(&self) -> String {
        self.0.backend.identity()
    }

    #[cfg(feature = "serde")]
    fn settings(&self) -> Settings {
        self.0.settings.read().clone()
    }

    #[cfg(feature = "serde")]
    fn with_settings(self, settings: Settings) -> Device {
        *self.0.settings.write() = settings;
        self
    }

    #[cfg(feature = "serde")]
    fn asked(&self) -> &dry::profile::Asked {
        &self.0.asked
    }

    /// The algorithms for a planned operation.
    pub(crate) fn candidates(&self, query: &Query, terms: Terms) -> Vec<Candidate> {
        let candidates = self.0.backend.candidates(query, terms);
        #[cfg(feature = "serde")]
        self.0.asked.note(query, terms, &candidates);
        candidates
    }

    /// The device's name, as messages print it: `cpu`, `cpu#1`, …
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What the device is, for people: the number of threads, or the GPU, and whether cuBLAS and cuDNN
    /// are used, in which version, or why not.
    ///
    /// ```
    /// println!("{}", capgrad::Device::cpu().description());
    /// ```
    pub fn description(&self) -> String {
        self.0.backend.description()
    }

    /// Sets the most workspace that one operation may take, in bytes. 0 is valid: there is always
    /// an algorithm without workspace.
    pub fn set_workspace_cap(&self, bytes: u64) {
        self.0.settings.write().cap = Some(bytes);
    }

    /// Lets operations take any workspace.
    pub fn remove_workspace_cap(&self) {
        self.0.settings.write().cap = None;
    }

    /// The cap in force on this thread: that of the innermost [`Device::cap_scope`], else the
    /// device's. `None` is no cap.
    pub fn workspace_cap(&self) -> Option<u64> {
        CapGuard::current(self).or(self.0.settings.read().cap)
    }

    /// A cap for this thread until the guard is dropped, over the device's own. It holds for what
    /// runs within it: a backward pass that runs later is under the cap that is in force then.
    ///
    /// ```
    /// use capgrad::{Device, MIB};
    /// let device = Device::cpu();
    /// let guard = device.cap_scope(MIB);
    /// assert_eq!(device.workspace_cap(), Some(MIB));
    /// ```
    #[must_use = "the cap ends when the guard is dropped"]
    pub fn cap_scope(&self, bytes: u64) -> CapGuard {
        CapGuard::new(self, bytes)
    }

    /// Sets the most memory that the device may hold, in bytes, or lifts the limit with `None`.
    /// What is live already stays; the next request over the limit is refused.
    ///
    /// # Errors
    /// [`Error::Argument`] for a limit of 0.
    pub fn set_memory_limit(&self, bytes: Option<u64>) -> Result<()> {
        if bytes == Some(0) {
            return Err(Error::argument(
                "set_memory_limit",
                "bytes",
                0,
                "a device without memory computes nothing; pass None for no limit",
            ));
        }
        self.0.meter.set_limit(bytes);
        Ok(())
    }

    /// Sets the memory limit to what is live now and a share of what is free, and says what that is in
    /// bytes. Free is what the GPU's driver says, or what the system can give without swapping (in a
    /// container, what that may still take).
    ///
    /// ```
    /// let device = capgrad::Device::new_cpu(Default::default())?;
    /// let limit = device.set_memory_limit_share(0.5)?;
    /// assert_eq!(device.memory_limit(), Some(limit));
    /// # Ok::<(), capgrad::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a share outside (0, 1], and on a system that does not say.
    pub fn set_memory_limit_share(&self, share: f64) -> Result<u64> {
        let refused =
            |reason: &str| Err(Error::argument("set_memory_limit_share", "share", share, reason));
        if !(share > 0.0 && share <= 1.0) {
            return refused("must be over 0 and at most 1");
        }
        let Some(free) = self.0.backend.free_memory() else {
            return refused("this device does not say what is free; give the limit in bytes");
        };
        let limit = (self.live_bytes() + (free as f64 * share) as u64).max(1);
        self.set_memory_limit(Some(limit))?;
        Ok(limit)
    }

    /// A memory limit until the guard is dropped, over the device's own: the tightest holds. What is live
    /// already counts.
    ///
    /// ```
    /// use capgrad::{DType, Device, MIB, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::new_cpu(Default::default())?;
    /// let guard = device.limit_scope(MIB)?;
    /// assert!(Tensor::zeros([1 << 20], DType::F32, &device).is_err());
    /// drop(guard);
    /// assert!(Tensor::zeros([1 << 20], DType::F32, &device).is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a limit of 0.
    #[must_use = "the limit ends when the guard is dropped"]
    pub fn limit_scope(&self, bytes: u64) -> Result<LimitGuard> {
        if bytes == 0 {
            let reason = "a device without memory computes nothing";
            return Err(Error::argument("limit_scope", "bytes", 0, reason));
        }
        Ok(LimitGuard::new(&self.0.meter, bytes))
    }

    /// The memory limit in bytes, the tightest in force; `None` is no limit.
    pub fn memory_limit(&self) -> Option<u64> {
        self.0.meter.limit()
    }

    /// How candidates are ranked: by predicted time, or by measuring each once for a shape.
    pub fn set_ranking(&self, ranking: Ranking) {
        self.0.settings.write().ranking = ranking;
    }

    /// How candidates are ranked.
    pub fn ranking(&self) -> Ranking {
        self.0.settings.read().ranking
    }

    /// Whether only algorithms whose results are bitwise repeatable may run.
    pub fn set_deterministic(&self, deterministic: bool) {
        self.0.settings.write().deterministic = deterministic;
    }

    /// Whether only deterministic algorithms may run.
    pub fn deterministic(&self) -> bool {
        self.0.settings.read().deterministic
    }

    /// Whether products of f32 may be rounded to TF32 (10 bits of mantissa, sums in f32), where the
    /// device has units for it: several times faster, with relative errors near 5e-4. Off at first:
    /// f32 is f32.
    pub fn set_allow_tf32(&self, allow: bool) {
        self.0.settings.write().allow_tf32 = allow;
    }

    /// Whether TF32 is allowed on this thread: by the innermost [`Device::tf32_scope`], else by the
    /// device.
    pub fn allow_tf32(&self) -> bool {
        Tf32Guard::current(self).unwrap_or(self.0.settings.read().allow_tf32)
    }

    /// Allows or forbids TF32 on this thread until the guard is dropped. As with
    /// [`Device::cap_scope`], what runs within it counts: a backward pass that runs later is on the
    /// terms in force then.
    ///
    /// ```
    /// use capgrad::Device;
    /// let device = Device::cpu();
    /// let guard = device.tf32_scope(true);
    /// assert!(device.allow_tf32());
    /// drop(guard);
    /// assert!(!device.allow_tf32());
    /// ```
    #[must_use = "the permission ends when the guard is dropped"]
    pub fn tf32_scope(&self, allow: bool) -> Tf32Guard {
        Tf32Guard::new(self, allow)
    }

    /// Starts the device's random numbers again from `seed`; [`Tensor::rand`](crate::Tensor::rand)
    /// and its kin draw from them in the order in which they are called.
    pub fn set_seed(&self, seed: u64) {
        self.0.seed.store(seed, Ordering::Relaxed);
        self.0.streams.store(0, Ordering::Relaxed);
    }

    pub(crate) fn next_stream(&self) -> Stream {
        let stream = self.0.streams.fetch_add(1, Ordering::Relaxed);
        // The top bit keeps these apart from the streams that a tape numbers.
        Stream { seed: self.0.seed.load(Ordering::Relaxed), stream: stream | 1 << 63 }
    }

    /// Live bytes now.
    pub fn live_bytes(&self) -> u64 {
        self.0.meter.live()
    }

    /// What the meter has seen.
    pub fn report(&self) -> Report {
        let mut report = self.0.meter.report(self.workspace_cap());
        report.driver = self.0.backend.driver_memory();
        report.dry = self.is_dry();
        report.bounds.clone_from(&self.0.bounds.lock());
        report
    }

    /// Begins to record every piece of memory that is taken and given back, or ends that. What has been
    /// recorded is in the [`Report`] (`recorded`) until another recording begins, or until
    /// [`Device::reset_peak`]. There is one recording a device: `true` does nothing where one is under way.
    ///
    /// ```
    /// use capgrad::{DType, Device, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::new_cpu(Default::default())?;
    /// device.set_recording(true);
    /// let x = Tensor::ones([256], DType::F32, &device)?;
    /// device.set_recording(false);
    /// let recorded = device.report().recorded.unwrap();
    /// assert_eq!((recorded.alive_at_peak[0].op.as_str(), recorded.peak), ("ones", 1024));
    /// # Ok(()) }
    /// ```
    pub fn set_recording(&self, on: bool) {
        self.0.meter.set_recording(on);
    }

    /// Makes one request fail, for tests of what happens then; `None` takes an earlier fault back. A count of
    /// 0 never comes.
    pub fn inject_fault(&self, fault: Option<Fault>) {
        self.0.meter.inject(fault);
    }

    /// A dry twin: the same code runs on it, forward, backward and optimiser, makes the plans and takes the
    /// memory that it would on this device, on a meter of its own, and computes nothing. Its peak is the
    /// peak that the step will have. What is read back is NaN (0 in integers).
    ///
    /// It has this device's settings, memory limit and measured plans as they are now, no tensors, and the
    /// bytes that this device holds for itself (libraries, scratch). Candidates and their workspaces are
    /// asked of this device. Settings of scopes on a thread are not taken over. Where a figure is a bound,
    /// or may differ, [`Report::bounds`] says why. Code that looks at values sees NaN and takes that branch;
    /// steps of several threads at once peak as their order has it, which is another at every run.
    ///
    /// ```
    /// use capgrad::{Conv1d, DType, Device, Result, Tape, Tensor};
    /// fn step(device: &Device) -> Result<u64> {
    ///     let conv = Conv1d::builder(8, 16, 3).build(device)?;
    ///     device.reset_peak();
    ///     let tape = Tape::new();
    ///     let x = tape.constant(Tensor::rand([4, 8, 100], DType::F32, device)?);
    ///     conv.forward(&x)?.square()?.mean()?.backward()?;
    ///     Ok(device.report().peak)
    /// }
    /// # fn main() -> Result<()> {
    /// let device = Device::new_cpu(Default::default())?;
    /// let predicted = step(&device.dry())?;
    /// assert_eq!(step(&device)?, predicted);
    /// # Ok(()) }
    /// ```
    pub fn dry(&self) -> Device {
        let source = self.0.backend.twin_of().unwrap_or_else(|| self.clone());
        let name = format!("dry {}", source.name().trim_start_matches("dry "));
        let meter = Meter::new(name.clone());
        let charged = Some(self.0.backend.charged()).filter(|&bytes| bytes > 0);
        let charged = charged
            .and_then(|bytes| meter.reserve(bytes, Purpose::Other, Taker::of("device")).ok());
        let backend = dry::Dry::new(source, charged);
        let host = self.0.host.as_ref().map(Device::dry);
        let twin = Device::with_host(meter, name, backend, host);
        twin.0.settings.write().clone_from(&self.0.settings.read());
        twin.0.meter.set_limit(self.0.meter.limit());
        twin.0.planner.adopt_measured(&self.0.planner);
        twin
    }

    /// Only operations whose workspace could take this dry device over `bytes` are planned from now on.
    fn plan_over(&self, bytes: u64) {
        self.0.planned_over.store(bytes, Ordering::Relaxed);
    }

    /// Whether an operation under this cap must be planned, though nothing is computed.
    pub(crate) fn must_plan(&self, cap: Option<u64>) -> bool {
        let over = self.0.planned_over.load(Ordering::Relaxed);
        // Nearly always; the meter is not asked for it.
        if over == 0 {
            return true;
        }
        let meter = &self.0.meter;
        let most = cap.unwrap_or(u64::MAX).min(meter.left().unwrap_or(u64::MAX));
        meter.live().saturating_add(most) > over
    }

    /// Whether this is a dry twin, which computes nothing.
    pub fn is_dry(&self) -> bool {
        self.0.backend.is_dry()
    }

    /// Notes why a figure of a dry run is a bound.
    pub(crate) fn note_bound(&self, why: &str) {
        let mut bounds = self.0.bounds.lock();
        if !bounds.iter().any(|known| known == why) {
            bounds.push(why.to_owned());
        }
    }

    /// The device whose meter counts the host's memory that this one uses: pinned memory of a GPU, which
    /// holds streamed matrices and what is on its way, counts on [`Device::cpu`].
    pub fn host(&self) -> Device {
        self.0.host.clone().unwrap_or_else(|| self.clone())
    }

    /// Peaks start again from what is live now, and the ended scopes are forgotten.
    pub fn reset_peak(&self) {
        self.0.meter.reset_peak();
        self.0.backend.reset_driver_peaks();
    }

    /// Gives memory that the device has cached and does not use back to the system. A GPU's pool
    /// keeps what is freed for the next request until this is called; live bytes do not change.
    ///
    /// # Errors
    /// [`Error::Driver`] where the driver fails.
    pub fn trim(&self) -> Result<()> {
        self.0.backend.trim()
    }

    /// Opens a named scope: it lasts until it is ended or dropped, and has its own peak.
    pub fn scope(&self, name: &str) -> Scope {
        self.0.meter.enter_scope(name)
    }

    /// The plans made so far, in no particular order.
    pub fn plans(&self) -> Vec<Arc<Plan>> {
        self.0.planner.plans()
    }

    /// Forgets the plans made so far, so that measured ones are measured again.
    pub fn forget_plans(&self) {
        self.0.planner.forget();
    }

    /// Waits until everything asked of the device has been done.
    ///
    /// # Errors
    /// What the device's driver says.
    pub fn synchronize(&self) -> Result<()> {
        self.0.backend.synchronize()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.0.meter
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.0.planner
    }

    /// The one door through which all of the device's memory goes.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        purpose: Purpose,
        taker: Taker<'_>,
    ) -> Result<Storage> {
        let reservation = self.0.meter.reserve(bytes as u64, purpose, taker)?;
        self.fill(reservation, || self.0.backend.allocate(bytes))
    }

    /// Memory of the host for the device's own reading, which the host's meter counts.
    pub(crate) fn allocate_host(
        &self,
        bytes: usize,
        purpose: Purpose,
        taker: Taker<'_>,
    ) -> Result<Storage> {
        let reservation = self.host().0.meter.reserve(bytes as u64, purpose, taker)?;
        self.fill(reservation, || self.0.backend.allocate_host(bytes))
    }

    /// [`Device::allocate`] for elements that the host holds already.
    pub(crate) fn adopt<T: Element>(
        &self,
        data: Vec<T>,
        purpose: Purpose,
        taker: Taker<'_>,
    ) -> Result<Storage> {
        let bytes = std::mem::size_of_val(&data[..]);
        let reservation = self.0.meter.reserve(bytes as u64, purpose, taker)?;
        let cap = self.workspace_cap().unwrap_or(u64::MAX);
        self.fill(reservation, || self.0.backend.adopt(T::DTYPE, Box::new(data), cap))
    }

    /// Joins the ranks of a run.
    pub(crate) fn join_ranks(&self, rendezvous: &Rendezvous) -> Result<Arc<dyn Transport>> {
        self.0.backend.join_ranks(rendezvous, self)
    }

    /// Copies a tensor of another device.
    pub(crate) fn receive(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        let (from, to) = (x.device().backend(), self.backend());
        if to.receive(x, out)?
            || from.host_bytes(x, &mut |bytes| to.write(out, bytes))?
            || to.host_bytes_mut(out, &mut |bytes| from.read(x, bytes))?
        {
            return Ok(());
        }
        // Neither lies where the host can see it (a matrix in pinned memory that another GPU takes).
        let mut bytes = host_memory::<u8>(x.bytes())?;
        from.read(x, &mut bytes)?;
        to.write(out, &bytes)
    }

    fn fill(
        &self,
        reservation: Reservation,
        make: impl FnOnce() -> Result<Box<dyn Buffer>>,
    ) -> Result<Storage> {
        let buffer = make().map_err(|error| match error {
            Error::OutOfMemory { requested, .. } => {
                Error::OutOfMemory { device: self.0.name.clone(), requested }
            }
            other => other,
        })?;
        Ok(Storage::new(self.clone(), buffer, reservation))
    }

    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.0) as *const u8 as usize
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(name: String, ordinal: usize, options: &CudaOptions) -> Result<Device> {
    let meter = Meter::new(name.clone());
    let backend = cuda::Cuda::new(ordinal, options, &meter)?;
    Ok(Device::with_host(meter, name, backend, Some(Device::cpu())))
}

#[cfg(feature = "cuda")]
fn cuda_count() -> usize {
    cuda::count()
}

#[cfg(not(feature = "cuda"))]
fn cuda_count() -> usize {
    0
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(name: String, _: usize, _: &CudaOptions) -> Result<Device> {
    let reason = "capgrad was built without its feature `cuda`".into();
    Err(Error::DeviceNotAvailable { device: name, reason })
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.name)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.name)
    }
}

/// Digits alone; the standard library takes a sign, too.
fn ordinal(digits: &str) -> Option<usize> {
    digits.parse().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Reads `best`, `cpu`, `cuda` (the first GPU) or `cuda:N`.
///
/// ```
/// use capgrad::Device;
/// assert_eq!("cpu".parse::<Device>().unwrap(), Device::cpu());
/// assert!("tpu".parse::<Device>().is_err());
/// ```
impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Device> {
        match name {
            "best" => Device::best(),
            "cpu" => Ok(Device::cpu()),
            "cuda" => Device::cuda(0),
            _ => match name.strip_prefix("cuda:").and_then(ordinal) {
                Some(ordinal) => Device::cuda(ordinal),
                None => Err(Error::DeviceNotAvailable {
                    device: name.into(),
                    reason: "known names are best, cpu, cuda and cuda:N".into(),
                }),
            },
        }
    }
}
