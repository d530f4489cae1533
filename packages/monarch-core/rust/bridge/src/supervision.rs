//! The decisions on failures of one process.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use runtime::supervision::{Action, Kind, Member, Owner};
use wire::{MailboxId, ProcUid};

#[pyclass(frozen)]
#[derive(Default)]
pub struct Supervision {
    inner: Mutex<runtime::Supervision>,
}

/// What to do, as Python gets it: the word, the actor concerned or 0, mesh, rank.
type Step = (&'static str, u64, u64, u32);

fn step(action: Action) -> Step {
    match action {
        Action::Mark(m) => ("mark", 0, m.mesh.0, m.rank),
        Action::Tell(m) => ("tell", 0, m.mesh.0, m.rank),
        Action::Ask { actor, about } => ("ask", actor.0, about.mesh.0, about.rank),
        Action::Fail { actor, about } => ("fail", actor.0, about.mesh.0, about.rank),
        Action::Orphan { actor } => ("orphan", actor.0, 0, 0),
    }
}

fn as_owner(id: u64) -> Owner {
    if id == 0 { Owner::Process } else { Owner::Actor(MailboxId(id)) }
}

fn ids(all: Vec<MailboxId>) -> Vec<u64> {
    all.into_iter().map(|m| m.0).collect()
}

impl Supervision {
    fn with<T>(&self, f: impl FnOnce(&mut runtime::Supervision) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Supervision {
    #[new]
    fn new() -> Self {
        Supervision::default()
    }

    /// A mesh is owned here from now on: by an actor, or by the process if `owner` is 0.
    fn created(&self, mesh: u64, owner: u64, is_actors: bool, procs: Vec<u64>) {
        let kind = if is_actors { Kind::Actors } else { Kind::Procs };
        self.with(|s| s.created(MailboxId(mesh), as_owner(owner), kind, procs.into_iter().map(ProcUid).collect()));
    }

    /// Nobody is told of its failures.
    fn disown(&self, mesh: u64) {
        self.with(|s| s.disown(MailboxId(mesh)));
    }

    /// A stop of it begins; gives the meshes that end with it.
    fn stopping(&self, mesh: u64) -> Vec<u64> {
        ids(self.with(|s| s.stopping(MailboxId(mesh))))
    }

    fn gone(&self, mesh: u64) {
        self.with(|s| s.gone(MailboxId(mesh)));
    }

    /// Whether the owner was told of every rank, and whether every rank's proc has ended.
    fn progress(&self, mesh: u64) -> (bool, bool) {
        self.with(|s| s.progress(MailboxId(mesh)))
    }

    /// The meshes that have ranks on any of these procs.
    fn on(&self, procs: Vec<u64>) -> Vec<u64> {
        let procs: Vec<_> = procs.into_iter().map(ProcUid).collect();
        ids(self.with(|s| s.on(&procs)))
    }

    fn actor_started(&self, actor: u64, owner_proc: u64) {
        self.with(|s| s.actor_started(MailboxId(actor), ProcUid(owner_proc)));
    }

    fn actor_ready(&self, actor: u64, supervises: bool) {
        self.with(|s| s.actor_ready(MailboxId(actor), supervises));
    }

    /// The meshes that an actor owns, or the process if `owner` is 0; oldest first.
    fn owned(&self, owner: u64) -> Vec<u64> {
        ids(self.with(|s| s.owned(as_owner(owner))))
    }

    /// It has failed: nothing is asked of it any more.
    fn actor_over(&self, actor: u64) {
        self.with(|s| s.actor_over(MailboxId(actor)));
    }

    fn actor_ended(&self, actor: u64) {
        self.with(|s| s.actor_ended(MailboxId(actor)));
    }

    fn member_failed(&self, mesh: u64, rank: u32) -> Vec<Step> {
        self.with(|s| s.member_failed(Member { mesh: MailboxId(mesh), rank })).into_iter().map(step).collect()
    }

    /// Procs have ended of one cause; with each, whether it was stopped, and the meshes in whose clean-up it died.
    fn procs_ended(&self, ends: Vec<(u64, bool, Vec<u64>)>) -> Vec<Step> {
        let died = |(p, _, meshes): &(u64, bool, Vec<u64>)| meshes.iter().map(|m| (ProcUid(*p), MailboxId(*m))).collect::<Vec<_>>();
        let cleaning: Vec<_> = ends.iter().flat_map(died).collect();
        let ends: Vec<_> = ends.into_iter().map(|(p, stopped, _)| (ProcUid(p), stopped)).collect();
        self.with(|s| s.procs_died(&ends, &cleaning)).into_iter().map(step).collect()
    }

    /// An actor's hook has answered; true if the actor fails of it.
    fn answered(&self, actor: u64, handled: bool) -> bool {
        self.with(|s| s.answered(MailboxId(actor), handled))
    }

    fn unanswered(&self, actor: u64) -> usize {
        self.with(|s| s.unanswered(MailboxId(actor)))
    }
}
