//! How the kernels that read positions from strips see a pass, and how they lay out what they read of its
//! source: see `kernels/strips.cuh`.

use super::Question;
use crate::device::cuda::gpu::Properties;
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::DType;
use smallvec::SmallVec;

/// Bytes of a right operand's stage, of each of its rows.
pub(super) const STAGE_BYTES: usize = 64;
/// Clocks a second of the H200 on which the kernels' clocks were measured: every kind of kernel, forced, on the
/// layers that `benches/step.rs` lists.
pub(super) const CLOCK: f64 = 1.75e9;
/// Threads that compute, and threads that copy.
pub(super) const THREADS: usize = 256 + 128;
/// Bytes at the beginning of shared memory, in which turns are counted.
pub(super) const TURNS: usize = 128;

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Strips {
    batch: u64,
    groups: u32,
    channels: u32,
    length: u32,
    positions: u32,
    step: u32,
    taps: u32,
    tap_step: u32,
    offset: i32,
    pitch: u32,
    width: u32,
    pack: u32,
    chunk: u32,
    buffers: u32,
    whole: u32,
}

/// A pass, or one of the parts that a strided gradient falls into, as a convolution whose taps go
/// forward: position q of a sample reads the source at q·step + tap·tap_step + offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels of the source, and of the result, in a group.
    pub(super) channels: usize,
    pub(super) rows: usize,
    pub(super) length: usize,
    pub(super) positions: usize,
    pub(super) step: usize,
    pub(super) taps: usize,
    pub(super) tap_step: usize,
    pub(super) offset: i64,
    /// Where position q of the result is.
    pub(super) first_position: usize,
    pub(super) position_step: usize,
    /// The weights' tap that the first of these is, and from one of these to the next.
    pub(super) first_tap: usize,
    pub(super) next_tap: i64,
}

impl View {
    /// The forward pass; also how the gradient for the weights reads the input.
    pub(super) fn forward(g: &ConvGeometry) -> View {
        View {
            batch: g.batch,
            groups: g.groups,
            channels: g.in_channels / g.groups,
            rows: g.out_channels / g.groups,
            length: g.in_length,
            positions: g.out_length,
            // A step that is never taken may be larger than anything.
            step: if g.out_length > 1 { g.stride } else { 1 },
            taps: g.kernel,
            tap_step: if g.kernel > 1 { g.dilation } else { 1 },
            offset: -(g.pad_left as i64),
            first_position: 0,
            position_step: 1,
            first_tap: 0,
            next_tap: 1,
        }
    }

    /// The gradient for the input: as many as the stride, each of the positions that meet the same taps.
    /// `None` where some meet none.
    fn gradients(g: &ConvGeometry) -> Option<SmallVec<[View; 4]>> {
        let sizes = super::direct::Sizes::new(g);
        let (stride, dilation) = (sizes.stride as i64, sizes.dilation as i64);
        let (pad, kernel) = (g.pad_left as i64, g.kernel as i64);
        let residues = stride.min(g.in_length as i64);
        let view = |residue: i64| {
            let first = (0..kernel.min(sizes.period as i64))
                .find(|tap| (residue + pad - tap * dilation).rem_euclid(stride) == 0)?;
            let taps = (kernel - 1 - first) / sizes.period as i64 + 1;
            // The last one is met first.
            let last = first + (taps - 1) * sizes.period as i64;
            Some(View {
                batch: g.batch,
                groups: g.groups,
                channels: g.out_channels / g.groups,
                rows: g.in_channels / g.groups,
                length: g.out_length,
                positions: (g.in_length - residue as usize).div_ceil(stride as usize),
                step: 1,
                taps: taps as usize,
                tap_step: if taps > 1 { sizes.shift as usize } else { 1 },
                offset: (residue + pad - last * dilation) / stride,
                first_position: residue as usize,
                position_step: stride as usize,
                first_tap: last as usize,
                next_tap: -(sizes.period as i64),
            })
        };
        // More would be as many launches.
        if residues > 16 {
            return None;
        }
        (0..residues).map(view).collect()
    }

    /// Those of a pass whose results are positions.
    pub(super) fn of(question: &Question<'_>) -> Option<SmallVec<[View; 4]>> {
        match question.pass {
            ConvPass::Forward => Some(SmallVec::from_iter([View::forward(question.geometry)])),
            ConvPass::InputGradient => View::gradients(question.geometry),
            ConvPass::WeightGradient => None,
        }
    }

    /// Columns that `count` neighbouring positions need at most, where segments begin at multiples of
    /// `pack`.
    fn width(&self, count: usize, pack: usize) -> usize {
        // Where a step is longer than what the taps reach, fewer segments have more columns.
        let least = count.div_ceil(self.positions);
        let most = if count.is_multiple_of(self.positions) {
            least
        } else if self.positions.is_multiple_of(count) {
            1
        } else {
            (count - 2) / self.positions + 2
        };
        let reach = (self.taps - 1) * self.tap_step + 1 + 2 * (pack - 1);
        let columns = |segments: usize| (count - segments) * self.step + segments * reach;
        columns(least).max(columns(most)).next_multiple_of(pack)
    }

