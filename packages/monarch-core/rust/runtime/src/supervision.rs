//! Ownership in one process: the owner of each mesh, and the receiver of each failure.
//!
//! Only decisions: no input, no output, no clock. What happened goes in as a call (a mesh was made, an actor failed, procs
//! ended), what is to be done comes out as a list of actions, in order. Each process has one, for the meshes that it owns and
//! the actors that live in it; what crosses processes are the reports of failed actors and the ends of procs. So the whole
//! ownership tree can be run in a test, with thousands of random orders of events, against a model of a few lines.
//!
//! The rules (numbers of the contract's section 8.3): the owner is told, at most once per mesh and rank (1); an owner that
//! does not handle it fails, with what it owns (2); a proc's end is told once per actor mesh, to the owner of the proc mesh only
//! if it has no actors there (8); all that one cause hits is marked before anybody is told (9).

use std::collections::{BTreeSet, HashMap, HashSet};

use wire::{MailboxId, ProcUid};

/// Who owns a mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// The process itself; in the client, the root.
    Process,
    /// An actor that lives in this process.
    Actor(MailboxId),
    /// No owner is notified: callers of the mesh see its failure.
    Nobody,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Procs,
    Actors,
}

/// One rank of one mesh, by spawn rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Member {
    pub mesh: MailboxId,
    pub rank: u32,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// From now on this rank counts as failed (or as stopped, if that was asked for): slices that contain it are refused.
    Mark(Member),
    /// The process is notified: at the root, the fault hook decides.
    Tell(Member),
    /// The actor's `__supervise__` decides, when its turn comes.
    Ask { actor: MailboxId, about: Member },
    /// The actor fails: it handles nothing.
    Fail { actor: MailboxId, about: Member },
    /// The actor fails: the process of its owner is gone.
    Orphan { actor: MailboxId },
}

struct Mesh {
    owner: Owner,
    kind: Kind,
    procs: Box<[ProcUid]>,
    /// Which ranks are on which proc, sorted: a hundred hosts may end at once.
    ranks: Box<[(ProcUid, u32)]>,
    /// Its end is wanted.
    stopping: bool,
    told: HashSet<u32>,
    /// Ranks whose procs have ended.
    lost: HashSet<u32>,
    born: u64,
}

impl Mesh {
    fn ranks_on(&self, proc: ProcUid) -> impl Iterator<Item = u32> {
        let from = self.ranks.partition_point(|(p, _)| *p < proc);
        self.ranks[from..].iter().take_while(move |(p, _)| *p == proc).map(|(_, rank)| *rank)
    }
}

struct Actor {
    owner_proc: ProcUid,
    /// It overrides `__supervise__`; unknown before it is constructed.
    supervises: Option<bool>,
    /// Told, and not answered yet.
    asked: usize,
    /// It has failed: nothing is asked of it any more.
    over: bool,
}

/// Meshes by birth, so that the order of notifications does not depend on a hash.
type Births = BTreeSet<(u64, MailboxId)>;

#[derive(Default)]
pub struct Supervision {
    meshes: HashMap<MailboxId, Mesh>,
    actors: HashMap<MailboxId, Actor>,
    by_proc: HashMap<ProcUid, Births>,
    by_owner: HashMap<Owner, Births>,
    /// Actors here, by the process of their owner.
    wards: HashMap<ProcUid, BTreeSet<MailboxId>>,
    born: u64,
}

impl Supervision {
    // ---- what there is

    pub fn created(&mut self, mesh: MailboxId, owner: Owner, kind: Kind, procs: Vec<ProcUid>) {
        self.born += 1;
        let key = (self.born, mesh);
        for p in &procs {
            self.by_proc.entry(*p).or_default().insert(key);
        }
        self.by_owner.entry(owner).or_default().insert(key);
        let mut ranks: Box<[(ProcUid, u32)]> = procs.iter().copied().zip(0..).collect();
        ranks.sort_unstable();
        let (told, lost, born) = (HashSet::new(), HashSet::new(), self.born);
        self.meshes.insert(mesh, Mesh { owner, kind, procs: procs.into(), ranks, stopping: false, told, lost, born });
    }

    /// Its failures are nobody's business but its users'.
    pub fn disown(&mut self, mesh: MailboxId) {
        let Some(m) = self.meshes.get_mut(&mesh) else { return };
        remove(&mut self.by_owner, m.owner, (m.born, mesh));
        m.owner = Owner::Nobody;
        self.by_owner.entry(Owner::Nobody).or_default().insert((m.born, mesh));
    }

    /// A stop of it begins. Gives the meshes that end with it: itself, and the actors on procs that are stopped.
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

    /// It has ended, or is answered for no more.
    pub fn gone(&mut self, mesh: MailboxId) {
        let Some(m) = self.meshes.remove(&mesh) else { return };
        let key = (m.born, mesh);
        for p in &m.procs {
            remove(&mut self.by_proc, *p, key);
        }
        remove(&mut self.by_owner, m.owner, key);
    }

    /// What an owner has, oldest first.
    pub fn owned(&self, owner: Owner) -> Vec<MailboxId> {
        self.by_owner.get(&owner).map_or(vec![], |all| all.iter().map(|(_, id)| *id).collect())
    }

