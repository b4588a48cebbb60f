//! The phases of a timeline as boxes in rows above it.

use crate::memory::Phase;

/// A box of a row: one phase, or several that are too narrow to be told apart.
pub(super) struct Block {
    /// Its edges, in pixels from the left edge of the plot.
    pub(super) left: f64,
    pub(super) right: f64,
    /// The phase's own name, without the scopes around it.
    pub(super) name: String,
    pub(super) phases: usize,
}

/// The points in which a phase is under way: after the one that it begins with, up to the one that it
/// ends with. Indices past the end are taken to be the end.
fn stretch(phase: &Phase, points: usize) -> (usize, usize) {
    let after = |index: usize| index.saturating_add(1).min(points);
    (after(phase.from), after(phase.to))
}

/// Phases in at most so many rows, and how many had no place. A phase is in the row of its depth, or
/// in one below where another thread's phase is there at the same time.
pub(super) fn rows(phases: &[Phase], points: usize, most: usize) -> (Vec<Vec<&Phase>>, usize) {
    let mut order: Vec<&Phase> = phases.iter().collect();
    order.sort_by_key(|phase| (phase.from, phase.depth));
    let mut rows: Vec<(usize, Vec<&Phase>)> = vec![(0, Vec::new()); most];
    let mut left_out = 0;
    for phase in order {
        let (from, to) = stretch(phase, points);
        if from >= to {
            continue;
        }
        match rows.iter_mut().skip(phase.depth).find(|(end, _)| *end <= from) {
            Some((end, row)) => {
                *end = to;
                row.push(phase);
            }
            None => left_out += 1,
        }
    }
    // An outer scope that was open before the recording began leaves its row empty.
    let rows = rows.into_iter().map(|(_, row)| row).filter(|row| !row.is_empty()).collect();
    (rows, left_out)
}

/// The boxes of one row in a plot of `width` pixels. Neighbours narrower than `narrow` become one, so
/// that a long recording has no more boxes than can be seen.
pub(super) fn blocks(row: &[&Phase], points: usize, width: f64, narrow: f64) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let x = |point: usize| point as f64 / points as f64 * width;
    for phase in row {
        let (from, to) = stretch(phase, points);
        let (left, right) = (x(from), x(to));
        match blocks.last_mut() {
            Some(last)
                if right - left < narrow
                    && left - last.right < narrow
                    && (last.phases > 1 || last.right - last.left < narrow) =>
            {
                last.right = right;
                last.phases += 1;
            }
            _ => {
                let name = phase.name.rsplit('/').next().unwrap_or(&phase.name).to_owned();
                blocks.push(Block { left, right, name, phases: 1 });
            }
        }
    }
    blocks
}
