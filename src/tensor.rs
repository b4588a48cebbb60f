//! Tensors: a shape, a dtype and reference-counted storage on one device. Always contiguous and
//! row-major.

use crate::device::spec::{Distribution, Window};
use crate::device::{Buffer, Device};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::memory::{Purpose, PurposeGuard, Reservation, Taker, current_purpose};
use crate::shape::Shape;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of one device, counted by its meter until it is dropped.
pub(crate) struct Storage {
    // Freed before its bytes are given back to the meter, which therefore never counts too little.
    buffer: Box<dyn Buffer>,
    reservation: Reservation,
    device: Device,
    changes: AtomicU64,
}

impl Storage {
    pub(crate) fn new(device: Device, buffer: Box<dyn Buffer>, reservation: Reservation) -> Self {
        Storage { buffer, reservation, device, changes: AtomicU64::new(0) }
    }

    pub(crate) fn buffer(&self) -> &dyn Buffer {
        &*self.buffer
    }
}

/// An n-dimensional array on one device. Cheap to clone: clones share their elements.
///
/// ```
/// use capgrad::{DType, Device, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?;
/// assert_eq!(x.reshape([4])?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!((x.dtype(), x.bytes()), (DType::F32, 16));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    /// First element in the storage.
    offset: usize,
    shape: Shape,
    dtype: DType,
    /// One stored element stands for all: what `mean` and `sum` give as gradients. Never seen by
    /// callers.
    uniform: bool,
}

impl Tensor {
    /// A new tensor that holds anything, for the current purpose.
    pub(crate) fn empty(
        op: &'static str,
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let take = |bytes| device.allocate(bytes, current_purpose(), Taker::of(op));
        Tensor::in_memory(op, shape.into(), dtype, take)
    }

    fn in_memory(
        op: &'static str,
        shape: Shape,
        dtype: DType,
        take: impl FnOnce(usize) -> Result<Storage>,
    ) -> Result<Tensor> {
        let storage = Arc::new(take(shape.bytes(dtype, op)?)?);
        Ok(Tensor { storage, offset: 0, shape, dtype, uniform: false })
    }

    /// A new tensor in memory of the host that the device reads by itself. The host's meter counts it.
    pub(crate) fn in_host_memory(
        op: &'static str,
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let take = |bytes| device.allocate_host(bytes, current_purpose(), Taker::of(op));
        Tensor::in_memory(op, shape.into(), dtype, take)
    }

    /// A new tensor for an operation's result.
    pub(crate) fn result(
        op: &'static str,
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let _purpose = PurposeGuard::for_results();
        Tensor::empty(op, shape, dtype, device)
    }

