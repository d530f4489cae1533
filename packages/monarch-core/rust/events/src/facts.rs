//! The facts that a reader needs of a process that starts to record late: its place in the job, its actors, and the meshes that it has
//! made.
//!
//! Each fact is recorded when it begins, and again with its age when recording begins.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::recorder::now;
use crate::table::{actor_start, mesh_made, proc_start};

/// A fact about this process, with the fields of its event.
enum Fact {
    Proc { name: Box<[u8]>, rank: u64 },
    Actor { display: Box<[u8]> },
    Mesh { parent: u64, class: Box<[u8]>, name: Box<[u8]>, creator: Box<[u8]>, shape: Box<[u8]>, offset: u64, dims: Box<[u8]> },
}

/// The kind of a fact; the order is the order of recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Proc,
    Mesh,
    Actor,
}

/// The facts by kind and mesh, each with the time of its begin.
static FACTS: Mutex<BTreeMap<(Kind, u64), (u64, Fact)>> = Mutex::new(BTreeMap::new());

impl Fact {
    fn record(&self, mesh: u64, age: u64) {
        match self {
            Fact::Proc { name, rank } => proc_start(name, *rank, u64::from(std::process::id()), mesh, age),
            Fact::Actor { display } => actor_start(mesh, display, age),
            Fact::Mesh { parent, class, name, creator, shape, offset, dims } => {
                mesh_made(mesh, *parent, class, name, creator, shape, age, *offset, dims);
            }
        }
    }
}

/// Records a fact and keeps it for later recordings.
fn record_and_keep(kind: Kind, mesh: u64, fact: Fact) {
    // Under the lock: recording that begins meanwhile either finds the fact in the table, or this call records it.
    let mut all = FACTS.lock().unwrap_or_else(PoisonError::into_inner);
    fact.record(mesh, 0);
    all.insert((kind, mesh), (now(), fact));
}

fn forget(kind: Kind, mesh: u64) {
    FACTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&(kind, mesh));
}

/// Records that this process has started as a member of its job.
pub fn proc_begins(mesh: u64, name: &[u8], rank: u64) {
    record_and_keep(Kind::Proc, mesh, Fact::Proc { name: name.into(), rank });
}

/// Records that an actor of this process takes messages.
pub fn actor_begins(mesh: u64, display: &[u8]) {
    record_and_keep(Kind::Actor, mesh, Fact::Actor { display: display.into() });
}

/// Forgets an actor of this process, which takes no more messages.
pub fn actor_has_ended(mesh: u64) {
    forget(Kind::Actor, mesh);
}

/// Records that this process has spawned a mesh, on the part of the parent with this offset and these dimensions.
#[allow(clippy::too_many_arguments)]
pub fn mesh_begins(mesh: u64, parent: u64, class: &[u8], name: &[u8], creator: &[u8], shape: &[u8], offset: u64, dims: &[u8]) {
    let [class, name, creator, shape, dims] = [class, name, creator, shape, dims].map(Into::into);
    record_and_keep(Kind::Mesh, mesh, Fact::Mesh { parent, class, name, creator, shape, offset: offset + 1, dims });
}

/// Forgets a mesh of this process, which has ended.
pub fn mesh_has_ended(mesh: u64) {
    forget(Kind::Mesh, mesh);
}

/// Records all current facts: the proc, then meshes, then actors.
pub fn record_facts() {
    let facts = FACTS.lock().unwrap_or_else(PoisonError::into_inner);
    for ((_, mesh), (began, fact)) in facts.iter() {
        fact.record(*mesh, now().saturating_sub(*began));
    }
}