    /// Samples that `count` neighbouring positions lie in at most.
    fn samples(&self, count: usize) -> usize {
        (self.positions - 1 + count - 1) / self.positions + 1
    }
}

/// How strips of a tile lie in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pitch: usize,
    pub(super) width: usize,
    /// Elements that are copied at once.
    pub(super) pack: usize,
    pub(super) chunk: usize,
    pub(super) buffers: usize,
    whole: bool,
    /// Bytes of all buffers.
    pub(super) bytes: usize,
}

impl Layout {
    /// Strips as they are, `chunk` channels and `zeros` more at a time. `lane` is how many words lines
    /// are apart modulo the 32 banks, so that a warp reads from all of them.
    pub(super) fn plain(
        view: &View,
        size: usize,
        count: usize,
        lane: usize,
        [chunk, zeros, buffers]: [usize; 3],
    ) -> Layout {
        let pack = pack(size, view.length);
        let width = view.width(count, pack);
        let words = (width * size).div_ceil(4);
        let pitch = (words + (lane + 32 - words % 32) % 32) * 4 / size;
        let bytes = buffers * (chunk + zeros) * pitch * size;
        Layout { pitch, width, pack, chunk, buffers, whole: false, bytes }
    }

    /// Samples copied whole, where a channel of them is not a multiple of 16 bytes and nothing is padded
    /// or left out.
    pub(super) fn whole(
        view: &View,
        size: usize,
        count: usize,
        [chunk, buffers]: [usize; 2],
    ) -> Option<Layout> {
        const MOST_LENGTH: usize = 64;
        let length = view.length;
        let short = pack(size, length) * size < 16 && length <= MOST_LENGTH;
        let plain = view.taps == 1 && view.offset == 0;
        let covered = (view.positions - 1) * view.step < length;
        if !(short && plain && covered) {
            return None;
        }
        let fits = |bytes: usize| {
            [chunk, view.channels].iter().all(|c| (c * length * size).is_multiple_of(bytes))
        };
        let bytes_at_once = [16, 4].into_iter().find(|&bytes| fits(bytes))?;
        let width = view.samples(count) * chunk * length;
        let (pack, bytes) = (bytes_at_once / size, buffers * width * size);
        Some(Layout { pitch: length, width, pack, chunk, buffers, whole: true, bytes })
    }

    /// Entries of a table of packs.
    pub(super) fn packs(&self) -> usize {
        self.width / self.pack
    }

    /// Whether addresses allow what is copied at once.
    pub(super) fn suits(&self, addresses: &[u64], size: usize) -> bool {
        addresses.iter().all(|address| address.is_multiple_of((self.pack * size) as u64))
    }

    pub(super) fn strips(&self, view: &View) -> Strips {
        Strips {
            batch: view.batch as u64,
            groups: view.groups as u32,
            channels: view.channels as u32,
            length: view.length as u32,
            positions: view.positions as u32,
            step: view.step as u32,
            taps: view.taps as u32,
            tap_step: view.tap_step as u32,
            offset: view.offset as i32,
            pitch: self.pitch as u32,
            width: self.width as u32,
            pack: self.pack as u32,
            chunk: self.chunk as u32,
            buffers: self.buffers as u32,
            whole: u32::from(self.whole),
        }
    }
}

/// How many words channels are apart, modulo the 32 banks, where eight positions of four words of terms are read
/// at once: words of halves are of two channels.
pub(super) fn term_lane(size: usize) -> usize {
    if size == 2 { 4 } else { 8 }
}

/// The same where terms are positions, and eight neighbouring taps of channels are read at once.
pub(super) fn line_lane(view: &View) -> usize {
    if view.taps == 1 { 4 } else { 8 }
}

/// Elements that can be copied at once from lines of `length`: 16, 4 or fewer bytes.
pub(super) fn pack(size: usize, length: usize) -> usize {
    let bytes = [16, 4].into_iter().find(|&bytes| (length * size).is_multiple_of(bytes));
    bytes.unwrap_or(size) / size
}

/// How values are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Precision {
    /// Halves as they are, f32 in TF32.
    Single,
    /// f32 in two parts.
    Split,
}

impl Precision {
    /// `None` where tensor cores do not multiply this type.
    pub(super) fn of(question: &Question<'_>) -> Option<Precision> {
        match question.dtype {
            DType::F16 | DType::BF16 => Some(Precision::Single),
            DType::F32 if question.tf32 => Some(Precision::Single),
            DType::F32 => Some(Precision::Split),
            _ => None,
        }
    }

    /// What a plan calls the kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Precision::Single => "strips, tensor cores",
            Precision::Split => "strips, tensor cores, f32 in two parts",
        }
    }

    pub(super) fn parts(self) -> usize {
        match self {
            Precision::Single => 1,
            Precision::Split => 2,
        }
    }
}

/// Whether the chip has the tensor cores of compute capability 9.0, and the sizes fit.
pub(super) fn takes(properties: &Properties, g: &ConvGeometry) -> bool {
    properties.compute_capability == (9, 0) && fits(g)
}

