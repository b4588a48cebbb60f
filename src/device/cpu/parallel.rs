//! Work in pieces. A pass over a tensor is cut at places that depend on its size only, never on the
//! number of threads, so that sums are bitwise the same on any machine; small passes stay on the
//! calling thread, where waking others would cost more than the work. Nothing here takes a lock:
//! operands are locked before the pool is entered, as a worker that waits may be handed another
//! operation's piece, which must not need a lock that the worker holds.

use super::Cpu;
use crate::context::Aside;
use std::ops::Range;

/// Elements that are worth a thread's while.
pub(super) const GRAIN: usize = 16 << 10;

/// Something that is cut into a part for the first `items` items and one for the others.
pub(super) trait Split: Send + Sized {
    fn split(self, items: usize) -> (Self, Self);
}

impl Split for () {
    fn split(self, _: usize) -> (Self, Self) {
        ((), ())
    }
}

impl<T: Send> Split for &mut [T] {
    fn split(self, items: usize) -> (Self, Self) {
        self.split_at_mut(items)
    }
}

/// Rows of `width` elements: an item is a row.
pub(super) struct Rows<'a, T>(pub(super) &'a mut [T], pub(super) usize);

impl<T: Send> Split for Rows<'_, T> {
    fn split(self, items: usize) -> (Self, Self) {
        // The last row may be shorter, where rows are the distance between windows.
        let at = (items * self.1).min(self.0.len());
        let (head, tail) = self.0.split_at_mut(at);
        (Rows(head, self.1), Rows(tail, self.1))
    }
}

impl<P: Split> Split for Option<P> {
    fn split(self, items: usize) -> (Self, Self) {
        self.map(|part| part.split(items)).unzip()
    }
}

impl<A: Split, B: Split> Split for (A, B) {
    fn split(self, items: usize) -> (Self, Self) {
        let ((a, c), (b, d)) = (self.0.split(items), self.1.split(items));
        ((a, b), (c, d))
    }
}

impl<P: Split, const N: usize> Split for [P; N] {
    fn split(self, items: usize) -> (Self, Self) {
        let mut tails = [const { None }; N];
        let mut next = tails.iter_mut();
        let heads = self.map(|part| {
            let (head, tail) = part.split(items);
            *next.next().expect("as many tails as parts") = Some(tail);
            head
        });
        (heads, tails.map(|tail| tail.expect("each part left a tail")))
    }
}

/// How many items of `cost` elements each make a piece.
pub(super) fn grain(cost: usize) -> usize {
    (GRAIN / cost.max(1)).max(1)
}

/// Where a range of more than one piece is cut in two.
fn middle(range: &Range<usize>, grain: usize) -> usize {
    range.len().div_ceil(grain) / 2 * grain
}

impl Cpu {
    /// Threads that compute.
    pub(super) fn threads(&self) -> usize {
        self.pool.as_ref().map_or_else(rayon::current_num_threads, |p| p.current_num_threads())
    }

    /// Runs `f` where rayon's work goes to this device's threads.
    ///
    /// By way of `dyn`, here and in [`join`]: a call costs nothing beside a piece, and a copy of
    /// rayon's machinery for each kernel and dtype would cost minutes of compile time.
    pub(super) fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let (mut f, mut result) = (Some(f), None);
        self.enter(&mut || result = f.take().map(|f| f()));
        result.expect("the pool has run it")
    }

    fn enter(&self, f: &mut (dyn FnMut() + Send)) {
        let _aside = Aside::new();
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }

    /// Runs `f` on pieces of at most `grain` items, with the part of `parts` that belongs to each.
    pub(super) fn each<P: Split>(
        &self,
        items: usize,
        grain: usize,
        parts: P,
        f: impl Fn(Range<usize>, P) + Sync,
    ) {
        self.each_piece(items, grain, parts, &f);
    }

    fn each_piece<P: Split>(
        &self,
        items: usize,
        grain: usize,
        parts: P,
        f: &(dyn Fn(Range<usize>, P) + Sync),
    ) {
        if items == 0 {
        } else if items <= grain {
            f(0..items, parts);
        } else if self.threads() == 1 {
            sequential(0..items, grain, parts, f);
        } else {
            let mut parts = Some(parts);
            self.enter(&mut || {
                if let Some(parts) = parts.take() {
                    parallel(0..items, grain, parts, f);
                }
            });
        }
    }

    /// Combines what `leaf` gives for pieces of at most `grain` items, pairwise. No items make one
    /// empty piece.
    pub(super) fn reduce<R: Send>(
        &self,
        items: usize,
        grain: usize,
        leaf: impl Fn(Range<usize>) -> R + Sync,
        combine: impl Fn(R, R) -> R + Sync,
    ) -> R {
        if items <= grain {
            leaf(0..items)
        } else if self.threads() == 1 {
            tree(0..items, grain, false, &leaf, &combine)
        } else {
            self.install(|| tree(0..items, grain, true, &leaf, &combine))
        }
    }
}

