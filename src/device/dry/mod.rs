//! A dry twin: it takes the memory that another device would take, on a meter of its own, asks that
//! device for its candidates, and computes nothing. Buffers have no bytes; what is read back is NaN.

mod fit;
#[cfg(feature = "serde")]
pub(super) mod profile;

pub use fit::Fit;

use super::backend::{Backend, Buffer, Query, Terms};
use super::philox::Stream;
use super::spec::*;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::Reservation;
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};
use std::any::Any;

/// Methods that only compute.
macro_rules! nothing {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            #[allow(clippy::too_many_arguments)]
            fn $name(&self, $(_: $type),*) -> Result<()> {
                Ok(())
            }
        )*
    };
}

/// A device without memory of its own.
pub(super) struct Dry {
    source: Source,
    /// What the device that is asked holds for itself.
    charged: Option<Reservation>,
}

/// Who is asked for candidates.
enum Source {
    /// A device that is here.
    Device(Device),
    /// What one that is elsewhere said.
    #[cfg(feature = "serde")]
    Profile(Box<profile::Profile>),
}

impl Dry {
    pub(super) fn new(source: Device, charged: Option<Reservation>) -> Dry {
        Dry { source: Source::Device(source), charged }
    }

    #[cfg(feature = "serde")]
    fn from_profile(profile: profile::Profile, charged: Reservation) -> Dry {
        Dry { source: Source::Profile(Box::new(profile)), charged: Some(charged) }
    }
}

impl std::fmt::Debug for Dry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dry")
    }
}

/// Memory that is not there.
struct Nothing;

impl Buffer for Nothing {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for Dry {
    fn allocate(&self, _: usize) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(Nothing))
    }

    fn streams(&self) -> bool {
        match &self.source {
            Source::Device(device) => device.backend().streams(),
            #[cfg(feature = "serde")]
            Source::Profile(profile) => profile.streams,
        }
    }

    fn shared_per_block(&self) -> Option<usize> {
        match &self.source {
            Source::Device(device) => device.backend().shared_per_block(),
            #[cfg(feature = "serde")]
            Source::Profile(profile) => profile.shared_per_block,
        }
    }

    fn is_dry(&self) -> bool {
        true
    }

    fn twin_of(&self) -> Option<Device> {
        match &self.source {
            Source::Device(device) => Some(device.clone()),
            #[cfg(feature = "serde")]
            Source::Profile(_) => None,
        }
    }

    fn charged(&self) -> u64 {
        self.charged.as_ref().map_or(0, Reservation::bytes)
    }

    fn free_memory(&self) -> Option<u64> {
        self.twin_of()?.backend().free_memory()
    }

    fn adopt(&self, _: DType, _: Box<dyn Any + Send + Sync>, _: u64) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(Nothing))
    }

    fn receive(&self, _: &Tensor, _: &Tensor) -> Result<bool> {
        Ok(true)
    }

    fn write(&self, _: &Tensor, _: &[u8]) -> Result<()> {
        Ok(())
    }

    /// All ones is NaN in every float dtype. Integers are 0, which is an index wherever there is one.
    fn read(&self, x: &Tensor, data: &mut [u8]) -> Result<()> {
        data.fill(if x.dtype().is_float() { 0xff } else { 0 });
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn description(&self) -> String {
        match &self.source {
            Source::Device(device) => format!("dry twin of {}", device.description()),
            #[cfg(feature = "serde")]
            Source::Profile(profile) => format!("dry, from a profile: {}", profile.description),
        }
    }

    #[cfg(feature = "serde")]
    fn identity(&self) -> String {
        match &self.source {
            Source::Device(device) => device.identity(),
            Source::Profile(profile) => profile.identity.clone(),
        }
    }

    fn candidates(&self, query: &Query, terms: Terms) -> Vec<Candidate> {
        match &self.source {
            Source::Device(device) => device.candidates(query, terms),
            #[cfg(feature = "serde")]
            Source::Profile(profile) => profile.candidates(query, terms),
        }
    }

    fn run(
        &self,
        _: &Query,
        _: &Candidate,
        _: &[&Tensor],
        _: &Tensor,
        _: Option<&Storage>,
    ) -> Result<()> {
        Ok(())
    }

    /// As if there were none, so that none is out of range.
    fn index_range(&self, _: &Tensor, _: Option<i64>) -> Result<(i64, i64)> {
        Ok((i64::MAX, i64::MIN))
    }

    nothing! {
        fill(out: &Tensor, value: f64);
        random(distribution: Distribution, stream: Stream, out: &Tensor);
        dropout(p: f64, stream: Stream, x: &Tensor, out: &Tensor);
        unary(f: Unary, x: &Tensor, out: &Tensor);
        unary_gradient(f: Unary, saved: &Tensor, dy: &Tensor, out: &Tensor);
        binary(f: Binary, a: &Tensor, b: &Tensor, out: &Tensor);
        binary_gradient(
            f: Binary, side: Side, a: &Tensor, b: &Tensor, dy: &Tensor, out: &Tensor
        );
        binary_sum(f: Binary, scale: f64, a: &Tensor, b: &Tensor, out: &Tensor);
        accumulate(out: &Tensor, x: &Tensor);
        compare(f: Comparison, a: &Tensor, b: &Tensor, out: &Tensor);
        select(mask: &Tensor, a: &Tensor, b: &Tensor, out: &Tensor);
        select_gradient(mask: &Tensor, side: Side, dy: &Tensor, out: &Tensor);
        cast(x: &Tensor, out: &Tensor);
        sum(x: &Tensor, reduced: &[bool], scale: f64, out: &Tensor);
        argmax(x: &Tensor, axis: usize, out: &Tensor);
        softmax(log: bool, x: &Tensor, axis: usize, out: &Tensor);
        softmax_gradient(log: bool, y: &Tensor, dy: &Tensor, axis: usize, out: &Tensor);
        cross_entropy(x: &Tensor, labels: &Tensor, ignore: Option<i64>, scale: f64, out: &Tensor);
        cross_entropy_gradient(
            x: &Tensor, labels: &Tensor, ignore: Option<i64>, scale: f64, dy: &Tensor, out: &Tensor
        );
        layer_norm(
            x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, epsilon: f64, out: &Tensor,
            mean: &Tensor, rstd: &Tensor
        );
        layer_norm_gradient(
            x: &Tensor, weight: Option<&Tensor>, mean: &Tensor, rstd: &Tensor, dy: &Tensor,
            dx: Option<&Tensor>, dweight: Option<&Tensor>, dbias: Option<&Tensor>
        );
        pool(
            pool: Pool, geometry: &PoolGeometry, x: &Tensor, out: &Tensor, indices: Option<&Tensor>
        );
        pool_gradient(
            pool: Pool, geometry: &PoolGeometry, dy: &Tensor, indices: Option<&Tensor>, out: &Tensor
        );
        copy_window(extents: &[usize], x: &Tensor, from: &Window, out: &Tensor, to: &Window);
        gather(x: &Tensor, axis: usize, index: &Tensor, out: &Tensor);
        scatter_add(dy: &Tensor, axis: usize, index: &Tensor, out: &Tensor);
        update(update: Update, parameter: &Tensor, gradient: &Tensor, state: &[&Tensor]);
    }
}
