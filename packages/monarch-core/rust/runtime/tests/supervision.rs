//! Ownership trees over several processes, with failures, kills and stops in random order on the accelerated clock. The model that they are
//! compared with knows no messages, orders or processes: it only computes closed sets.

mod simulation;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use runtime::Supervision;
use runtime::supervision::{Action, Kind, Member, Owner};
use simulation::Simulation;
use wire::{MailboxId, ProcUid};

const PROCS: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hook {
    None,
    Handles,
    Refuses,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Alive,
    Failed,
    Killed,
    Stopped,
}

#[derive(Clone, Debug)]
struct Actor {
    proc: usize,
    mesh: usize,
    rank: u32,
    hook: Hook,
}

#[derive(Clone, Debug)]
struct Mesh {
    /// The index of the owning actor; none: the root.
    owner: Option<usize>,
    kind: Kind,
    procs: Vec<usize>,
    /// The actor of each rank, for a mesh of actors.
    actors: Vec<usize>,
}

/// The owners and members of all meshes. Process 0 is the client and does not end.
#[derive(Clone, Debug, Default)]
struct Tree {
    actors: Vec<Actor>,
    meshes: Vec<Mesh>,
}

#[derive(Clone, Debug)]
enum Fault {
    Fail(usize),
    Kill(BTreeSet<usize>),
    Stop(usize),
}

fn id(mesh: usize) -> MailboxId {
    MailboxId(mesh as u64 + 1)
}

fn uid(proc: usize) -> ProcUid {
    ProcUid(proc as u64 + 100)
}

impl Tree {
    fn home(&self, owner: Option<usize>) -> usize {
        owner.map_or(0, |a| self.actors[a].proc)
    }

    fn owner(&self, mesh: usize) -> Owner {
        self.meshes[mesh].owner.map_or(Owner::Process, |a| Owner::Actor(id(self.actors[a].mesh)))
    }

    fn owned_by(&self, actor: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.meshes.len()).filter(move |m| self.meshes[*m].owner == Some(actor))
    }

    fn grow(&mut self, owner: Option<usize>, kind: Kind, procs: &BTreeSet<usize>, hook: Hook) {
        let mesh = self.meshes.len();
        let procs: Vec<usize> = procs.iter().copied().collect();
        let mut actors = vec![];
        if kind == Kind::Actors {
            for (rank, proc) in procs.iter().enumerate() {
                actors.push(self.actors.len());
                self.actors.push(Actor { proc: *proc, mesh, rank: rank as u32, hook });
            }
        }
        self.meshes.push(Mesh { owner, kind, procs, actors });
    }
}

// ---- the model

/// The actors that have ended when no event is left, and the procs that were stopped. A failure of an actor that is being stopped may come
/// before the stop or after it: it counts unless its proc is in `masked`, or its mesh is stopped and `masked` is given. In most cases both
/// give the same result.
fn model(tree: &Tree, faults: &[Fault], masked: Option<&BTreeSet<usize>>) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let (mut failed, mut ended, mut killed): (BTreeSet<usize>, BTreeSet<usize>, BTreeSet<usize>) = Default::default();
    let mut stopped = BTreeSet::new();
    for f in faults {
        match f {
            Fault::Fail(a) => drop(failed.insert(*a)),
            Fault::Kill(procs) => killed.extend(procs),
            Fault::Stop(m) => drop(stopped.insert(*m)),
        }
    }
    // Procs that were stopped, which is no failure.
    let mut put_down: BTreeSet<usize> = BTreeSet::new();
    loop {
        let before = (failed.len(), ended.len(), put_down.len());
        for m in &stopped {
            ended.extend(&tree.meshes[*m].actors);
            if tree.meshes[*m].kind == Kind::Procs {
                put_down.extend(&tree.meshes[*m].procs);
            }
        }
        ended.extend((0..tree.actors.len()).filter(|a| (&killed | &put_down).contains(&tree.actors[*a].proc)));
        ended.extend(&failed);
        for (m, mesh) in tree.meshes.iter().enumerate() {
            let Some(owner) = mesh.owner else { continue };
            if ended.contains(&owner) {
                ended.extend(&mesh.actors);
                if mesh.kind == Kind::Procs {
                    put_down.extend(&mesh.procs);
                }
                if masked.is_some() {
                    continue;
                }
            }
            let wanted = masked.is_some_and(|procs| stopped.contains(&m) || mesh.procs.iter().any(|p| procs.contains(p)));
            let hit = mesh.actors.iter().any(|a| failed.contains(a)) || mesh.procs.iter().any(|p| killed.contains(p));
            if hit && !wanted && tree.actors[owner].hook != Hook::Handles {
                failed.insert(owner);
            }
        }
        if before == (failed.len(), ended.len(), put_down.len()) {
            return (ended, put_down);
        }
    }
}

