//! Reports of ends along a tree in which hosts end: in the end, every host that lives has received each report once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use runtime::cast::{NoticeEffect, Notices};
use wire::ProcUid;
use wire::cast::CastFrame;
use wire::notice::{Ended, Notice};

struct World {
    now: Duration,
    hosts: Vec<Notices>,
    alive: Vec<bool>,
    channels: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    notified: Vec<BTreeMap<ProcUid, usize>>,
    sent: BTreeMap<usize, usize>,
}

fn ended(uid: u64, host: bool) -> Ended {
    Ended { uid: ProcUid(uid), host, why: Arc::new([7]) }
}

impl World {
    fn new(n: usize, fan_out: u32) -> Self {
        let hosts = (0..n).map(|at| Notices::with_fan_out(ProcUid(at as u64), fan_out)).collect();
        let mut world = World {
            now: Duration::ZERO,
            hosts,
            alive: vec![true; n],
            channels: BTreeMap::new(),
            notified: vec![BTreeMap::new(); n],
            sent: BTreeMap::new(),
        };
        let all = (0..n as u64).map(ProcUid).collect();
        let out = world.hosts[0].set_hosts(world.now, all);
        world.effects(0, out);
        world
    }

    fn effects(&mut self, at: usize, out: Vec<NoticeEffect>) {
        for effect in out {
            match effect {
                NoticeEffect::Send { to, notice } => {
                    *self.sent.entry(at).or_default() += 1;
                    let bytes = CastFrame::Notice(notice).encode();
                    self.channels.entry((at, to.0 as usize)).or_default().push_back(bytes);
                }
                NoticeEffect::Report(all) => all.into_iter().for_each(|e| *self.notified[at].entry(e.uid).or_default() += 1),
            }
        }
    }

    fn step(&mut self, pick: usize) -> bool {
        let busy: Vec<_> = self.channels.iter().filter(|(_, q)| !q.is_empty()).map(|(k, _)| *k).collect();
        let Some((from, to)) = busy.get(pick % busy.len().max(1)).copied() else { return false };
        let Some(bytes) = self.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        let Ok(CastFrame::Notice(notice)) = CastFrame::decode(&bytes) else { panic!("not a notice") };
        if self.alive[to] {
            let out = self.hosts[to].on_notice(self.now, ProcUid(from as u64), notice);
            self.effects(to, out);
        }
        true
    }

    /// A host ends, and a part of the messages that it has sent is lost.
    fn kill(&mut self, at: usize, keep: usize) {
        self.alive[at] = false;
        for (_, queue) in self.channels.iter_mut().filter(|((from, _), _)| *from == at) {
            queue.truncate(keep % 3);
        }
    }

    /// One of the neighbours of an ended host notices the end.
    fn notice(&mut self, pick: usize) -> bool {
        let late: Vec<(usize, ProcUid)> = (0..self.hosts.len())
            .filter(|at| self.alive[*at])
            .flat_map(|at| self.hosts[at].neighbours().map(move |n| (at, n)))
            .filter(|(at, n)| !self.alive[n.0 as usize] && !self.hosts[*at].knows(*n))
            .collect();
        let Some((at, uid)) = late.get(pick % late.len().max(1)).copied() else { return false };
        let out = self.hosts[at].on_ended(self.now, vec![ended(uid.0, true)]);
        self.effects(at, out);
        true
    }

    fn wait(&mut self) -> bool {
        let live: Vec<usize> = (0..self.hosts.len()).filter(|at| self.alive[*at]).collect();
        let Some(next) = live.iter().filter_map(|at| self.hosts[*at].deadline()).min() else { return false };
        self.now = self.now.max(next);
        for at in live {
            if self.hosts[at].deadline().is_some_and(|t| t <= self.now) {
                let out = self.hosts[at].on_time(self.now);
                self.effects(at, out);
            }
        }
        true
    }

    fn settle(&mut self) {
        for round in 0..200_000 {
            if !(self.step(round) || self.notice(round) || self.wait()) {
                return;
            }
        }
        panic!("it does not come to rest");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Frames(Vec<usize>),
    Kill(usize, usize),
    /// A proc ends at a host, and the host reports that.
    Proc(usize),
    Notice(usize),
    Wait,
}

fn step(n: usize) -> impl Strategy<Value = Step> {
    let pick = || 0usize..1000;
    prop_oneof![
        8 => proptest::collection::vec(pick(), 1..5).prop_map(Step::Frames),
        2 => (1..n, pick()).prop_map(|(at, keep)| Step::Kill(at, keep)),
        3 => (0..n).prop_map(Step::Proc),
        4 => pick().prop_map(Step::Notice),
        2 => Just(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn live_hosts_know_all_ended_procs(
        (n, fan_out, steps) in (2usize..30).prop_flat_map(|n| (Just(n), 1u32..5, proptest::collection::vec(step(n), 1..60)))
    ) {
        let mut world = World::new(n, fan_out);
        // All hosts have joined, so each knows its place in the tree.
        world.settle();
        let mut must = BTreeSet::new();
        let mut by = BTreeMap::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Frames(picks) => picks.into_iter().for_each(|pick| _ = world.step(pick)),
                Step::Kill(at, keep) => world.kill(at, keep),
                Step::Proc(at) if world.alive[at] => {
                    let uid = 1000 + i as u64;
                    by.insert(ProcUid(uid), at);
                    let out = world.hosts[at].on_ended(world.now, vec![ended(uid, false)]);
                    world.effects(at, out);
                }
                Step::Proc(_) => {}
                Step::Notice(pick) => _ = world.notice(pick),
                Step::Wait => _ = world.wait(),
            }
        }
        world.settle();
        must.extend((0..n).filter(|at| !world.alive[*at]).map(|at| ProcUid(at as u64)));
        // Reports that only an ended host has received may be lost with it.
        must.extend(by.into_iter().filter(|(_, at)| world.alive[*at]).map(|(uid, _)| uid));
        for at in (0..n).filter(|at| world.alive[*at]) {
            let notified: BTreeSet<_> = world.notified[at].keys().copied().collect();
            prop_assert!(must.is_subset(&notified), "host {} does not know {:?}", at, must.difference(&notified).collect::<Vec<_>>());
            prop_assert!(world.notified[at].values().all(|times| *times == 1));
        }
    }
}

#[test]
fn notice_is_sent_once_per_host_and_neighbour() {
    let mut world = World::new(300, 16);
    world.settle();
    world.sent.clear();
    world.kill(299, 0);
    world.settle();
    assert!(world.sent.values().all(|n| *n <= 17), "{:?}", world.sent);
    assert!((0..299).all(|at| world.hosts[at].knows(ProcUid(299))));
}

#[test]
fn notices_in_quick_succession_are_merged() {
    let mut host = Notices::new(ProcUid(0));
    host.set_hosts(Duration::ZERO, (0..3).map(ProcUid).collect());
    let now = Duration::from_secs(1);
    let first = host.on_ended(now, vec![ended(100, false)]);
    assert_eq!(first.len(), 3, "reported here, and sent to both neighbours at once");
    assert_eq!(host.on_ended(now, vec![ended(101, false)]).len(), 1, "reported here only");
    assert_eq!(host.on_ended(now, vec![ended(102, false)]).len(), 1);
    let later = host.deadline().expect("it waits");
    let sent = host.on_time(later);
    let named = |e: &NoticeEffect| matches!(e, NoticeEffect::Send { notice: Notice { ended, .. }, .. } if ended.len() == 2);
    assert!(sent.len() == 2 && sent.iter().all(named), "{sent:?}");
    assert_eq!(host.deadline(), None);
}
