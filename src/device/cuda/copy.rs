//! Strided copies: transposes, cuts and joins. The axes are put in the order of the result's strides
//! and merged where both sides allow it; what is left is a copy of runs, of which as many bytes at a
//! time are moved as all of them are aligned to, or a transpose, which goes through tiles.

use super::Cuda;
use super::kernels;
use super::launch::{Args, Grid};
use super::layout::{Axes, Axis};
use super::memory::pointer;
use super::rows::THREADS;
use crate::device::spec::Window;
use crate::error::Result;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// Axes with the strides of `x` and of `out`.
type List = SmallVec<[Axis<2>; 8]>;

/// Elements of a tile, as in the kernel, and the shortest axis that is worth tiles.
const fn area(size: usize) -> usize {
    if size == 2 { 4096 } else { 1024 }
}
const SHORTEST: usize = 4;

pub(super) fn copy_window(
    cuda: &Cuda,
    extents: &[usize],
    x: &Tensor,
    from: &Window,
    out: &Tensor,
    to: &Window,
) -> Result<()> {
    if extents.contains(&0) {
        return Ok(());
    }
    let uniform = x.is_uniform();
    let size = x.dtype().size();
    let source = pointer(x) + if uniform { 0 } else { (from.offset * size) as u64 };
    let target = pointer(out) + (to.offset * size) as u64;
    let mut list: List = (0..extents.len())
        .map(|axis| {
            let from = if uniform { 0 } else { from.strides[axis] };
            Axis { extent: extents[axis], strides: [from, to.strides[axis]] }
        })
        .filter(|axis| axis.extent != 1)
        .collect();
    list.sort_by_key(|axis| std::cmp::Reverse(axis.strides[1]));
    let space = Axes::merged(list);
    match space.inner().strides {
        [1, 1] => runs(cuda, space.axes(), size, source, target),
        [from, 1] if from > 1 => transpose(cuda, &space, size, source, target),
        _ => elements(cuda, &space, size, source, target),
    }
}

/// One by one, elements of `size` bytes.
fn elements(cuda: &Cuda, space: &Axes<2>, size: usize, source: u64, target: u64) -> Result<()> {
    let kernel = if size > 8 { kernels::COPY_PACKS } else { kernels::COPY_ELEMENTS };
    for (layout, [from, to]) in space.launches() {
        let grid = cuda.linear(layout.elements as usize);
        let args = Args::new().value(layout).value(source + (from * size) as u64);
        let args = args.value(target + (to * size) as u64);
        cuda.launch_as(kernel, Cuda::raw(size), grid, args)?;
    }
    Ok(())
}

/// Runs: as elements of up to 16 bytes, as far as everything is a multiple of them.
fn runs(cuda: &Cuda, list: &[Axis<2>], size: usize, source: u64, target: u64) -> Result<()> {
    let (outer, run) = list.split_at(list.len() - 1);
    let mut length = run[0].extent;
    let addresses = (source | target) as usize;
    let outer_strides = outer.iter().fold(0, |all, axis| all | axis.strides[0] | axis.strides[1]);
    // A lone run may leave a rest, which is copied on its own.
    let ends = if outer.is_empty() { 0 } else { length * size };
    let unit = 16.min(1 << (addresses | (outer_strides * size) | ends | 16).trailing_zeros());
    let unit = unit.max(size);
    let scale = unit / size;
    let rest = length % scale;
    length -= rest;
    let mut scaled = List::from_slice(outer);
    for axis in &mut scaled {
        axis.strides = axis.strides.map(|stride| stride / scale);
    }
    scaled.push(Axis { extent: length / scale, strides: [1, 1] });
    elements(cuda, &Axes::merged(scaled), unit, source, target)?;
    let done = (length * size) as u64;
    let left = Axes::merged([Axis { extent: rest, strides: [1, 1] }]);
    elements(cuda, &left, size, source + done, target + done)
}

/// Through tiles, if an axis other than the last is the run of `x`.
fn transpose(cuda: &Cuda, space: &Axes<2>, size: usize, source: u64, target: u64) -> Result<()> {
    let mut list = List::from_slice(space.axes());
    let last = list.pop().unwrap_or(space.inner());
    let found = (0..list.len()).filter(|&i| list[i].strides[0] == 1);
    let Some(found) = found.max_by_key(|&i| list[i].extent) else {
        return elements(cuda, space, size, source, target);
    };
    let across = list.remove(found);
    if across.extent < SHORTEST || last.extent < SHORTEST {
        return elements(cuda, space, size, source, target);
    }
    // As near to a square as the shorter axis lets be useful.
    let area = area(size);
    let side = 1 << (area.trailing_zeros() / 2);
    let height = if across.extent < side {
        across.extent.next_power_of_two()
    } else if last.extent < side {
        area / last.extent.next_power_of_two()
    } else {
        side
    };
    let tiles = across.extent.div_ceil(height) * last.extent.div_ceil(area / height);
    for (batch, [from, to]) in Axes::merged(list).launches() {
        let items = (batch.elements as usize).saturating_mul(tiles);
        let grid = Grid::new(items.min(1 << 20), THREADS);
        let args = Args::new().value(batch);
        let args = args.value(across.extent as u64).value(across.strides[1] as u64);
        let args = args.value(last.extent as u64).value(last.strides[0] as u64);
        let args = args.value(height.trailing_zeros()).value(source + (from * size) as u64);
        let args = args.value(target + (to * size) as u64);
        cuda.launch_as(kernels::COPY_TILES, Cuda::raw(size), grid, args)?;
    }
    Ok(())
}