    /// Zeros.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::MemoryLimit`], [`Error::OutOfMemory`]: as for everything that
    /// makes a tensor.
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled("zeros", shape, 0.0, dtype, device)
    }

    /// Ones.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn ones(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled("ones", shape, 1.0, dtype, device)
    }

    /// `value` everywhere, rounded to the dtype.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn full(
        shape: impl Into<Shape>,
        value: f64,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::filled("full", shape, value, dtype, device)
    }

    pub(crate) fn filled(
        op: &'static str,
        shape: impl Into<Shape>,
        value: f64,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let out = Tensor::empty(op, shape, dtype, device)?;
        device.backend().fill(&out, value)?;
        Ok(out)
    }

    /// Uniform random numbers on `[0, 1)`, from the device's seed.
    ///
    /// # Errors
    /// As [`Tensor::zeros`], and [`Error::DType`] for integers.
    pub fn rand(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::random("rand", shape, Distribution::Uniform(0.0, 1.0), dtype, device)
    }

    /// Standard normal random numbers, from the device's seed.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn randn(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::random("randn", shape, Distribution::Normal(0.0, 1.0), dtype, device)
    }

    pub(crate) fn random(
        op: &'static str,
        shape: impl Into<Shape>,
        distribution: Distribution,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        require_float(op, dtype)?;
        let out = Tensor::empty(op, shape, dtype, device)?;
        device.backend().random(distribution, device.next_stream(), &out)?;
        Ok(out)
    }

    /// A tensor with these elements, row-major.
    ///
    /// # Errors
    /// [`Error::Length`] where the shape holds another number of elements, and as
    /// [`Tensor::zeros`].
    pub fn from_slice<T: Element>(
        data: &[T],
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into();
        check_length("from_slice", &shape, data)?;
        let out = Tensor::empty("from_slice", shape, T::DTYPE, device)?;
        device.backend().write(&out, bytemuck::cast_slice(data))?;
        Ok(out)
    }

    /// A tensor with these elements, row-major. On a CPU the vector is taken over, not copied.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_vec<T: Element>(
        data: Vec<T>,
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into();
        check_length("from_vec", &shape, &data)?;
        let storage = Arc::new(device.adopt(data, current_purpose(), Taker::of("from_vec"))?);
        Ok(Tensor { storage, offset: 0, shape, dtype: T::DTYPE, uniform: false })
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The extents, as a slice.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// The elements' type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device whose memory holds the elements.
    pub fn device(&self) -> &Device {
        &self.storage.device
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Bytes of all elements together.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// The elements, row-major, in host memory.
    ///
    /// # Errors
    /// [`Error::DType`] where `T` is not the tensor's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            let (got, expected) = (self.dtype, T::DTYPE.name());
            return Err(Error::DType { op: "to_vec", got, expected });
        }
        let dense = self.dense()?;
        let mut data = host_memory::<T>(dense.elements())?;
        self.device().backend().read(&dense, bytemuck::cast_slice_mut(&mut data))?;
        Ok(data)
    }

    /// Copies the elements, row-major, to memory of the host that is there already: for large tensors that
    /// is faster than new memory, whose pages the system has to find first.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &Device::cpu())?;
    /// let mut data = [0.0f32; 2];
    /// x.copy_to_slice(&mut data)?;
    /// assert_eq!(data, [1.0, 2.0]);
    /// # Ok::<(), capgrad::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] where `T` is not the tensor's dtype; [`Error::Shape`] where `data` has another
    /// number of elements.
    pub fn copy_to_slice<T: Element>(&self, data: &mut [T]) -> Result<()> {
        let op = "copy_to_slice";
        if T::DTYPE != self.dtype {
            return Err(Error::DType { op, got: self.dtype, expected: T::DTYPE.name() });
        }
        if data.len() != self.elements() {
            let reason = format!("the slice has {} elements", data.len());
            return Err(Error::shape(op, &[&self.shape], reason));
        }
        self.device().backend().read(&self.dense()?, bytemuck::cast_slice_mut(data))
    }

    /// The elements as f64, row-major, whatever the dtype.
    ///
    /// # Errors
    /// Those of the device's copy.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        fn widened<T: Element>(tensor: &Tensor) -> Result<Vec<f64>> {
            Ok(tensor.to_vec::<T>()?.into_iter().map(T::to_f64).collect())
        }
        match self.dtype {
            DType::F32 => widened::<f32>(self),
            DType::F64 => self.to_vec(),
            DType::F16 => widened::<half::f16>(self),
            DType::BF16 => widened::<half::bf16>(self),
            DType::I32 => widened::<i32>(self),
            DType::I64 => widened::<i64>(self),
        }
    }

    /// The only element.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is not exactly one.
    pub fn item(&self) -> Result<f64> {
        if self.elements() != 1 {
            return Err(Error::shape("item", &[&self.shape], "expected exactly one element"));
        }
        Ok(self.to_f64_vec()?[0])
    }

    /// The same elements under another shape; nothing is copied.
    ///
    /// # Errors
    /// [`Error::Shape`] where the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        shape.bytes(self.dtype, "reshape")?;
        if shape.elements() != self.elements() {
            let reason = "the number of elements must stay the same";
            return Err(Error::shape("reshape", &[&self.shape, &shape], reason));
        }
        Ok(Tensor { shape, ..self.clone() })
    }

    /// Entries `start .. start + length` along the first axis; nothing is copied.
    pub(crate) fn rows(&self, start: usize, length: usize) -> Tensor {
        let row = self.shape.dims()[1..].iter().product::<usize>();
        let offset = if self.uniform { self.offset } else { self.offset + start * row };
        Tensor { offset, shape: self.shape.with(0, length), ..self.clone() }
    }

    /// All elements in a line; nothing is copied.
    pub(crate) fn flat(&self) -> Tensor {
        Tensor { shape: Shape::from([self.elements()]), ..self.clone() }
    }

    /// A copy on another device (or the same tensor, if it is there already). What comes from a [dry
    /// device](Device::dry) is NaN, or 0 in integers.
    ///
    /// # Errors
    /// As [`Tensor::zeros`], on the other device.
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let dense = self.stored();
        let mut out = Tensor::empty("to", dense.shape.clone(), self.dtype, device)?;
        device.receive(&dense, &out)?;
        (out.shape, out.uniform) = (self.shape.clone(), self.uniform);
        Ok(out)
    }

    /// A copy in another dtype (or the same tensor, if it has that dtype already). Integers
    /// truncate and saturate; halves round to nearest.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype == dtype {
            return Ok(self.clone());
        }
        let stored = self.stored();
        let mut out = Tensor::empty("to_dtype", stored.shape.clone(), dtype, self.device())?;
        self.device().backend().cast(&stored, &out)?;
        (out.shape, out.uniform) = (self.shape.clone(), self.uniform);
        Ok(out)
    }

    /// Whether one stored element stands for all.
    pub(crate) fn is_uniform(&self) -> bool {
        self.uniform
    }

    /// `value` (one element) standing for a whole tensor of this shape; nothing is written out.
    pub(crate) fn uniform(value: &Tensor, shape: Shape) -> Tensor {
        let uniform = value.uniform || shape.elements() != 1;
        Tensor { shape, uniform, ..value.clone() }
    }

    /// The elements that are stored: the tensor itself, or a scalar for a uniform one.
    pub(crate) fn stored(&self) -> Tensor {
        if self.uniform {
            Tensor { shape: Shape::scalar(), uniform: false, ..self.clone() }
        } else {
            self.clone()
        }
    }

    /// The tensor with all its elements written out.
    pub(crate) fn dense(&self) -> Result<Tensor> {
        if !self.uniform {
            return Ok(self.clone());
        }
        let out = Tensor::result("broadcast", self.shape.clone(), self.dtype, self.device())?;
        let rank = self.shape.rank();
        let from = Window { offset: 0, strides: smallvec::smallvec![0; rank] };
        let to = Window { offset: 0, strides: self.shape.strides() };
        let stored = self.stored();
        self.device().backend().copy_window(self.dims(), &stored, &from, &out, &to)?;
        Ok(out)
    }

    /// Whether nobody else can see changes to this tensor's elements.
    pub(crate) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    pub(crate) fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// First element in the storage.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn set_purpose(&self, purpose: Purpose) {
        self.storage.reservation.set_purpose(purpose);
    }

    /// Counted up by whatever changes elements in place, so that a gradient rule notices.
    pub(crate) fn note_change(&self) {
        self.storage.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn changes(&self) -> u64 {
        self.storage.changes.load(Ordering::Relaxed)
    }

    /// Replaces the elements by those of `source`, in place: everything that shares them sees it.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`] where they differ.
    pub fn copy_from(&self, source: &Tensor) -> Result<()> {
        require_same("copy_from", self, source)?;
        if self.shares_storage(source) {
            if self.offset == source.offset {
                return Ok(());
            }
            // Overlapping ranges of one storage: by way of the host.
            let mut bytes = host_memory::<u8>(source.bytes())?;
            self.device().backend().read(source, &mut bytes)?;
            self.device().backend().write(self, &bytes)?;
        } else {
            self.device().backend().cast(&source.dense()?, self)?;
        }
        self.note_change();
        Ok(())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} on {})", self.dtype, self.shape, self.device())
    }
}