/// Whether every number that the kernels keep in 32 bits fits.
pub(super) fn fits(g: &ConvGeometry) -> bool {
    const MOST: u128 = 1 << 30;
    let all = [
        g.in_channels,
        g.out_channels,
        g.in_length,
        g.out_length,
        g.kernel,
        g.groups,
        g.pad_left,
        g.pad_right,
    ];
    let product = |parts: &[usize]| parts.iter().map(|&part| part as u128).product::<u128>();
    // A tile's positions, and so its samples, are at most 512, and in whole samples there are fewer.
    let near = |channels: usize, length: usize| {
        let samples =
            512_usize.div_ceil(g.out_length.min(g.in_length / g.stride.max(1)).max(1)) + 2;
        product(&[samples.min(g.batch), channels, length])
    };
    all.iter().all(|&n| n > 0 || n == g.pad_left || n == g.pad_right)
        && g.batch > 0
        && all.iter().all(|&n| (n as u128) < MOST)
        && near(g.in_channels, g.in_length) < MOST
        && near(g.out_channels, g.out_length) < MOST
        && product(&[g.kernel.saturating_sub(1), g.dilation]) < MOST
        && product(&[g.out_length.saturating_sub(1), g.stride]) < MOST
        && product(&[g.in_channels, g.kernel]) < MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where each position of an input meets which taps of which outputs, by the definition.
    fn meetings(g: &ConvGeometry) -> Vec<Vec<(usize, usize)>> {
        let mut all = vec![Vec::new(); g.in_length];
        for l in 0..g.out_length {
            for tap in 0..g.kernel {
                let at = (l * g.stride + tap * g.dilation).checked_sub(g.pad_left);
                if let Some(at) = at.filter(|&at| at < g.in_length) {
                    all[at].push((tap, l));
                }
            }
        }
        all
    }

    fn geometry(
        length: usize,
        [kernel, stride, dilation, pad]: [usize; 4],
    ) -> Option<ConvGeometry> {
        let out = (length + 2 * pad).checked_sub(dilation * (kernel - 1) + 1)? / stride + 1;
        Some(ConvGeometry {
            batch: 2,
            in_channels: 3,
            out_channels: 5,
            in_length: length,
            out_length: out,
            kernel,
            stride,
            dilation,
            groups: 1,
            pad_left: pad,
            pad_right: pad,
        })
    }

    #[test]
    fn views_of_a_gradient_meet_what_the_definition_says() {
        let mut seen = 0;
        for length in [1, 7, 20] {
            for sizes in
                (0..5 * 4 * 4 * 3).map(|i| [1 + i % 5, 1 + i / 5 % 4, 1 + i / 20 % 4, i / 80])
            {
                let Some(g) = geometry(length, sizes) else { continue };
                let Some(views) = View::gradients(&g) else { continue };
                seen += 1;
                let mut found = vec![Vec::new(); length];
                for view in views {
                    for q in 0..view.positions {
                        let at = view.first_position + q * view.position_step;
                        for tap in 0..view.taps {
                            let source = (q * view.step + tap * view.tap_step) as i64 + view.offset;
                            if (0..g.out_length as i64).contains(&source) {
                                let w = view.first_tap as i64 + tap as i64 * view.next_tap;
                                found[at].push((w as usize, source as usize));
                            }
                        }
                        found[at].sort();
                    }
                }
                let mut expected = meetings(&g);
                expected.iter_mut().for_each(|all| all.sort());
                assert_eq!(found, expected, "{length}, {sizes:?}");
            }
        }
        assert!(seen > 300, "{seen}");
    }

    /// Columns that neighbouring positions need, counted one by one.
    #[test]
    fn strips_are_as_wide_as_any_tile_needs() {
        for length in [5, 8, 26, 50, 64] {
            for sizes in
                (0..5 * 4 * 2 * 3).map(|i| [1 + i % 5, 1 + i / 5 % 4, 1 + i / 20 % 2, i / 40])
            {
                let Some(g) = geometry(length, sizes) else { continue };
                let view = View { batch: 1000, ..View::forward(&g) };
                for (count, pack) in [(32, 1), (128, 4), (48, 8)] {
                    // Tiles begin at multiples of their size.
                    let firsts = (0..view.positions).map(|tile| tile * count % view.positions);
                    let widest = firsts.map(|first| {
                        let (mut columns, mut at, mut left) = (0, first, count);
                        while left > 0 {
                            let here = left.min(view.positions - at);
                            let begin = (at * view.step) as i64 + view.offset;
                            let end = ((at + here - 1) * view.step
                                + (view.taps - 1) * view.tap_step
                                + 1) as i64
                                + view.offset;
                            let pack = pack as i64;
                            columns += end.div_euclid(pack) + i64::from(end.rem_euclid(pack) > 0);
                            columns -= begin.div_euclid(pack);
                            (at, left) = (0, left - here);
                        }
                        columns * pack as i64
                    });
                    let widest = widest.max().expect("a position") as usize;
                    let width = view.width(count, pack);
                    assert!(
                        widest <= width,
                        "{length}, {sizes:?}, {count}, {pack}: {widest} > {width}"
                    );
                }
            }
        }
    }
}