// ---- the state machines, in a simulated environment

struct World {
    tree: Tree,
    sim: Arc<Simulation>,
    delays: Vec<u64>,
    drawn: usize,
    machines: Vec<Supervision>,
    dead: BTreeMap<usize, bool>,
    states: Vec<State>,
    stopping: BTreeSet<usize>,
    marked: BTreeSet<(usize, Member)>,
    notified: HashMap<Member, usize>,
    /// When the last message from one process to another arrives: links keep the order.
    arrival: HashMap<(usize, usize), Duration>,
    wrong: Vec<String>,
}

type Shared = Arc<Mutex<World>>;

enum News {
    Failed(Member),
    Stop(usize),
    Ended(Vec<(usize, bool)>),
    /// The hook of an actor has returned its decision.
    Answer(usize),
}

fn send(shared: &Shared, w: &mut World, from: usize, to: usize, news: News) {
    let delay = Duration::from_micros(w.delays[w.drawn % w.delays.len()]);
    w.drawn += 1;
    let now = w.sim.now();
    let at = (now + delay).max(w.arrival.get(&(from, to)).copied().unwrap_or_default());
    w.arrival.insert((from, to), at);
    let shared = shared.clone();
    w.sim.clone().later(
        at - now,
        Box::new(move || {
            let mut w = shared.lock().unwrap();
            if !w.dead.contains_key(&to) {
                receive(&shared, &mut w, to, news);
            }
        }),
    );
}

fn receive(shared: &Shared, w: &mut World, at: usize, news: News) {
    match news {
        News::Failed(about) => {
            let actions = w.machines[at].member_failed(about);
            carry_out(shared, w, at, actions);
        }
        News::Ended(ends) => {
            let ends: Vec<_> = ends.into_iter().map(|(p, stopped)| (uid(p), stopped)).collect();
            let actions = w.machines[at].procs_ended(&ends);
            carry_out(shared, w, at, actions);
        }
        News::Stop(actor) => {
            if w.states[actor] == State::Alive {
                w.states[actor] = State::Stopped;
                end(shared, w, actor);
            }
        }
        News::Answer(actor) => {
            let handled = w.tree.actors[actor].hook == Hook::Handles;
            if w.states[actor] == State::Alive && w.machines[at].answered(id(w.tree.actors[actor].mesh), handled) {
                fail(shared, w, actor);
            }
        }
    }
}

fn carry_out(shared: &Shared, w: &mut World, at: usize, actions: Vec<Action>) {
    let mut has_notified = false;
    for action in actions {
        if let Action::Mark(about) = action {
            if has_notified {
                w.wrong.push(format!("{about:?} was marked after a notification"));
            }
            w.marked.insert((at, about));
            continue;
        }
        has_notified = true;
        let actor_here = |w: &World, a: MailboxId| w.tree.actors.iter().position(|x| id(x.mesh) == a && x.proc == at).unwrap();
        match action {
            Action::Mark(_) => {}
            Action::Notify(about) => notify(w, about),
            Action::Ask { actor, about } => {
                notify(w, about);
                let actor = actor_here(w, actor);
                send(shared, w, at, at, News::Answer(actor));
            }
            Action::Fail { actor, about } => {
                notify(w, about);
                let actor = actor_here(w, actor);
                if w.tree.actors[actor].hook != Hook::None {
                    w.wrong.push(format!("{actor} was not asked"));
                }
                fail(shared, w, actor);
            }
            Action::Orphan { actor } => {
                let actor = actor_here(w, actor);
                fail(shared, w, actor);
            }
        }
    }
}

