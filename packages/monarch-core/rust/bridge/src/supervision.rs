//! The decisions on failures of one process.

use std::sync::Arc;

use pyo3::prelude::*;
use runtime::Node;
use runtime::supervision::{Action, Kind, Owner};
use wire::{MailboxId, ProcUid};

/// The supervision of a process; its decisions on failures come with the events that report them.
#[pyclass(frozen)]
pub struct Supervision {
    node: Arc<Node>,
}

/// From now on this rank counts as failed: slices that contain it are refused.
#[pyclass(frozen, get_all)]
pub struct Mark {
    mesh: u64,
    rank: u32,
}

/// The owner of the mesh, which is this process, is notified of a rank.
#[pyclass(frozen, get_all)]
pub struct Tell {
    mesh: u64,
    rank: u32,
}

/// The actor that owns the mesh is asked: its `__supervise__` decides, when its turn comes.
#[pyclass(frozen, get_all)]
pub struct Ask {
    actor: u64,
    mesh: u64,
    rank: u32,
}

/// The actor that owns the mesh fails: it handles nothing.
#[pyclass(frozen, get_all)]
pub struct Fail {
    actor: u64,
    mesh: u64,
    rank: u32,
}

/// The actor fails: the process of its owner is gone.
#[pyclass(frozen, get_all)]
pub struct Orphan {
    actor: u64,
}

/// What is to be done, in this order.
pub fn objects(py: Python<'_>, actions: Vec<Action>) -> PyResult<Vec<Py<PyAny>>> {
    let object = |action| {
        Ok(match action {
            Action::Mark(m) => Py::new(py, Mark { mesh: m.mesh.0, rank: m.rank })?.into_any(),
            Action::Tell(m) => Py::new(py, Tell { mesh: m.mesh.0, rank: m.rank })?.into_any(),
            Action::Ask { actor, about: m } => Py::new(py, Ask { actor: actor.0, mesh: m.mesh.0, rank: m.rank })?.into_any(),
            Action::Fail { actor, about: m } => Py::new(py, Fail { actor: actor.0, mesh: m.mesh.0, rank: m.rank })?.into_any(),
            Action::Orphan { actor } => Py::new(py, Orphan { actor: actor.0 })?.into_any(),
        })
    };
    actions.into_iter().map(object).collect()
}

fn as_owner(id: u64) -> Owner {
    if id == 0 { Owner::Process } else { Owner::Actor(MailboxId(id)) }
}

fn ids(all: Vec<MailboxId>) -> Vec<u64> {
    all.into_iter().map(|m| m.0).collect()
}

impl Supervision {
    pub fn of(node: &Arc<Node>) -> Self {
        Supervision { node: node.clone() }
    }

    fn with<T>(&self, f: impl FnOnce(&mut runtime::Supervision) -> T) -> T {
        self.node.supervise(f)
    }
}

#[pymethods]
impl Supervision {
    /// A mesh is owned here from now on: by an actor, or by the process if `owner` is 0.
    fn created(&self, mesh: u64, owner: u64, is_actors: bool, procs: Vec<u64>) {
        let kind = if is_actors { Kind::Actors } else { Kind::Procs };
        self.with(|s| s.created(MailboxId(mesh), as_owner(owner), kind, procs.into_iter().map(ProcUid).collect()));
    }

    /// No owner is notified of its failures.
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

    /// An actor's hook has answered; true if the actor fails of it.
    fn answered(&self, actor: u64, handled: bool) -> bool {
        self.with(|s| s.answered(MailboxId(actor), handled))
    }

    fn unanswered(&self, actor: u64) -> usize {
        self.with(|s| s.unanswered(MailboxId(actor)))
    }
}
