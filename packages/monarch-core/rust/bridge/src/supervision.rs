//! The supervision of one process as a Python object: the decisions about failures.

use std::sync::Arc;

use pyo3::prelude::*;
use runtime::Node;
use runtime::supervision::{Action, Kind, Member, Owner};
use wire::{MailboxId, ProcUid};

use crate::process_end::ProcessEnd;

/// The supervision of a process: its decisions about failures.
#[pyclass(frozen)]
pub struct Supervision {
    node: Arc<Node>,
}

/// Counts this rank as failed: slices that contain it are refused from now on.
#[pyclass(frozen, get_all)]
pub struct Mark {
    mesh: u64,
    rank: u32,
}

/// Notify the owner of the mesh, which is this process, of the failure of a rank.
#[pyclass(frozen, get_all)]
pub struct Notify {
    mesh: u64,
    rank: u32,
}

/// Put the failure into the queue of the actor that owns the mesh: its `__supervise__` decides.
#[pyclass(frozen, get_all)]
pub struct Ask {
    actor: u64,
    mesh: u64,
    rank: u32,
}

/// Let the actor that owns the mesh fail: its class does not handle failures.
#[pyclass(frozen, get_all)]
pub struct Fail {
    actor: u64,
    mesh: u64,
    rank: u32,
}

/// Let the actor fail: the process of its owner has ended.
#[pyclass(frozen, get_all)]
pub struct Orphan {
    actor: u64,
}

/// The actions as Python objects, in their order.
fn objects(py: Python<'_>, actions: Vec<Action>) -> PyResult<Vec<Py<PyAny>>> {
    let object = |action| {
        Ok(match action {
            Action::Mark(m) => Py::new(py, Mark { mesh: m.mesh.0, rank: m.rank })?.into_any(),
            Action::Notify(m) => Py::new(py, Notify { mesh: m.mesh.0, rank: m.rank })?.into_any(),
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
    /// Adds a mesh that an actor of this process owns, or the process itself if `owner` is 0.
    fn created(&self, mesh: u64, owner: u64, is_actors: bool, procs: Vec<u64>) {
        let kind = if is_actors { Kind::Actors } else { Kind::Procs };
        self.with(|s| s.created(MailboxId(mesh), as_owner(owner), kind, procs.into_iter().map(ProcUid).collect()));
    }

    /// Removes the owner of a mesh: only callers of the mesh see its failures.
    fn disown(&self, mesh: u64) {
        self.with(|s| s.disown(MailboxId(mesh)));
    }

    /// Begins the stop of a mesh; returns the meshes that end with it.
    fn stopping(&self, mesh: u64) -> Vec<u64> {
        ids(self.with(|s| s.stopping(MailboxId(mesh))))
    }

    fn gone(&self, mesh: u64) {
        self.with(|s| s.gone(MailboxId(mesh)));
    }

    /// Whether the owner has been notified of every rank, and whether the proc of every rank has ended.
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

    /// Marks an actor as failed: it is asked nothing more.
    fn actor_over(&self, actor: u64) {
        self.with(|s| s.actor_over(MailboxId(actor)));
    }

    fn actor_ended(&self, actor: u64) {
        self.with(|s| s.actor_ended(MailboxId(actor)));
    }

    /// Takes the answer of an actor's `__supervise__`; true if the actor fails because of it.
    fn answered(&self, actor: u64, handled: bool) -> bool {
        self.with(|s| s.answered(MailboxId(actor), handled))
    }

    /// Takes the failure of an actor. Returns the actions of this process, in their order.
    fn actor_failed(&self, py: Python<'_>, mesh: u64, rank: u32) -> PyResult<Vec<Py<PyAny>>> {
        objects(py, self.with(|s| s.member_failed(Member { mesh: MailboxId(mesh), rank })))
    }

    /// Takes the ends of procs that have one cause. Returns the actions of this process, in their order.
    fn procs_ended(&self, py: Python<'_>, ends: Vec<(u64, Bound<'_, ProcessEnd>)>) -> PyResult<Vec<Py<PyAny>>> {
        let ends: Vec<_> = ends.iter().map(|(proc, end)| (ProcUid(*proc), &end.get().0)).collect();
        objects(py, self.with(|s| s.ends_reported(&ends)))
    }

    fn unanswered(&self, actor: u64) -> usize {
        self.with(|s| s.unanswered(MailboxId(actor)))
    }
}
