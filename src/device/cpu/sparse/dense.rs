//! Views of the dense operands that hide their layout: an element is `data[i * row + j * lane]`,
//! where `i` is a row or column of the matrix and `j` one of the vectors.

use super::lanes::widen;
use crate::device::spec::DenseLayout;
use crate::dtype::Float;
use std::marker::PhantomData;

/// A dense operand that is read.
#[derive(Clone, Copy)]
pub(super) struct Dense<'a, T> {
    data: &'a [T],
    pub(super) row: usize,
    pub(super) lane: usize,
}

impl<'a, T> Dense<'a, T> {
    /// A view of `side` × `width` elements.
    pub(super) fn new(data: &'a [T], side: usize, width: usize, layout: DenseLayout) -> Self {
        assert_eq!(side.checked_mul(width), Some(data.len()), "the operations check lengths");
        let (row, lane) = strides(side, width, layout);
        Dense { data, row, lane }
    }

    /// A view of vectors that lie side by side, `width` to a row.
    pub(super) fn side_by_side(data: &'a [T], width: usize) -> Self {
        Dense { data, row: width, lane: 1 }
    }

    /// Where vector `j` starts (row 0 of it). What is read through the pointer must be inside: the
    /// row below the side, the vector below the width, whose product `new` has compared with the
    /// length of the slice.
    #[inline(always)]
    pub(super) fn vector(&self, j: usize) -> *const T {
        self.data.as_ptr().wrapping_add(j * self.lane)
    }
}

/// A dense operand that is written, in parallel, by tasks that own disjoint sets of its elements.
#[derive(Clone, Copy)]
pub(super) struct Target<'a, T> {
    data: *mut T,
    pub(super) row: usize,
    pub(super) lane: usize,
    /// Whether finished sums are added to what is there.
    pub(super) add: bool,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Target` stands for an exclusive borrow of `T`s that may themselves be sent; whoever
// writes through it owns the elements it writes (each use says why).
unsafe impl<T: Send> Send for Target<'_, T> {}
// SAFETY: as above; shared between tasks, each of which touches only elements it owns.
unsafe impl<T: Send> Sync for Target<'_, T> {}

impl<'a, T> Target<'a, T> {
    /// A view of `side` × `width` elements.
    pub(super) fn new(data: &'a mut [T], side: usize, width: usize, layout: DenseLayout) -> Self {
        assert_eq!(side.checked_mul(width), Some(data.len()), "the operations check lengths");
        let (row, lane) = strides(side, width, layout);
        Target { data: data.as_mut_ptr(), row, lane, add: false, borrow: PhantomData }
    }

    /// The same elements, to which sums are added where `add`.
    pub(super) fn adding(self, add: bool) -> Self {
        Target { add, ..self }
    }

    /// A view of vectors that lie side by side, `width` to a row.
    pub(super) fn side_by_side(data: &'a mut [T], width: usize) -> Self {
        Target { data: data.as_mut_ptr(), row: width, lane: 1, add: false, borrow: PhantomData }
    }

    /// The same elements as numbers of type `S`, which must be `T` itself.
    pub(super) fn same<S: 'static>(self) -> Target<'a, S>
    where
        T: 'static,
    {
        assert_eq!(std::any::TypeId::of::<T>(), std::any::TypeId::of::<S>());
        let Target { row, lane, add, .. } = self;
        Target { data: self.data.cast(), row, lane, add, borrow: PhantomData }
    }

    /// The target whose row `first` is this one's row 0: for a buffer that holds rows from `first`
    /// on. Only rows from `first` on may be written.
    pub(super) fn starting_at(self, first: usize) -> Self {
        Target { data: self.data.wrapping_sub(first * self.row), ..self }
    }

    /// The target whose vector `first` is this one's vector 0.
    pub(super) fn starting_at_lane(self, first: usize) -> Self {
        Target { data: self.data.wrapping_sub(first * self.lane), ..self }
    }

    /// The target that begins at vector `first` of this one.
    pub(super) fn lanes_from(self, first: usize) -> Self {
        Target { data: self.data.wrapping_add(first * self.lane), ..self }
    }

    /// Where element (`i`, `j`) lies.
    #[inline(always)]
    pub(super) fn at(&self, i: usize, j: usize) -> *mut T {
        self.data.wrapping_add(i * self.row).wrapping_add(j * self.lane)
    }
}

impl<T: Float> Target<'_, T> {
    /// Writes finished sums of row `i` and vectors `first..`, or adds them to what is there: either
    /// way each element is rounded once.
    ///
    /// # Safety
    /// The elements must exist and be the caller's to write.
    #[inline(always)]
    pub(super) unsafe fn put(&self, i: usize, first: usize, sums: &[T::Sum]) {
        // One branch for them all.
        if self.add {
            for (k, &sum) in sums.iter().enumerate() {
                let to = self.at(i, first + k);
                // SAFETY: the caller's promise.
                unsafe { *to = T::narrow(widen(*to) + sum) };
            }
        } else {
            for (k, &sum) in sums.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { *self.at(i, first + k) = T::narrow(sum) };
            }
        }
    }
}

fn strides(side: usize, width: usize, layout: DenseLayout) -> (usize, usize) {
    match layout {
        // One vector is the same in both layouts; the unit stride picks the faster kernels.
        _ if width == 1 => (1, 1),
        DenseLayout::Columns => (width, 1),
        DenseLayout::Rows => (1, side),
    }
}
