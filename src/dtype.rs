//! Element types: the four float types that compute, and the two integer types for labels and
//! indices.

use bytemuck::Pod;
use half::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
///
/// ```
/// use capgrad::DType;
/// assert_eq!(DType::BF16.size(), 2);
/// assert!(DType::F64.is_float() && !DType::I32.is_float());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16; sums are kept in f32.
    F16,
    /// bfloat16; sums are kept in f32.
    BF16,
    /// Signed 32-bit integer, for labels and indices.
    I32,
    /// Signed 64-bit integer, for labels and indices.
    I64,
}

impl DType {
    /// Every dtype that computes.
    pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Whether tensors of this dtype compute (and may have gradients).
    pub const fn is_float(self) -> bool {
        !matches!(self, DType::I32 | DType::I64)
    }

    /// The name that messages and plans print: `f32`, `bf16`, …
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a tensor can hold. Sealed: `f32`, `f64`, [`half::f16`], [`half::bf16`], `i32`
/// and `i64`.
pub trait Element:
    Pod + PartialEq + PartialOrd + fmt::Debug + Default + Send + Sync + sealed::Sealed
{
    /// The matching [`DType`].
    const DTYPE: DType;
    /// The value as f64 (exact for all but large i64).
    fn to_f64(self) -> f64;
    /// The nearest value of this type; integers truncate and saturate.
    fn from_f64(value: f64) -> Self;
}

/// A type that computes: one of the float types, with the wider type its sums are kept in.
pub trait Float: Element {
    /// f32 for f32, f16 and bf16; f64 for f64.
    type Sum: Real;
    /// The value in the type that sums are kept in (exact).
    fn widen(self) -> Self::Sum;
    /// A sum rounded to this type.
    fn narrow(sum: Self::Sum) -> Self;
}

/// The two types that arithmetic is done in: f32 and f64.
pub trait Real:
    Float<Sum = Self> + num_traits::Float + std::ops::AddAssign + std::ops::MulAssign + std::iter::Sum
{
    /// The complementary error function, `1 - erf x`, without its cancellation.
    fn erfc(self) -> Self;
}

macro_rules! element {
    ($t:ty, $dtype:ident, |$v:ident| $to:expr, |$w:ident| $from:expr) => {
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn to_f64(self) -> f64 {
                let $v = self;
                $to
            }
            #[inline(always)]
            fn from_f64($w: f64) -> Self {
                $from
            }
        }
    };
}

element!(f32, F32, |v| v as f64, |w| w as f32);
element!(f64, F64, |v| v, |w| w);
element!(f16, F16, |v| v.to_f64(), |w| f16::from_f64(w));
element!(bf16, BF16, |v| v.to_f64(), |w| bf16::from_f64(w));
element!(i32, I32, |v| v as f64, |w| w as i32);
element!(i64, I64, |v| v as f64, |w| w as i64);

macro_rules! float {
    ($t:ty, $sum:ty, |$v:ident| $widen:expr, |$w:ident| $narrow:expr) => {
        impl Float for $t {
            type Sum = $sum;
            #[inline(always)]
            fn widen(self) -> $sum {
                let $v = self;
                $widen
            }
            #[inline(always)]
            fn narrow($w: $sum) -> Self {
                $narrow
            }
        }
    };
}

float!(f32, f32, |v| v, |w| w);
float!(f64, f64, |v| v, |w| w);
float!(f16, f32, |v| v.to_f32(), |w| f16::from_f32(w));
float!(bf16, f32, |v| v.to_f32(), |w| bf16::from_f32(w));

impl Real for f32 {
    #[inline]
    fn erfc(self) -> Self {
        libm::erfcf(self)
    }
}

impl Real for f64 {
    #[inline]
    fn erfc(self) -> Self {
        libm::erfc(self)
    }
}