fn notify(w: &mut World, about: Member) {
    *w.notified.entry(about).or_default() += 1;
    let mesh = &w.tree.meshes[about.mesh.0 as usize - 1];
    let proc = mesh.procs[about.rank as usize];
    let killed = w.dead.get(&proc) == Some(&false);
    let failed = mesh.actors.get(about.rank as usize).is_some_and(|a| w.states[*a] == State::Failed);
    if !killed && !failed {
        w.wrong.push(format!("{about:?} has not failed"));
    }
}

fn fail(shared: &Shared, w: &mut World, actor: usize) {
    if w.states[actor] != State::Alive {
        return;
    }
    w.states[actor] = State::Failed;
    let Actor { proc, mesh, rank, .. } = w.tree.actors[actor].clone();
    w.machines[proc].actor_over(id(mesh));
    let home = w.tree.home(w.tree.meshes[mesh].owner);
    send(shared, w, proc, home, News::Failed(Member { mesh: id(mesh), rank }));
    end(shared, w, actor);
}

/// Ends an actor: the meshes that it owns end with it.
fn end(shared: &Shared, w: &mut World, actor: usize) {
    let Actor { proc, mesh, .. } = w.tree.actors[actor].clone();
    let owned = w.machines[proc].owned(Owner::Actor(id(mesh)));
    assert_eq!(owned, w.tree.owned_by(actor).map(id).collect::<Vec<_>>());
    for m in owned {
        stop(shared, w, m.0 as usize - 1);
    }
    w.machines[proc].actor_ended(id(mesh));
}

fn stop(shared: &Shared, w: &mut World, mesh: usize) {
    let home = w.tree.home(w.tree.meshes[mesh].owner);
    let with = w.machines[home].stopping(id(mesh));
    w.stopping.extend(with.iter().map(|m| m.0 as usize - 1));
    if w.tree.meshes[mesh].kind == Kind::Procs {
        kill(shared, w, &w.tree.meshes[mesh].procs.iter().copied().collect(), true);
    }
    for a in w.tree.meshes[mesh].actors.clone() {
        send(shared, w, home, w.tree.actors[a].proc, News::Stop(a));
    }
}

/// The agent sees several processes end at once, and stops the procs that their actors owned.
fn kill(shared: &Shared, w: &mut World, procs: &BTreeSet<usize>, stopped: bool) {
    let fresh: Vec<usize> = procs.iter().copied().filter(|p| *p != 0 && !w.dead.contains_key(p)).collect();
    for p in &fresh {
        w.dead.insert(*p, stopped);
    }
    let mut orphans = BTreeSet::new();
    for a in 0..w.tree.actors.len() {
        if fresh.contains(&w.tree.actors[a].proc) {
            if w.states[a] == State::Alive {
                w.states[a] = if stopped { State::Stopped } else { State::Killed };
            }
            for m in w.tree.owned_by(a).filter(|m| w.tree.meshes[*m].kind == Kind::Procs) {
                orphans.extend(w.tree.meshes[m].procs.iter().copied());
            }
        }
    }
    for to in (0..PROCS).filter(|p| !w.dead.contains_key(p)).collect::<Vec<_>>() {
        send(shared, w, 0, to, News::Ended(fresh.iter().map(|p| (*p, stopped)).collect()));
    }
    if !orphans.is_empty() {
        kill(shared, w, &orphans, true);
    }
}

