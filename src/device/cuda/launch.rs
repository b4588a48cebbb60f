//! Launching kernels: arguments by value, grids that fit any size.

use super::Cuda;
use super::error::Check;
use super::kernels::Kernel;
use super::memory::pointer;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;
use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ffi::c_void;

/// How many threads run a kernel. Kernels stride over their work, so a grid decides speed, never
/// results that depend on covering everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) blocks: [u32; 3],
    pub(super) threads: u32,
    /// Bytes of dynamic shared memory a block.
    pub(super) shared: u32,
}

/// Bytes of shared memory that every chip gives a block without being asked.
const UNASKED: usize = 48 << 10;
/// Most blocks along the first axis, and along each of the others.
const MOST_BLOCKS: usize = i32::MAX as usize;
const MOST_ACROSS: usize = 65_535;

impl Grid {
    /// `blocks` blocks of `threads` threads, clamped to what the driver takes.
    pub(super) fn new(blocks: usize, threads: usize) -> Grid {
        let blocks = blocks.clamp(1, MOST_BLOCKS) as u32;
        Grid { blocks: [blocks, 1, 1], threads: threads as u32, shared: 0 }
    }

    /// So many blocks along the second and third axis as well, clamped too.
    pub(super) fn across(self, second: usize, third: usize) -> Grid {
        let clamped = |blocks: usize| blocks.clamp(1, MOST_ACROSS) as u32;
        Grid { blocks: [self.blocks[0], clamped(second), clamped(third)], ..self }
    }

    /// At most what the device's blocks may have.
    pub(super) fn with_shared(self, bytes: usize) -> Grid {
        Grid { shared: bytes as u32, ..self }
    }
}

/// A kernel's arguments, in its order. Each is copied when it is added.
#[derive(Default)]
pub(super) struct Args {
    /// Bytes of all arguments, each from a fresh word.
    words: SmallVec<[u64; 32]>,
    /// Where each begins.
    starts: SmallVec<[usize; 16]>,
}

impl Args {
    pub(super) fn new() -> Args {
        Args::default()
    }

    /// Any plain value: a number, or a `repr(C)` struct that the kernel declares alike.
    pub(super) fn value<T: bytemuck::NoUninit>(mut self, value: T) -> Args {
        const { assert!(align_of::<T>() <= 8) };
        let start = self.words.len();
        self.words.resize(start + size_of::<T>().div_ceil(8), 0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words[start..]);
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        self.starts.push(start);
        self
    }

    /// Address of a tensor's first element.
    pub(super) fn tensor(self, x: &Tensor) -> Args {
        self.value(pointer(x))
    }

    /// Address of a tensor's first element, or null.
    pub(super) fn optional(self, x: Option<&Tensor>) -> Args {
        self.value(x.map_or(0, pointer))
    }
}

impl Cuda {
    /// A grid for `n` independent elements of work, `threads` a block: enough blocks to fill the
    /// chip, each thread striding over the rest.
    pub(super) fn linear(&self, n: usize) -> Grid {
        const THREADS: usize = 256;
        // 2048 threads a multiprocessor, and a few rounds so that the last is not the longest.
        let most = self.gpu().properties.multiprocessors * 32;
        Grid::new(n.div_ceil(THREADS).min(most), THREADS)
    }

    /// Enqueues a kernel as built for `dtype`.
    pub(super) fn launch(
        &self,
        kernel: Kernel,
        dtype: DType,
        grid: Grid,
        args: Args,
    ) -> Result<()> {
        self.launch_as(kernel, dtype.name(), grid, args)
    }

    /// Enqueues a kernel as built for elements of `scalar`: a dtype's name, or `b16`, `b32`, `b64`
    /// for what only moves elements.
    pub(super) fn launch_as(
        &self,
        kernel: Kernel,
        scalar: &'static str,
        grid: Grid,
        mut args: Args,
    ) -> Result<()> {
        let function = self.gpu().function(kernel, scalar)?;
        let _entered = self.gpu().enter()?;
        if grid.shared as usize > UNASKED {
            use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded, and the driver checks the number.
            unsafe { sys::cuFuncSetAttribute(function.0, attribute, grid.shared as i32) }
                .check("cuFuncSetAttribute")?;
        }
        let words = args.words.as_mut_ptr();
        let mut pointers: SmallVec<[*mut c_void; 16]> = args
            .starts
            .iter()
            // SAFETY: each start lies within the words.
            .map(|&start| unsafe { words.add(start) }.cast())
            .collect();
        // SAFETY: the arguments are what the kernel declares (a test holds the names, the callers
        // the types); they are copied before the call returns. The buffers that they point to are
        // freed in the order of this same stream, so they outlive the kernel.
        unsafe {
            sys::cuLaunchKernel(
                function.0,
                grid.blocks[0],
                grid.blocks[1],
                grid.blocks[2],
                grid.threads,
                1,
                1,
                grid.shared,
                self.stream(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .check(kernel.name)
    }

    /// A kernel that only moves elements of `size` bytes: which build of it.
    pub(super) fn raw(size: usize) -> &'static str {
        match size {
            2 => "b16",
            4 => "b32",
            _ => "b64",
        }
    }
}
