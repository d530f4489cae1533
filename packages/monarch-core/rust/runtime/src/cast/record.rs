//! One cast at one host: its frame, the outcomes of the host's own targets, and the tasks, each of which is a request for answers by
//! another host or by the source.
//!
//! A task is complete when all own targets and all children of the task have outcomes. Its answers are then merged into runs of equal
//! answers.

use std::sync::Arc;

use wire::cast::{Answer, Reduced};
use wire::runs::{ENDED, SEPARATE, UNREACHED};
use wire::{Cast, GroupSlice, ProcUid, Runs, Span, Status};

/// A larger answer is sent by itself instead of with the merged answers. Merging would save little compared with the cost of so many bytes,
/// and a node would hold the large answers of its whole subtree at once.
pub const LARGE: usize = 16 << 10;

/// The state of a cast at a target of this host.
#[derive(Clone, Debug)]
pub(super) enum Own {
    Pending,
    Taken,
    Answered(Status, Arc<[u8]>),
    /// The answer was sent directly to the caller.
    AnsweredDirectly,
    Gone,
}

/// Another host that this host has asked for the answers of a part of a task's span.
pub(super) struct Child {
    pub head: ProcUid,
    /// The number of the ask among the asks of this host.
    pub ask: u32,
    pub span: Span,
    pub result: Option<Runs>,
}

/// A request to this host for the answers of a span. One cast can have several, when hosts have died.
pub(super) struct Task {
    /// The host that asked; `None` for the source.
    pub parent: Option<ProcUid>,
    /// The number of the ask among the asks of the parent.
    pub ask: u32,
    pub span: Span,
    pub children: Vec<Child>,
    /// The first error of the cast has been sent ahead of the other answers.
    pub warned: bool,
    pub done: bool,
}

/// One cast at one host: the frame, the state of the host's targets, and the tasks. The group owns it.
pub(super) struct Record {
    pub cast: Cast,
    /// The number by which procs of this host name the cast in their answers.
    pub cast_id: u64,
    /// The state of each target of this host, by index, from the first index of this host.
    pub own: Vec<Own>,
    /// The number of targets of this host without an outcome.
    pub missing: usize,
    pub tasks: Vec<Task>,
    /// The number of the next ask that this host sends.
    pub next_ask: u32,
}

impl Task {
    pub fn new(parent: Option<ProcUid>, ask: u32, span: Span) -> Self {
        Task { parent, ask, span, children: vec![], warned: false, done: false }
    }

    /// True if a child of this task has this uid and this ask number.
    pub fn expects(&self, from: ProcUid, ask: u32) -> bool {
        self.children.iter().any(|c| (c.head, c.ask) == (from, ask))
    }
}

impl Record {
    pub fn new(cast: Cast, cast_id: u64) -> Self {
        Record { cast, cast_id, own: vec![], missing: 0, tasks: vec![], next_ask: 0 }
    }

    /// The answers of the targets of this host.
    fn own_runs(&self) -> Runs {
        let mut runs = Runs::default();
        for own in &self.own {
            match own {
                Own::Answered(_, bytes) if bytes.len() > LARGE => runs.push(1, SEPARATE, b""),
                Own::Answered(status, bytes) => runs.push(1, *status as u8, bytes),
                Own::AnsweredDirectly => runs.push(1, SEPARATE, b""),
                Own::Taken => runs.push(1, Status::Ok as u8, b""),
                Own::Pending | Own::Gone => runs.push(1, ENDED, b""),
            }
        }
        runs
    }

    /// True if all targets of this host and all children of the task have outcomes.
    pub fn is_complete(&self, task: &Task) -> bool {
        self.missing == 0 && task.children.iter().all(|c| c.result.is_some())
    }

    /// The positions of a complete task for which no child answers.
    pub fn unreached(&self, task: &Task, own: Option<u32>) -> Vec<u32> {
        let covered = |p: u32| own == Some(p) || task.children.iter().any(|c| c.span.contains(p));
        let answered: u32 = task.children.iter().map(|c| c.span.len()).sum();
        if answered + u32::from(own.is_some_and(|p| task.span.contains(p))) == task.span.len() {
            return vec![];
        }
        (task.span.start..task.span.end).filter(|p| !covered(*p)).collect()
    }

    /// All answers of a complete task, in the order of positions. Positions without an answering host are passed over.
    pub fn reduce(&self, task: &Task, slice: &GroupSlice, own: Option<u32>) -> Reduced {
        let own = own.filter(|p| task.span.contains(*p));
        let mine = self.own_runs();
        let mut pieces: Vec<(Span, &Runs)> = task.children.iter().filter_map(|c| Some((c.span, c.result.as_ref()?))).collect();
        pieces.extend(own.map(|p| (Span::new(p, p + 1), &mine)));
        pieces.sort_by_key(|(span, _)| span.start);
        let (mut runs, mut at) = (Runs::default(), task.span.start);
        for (span, piece) in pieces {
            runs.push(slice.targets(Span::new(at, span.start)), UNREACHED, b"");
            runs.append(piece);
            at = span.end;
        }
        runs.push(slice.targets(Span::new(at, task.span.end)), UNREACHED, b"");
        Reduced { group: self.cast.group, number: self.cast.number, ask: task.ask, span: task.span, runs }
    }

    /// The frame for an answer of a target of this host that is sent ahead.
    pub fn answer(&self, index: u32, status: Status, bytes: Arc<[u8]>) -> Answer {
        Answer { group: self.cast.group, number: self.cast.number, ask: 0, index, status, bytes }
    }
}
