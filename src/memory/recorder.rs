//! The log of a recording: every piece of memory that was taken or given back, for what and by which
//! operation. It is kept as it comes and is worked out (`replay`) when a report is made.

use super::pass::{Pass, current_pass};
use super::purpose::{ByPurpose, Purpose};
use std::collections::HashMap;

/// Events that are kept; past that a recording is cut short, so that a long run does not grow.
const KEPT: usize = 1 << 20;

/// Who takes memory.
#[derive(Clone, Copy)]
pub(crate) struct Taker<'a> {
    /// The operation.
    pub(crate) op: &'static str,
    /// Of a workspace: what was planned.
    pub(crate) plan: Option<Planned<'a>>,
}

/// A planned operation and its algorithm, put into words only where that is new.
#[derive(Clone, Copy)]
pub(crate) struct Planned<'a> {
    /// The same for the same operation, sizes and algorithm.
    pub(crate) key: &'a dyn Fn() -> u64,
    /// The operation with its sizes, and the algorithm.
    pub(crate) text: &'a dyn Fn() -> (String, String),
}

impl Taker<'_> {
    pub(crate) const fn of(op: &'static str) -> Taker<'static> {
        Taker { op, plan: None }
    }
}

/// A taker as the log keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Source {
    pub(super) pass: Pass,
    pub(super) op: &'static str,
    /// Index of the path of the innermost open scope.
    pub(super) scope: Option<u32>,
    /// Index of a planned operation and its algorithm.
    pub(super) plan: Option<u32>,
}

#[derive(Clone, Copy)]
pub(super) enum Event {
    Taken { id: u64, bytes: u64, purpose: Purpose, source: u32 },
    Freed { id: u64, bytes: u64, purpose: Purpose, pass: Pass },
    Moved { id: u64, bytes: u64, from: Purpose, to: Purpose },
    ScopeBegan { scope: u32 },
    ScopeEnded { scope: u32 },
}

/// Each different value once.
struct Interned<T>(Vec<T>, HashMap<T, u32>);

impl<T: Clone + Eq + std::hash::Hash> Interned<T> {
    fn index(&mut self, value: T) -> u32 {
        let next = self.0.len() as u32;
        let values = &mut self.0;
        *self.1.entry(value).or_insert_with_key(|value| {
            values.push(value.clone());
            next
        })
    }
}

impl Interned<String> {
    fn index_of(&mut self, text: &str) -> u32 {
        match self.1.get(text) {
            Some(&index) => index,
            None => self.index(text.to_owned()),
        }
    }
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Interned(Vec::new(), HashMap::new())
    }
}

/// A recording under way, or one that has ended.
pub(super) struct Recorder {
    pub(super) open: bool,
    pub(super) complete: bool,
    /// What was live when it began.
    pub(super) start: ByPurpose,
    pub(super) events: Vec<Event>,
    sources: Interned<Source>,
    scopes: Interned<String>,
    plans: Interned<(String, String)>,
    /// Keys of plans, with where their texts are.
    planned: HashMap<u64, u32>,
}

impl Recorder {
    /// From now on, with the scopes that are open.
    pub(super) fn new<'a>(
        start: ByPurpose,
        open_scopes: impl Iterator<Item = &'a str>,
    ) -> Recorder {
        let mut recorder = Recorder {
            open: true,
            complete: true,
            start,
            events: Vec::new(),
            sources: Interned::default(),
            scopes: Interned::default(),
            plans: Interned::default(),
            planned: HashMap::new(),
        };
        open_scopes.for_each(|path| recorder.scope_began(path));
        recorder
    }

    pub(super) fn source(&self, index: u32) -> Source {
        self.sources.0[index as usize]
    }

    pub(super) fn scope(&self, index: u32) -> &str {
        &self.scopes.0[index as usize]
    }

    pub(super) fn plan(&self, index: u32) -> &(String, String) {
        &self.plans.0[index as usize]
    }

    fn push(&mut self, event: Event) {
        if !self.open {
            return;
        }
        if self.events.len() == KEPT {
            (self.open, self.complete) = (false, false);
            return;
        }
        self.events.push(event);
    }

    pub(super) fn taken(
        &mut self,
        id: u64,
        bytes: u64,
        purpose: Purpose,
        taker: Taker<'_>,
        scope: Option<&str>,
    ) {
        if !self.open {
            return;
        }
        let plan = taker.plan.map(|plan| {
            let plans = &mut self.plans;
            *self.planned.entry((plan.key)()).or_insert_with(|| plans.index((plan.text)()))
        });
        let scope = scope.map(|path| self.scopes.index_of(path));
        let source = Source { pass: current_pass(), op: taker.op, scope, plan };
        let source = self.sources.index(source);
        self.push(Event::Taken { id, bytes, purpose, source });
    }

    pub(super) fn freed(&mut self, id: u64, bytes: u64, purpose: Purpose) {
        self.push(Event::Freed { id, bytes, purpose, pass: current_pass() });
    }

    pub(super) fn moved(&mut self, id: u64, bytes: u64, from: Purpose, to: Purpose) {
        self.push(Event::Moved { id, bytes, from, to });
    }

    pub(super) fn scope_began(&mut self, path: &str) {
        let scope = self.scopes.index_of(path);
        self.push(Event::ScopeBegan { scope });
    }

    pub(super) fn scope_ended(&mut self, path: &str) {
        let scope = self.scopes.index_of(path);
        self.push(Event::ScopeEnded { scope });
    }
}