    /// Whether the owner has been told of every rank, and whether every rank's proc has ended.
    pub fn progress(&self, mesh: MailboxId) -> (bool, bool) {
        self.meshes.get(&mesh).map_or((true, true), |m| (m.told.len() == m.procs.len(), m.lost.len() == m.procs.len()))
    }

    /// The meshes that have ranks on any of these procs.
    pub fn on(&self, procs: &[ProcUid]) -> Vec<MailboxId> {
        let all: Births = procs.iter().filter_map(|p| self.by_proc.get(p)).flatten().copied().collect();
        all.into_iter().map(|(_, id)| id).collect()
    }

    pub fn actor_started(&mut self, actor: MailboxId, owner_proc: ProcUid) {
        self.actors.insert(actor, Actor { owner_proc, supervises: None, asked: 0, over: false });
        self.wards.entry(owner_proc).or_default().insert(actor);
    }

    /// Its class is known.
    pub fn actor_ready(&mut self, actor: MailboxId, supervises: bool) {
        if let Some(a) = self.actors.get_mut(&actor) {
            a.supervises = Some(supervises);
        }
    }

    /// It has failed: nothing is asked of it any more. What it owns is to end before it does.
    pub fn actor_over(&mut self, actor: MailboxId) {
        if let Some(a) = self.actors.get_mut(&actor) {
            a.over = true;
        }
    }

    pub fn actor_ended(&mut self, actor: MailboxId) {
        let Some(a) = self.actors.remove(&actor) else { return };
        if let Some(all) = self.wards.get_mut(&a.owner_proc) {
            all.remove(&actor);
            if all.is_empty() {
                self.wards.remove(&a.owner_proc);
            }
        }
    }

    // ---- what happens

    /// An actor of a mesh that is owned here reports its failure.
    pub fn member_failed(&mut self, about: Member) -> Vec<Action> {
        if !self.meshes.contains_key(&about.mesh) {
            return vec![];
        }
        let mut actions = vec![Action::Mark(about)];
        self.tell(about, &mut actions);
        actions
    }

    /// Procs have ended of one cause; with each, whether it was stopped.
    pub fn procs_ended(&mut self, ends: &[(ProcUid, bool)]) -> Vec<Action> {
        self.procs_died(ends, &[])
    }

    /// The same, with the meshes in whose clean-up a proc died: that it was wanted to end does not count for those.
    pub fn procs_died(&mut self, ends: &[(ProcUid, bool)], cleaning: &[(ProcUid, MailboxId)]) -> Vec<Action> {
        let (mut marks, mut hit) = (vec![], vec![]);
        for (proc, stopped) in ends {
            let at: Vec<MailboxId> = self.by_proc.get(proc).map_or(vec![], |all| all.iter().map(|(_, id)| *id).collect());
            for id in &at {
                let Some(m) = self.meshes.get_mut(id) else { continue };
                let ranks: Vec<u32> = m.ranks_on(*proc).collect();
                m.lost.extend(ranks);
            }
            let mut told = HashSet::new();
            for kind in [Kind::Actors, Kind::Procs] {
                for (id, m) in at.iter().filter_map(|id| Some((*id, self.meshes.get(id)?))).filter(|(_, m)| m.kind == kind) {
                    for rank in m.ranks_on(*proc) {
                        let about = Member { mesh: id, rank };
                        if m.told.contains(&about.rank) {
                            continue;
                        }
                        marks.push(Action::Mark(about));
                        let wanted = (*stopped || m.stopping) && !cleaning.contains(&(*proc, id));
                        if wanted || (kind == Kind::Procs && told.contains(&m.owner)) {
                            continue;
                        }
                        hit.push((kind, m.born, about));
                        if kind == Kind::Actors {
                            told.insert(m.owner);
                        }
                    }
                }
            }
        }
        // Owners hear of their actors before their procs, and of older meshes first.
        hit.sort_by_key(|(kind, born, about)| (*kind == Kind::Procs, *born, about.rank));
        let mut actions = marks;
        for (_, _, about) in hit {
            self.tell(about, &mut actions);
        }
        for (proc, _) in ends {
            let wards = self.wards.get(proc).into_iter().flatten();
            let lost = wards.filter(|a| self.actors.get(a).is_some_and(|a| !a.over)).map(|actor| Action::Orphan { actor: *actor });
            actions.extend(lost);
        }
        actions
    }

    fn tell(&mut self, about: Member, actions: &mut Vec<Action>) {
        let Some(m) = self.meshes.get_mut(&about.mesh) else { return };
        if !m.told.insert(about.rank) {
            return;
        }
        match m.owner {
            Owner::Nobody => {}
            Owner::Process => actions.push(Action::Tell(about)),
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

    /// An actor has answered what it was asked; true if it fails of it.
    pub fn answered(&mut self, actor: MailboxId, handled: bool) -> bool {
        let Some(a) = self.actors.get_mut(&actor).filter(|a| !a.over) else { return false };
        a.asked = a.asked.saturating_sub(1);
        a.over = !handled;
        a.over
    }

    /// Failures that this actor has been told of and has not answered yet.
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
