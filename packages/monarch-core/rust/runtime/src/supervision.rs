//! Ownership in one process: the owner of each mesh, and the receiver of each failure.
//!
//! Supervision has no input, no output and no clock. Each event is a method call (a mesh was created, an actor failed, procs ended) that
//! returns a list of actions in their order. Each process has one `Supervision`, for the meshes that it owns and the actors that it runs.
//! Only the reports of failed actors and of ended procs cross process borders. A test can therefore run the whole ownership tree with
//! thousands of random orders of events, against a model of a few lines.
//!
//! The rules: the owner is notified at most once for each mesh and rank; an owner that does not handle the failure fails, with all that it
//! owns; the end of a proc is reported once for each actor mesh, and for the proc mesh only to an owner that has no actors there; all ranks
//! that one cause affects are marked before any owner is notified.

use std::collections::{BTreeSet, HashMap, HashSet};

use wire::exit::ProcEnd;
use wire::{MailboxId, ProcUid};

/// The owner of a mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// The process itself; in the client, the root.
    Process,
    /// An actor that lives in this process.
    Actor(MailboxId),
    /// No owner is notified: callers of the mesh see its failure.
    Unowned,
}

/// The type of a mesh.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Procs,
    Actors,
}

/// One rank of one mesh. The rank is that of the spawn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Member {
    pub mesh: MailboxId,
    pub rank: u32,
}

/// An action for the caller, which carries out a list of actions in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Counts this rank as failed (or as stopped, if the stop was requested): slices that contain it are refused from now on.
    Mark(Member),
    /// Notify the process: at the root, the fault hook decides.
    Notify(Member),
    /// Put the failure into the actor's queue: its `__supervise__` decides.
    Ask { actor: MailboxId, about: Member },
    /// Let the actor fail: its class does not handle failures.
    Fail { actor: MailboxId, about: Member },
    /// Let the actor fail: the process of its owner has ended.
    Orphan { actor: MailboxId },
}

/// A mesh that an actor of this process or the process itself owns.
struct Mesh {
    owner: Owner,
    kind: Kind,
    procs: Box<[ProcUid]>,
    /// The proc of each rank, sorted by proc, for a fast search: a hundred hosts may end at once.
    ranks: Box<[(ProcUid, u32)]>,
    /// The mesh is to end.
    stopping: bool,
    /// The ranks of whose failure or end the owner has been notified.
    notified: HashSet<u32>,
    /// The ranks whose procs have ended.
    lost: HashSet<u32>,
    born: u64,
}

impl Mesh {
    fn ranks_on(&self, proc: ProcUid) -> impl Iterator<Item = u32> {
        let from = self.ranks.partition_point(|(p, _)| *p < proc);
        self.ranks[from..].iter().take_while(move |(p, _)| *p == proc).map(|(_, rank)| *rank)
    }
}

/// An actor that runs in this process.
struct Actor {
    owner_proc: ProcUid,
    /// The class overrides `__supervise__`; `None` until the actor is constructed.
    supervises: Option<bool>,
    /// The number of failures that the actor was asked about and has not answered.
    asked: usize,
    /// The actor has failed, and is asked nothing more.
    over: bool,
}

/// Meshes in the order of their creation, so that the order of notifications does not depend on a hash.
type Births = BTreeSet<(u64, MailboxId)>;

/// The ownership tree of one process: the meshes that it owns, and the actors that run in it. The node owns it.
#[derive(Default)]
pub struct Supervision {
    meshes: HashMap<MailboxId, Mesh>,
    actors: HashMap<MailboxId, Actor>,
    by_proc: HashMap<ProcUid, Births>,
    by_owner: HashMap<Owner, Births>,
    /// The actors of this process, by the process of their owner.
    wards: HashMap<ProcUid, BTreeSet<MailboxId>>,
    born: u64,
}

impl Supervision {
    // ---- meshes and actors

    /// Adds a mesh and its owner. `procs` has the proc of each rank.
    pub fn created(&mut self, mesh: MailboxId, owner: Owner, kind: Kind, procs: Vec<ProcUid>) {
        self.born += 1;
        let key = (self.born, mesh);
        for p in &procs {
            self.by_proc.entry(*p).or_default().insert(key);
        }
        self.by_owner.entry(owner).or_default().insert(key);
        let mut ranks: Box<[(ProcUid, u32)]> = procs.iter().copied().zip(0..).collect();
        ranks.sort_unstable();
        let (notified, lost, born) = (HashSet::new(), HashSet::new(), self.born);
        self.meshes.insert(mesh, Mesh { owner, kind, procs: procs.into(), ranks, stopping: false, notified, lost, born });
    }

