//! A timeline as the columns of a picture: as many points as can be told apart, and where in the
//! stack of purposes a name fits.

use crate::memory::{ByPurpose, Purpose, Timeline};

/// Columns that are drawn at most: more would make the file large, and cannot be told apart.
const MOST: usize = 800;

/// The order in which purposes are stacked, the lowest first: what stays from step to step is at the
/// bottom, so that what comes and goes does not shake it.
pub(super) const STACK: [Purpose; 7] = [
    Purpose::Parameter,
    Purpose::Optimiser,
    Purpose::Sparse,
    Purpose::Other,
    Purpose::Activation,
    Purpose::Gradient,
    Purpose::Workspace,
];

pub(super) struct Columns {
    /// Points of the timeline, at least one.
    pub(super) points: usize,
    /// Live bytes of each column: those of its point with the most in total.
    pub(super) live: Vec<ByPurpose>,
    /// The column that has the peak.
    pub(super) peak_at: usize,
    /// Live bytes at the peak.
    pub(super) at_peak: ByPurpose,
    /// The purposes that occur, in the order of the stack.
    pub(super) purposes: Vec<Purpose>,
}

impl Columns {
    /// The columns for a picture that is so many pixels wide.
    pub(super) fn new(timeline: &Timeline, pixels: usize) -> Columns {
        let nothing = [ByPurpose::default()];
        let live = if timeline.live.is_empty() { &nothing[..] } else { &timeline.live[..] };
        let peak = peak(live, timeline.peak_at);
        let count = live.len().min(pixels).clamp(1, MOST);
        let start = |column: usize| (column as u128 * live.len() as u128 / count as u128) as usize;
        let mut columns = Columns {
            points: live.len(),
            live: Vec::with_capacity(count),
            peak_at: 0,
            at_peak: live[peak],
            purposes: Vec::new(),
        };
        for column in 0..count {
            let range = start(column)..start(column + 1);
            if range.contains(&peak) {
                columns.peak_at = column;
                columns.live.push(live[peak]);
            } else {
                columns.live.push(live[range.start + largest(&live[range])]);
            }
        }
        let occurs = |purpose: &Purpose| live.iter().any(|live| live[*purpose] > 0);
        columns.purposes = STACK.into_iter().filter(occurs).collect();
        columns
    }

    /// In each column, the bytes of a purpose and of all that are below it.
    pub(super) fn tops(&self, purpose: Purpose) -> impl Iterator<Item = u128> {
        self.live.iter().map(move |live| {
            let below = STACK.iter().take_while(|&&lower| lower != purpose);
            below.map(|&lower| u128::from(live[lower])).sum::<u128>() + u128::from(live[purpose])
        })
    }
}

/// Bytes of all purposes: made-up sizes can be more together than `u64` holds.
pub(super) fn total(live: &ByPurpose) -> u128 {
    STACK.iter().map(|&purpose| u128::from(live[purpose])).sum()
}

/// Where the most is live, the first of several.
fn largest(live: &[ByPurpose]) -> usize {
    let mut best = (0, 0);
    for (i, live) in live.iter().enumerate() {
        let total = total(live);
        if total > best.1 {
            best = (i, total);
        }
    }
    best.0
}

/// Where the peak is. The timeline says so, but its fields can be changed.
fn peak(live: &[ByPurpose], said: usize) -> usize {
    let first = largest(live);
    match live.get(said) {
        Some(there) if total(there) == total(&live[first]) => said,
        _ => first,
    }
}

/// The largest rectangle of at least so many pixels between two edges, as first column, column after
/// the last, top and bottom. `edges` has the upper and the lower edge of each column, in pixels from
/// the top.
pub(super) fn room(
    edges: &[(f64, f64)],
    column_width: f64,
    width: f64,
    height: f64,
) -> Option<(usize, usize, f64, f64)> {
    let mut best = None;
    let mut best_area = 0.0;
    for first in 0..edges.len() {
        let (mut top, mut bottom) = edges[first];
        for (column, &(upper, lower)) in edges.iter().enumerate().skip(first) {
            (top, bottom) = (top.max(upper), bottom.min(lower));
            if bottom - top < height {
                break;
            }
            let wide = (column + 1 - first) as f64 * column_width;
            let area = wide * (bottom - top);
            if wide >= width && area > best_area {
                best = Some((first, column + 1, top, bottom));
                best_area = area;
            }
        }
    }
    best
}
