//! How what a recording has seen is worked out: its log is gone through once, from what was live at its
//! beginning.

use super::pass::Pass;
use super::purpose::{ByPurpose, Purpose};
use super::recorded::{Allocations, OperationReport, Recorded, WorkspaceReport};
use super::recorder::{Event, Recorder};
use super::timeline::{Phase, Timeline};
use std::collections::{BTreeMap, HashMap};

/// Pieces that are listed among the largest.
const LARGEST: usize = 10;

/// A piece that is alive while the log is gone through.
#[derive(Clone, Copy)]
struct Piece {
    bytes: u64,
    purpose: Purpose,
    source: u32,
}

impl Recorder {
    pub(super) fn recorded(&self) -> Recorded {
        let mut replay = Replay::new(self);
        for &event in &self.events {
            replay.go_on(event);
        }
        let peak_at = replay.peak_at;
        let mut timeline = replay.finish_timeline();
        timeline.peak_at = peak_at;
        Recorded {
            complete: self.complete,
            peak: timeline.live[peak_at].total(),
            alive_at_peak: self.alive_after(peak_at),
            operations: replay.operations(),
            largest: replay.largest(),
            workspaces: replay.workspaces(),
            timeline,
        }
    }

    /// What was alive after so many events.
    fn alive_after(&self, events: usize) -> Vec<Allocations> {
        let mut alive = HashMap::new();
        let mut before = self.start;
        for event in &self.events[..events] {
            step(&mut alive, &mut before, *event);
        }
        let mut pieces = self.grouped(alive.into_values());
        pieces.extend(Purpose::ALL.into_iter().filter(|&purpose| before[purpose] > 0).map(
            |purpose| Allocations {
                op: "before the recording".into(),
                pass: None,
                scope: String::new(),
                purpose,
                bytes: before[purpose],
                count: 1,
            },
        ));
        pieces.sort_by_key(|p| std::cmp::Reverse(p.bytes.saturating_mul(p.count)));
        pieces
    }

    /// Alike pieces together, in an order that does not depend on chance.
    fn grouped(&self, pieces: impl Iterator<Item = Piece>) -> Vec<Allocations> {
        let mut counts: BTreeMap<(u32, u64, Purpose), u64> = BTreeMap::new();
        for piece in pieces {
            *counts.entry((piece.source, piece.bytes, piece.purpose)).or_default() += 1;
        }
        let named = |((source, bytes, purpose), count)| {
            let source = self.source(source);
            Allocations {
                op: source.op.to_owned(),
                pass: Some(source.pass),
                scope: source.scope.map_or_else(String::new, |scope| self.scope(scope).to_owned()),
                purpose,
                bytes,
                count,
            }
        };
        counts.into_iter().map(named).collect()
    }
}

/// Takes one event into account: in the pieces that are alive, or in what was live before.
fn step(alive: &mut HashMap<u64, Piece>, before: &mut ByPurpose, event: Event) {
    match event {
        Event::Taken { id, bytes, purpose, source } => {
            alive.insert(id, Piece { bytes, purpose, source });
        }
        Event::Freed { id, bytes, purpose, .. } => {
            if alive.remove(&id).is_none() {
                before[purpose] = before[purpose].saturating_sub(bytes);
            }
        }
        Event::Moved { id, bytes, from, to } => match alive.get_mut(&id) {
            Some(piece) => piece.purpose = to,
            None => {
                before[from] = before[from].saturating_sub(bytes);
                before[to] += bytes;
            }
        },
        Event::ScopeBegan { .. } | Event::ScopeEnded { .. } => {}
    }
}

/// Going through a log once.
struct Replay<'a> {
    log: &'a Recorder,
    live: ByPurpose,
    points: Vec<ByPurpose>,
    /// The most live bytes so far, and the point at which they were.
    peak_at: usize,
    peak: u64,
    /// Each with what it has live.
    operations: BTreeMap<(Pass, &'static str), (OperationReport, u64)>,
    workspaces: BTreeMap<(Pass, u32, u64), u64>,
    pieces: Vec<Piece>,
    taken_by: HashMap<u64, u32>,
    scopes: Vec<Phase>,
    open_scopes: Vec<(u32, usize)>,
    passes: Vec<Phase>,
}

impl<'a> Replay<'a> {
    fn new(log: &'a Recorder) -> Self {
        Replay {
            log,
            live: log.start,
            points: vec![log.start],
            peak_at: 0,
            peak: log.start.total(),
            operations: BTreeMap::new(),
            workspaces: BTreeMap::new(),
            pieces: Vec::new(),
            taken_by: HashMap::new(),
            scopes: Vec::new(),
            open_scopes: Vec::new(),
            passes: Vec::new(),
        }
    }

