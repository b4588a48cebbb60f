//! Ranks that are threads of one process and meet in its memory: for tests, and for trying a program out
//! where there is one device. Every collective goes by way of the host.

use super::collective::{Collective, Ongoing, ReduceOp, Transport};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use half::{bf16, f16};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One rank.
pub(super) struct InProcess {
    seat: Seat,
    /// How many times it has come; the n-th time of every rank belongs together.
    turns: AtomicU64,
}

/// A rank's place, which what it has under way keeps.
#[derive(Clone)]
struct Seat {
    rank: usize,
    meeting: Arc<Meeting>,
}

/// What each rank takes away from each collective: by rank, by collective, bytes.
type Results = Vec<Vec<Vec<u8>>>;

/// Where the ranks meet.
struct Meeting {
    ranks: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    turns: HashMap<u64, Turn>,
    /// Why nothing can go on.
    ended: Option<String>,
    gone: Vec<usize>,
}

/// What the ranks bring to one turn, and what each is to take away.
struct Turn {
    brought: Vec<Option<Vec<Brought>>>,
    results: Option<Arc<Results>>,
    taken: usize,
}

/// A rank's part in one collective.
struct Brought {
    kind: Kind,
    dtype: DType,
    data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    AllReduce(ReduceOp),
    Broadcast(usize),
    AllGather,
    ReduceScatter(ReduceOp),
}

impl InProcess {
    pub(super) fn all(ranks: usize, timeout: Duration) -> Vec<InProcess> {
        let state = Mutex::default();
        let meeting = Arc::new(Meeting { ranks, timeout, state, changed: Condvar::new() });
        let seat = |rank| Seat { rank, meeting: meeting.clone() };
        (0..ranks).map(|rank| InProcess { seat: seat(rank), turns: AtomicU64::new(0) }).collect()
    }

    /// Leaves what this rank brings to its next turn.
    fn bring(&self, op: &'static str, brought: Vec<Brought>) -> Result<u64> {
        let Seat { rank, meeting } = &self.seat;
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let mut state = meeting.state.lock();
        if let Some(why) = &state.ended {
            return Err(self.seat.failed(op, why.clone()));
        }
        let entry = state.turns.entry(turn).or_insert_with(|| Turn {
            brought: (0..meeting.ranks).map(|_| None).collect(),
            results: None,
            taken: 0,
        });
        entry.brought[*rank] = Some(brought);
        meeting.changed.notify_all();
        Ok(turn)
    }
}

impl Seat {
    fn failed(&self, op: &'static str, reason: impl Into<String>) -> Error {
        Error::communication(op, self.rank, self.meeting.ranks, reason)
    }

    /// Waits for the others' parts of a turn, and gives the results.
    fn take(&self, op: &'static str, turn: u64) -> Result<Arc<Results>> {
        let meeting = &*self.meeting;
        let deadline = Instant::now() + meeting.timeout;
        let mut state = meeting.state.lock();
        let mut late = false;
        loop {
            if let Some(why) = &state.ended {
                return Err(self.failed(op, why.clone()));
            }
            let Some(entry) = state.turns.get(&turn) else {
                return Err(self.failed(op, "this turn is over"));
            };
            let missing = entry.brought.iter().position(Option::is_none);
            let Some(missing) = missing.filter(|_| entry.results.is_none()) else { break };
            if state.gone.contains(&missing) {
                meeting.end(&mut state, format!("rank {missing} is gone"));
            } else if late {
                let within = meeting.timeout;
                meeting.end(&mut state, format!("rank {missing} did not come within {within:?}"));
            } else {
                late = meeting.changed.wait_until(&mut state, deadline).timed_out();
            }
        }
        let state = &mut *state;
        let Some(entry) = state.turns.get_mut(&turn) else {
            return Err(self.failed(op, "this turn is over"));
        };
        if entry.results.is_none() {
            let brought: Vec<_> = entry.brought.iter_mut().filter_map(Option::take).collect();
            match combine(&brought) {
                Ok(results) => entry.results = Some(Arc::new(results)),
                Err(why) => {
                    meeting.end(state, why.clone());
                    return Err(self.failed(op, why));
                }
            }
        }
        entry.taken += 1;
        let results = entry.results.clone();
        if entry.taken == meeting.ranks {
            state.turns.remove(&turn);
        }
        results.ok_or_else(|| self.failed(op, "this turn is over"))
    }
}