/// A vector of so many elements, where the system has the memory.
pub(crate) fn host_memory<T: Clone + Default>(elements: usize) -> Result<Vec<T>> {
    let mut data = Vec::new();
    data.try_reserve_exact(elements).map_err(|_| Error::OutOfMemory {
        device: "host".into(),
        requested: (elements as u64).saturating_mul(size_of::<T>() as u64),
    })?;
    data.resize(elements, T::default());
    Ok(data)
}

fn check_length<T: Element>(op: &'static str, shape: &Shape, data: &[T]) -> Result<()> {
    shape.bytes(T::DTYPE, op)?;
    let (expected, got) = (shape.elements(), data.len());
    if expected == got {
        return Ok(());
    }
    Err(Error::Length { op, shape: shape.clone(), expected, got })
}

pub(crate) fn require_float(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        Ok(())
    } else {
        Err(Error::DType { op, got: dtype, expected: "f32, f64, f16 or bf16" })
    }
}

pub(crate) fn require_integer(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        Err(Error::DType { op, got: dtype, expected: "i32 or i64" })
    } else {
        Ok(())
    }
}

pub(crate) fn require_same_device(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.device() == b.device() {
        return Ok(());
    }
    let (left, right) = (a.device().name().into(), b.device().name().into());
    Err(Error::DeviceMismatch { op, left, right })
}

/// One device and one dtype.
pub(crate) fn require_alike(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    require_same_device(op, a, b)?;
    if a.dtype() != b.dtype() {
        return Err(Error::DTypeMismatch { op, left: a.dtype(), right: b.dtype() });
    }
    Ok(())
}

/// One device, dtype and shape.
pub(crate) fn require_same(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    require_alike(op, a, b)?;
    if a.shape() != b.shape() {
        return Err(Error::shape(op, &[a.shape(), b.shape()], "the shapes must be equal"));
    }
    Ok(())
}