    fn go_on(&mut self, event: Event) {
        let at = self.points.len();
        match event {
            Event::Taken { id, bytes, purpose, source } => {
                self.live[purpose] += bytes;
                self.taken(id, Piece { bytes, purpose, source }, at);
            }
            Event::Freed { id, bytes, purpose, pass } => {
                self.in_pass(pass, at);
                self.live[purpose] = self.live[purpose].saturating_sub(bytes);
                if let Some(source) = self.taken_by.remove(&id) {
                    let source = self.log.source(source);
                    if let Some((_, own)) = self.operations.get_mut(&(source.pass, source.op)) {
                        *own = own.saturating_sub(bytes);
                    }
                }
            }
            Event::Moved { bytes, from, to, .. } => {
                self.live[from] = self.live[from].saturating_sub(bytes);
                self.live[to] += bytes;
            }
            Event::ScopeBegan { scope } => self.open_scopes.push((scope, at - 1)),
            Event::ScopeEnded { scope } => {
                if let Some(i) = self.open_scopes.iter().rposition(|&(open, _)| open == scope) {
                    let (scope, from) = self.open_scopes.remove(i);
                    self.scopes.push(self.phase(scope, from, at));
                }
            }
        }
        self.points.push(self.live);
    }

    fn taken(&mut self, id: u64, piece: Piece, at: usize) {
        let total = self.live.total();
        if total > self.peak {
            (self.peak, self.peak_at) = (total, at);
        }
        let source = self.log.source(piece.source);
        let fresh = || {
            let op = source.op.to_owned();
            let zero = OperationReport {
                pass: source.pass,
                op,
                allocations: 0,
                taken: 0,
                own_peak: 0,
                peak: 0,
                workspace: 0,
            };
            (zero, 0)
        };
        let (report, own) = self.operations.entry((source.pass, source.op)).or_insert_with(fresh);
        *own += piece.bytes;
        report.allocations += 1;
        report.taken = report.taken.saturating_add(piece.bytes);
        report.own_peak = report.own_peak.max(*own);
        report.peak = report.peak.max(total);
        if piece.purpose == Purpose::Workspace {
            report.workspace = report.workspace.max(piece.bytes);
        }
        if let Some(plan) = source.plan {
            *self.workspaces.entry((source.pass, plan, piece.bytes)).or_default() += 1;
        }
        self.in_pass(source.pass, at);
        self.pieces.push(piece);
        self.taken_by.insert(id, piece.source);
    }

    /// An event of a pass: it goes on, or another begins.
    fn in_pass(&mut self, pass: Pass, at: usize) {
        match self.passes.last_mut() {
            Some(phase) if phase.name == pass.name() => phase.to = at,
            last => {
                let from = last.map_or(0, |phase| phase.to);
                let name = pass.name().to_owned();
                self.passes.push(Phase { name, from, to: at, depth: 0 });
            }
        }
    }

    fn phase(&self, scope: u32, from: usize, to: usize) -> Phase {
        let path = self.log.scope(scope);
        let depth = path.matches('/').count();
        Phase { name: path.to_owned(), from, to, depth }
    }

    /// The timeline, with phases that have not ended taken to end now.
    fn finish_timeline(&mut self) -> Timeline {
        let end = self.points.len() - 1;
        let mut scopes = std::mem::take(&mut self.scopes);
        scopes.extend(self.open_scopes.iter().map(|&(scope, from)| self.phase(scope, from, end)));
        scopes.sort_by_key(|phase| (phase.from, phase.depth));
        let mut passes = std::mem::take(&mut self.passes);
        if let Some(last) = passes.last_mut() {
            last.to = end;
        }
        Timeline {
            device: String::new(),
            complete: self.log.complete,
            live: std::mem::take(&mut self.points),
            peak_at: 0,
            scopes,
            passes,
            workspace_cap: None,
            limit: None,
        }
    }

    fn operations(&self) -> Vec<OperationReport> {
        let mut reports: Vec<_> =
            self.operations.values().map(|(report, _)| report.clone()).collect();
        reports.sort_by_key(|report| std::cmp::Reverse((report.own_peak, report.taken)));
        reports
    }

    fn largest(&self) -> Vec<Allocations> {
        let mut pieces = self.pieces.clone();
        pieces.sort_by_key(|piece| std::cmp::Reverse(piece.bytes));
        pieces.truncate(LARGEST);
        let mut largest = self.log.grouped(pieces.into_iter());
        largest.sort_by_key(|pieces| std::cmp::Reverse(pieces.bytes));
        largest
    }

    fn workspaces(&self) -> Vec<WorkspaceReport> {
        let named = |(&(pass, plan, bytes), &count): (&(Pass, u32, u64), &u64)| {
            let (operation, algorithm) = self.log.plan(plan).clone();
            WorkspaceReport { pass, operation, algorithm, bytes, count }
        };
        let mut reports: Vec<_> = self.workspaces.iter().map(named).collect();
        reports.sort_by_key(|report| std::cmp::Reverse(report.bytes));
        reports
    }
}
