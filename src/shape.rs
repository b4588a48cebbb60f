//! Shapes, and the arithmetic of sizes, checked.

use crate::dtype::DType;
use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Index;

/// The extents of a tensor, outermost first (row-major). Rank 0 is a single number.
///
/// ```
/// use capgrad::Shape;
/// let shape = Shape::from([4, 3]);
/// assert_eq!((shape.rank(), shape.elements(), shape[1]), (2, 12, 3));
/// assert_eq!(shape.to_string(), "[4, 3]");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// The shape of a single number, `[]`.
    pub fn scalar() -> Self {
        Shape::default()
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The extents, to be changed.
    pub(crate) fn dims_mut(&mut self) -> &mut SmallVec<[usize; 4]> {
        &mut self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements. Saturates for shapes that no tensor can have.
    pub fn elements(&self) -> usize {
        if self.0.contains(&0) {
            return 0;
        }
        self.0.iter().fold(1, |product, &extent| product.saturating_mul(extent))
    }

    /// Bytes of a tensor of this shape, or an error where that cannot be addressed.
    pub(crate) fn bytes(&self, dtype: DType, op: &'static str) -> Result<usize> {
        let elements = if self.0.contains(&0) {
            Some(0)
        } else {
            self.0.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))
        };
        elements
            .and_then(|elements| elements.checked_mul(dtype.size()))
            .filter(|&bytes| bytes <= isize::MAX as usize - 64)
            .ok_or_else(|| Error::TooLarge { op, shape: self.clone(), dtype })
    }

    /// Row-major strides in elements.
    pub(crate) fn strides(&self) -> SmallVec<[usize; 4]> {
        let mut strides: SmallVec<[usize; 4]> = SmallVec::from_elem(1, self.rank());
        for axis in (1..self.rank()).rev() {
            // An empty tensor may have extents whose product overflows; nobody walks its strides.
            strides[axis - 1] = strides[axis].saturating_mul(self.0[axis].max(1));
        }
        strides
    }

    /// The axis that `axis` names; negative ones count from the end, as in `-1` for the last.
    pub(crate) fn axis(&self, axis: isize, op: &'static str) -> Result<usize> {
        let rank = self.rank() as isize;
        let resolved = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&resolved) {
            Ok(resolved as usize)
        } else {
            Err(Error::argument(op, "axis", axis, format!("{self} has {rank} axes")))
        }
    }

    /// The same shape with one extent replaced.
    pub(crate) fn with(&self, axis: usize, extent: usize) -> Shape {
        let mut shape = self.clone();
        shape.0[axis] = extent;
        shape
    }

    /// The shape that both broadcast to (NumPy's rule: aligned at the end, 1 stretches).
    pub(crate) fn broadcast(&self, other: &Shape, op: &'static str) -> Result<Shape> {
        let rank = self.rank().max(other.rank());
        let extent = |shape: &Shape, axis: usize| {
            let missing = rank - shape.rank();
            if axis < missing { 1 } else { shape.0[axis - missing] }
        };
        (0..rank)
            .map(|axis| match (extent(self, axis), extent(other, axis)) {
                (a, b) if a == b => Ok(a),
                (1, b) => Ok(b),
                (a, 1) => Ok(a),
                _ => Err(Error::shape(op, &[self, other], "the shapes do not broadcast")),
            })
            .collect::<Result<SmallVec<_>>>()
            .map(Shape)
    }

    /// Strides with which a tensor of this shape is read as `target`: 0 along stretched axes.
    pub(crate) fn broadcast_strides(&self, target: &Shape) -> SmallVec<[usize; 4]> {
        let missing = target.rank() - self.rank();
        let own = self.strides();
        (0..target.rank())
            .map(|axis| match axis.checked_sub(missing) {
                Some(a) if self.0[a] != 1 => own[a],
                _ => 0,
            })
            .collect()
    }
}

impl Index<usize> for Shape {
    type Output = usize;
    fn index(&self, axis: usize) -> &usize {
        &self.0[axis]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(SmallVec::from_slice(&dims))
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(SmallVec::from_slice(dims))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(SmallVec::from_vec(dims))
    }
}

impl From<usize> for Shape {
    fn from(extent: usize) -> Self {
        Shape::from([extent])
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Self {
        Shape(dims.into_iter().collect())
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        self.dims() == other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self.dims() == other
    }
}