    /// Removes the owner of a mesh: only callers of the mesh see its failures.
    pub fn disown(&mut self, mesh: MailboxId) {
        let Some(m) = self.meshes.get_mut(&mesh) else { return };
        remove(&mut self.by_owner, m.owner, (m.born, mesh));
        m.owner = Owner::Unowned;
        self.by_owner.entry(Owner::Unowned).or_default().insert((m.born, mesh));
    }

    /// Begins the stop of a mesh. Returns the meshes that end with it: the mesh itself, and for a proc mesh the actor meshes on its procs.
    pub fn stopping(&mut self, mesh: MailboxId) -> Vec<MailboxId> {
        let Some(m) = self.meshes.get_mut(&mesh) else { return vec![] };
        m.stopping = true;
        let mut all = BTreeSet::from([(m.born, mesh)]);
        if m.kind == Kind::Procs {
            let procs = m.procs.clone();
            for at in procs.iter().filter_map(|p| self.by_proc.get(p)) {
                all.extend(at.iter().filter(|(_, id)| self.meshes.get(id).is_some_and(|m| m.kind == Kind::Actors)));
            }
        }
        for (_, id) in &all {
            if let Some(m) = self.meshes.get_mut(id) {
                m.stopping = true;
            }
        }
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes a mesh that has ended, or that this process is no longer responsible for.
    pub fn gone(&mut self, mesh: MailboxId) {
        let Some(m) = self.meshes.remove(&mesh) else { return };
        let key = (m.born, mesh);
        for p in &m.procs {
            remove(&mut self.by_proc, *p, key);
        }
        remove(&mut self.by_owner, m.owner, key);
    }

    /// The meshes of an owner, oldest first.
    pub fn owned(&self, owner: Owner) -> Vec<MailboxId> {
        self.by_owner.get(&owner).map_or(vec![], |all| all.iter().map(|(_, id)| *id).collect())
    }

    /// Whether the owner has been notified of every rank, and whether the proc of every rank has ended.
    pub fn progress(&self, mesh: MailboxId) -> (bool, bool) {
        self.meshes.get(&mesh).map_or((true, true), |m| (m.notified.len() == m.procs.len(), m.lost.len() == m.procs.len()))
    }

    /// The meshes that have ranks on any of these procs.
    pub fn on(&self, procs: &[ProcUid]) -> Vec<MailboxId> {
        let all: Births = procs.iter().filter_map(|p| self.by_proc.get(p)).flatten().copied().collect();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Adds an actor of this process, whose mesh belongs to a process `owner_proc`.
    pub fn actor_started(&mut self, actor: MailboxId, owner_proc: ProcUid) {
        self.actors.insert(actor, Actor { owner_proc, supervises: None, asked: 0, over: false });
        self.wards.entry(owner_proc).or_default().insert(actor);
    }

    /// Takes the class of an actor that has been constructed: whether it overrides `__supervise__`.
    pub fn actor_ready(&mut self, actor: MailboxId, supervises: bool) {
        if let Some(a) = self.actors.get_mut(&actor) {
            a.supervises = Some(supervises);
        }
    }

    /// Marks an actor as failed: it is asked nothing more. The meshes that it owns end before the actor does.
    pub fn actor_over(&mut self, actor: MailboxId) {
        if let Some(a) = self.actors.get_mut(&actor) {
            a.over = true;
        }
    }

    /// Removes an actor that has ended.
    pub fn actor_ended(&mut self, actor: MailboxId) {
        let Some(a) = self.actors.remove(&actor) else { return };
        if let Some(all) = self.wards.get_mut(&a.owner_proc) {
            all.remove(&actor);
            if all.is_empty() {
                self.wards.remove(&a.owner_proc);
            }
        }
    }

    // ---- events

    /// Takes the failure of an actor whose mesh this process owns.
    pub fn member_failed(&mut self, about: Member) -> Vec<Action> {
        // A rank that the mesh does not have is the fault of the reporting process.
        if self.meshes.get(&about.mesh).is_none_or(|m| about.rank as usize >= m.procs.len()) {
            return vec![];
        }
        let mut actions = vec![Action::Mark(about)];
        self.notify(about, &mut actions);
        actions
    }

    /// Takes the ends of procs that have one cause, as their agents report them.
    pub fn ends_reported(&mut self, ends: &[(ProcUid, &ProcEnd)]) -> Vec<Action> {
        let stopped: Vec<_> = ends.iter().map(|(proc, end)| (*proc, end.reason.is_stop())).collect();
        let cleaning: Vec<_> = ends.iter().flat_map(|(proc, end)| end.cleaning.iter().map(|mesh| (*proc, *mesh))).collect();
        self.procs_died(&stopped, &cleaning)
    }

    /// Takes the end of procs that have one cause. The flag of a proc is true if the proc was stopped.
    pub fn procs_ended(&mut self, ends: &[(ProcUid, bool)]) -> Vec<Action> {
        self.procs_died(ends, &[])
    }

    /// Takes the end of procs, some of which died in the clean-up of a mesh. Such an end counts as a failure of this mesh, although its
    /// stop was requested.
    pub fn procs_died(&mut self, ends: &[(ProcUid, bool)], cleaning: &[(ProcUid, MailboxId)]) -> Vec<Action> {
        let (mut marks, mut hit) = (vec![], vec![]);
        for (proc, stopped) in ends {
            let at: Vec<MailboxId> = self.by_proc.get(proc).map_or(vec![], |all| all.iter().map(|(_, id)| *id).collect());
            for id in &at {
                let Some(m) = self.meshes.get_mut(id) else { continue };
                let ranks: Vec<u32> = m.ranks_on(*proc).collect();
                m.lost.extend(ranks);
            }
            let mut notified = HashSet::new();
            for kind in [Kind::Actors, Kind::Procs] {
                for (id, m) in at.iter().filter_map(|id| Some((*id, self.meshes.get(id)?))).filter(|(_, m)| m.kind == kind) {
                    for rank in m.ranks_on(*proc) {
                        let about = Member { mesh: id, rank };
                        if m.notified.contains(&about.rank) {
                            continue;
                        }
                        marks.push(Action::Mark(about));
                        let wanted = (*stopped || m.stopping) && !cleaning.contains(&(*proc, id));
                        if wanted || (kind == Kind::Procs && notified.contains(&m.owner)) {
                            continue;
                        }
                        hit.push((kind, m.born, about));
                        if kind == Kind::Actors {
                            notified.insert(m.owner);
                        }
                    }
                }
            }
        }
        // Owners are notified of their actors before their procs, and of older meshes first.
        hit.sort_by_key(|(kind, born, about)| (*kind == Kind::Procs, *born, about.rank));
        let mut actions = marks;
        for (_, _, about) in hit {
            self.notify(about, &mut actions);
        }
        for (proc, _) in ends {
            let wards = self.wards.get(proc).into_iter().flatten();
            let lost = wards.filter(|a| self.actors.get(a).is_some_and(|a| !a.over)).map(|actor| Action::Orphan { actor: *actor });
            actions.extend(lost);
        }
        actions
    }

    /// Notifies the owner of a mesh of one rank, once.
    fn notify(&mut self, about: Member, actions: &mut Vec<Action>) {
        let Some(m) = self.meshes.get_mut(&about.mesh) else { return };
        if !m.notified.insert(about.rank) {
            return;
        }
        match m.owner {
            Owner::Unowned => {}
            Owner::Process => actions.push(Action::Notify(about)),
            Owner::Actor(actor) => {
                let Some(a) = self.actors.get_mut(&actor).filter(|a| !a.over) else { return };
                if a.supervises == Some(false) {
                    a.over = true;
                    actions.push(Action::Fail { actor, about });
                } else {
                    a.asked += 1;
                    actions.push(Action::Ask { actor, about });
                }
            }
        }
    }

    /// Takes an actor's answer to a failure; true if the actor fails because of it.
    pub fn answered(&mut self, actor: MailboxId, handled: bool) -> bool {
        let Some(a) = self.actors.get_mut(&actor).filter(|a| !a.over) else { return false };
        a.asked = a.asked.saturating_sub(1);
        a.over = !handled;
        a.over
    }

    /// The number of failures that this actor was asked about and has not answered.
    pub fn unanswered(&self, actor: MailboxId) -> usize {
        self.actors.get(&actor).map_or(0, |a| a.asked)
    }
}

fn remove<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Births>, key: K, entry: (u64, MailboxId)) {
    if let Some(all) = index.get_mut(&key) {
        all.remove(&entry);
        if all.is_empty() {
            index.remove(&key);
        }
    }
}