impl Meeting {
    fn end(&self, state: &mut State, why: String) {
        state.ended.get_or_insert(why);
        self.changed.notify_all();
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        let mut state = self.seat.meeting.state.lock();
        state.gone.push(self.seat.rank);
        self.seat.meeting.changed.notify_all();
    }
}

/// What each rank takes away, or why they did not come for the same.
fn combine(brought: &[Vec<Brought>]) -> Result<Results, String> {
    let ranks = brought.len();
    let mut results: Results = (0..ranks).map(|_| Vec::new()).collect();
    for (rank, other) in brought.iter().enumerate() {
        if other.len() != brought[0].len() {
            let (mine, theirs) = (brought[0].len(), other.len());
            return Err(format!(
                "rank 0 came with {mine} collectives at once, rank {rank} with {theirs}"
            ));
        }
    }
    for at in 0..brought[0].len() {
        let parts: Vec<&Brought> = brought.iter().map(|of| &of[at]).collect();
        let first = parts[0];
        for (rank, part) in parts.iter().enumerate() {
            let same = part.kind == first.kind
                && part.dtype == first.dtype
                && part.data.len() == first.data.len();
            if !same {
                let say = |part: &Brought| {
                    format!("{:?} of {} bytes of {}", part.kind, part.data.len(), part.dtype)
                };
                return Err(format!(
                    "rank 0 came with {}, rank {rank} with {}; all ranks must ask for the same in the \
                     same order",
                    say(first),
                    say(part)
                ));
            }
        }
        match first.kind {
            Kind::Broadcast(root) => {
                results.iter_mut().for_each(|of| of.push(parts[root].data.clone()));
            }
            Kind::AllGather => {
                let all: Vec<u8> = parts.iter().flat_map(|part| part.data.clone()).collect();
                results.iter_mut().for_each(|of| of.push(all.clone()));
            }
            Kind::AllReduce(by) => {
                let all = reduce(by, &parts);
                results.iter_mut().for_each(|of| of.push(all.clone()));
            }
            Kind::ReduceScatter(by) => {
                let all = reduce(by, &parts);
                let share = all.len() / ranks;
                for (rank, of) in results.iter_mut().enumerate() {
                    of.push(all[rank * share..(rank + 1) * share].to_vec());
                }
            }
        }
    }
    Ok(results)
}

fn reduce(by: ReduceOp, parts: &[&Brought]) -> Vec<u8> {
    match parts[0].dtype {
        DType::F32 => floats::<f32>(by, parts, |v| v as f64, |v| v as f32),
        DType::F64 => floats::<f64>(by, parts, |v| v, |v| v),
        DType::F16 => floats::<f16>(by, parts, f16::to_f64, f16::from_f64),
        DType::BF16 => floats::<bf16>(by, parts, bf16::to_f64, bf16::from_f64),
        DType::I32 => integers::<i32>(by, parts, i32::wrapping_add),
        DType::I64 => integers::<i64>(by, parts, i64::wrapping_add),
    }
}