fn sequential<P: Split>(
    mut range: Range<usize>,
    grain: usize,
    mut parts: P,
    f: &dyn Fn(Range<usize>, P),
) {
    while range.len() > grain {
        let (head, tail) = parts.split(grain);
        f(range.start..range.start + grain, head);
        (range.start, parts) = (range.start + grain, tail);
    }
    f(range, parts);
}

fn parallel<P: Split>(
    range: Range<usize>,
    grain: usize,
    parts: P,
    f: &(dyn Fn(Range<usize>, P) + Sync),
) {
    if range.len() <= grain {
        return f(range, parts);
    }
    let items = middle(&range, grain);
    let (head, tail) = parts.split(items);
    let at = range.start + items;
    let (mut head, mut tail) = (Some(head), Some(tail));
    let run = |range, part: &mut Option<P>| {
        if let Some(part) = part.take() {
            parallel(range, grain, part, f);
        }
    };
    join(&mut || run(range.start..at, &mut head), &mut || run(at..range.end, &mut tail));
}

fn join(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
    rayon::join(a, b);
}

fn tree<R: Send>(
    range: Range<usize>,
    grain: usize,
    parallel: bool,
    leaf: &(dyn Fn(Range<usize>) -> R + Sync),
    combine: &(dyn Fn(R, R) -> R + Sync),
) -> R {
    if range.len() <= grain {
        return leaf(range);
    }
    let at = range.start + middle(&range, grain);
    let (mut a, mut b) = (None, None);
    let mut left = || a = Some(tree(range.start..at, grain, parallel, leaf, combine));
    let mut right = || b = Some(tree(at..range.end, grain, parallel, leaf, combine));
    if parallel {
        join(&mut left, &mut right);
    } else {
        left();
        right();
    }
    match (a, b) {
        (Some(a), Some(b)) => combine(a, b),
        _ => unreachable!("both halves have run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::CpuOptions;
    use std::sync::Mutex;

    fn cpu(threads: usize) -> Cpu {
        Cpu::new(&CpuOptions { threads: Some(threads), poison: true }).unwrap()
    }

    #[test]
    fn pieces_are_the_same_for_any_number_of_threads() {
        let pieces = |threads| {
            let seen = Mutex::new(Vec::new());
            let mut rows = vec![0usize; 3 * 1003];
            cpu(threads).each(1003, 10, Rows(&mut rows, 3), |range, Rows(part, _)| {
                assert_eq!(part.len(), 3 * range.len());
                part.iter_mut().enumerate().for_each(|(i, p)| *p = range.start + i / 3);
                seen.lock().unwrap().push((range.start, range.end));
            });
            assert!(rows.iter().enumerate().all(|(i, &row)| row == i / 3));
            let mut seen = seen.into_inner().unwrap();
            seen.sort();
            seen
        };
        assert_eq!(pieces(1), pieces(2));
        let shape = |threads| {
            cpu(threads).reduce(1003, 10, |r| format!("{}", r.len()), |a, b| format!("({a} {b})"))
        };
        assert_eq!(shape(1), shape(2));
        assert_eq!(cpu(2).reduce(0, 10, |range| range.len(), |a, b| a + b), 0);
    }

    #[test]
    fn zero_threads_are_refused() {
        let error = Cpu::new(&CpuOptions { threads: Some(0), poison: false }).unwrap_err();
        assert!(matches!(error, crate::Error::Argument { argument: "threads", .. }));
    }
}