fn run(tree: &Tree, faults: &[(u64, Fault)], delays: Vec<u64>) -> World {
    let sim = Arc::new(Simulation::default());
    let mut machines: Vec<Supervision> = (0..PROCS).map(|_| Supervision::default()).collect();
    for (m, mesh) in tree.meshes.iter().enumerate() {
        let home = tree.home(mesh.owner);
        machines[home].created(id(m), tree.owner(m), mesh.kind, mesh.procs.iter().map(|p| uid(*p)).collect());
        for a in &mesh.actors {
            let at = tree.actors[*a].proc;
            machines[at].actor_started(id(m), uid(home));
            // An actor that is still being constructed is asked, and answers when it is ready.
            if a % 3 != 0 || tree.actors[*a].hook == Hook::None {
                machines[at].actor_ready(id(m), tree.actors[*a].hook != Hook::None);
            }
        }
    }
    let world = World {
        tree: tree.clone(),
        sim: sim.clone(),
        delays,
        drawn: 0,
        machines,
        dead: BTreeMap::new(),
        states: vec![State::Alive; tree.actors.len()],
        stopping: BTreeSet::new(),
        marked: BTreeSet::new(),
        notified: HashMap::new(),
        arrival: HashMap::new(),
        wrong: vec![],
    };
    let shared = Arc::new(Mutex::new(world));
    for (at, fault) in faults.iter().cloned() {
        let shared = shared.clone();
        let task = move || {
            let mut w = shared.lock().unwrap();
            match fault {
                Fault::Fail(a) => fail(&shared, &mut w, a),
                Fault::Kill(procs) => kill(&shared, &mut w, &procs, false),
                Fault::Stop(m) => {
                    if w.tree.meshes[m].owner.is_none_or(|o| w.states[o] == State::Alive) {
                        stop(&shared, &mut w, m);
                    }
                }
            }
        };
        sim.later(Duration::from_micros(at), Box::new(task));
    }
    sim.run();
    Arc::into_inner(shared).unwrap().into_inner().unwrap()
}

fn check(w: &World, faults: &[Fault]) {
    assert!(w.wrong.is_empty(), "{:?}", w.wrong);
    for (about, times) in &w.notified {
        assert_eq!(*times, 1, "{about:?}");
    }
    let ended: BTreeSet<usize> = (0..w.states.len()).filter(|a| w.states[*a] != State::Alive).collect();
    let (most, put_down) = model(&w.tree, faults, None);
    let (least, _) = model(&w.tree, faults, Some(&put_down));
    assert!(ended.is_superset(&least), "still there: {:?}", least.difference(&ended));
    assert!(ended.is_subset(&most), "ended for no reason: {:?}", ended.difference(&most));
    for (m, mesh) in w.tree.meshes.iter().enumerate() {
        if mesh.owner.is_some_and(|o| ended.contains(&o)) || w.stopping.contains(&m) {
            continue;
        }
        let home = w.tree.home(mesh.owner);
        for (rank, proc) in mesh.procs.iter().enumerate() {
            let about = Member { mesh: id(m), rank: rank as u32 };
            let killed = w.dead.get(proc) == Some(&false);
            let bad = killed || mesh.actors.get(rank).is_some_and(|a| w.states[*a] == State::Failed);
            assert!(!bad || w.marked.contains(&(home, about)), "{about:?} counts as healthy");
            // The owner of the procs is notified of their actors instead, if it has actors there that had not failed before.
            let owns_actors = |o: &Mesh| o.kind == Kind::Actors && o.owner == mesh.owner && o.procs.contains(proc);
            if bad && (mesh.kind == Kind::Actors || !w.tree.meshes.iter().any(owns_actors)) {
                assert!(w.notified.contains_key(&about), "no process was notified of {about:?}");
            }
        }
    }
}

// ---- random trees and faults

fn hook() -> impl Strategy<Value = Hook> {
    prop_oneof![Just(Hook::None), Just(Hook::Handles), Just(Hook::Refuses)]
}

fn some_procs() -> impl Strategy<Value = BTreeSet<usize>> {
    prop::collection::btree_set(1..PROCS, 1..4)
}

prop_compose! {
    fn tree()(
        grown in prop::collection::vec((any::<prop::sample::Index>(), prop::bool::weighted(0.8), some_procs(), hook()), 1..10),
    ) -> Tree {
        let mut tree = Tree::default();
        // Every proc has one owner: the root has 1 and 2, and the first actor that asks for it gets each of the others.
        let mut free: BTreeSet<usize> = (3..PROCS).collect();
        tree.grow(None, Kind::Procs, &BTreeSet::from([1, 2]), Hook::None);
        for (owner, is_actors, procs, hook) in grown {
            let owner = match owner.index(tree.actors.len() + 1) {
                0 => None,
                n => Some(n - 1),
            };
            if is_actors {
                let up: BTreeSet<usize> = procs.into_iter().filter(|p| !free.contains(p)).collect();
                if !up.is_empty() {
                    tree.grow(owner, Kind::Actors, &up, hook);
                }
            } else if let Some(p) = free.pop_first() {
                tree.grow(owner, Kind::Procs, &BTreeSet::from([p]), hook);
            }
        }
        tree
    }
}

