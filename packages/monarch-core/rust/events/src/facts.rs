//! The facts that a reader needs of a process that starts to record late: its place in the job, its actors, and the meshes that it has
//! made.
//!
//! Each fact is recorded when it begins, and again with its age when recording begins.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::recorder::now;
use crate::table::{actor_start, mesh_made, proc_start};

/// A fact about this process, with the fields of its event.
enum Kept {
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
static KEPT: Mutex<BTreeMap<(Kind, u64), (u64, Kept)>> = Mutex::new(BTreeMap::new());

impl Kept {
    fn record(&self, mesh: u64, age: u64) {
        match self {
            Kept::Proc { name, rank } => proc_start(name, *rank, u64::from(std::process::id()), mesh, age),
            Kept::Actor { display } => actor_start(mesh, display, age),
            Kept::Mesh { parent, class, name, creator, shape, offset, dims } => {
                mesh_made(mesh, *parent, class, name, creator, shape, age, *offset, dims);
            }
        }
    }
}

/// Records a fact and keeps it for later recordings.
fn keep(kind: Kind, mesh: u64, kept: Kept) {
    // Under the lock: recording that begins meanwhile either finds the fact in the table, or this call records it.
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.record(mesh, 0);
    all.insert((kind, mesh), (now(), kept));
}

fn forget(kind: Kind, mesh: u64) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).remove(&(kind, mesh));
}

/// Records that this process has started as a member of its job.
pub fn proc_begins(mesh: u64, name: &[u8], rank: u64) {
    keep(Kind::Proc, mesh, Kept::Proc { name: name.into(), rank });
}

/// Records that an actor of this process takes messages.
pub fn actor_begins(mesh: u64, display: &[u8]) {
    keep(Kind::Actor, mesh, Kept::Actor { display: display.into() });
}

/// Forgets an actor of this process, which takes no more messages.
pub fn actor_is_gone(mesh: u64) {
    forget(Kind::Actor, mesh);
}

/// Records that this process has spawned a mesh, on the part of the parent with this offset and these dimensions.
#[allow(clippy::too_many_arguments)]
pub fn mesh_begins(mesh: u64, parent: u64, class: &[u8], name: &[u8], creator: &[u8], shape: &[u8], offset: u64, dims: &[u8]) {
    let [class, name, creator, shape, dims] = [class, name, creator, shape, dims].map(Into::into);
    keep(Kind::Mesh, mesh, Kept::Mesh { parent, class, name, creator, shape, offset: offset + 1, dims });
}

/// Forgets a mesh of this process, which has ended.
pub fn mesh_is_gone(mesh: u64) {
    forget(Kind::Mesh, mesh);
}

/// Records all current facts: the proc, then meshes, then actors.
pub fn introduce() {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    for ((_, mesh), (began, one)) in kept.iter() {
        one.record(*mesh, now().saturating_sub(*began));
    }
}