/// In the order of the ranks and in f64, so that all ranks get the same bits whoever comes last.
fn floats<T: bytemuck::Pod>(
    by: ReduceOp,
    parts: &[&Brought],
    wide: fn(T) -> f64,
    narrow: fn(f64) -> T,
) -> Vec<u8> {
    let value = |part: &Brought, at: usize| -> f64 {
        wide(bytemuck::pod_read_unaligned(
            &part.data[at * size_of::<T>()..(at + 1) * size_of::<T>()],
        ))
    };
    let count = parts[0].data.len() / size_of::<T>();
    let mut out = Vec::with_capacity(parts[0].data.len());
    for at in 0..count {
        let values = parts.iter().map(|part| value(part, at));
        let all = match by {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Mean => values.sum::<f64>() / parts.len() as f64,
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, larger),
            ReduceOp::Min => -values.map(|v| -v).fold(f64::NEG_INFINITY, larger),
        };
        out.extend_from_slice(bytemuck::bytes_of(&narrow(all)));
    }
    out
}

/// The larger, or NaN where one is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

fn integers<T: bytemuck::Pod + Ord>(
    by: ReduceOp,
    parts: &[&Brought],
    add: fn(T, T) -> T,
) -> Vec<u8> {
    let size = size_of::<T>();
    let value = |part: &Brought, at: usize| -> T {
        bytemuck::pod_read_unaligned(&part.data[at * size..(at + 1) * size])
    };
    let mut out = Vec::with_capacity(parts[0].data.len());
    for at in 0..parts[0].data.len() / size {
        let mut values = parts.iter().map(|part| value(part, at));
        let Some(first) = values.next() else { continue };
        let all = match by {
            ReduceOp::Max => values.fold(first, T::max),
            ReduceOp::Min => values.fold(first, T::min),
            ReduceOp::Sum | ReduceOp::Mean => values.fold(first, add),
        };
        out.extend_from_slice(bytemuck::bytes_of(&all));
    }
    out
}

/// A turn that this rank has come to and not gone from.
struct Taking {
    seat: Seat,
    op: &'static str,
    turn: u64,
    outs: Vec<Tensor>,
}

impl Ongoing for Taking {
    fn wait(&mut self) -> Result<()> {
        let results = self.seat.take(self.op, self.turn)?;
        for (out, bytes) in self.outs.drain(..).zip(&results[self.seat.rank]) {
            out.device().backend().write(&out, bytes)?;
        }
        Ok(())
    }
}

impl Transport for InProcess {
    fn rank(&self) -> usize {
        self.seat.rank
    }

    fn world_size(&self) -> usize {
        self.seat.meeting.ranks
    }

    fn description(&self) -> String {
        "threads of one process".into()
    }

    fn start(&self, op: &'static str, work: Vec<Collective>) -> Result<Box<dyn Ongoing>> {
        let mut brought = Vec::with_capacity(work.len());
        let mut outs = Vec::with_capacity(work.len());
        for collective in work {
            let kind = match &collective {
                Collective::AllReduce { by, .. } => Kind::AllReduce(*by),
                Collective::Broadcast { root, .. } => Kind::Broadcast(*root),
                Collective::AllGather { .. } => Kind::AllGather,
                Collective::ReduceScatter { by, .. } => Kind::ReduceScatter(*by),
            };
            let [x, out] = collective.tensors();
            let mut data = crate::tensor::host_memory::<u8>(x.bytes())?;
            x.device().backend().read(x, &mut data)?;
            brought.push(Brought { kind, dtype: x.dtype(), data });
            outs.push(out.clone());
        }
        let turn = self.bring(op, brought)?;
        Ok(Box::new(Taking { seat: self.seat.clone(), op, turn, outs }))
    }

    fn sum(&self, op: &'static str, numbers: &mut [f64]) -> Result<()> {
        let data = bytemuck::cast_slice(numbers).to_vec();
        let kind = Kind::AllReduce(ReduceOp::Sum);
        let turn = self.bring(op, vec![Brought { kind, dtype: DType::F64, data }])?;
        let results = self.seat.take(op, turn)?;
        let summed: &[u8] = &results[self.seat.rank][0];
        bytemuck::cast_slice_mut(numbers).copy_from_slice(summed);
        Ok(())
    }
}
