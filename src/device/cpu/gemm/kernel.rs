//! Micro-kernels: one output tile from one packed panel of rows and one packed panel of columns.
//!
//! A tile has [`MR`] rows and [`tile_columns`] columns: 6 × 16 in f32 and 6 × 8 in f64, which fills
//! twelve of the sixteen AVX2 registers with sums. The portable form has the same tile, so that
//! packing and storing do not depend on the machine.

use crate::dtype::{DType, Real};

/// Rows of a tile.
pub(crate) const MR: usize = 6;

/// The most columns that a tile has in any type.
pub(crate) const MAX_NR: usize = 16;

/// Columns of a tile in the type `S`.
pub(crate) const fn tile_columns<S>() -> usize {
    if size_of::<S>() == 4 { 16 } else { 8 }
}

/// The sums of one tile, row-major, [`tile_columns`] a row.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Tile<S>(pub(crate) [S; MR * MAX_NR]);

impl<S: Real> Tile<S> {
    /// A tile of zeros.
    pub(crate) fn zero() -> Self {
        Tile([S::zero(); MR * MAX_NR])
    }
}

/// The instructions that the kernels may use. Holding one that says AVX2 is the proof that the
/// machine has it, so it is only made by asking the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isa {
    avx2: bool,
}

impl Isa {
    /// The best that this machine has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        #[cfg(not(target_arch = "x86_64"))]
        let avx2 = false;
        Isa { avx2 }
    }

    /// Plain Rust only.
    #[cfg(test)]
    pub(crate) fn portable() -> Self {
        Isa { avx2: false }
    }

    /// Whether AVX2 and FMA may be used.
    pub(crate) fn has_avx2(self) -> bool {
        self.avx2
    }
}

/// `tile = Σ_k a[k, :] ⊗ b[k, :]`, where `a` holds [`MR`] values a step and `b` [`tile_columns`].
pub(crate) fn multiply_tile<S: Real>(isa: Isa, a: &[S], b: &[S], tile: &mut Tile<S>) {
    debug_assert_eq!(a.len() / MR, b.len() / tile_columns::<S>());
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        if S::DTYPE == DType::F32 {
            let sums = bytemuck::cast_slice_mut(&mut tile.0);
            // SAFETY: an `Isa` with AVX2 is made only after the machine was asked for AVX2 and FMA.
            unsafe { avx2::tile_f32(bytemuck::cast_slice(a), bytemuck::cast_slice(b), sums) };
        } else {
            let sums = bytemuck::cast_slice_mut(&mut tile.0);
            // SAFETY: as above.
            unsafe { avx2::tile_f64(bytemuck::cast_slice(a), bytemuck::cast_slice(b), sums) };
        }
        return;
    }
    let _ = isa;
    if S::DTYPE == DType::F32 {
        portable::<S, 16>(a, b, tile);
    } else {
        portable::<S, 8>(a, b, tile);
    }
}

/// The same product in plain Rust. Not fused, as a fused product without the instruction is a call.
fn portable<S: Real, const N: usize>(a: &[S], b: &[S], tile: &mut Tile<S>) {
    let mut sums = [[S::zero(); N]; MR];
    for (a, b) in a.chunks_exact(MR).zip(b.chunks_exact(N)) {
        for (row, &x) in sums.iter_mut().zip(a) {
            for (sum, &y) in row.iter_mut().zip(b) {
                *sum += x * y;
            }
        }
    }
    for (to, from) in tile.0.chunks_exact_mut(N).zip(&sums) {
        to.copy_from_slice(from);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::MR;
    use std::arch::x86_64::*;

    /// The f32 tile, 6 × 16.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn tile_f32(a: &[f32], b: &[f32], tile: &mut [f32]) {
        let steps = (a.len() / MR).min(b.len() / 16);
        assert!(tile.len() >= MR * 16);
        let (mut a, mut b) = (a.as_ptr(), b.as_ptr());
        let mut sums = [[_mm256_setzero_ps(); 2]; MR];
        for _ in 0..steps {
            // SAFETY: `steps` bounds both panels: step s reads a[6s..6s+6] and b[16s..16s+16].
            unsafe {
                let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
                for (i, row) in sums.iter_mut().enumerate() {
                    let x = _mm256_broadcast_ss(&*a.add(i));
                    row[0] = _mm256_fmadd_ps(x, b0, row[0]);
                    row[1] = _mm256_fmadd_ps(x, b1, row[1]);
                }
                a = a.add(MR);
                b = b.add(16);
            }
        }
        for (row, to) in sums.iter().zip(tile.chunks_exact_mut(16)) {
            // SAFETY: `to` has sixteen elements.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), row[0]);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), row[1]);
            }
        }
    }

    /// The f64 tile, 6 × 8.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn tile_f64(a: &[f64], b: &[f64], tile: &mut [f64]) {
        let steps = (a.len() / MR).min(b.len() / 8);
        assert!(tile.len() >= MR * 8);
        let (mut a, mut b) = (a.as_ptr(), b.as_ptr());
        let mut sums = [[_mm256_setzero_pd(); 2]; MR];
        for _ in 0..steps {
            // SAFETY: `steps` bounds both panels: step s reads a[6s..6s+6] and b[8s..8s+8].
            unsafe {
                let (b0, b1) = (_mm256_loadu_pd(b), _mm256_loadu_pd(b.add(4)));
                for (i, row) in sums.iter_mut().enumerate() {
                    let x = _mm256_broadcast_sd(&*a.add(i));
                    row[0] = _mm256_fmadd_pd(x, b0, row[0]);
                    row[1] = _mm256_fmadd_pd(x, b1, row[1]);
                }
                a = a.add(MR);
                b = b.add(8);
            }
        }
        for (row, to) in sums.iter().zip(tile.chunks_exact_mut(8)) {
            // SAFETY: `to` has eight elements.
            unsafe {
                _mm256_storeu_pd(to.as_mut_ptr(), row[0]);
                _mm256_storeu_pd(to.as_mut_ptr().add(4), row[1]);
            }
        }
    }
}