prop_compose! {
    fn story()(tree in tree())(
        faults in prop::collection::vec((0_u64..2000, 0..6, any::<prop::sample::Index>(), some_procs()), 1..5),
        delays in prop::collection::vec(1_u64..1000, 7..40),
        tree in Just(tree),
    ) -> (Tree, Vec<(u64, Fault)>, Vec<u64>) {
        let up: BTreeSet<usize> = tree.meshes.iter().filter(|m| m.kind == Kind::Procs).flat_map(|m| m.procs.iter().copied()).collect();
        let faults = faults.into_iter().map(|(at, what, which, procs)| {
            let fault = match what {
                0..3 if !tree.actors.is_empty() => Fault::Fail(which.index(tree.actors.len())),
                0..5 => Fault::Kill(procs.intersection(&up).copied().collect()),
                _ => Fault::Stop(which.index(tree.meshes.len())),
            };
            (at, fault)
        }).collect();
        (tree, faults, delays)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_in_whatever_order((tree, faults, delays) in story()) {
        let w = run(&tree, &faults, delays);
        check(&w, &faults.into_iter().map(|(_, f)| f).collect::<Vec<_>>());
    }
}

// ---- single rules

fn member(mesh: u64, rank: u32) -> Member {
    Member { mesh: MailboxId(mesh), rank }
}

#[test]
fn rank_is_reported_once() {
    let mut s = Supervision::default();
    s.created(MailboxId(1), Owner::Process, Kind::Actors, vec![uid(1), uid(2)]);
    assert_eq!(s.member_failed(member(1, 0)), [Action::Mark(member(1, 0)), Action::Notify(member(1, 0))]);
    assert_eq!(s.member_failed(member(1, 0)), [Action::Mark(member(1, 0))]);
    assert_eq!(s.member_failed(member(1, 2)), [], "the mesh has no such rank");
    assert_eq!(s.procs_ended(&[(uid(1), false)]), []);
    assert_eq!(s.procs_ended(&[(uid(2), false)]), [Action::Mark(member(1, 1)), Action::Notify(member(1, 1))]);
}

#[test]
fn owner_of_procs_is_notified_of_its_actors() {
    let mut s = Supervision::default();
    s.created(MailboxId(1), Owner::Process, Kind::Procs, vec![uid(1), uid(2)]);
    s.created(MailboxId(2), Owner::Process, Kind::Actors, vec![uid(1)]);
    s.created(MailboxId(3), Owner::Process, Kind::Actors, vec![uid(1)]);
    let notified = |actions: Vec<Action>| actions.into_iter().filter(|a| matches!(a, Action::Notify(_))).collect::<Vec<_>>();
    assert_eq!(notified(s.procs_ended(&[(uid(1), false)])), [Action::Notify(member(2, 0)), Action::Notify(member(3, 0))]);
    assert_eq!(notified(s.procs_ended(&[(uid(2), false)])), [Action::Notify(member(1, 1))]);
}

#[test]
fn members_are_marked_before_any_owner_is_notified() {
    let mut s = Supervision::default();
    s.created(MailboxId(1), Owner::Process, Kind::Actors, vec![uid(1), uid(2)]);
    let marks = [Action::Mark(member(1, 0)), Action::Mark(member(1, 1))];
    let notices = [Action::Notify(member(1, 0)), Action::Notify(member(1, 1))];
    assert_eq!(s.procs_ended(&[(uid(1), false), (uid(2), false)]), [marks, notices].concat());
}

#[test]
fn stopped_mesh_is_no_failure() {
    let mut s = Supervision::default();
    s.created(MailboxId(1), Owner::Process, Kind::Procs, vec![uid(1), uid(2)]);
    s.created(MailboxId(2), Owner::Process, Kind::Actors, vec![uid(1)]);
    s.created(MailboxId(3), Owner::Process, Kind::Actors, vec![uid(3)]);
    assert_eq!(s.stopping(MailboxId(1)), [MailboxId(1), MailboxId(2)]);
    assert_eq!(s.procs_ended(&[(uid(1), false)]), [Action::Mark(member(2, 0)), Action::Mark(member(1, 0))]);
    assert_eq!(s.procs_ended(&[(uid(3), true)]), [Action::Mark(member(3, 0))]);
}

#[test]
fn actor_without_a_hook_fails_once() {
    let mut s = Supervision::default();
    s.actor_started(MailboxId(9), uid(0));
    s.actor_ready(MailboxId(9), false);
    s.created(MailboxId(1), Owner::Actor(MailboxId(9)), Kind::Actors, vec![uid(1), uid(2)]);
    let fails = Action::Fail { actor: MailboxId(9), about: member(1, 0) };
    assert_eq!(s.member_failed(member(1, 0)), [Action::Mark(member(1, 0)), fails]);
    assert_eq!(s.member_failed(member(1, 1)), [Action::Mark(member(1, 1))]);
}

#[test]
fn actor_with_a_hook_is_asked() {
    let mut s = Supervision::default();
    let actor = MailboxId(9);
    s.actor_started(actor, uid(0));
    s.created(MailboxId(1), Owner::Actor(actor), Kind::Actors, vec![uid(1), uid(2), uid(3)]);
    let ask = |rank| Action::Ask { actor, about: member(1, rank) };
    assert_eq!(s.member_failed(member(1, 0)), [Action::Mark(member(1, 0)), ask(0)]);
    s.actor_ready(actor, true);
    assert_eq!(s.member_failed(member(1, 1)), [Action::Mark(member(1, 1)), ask(1)]);
    assert_eq!(s.unanswered(actor), 2);
    assert!(!s.answered(actor, true));
    assert!(s.answered(actor, false));
    assert!(!s.answered(actor, false));
    assert_eq!(s.member_failed(member(1, 2)), [Action::Mark(member(1, 2))]);
}

#[test]
fn actors_of_a_lost_process_are_orphans() {
    let mut s = Supervision::default();
    for (actor, owner) in [(1, 5), (2, 5), (3, 6), (4, 5)] {
        s.actor_started(MailboxId(actor), uid(owner));
    }
    s.actor_ended(MailboxId(2));
    s.actor_over(MailboxId(4));
    assert_eq!(s.procs_ended(&[(uid(5), false)]), [Action::Orphan { actor: MailboxId(1) }]);
}

#[test]
fn mesh_ends_when_all_members_ended() {
    let mut s = Supervision::default();
    s.created(MailboxId(1), Owner::Process, Kind::Actors, vec![uid(1), uid(2)]);
    s.member_failed(member(1, 0));
    assert_eq!(s.progress(MailboxId(1)), (false, false));
    s.procs_ended(&[(uid(2), false)]);
    assert_eq!(s.progress(MailboxId(1)), (true, false));
    s.procs_ended(&[(uid(1), false)]);
    assert_eq!(s.progress(MailboxId(1)), (true, true));
    assert_eq!((s.on(&[uid(2)]), s.on(&[uid(3)])), (vec![MailboxId(1)], vec![]));
    s.gone(MailboxId(1));
    assert_eq!(s.on(&[uid(1), uid(2)]), []);
}

#[test]
fn failure_without_an_owner_is_not_reported() {
    let mut s = Supervision::default();
    s.created(MailboxId(1), Owner::Process, Kind::Actors, vec![uid(1)]);
    s.disown(MailboxId(1));
    assert_eq!(s.owned(Owner::Process), []);
    assert_eq!(s.member_failed(member(1, 0)), [Action::Mark(member(1, 0))]);
    s.gone(MailboxId(1));
    assert_eq!(s.member_failed(member(1, 0)), []);
    assert_eq!(s.procs_ended(&[(uid(1), false)]), []);
}

#[test]
fn death_during_cleanup_is_reported_despite_a_stop() {
    let mut s = Supervision::default();
    s.created(MailboxId(1), Owner::Process, Kind::Procs, vec![uid(1)]);
    s.created(MailboxId(2), Owner::Process, Kind::Actors, vec![uid(1)]);
    s.created(MailboxId(3), Owner::Process, Kind::Actors, vec![uid(1)]);
    s.stopping(MailboxId(1));
    let notified = |actions: Vec<Action>| actions.into_iter().filter(|a| matches!(a, Action::Notify(_))).collect::<Vec<_>>();
    assert_eq!(notified(s.procs_died(&[(uid(1), false)], &[(uid(1), MailboxId(2))])), [Action::Notify(member(2, 0))]);
}
