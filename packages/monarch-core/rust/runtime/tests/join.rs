//! Workers join in a tree in which any of them may be missing, slow, or end at any time: the outcome of each is reported once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use runtime::membership::join::{FAN_OUT, HANDSHAKES, Joined, ROOT_FAN_OUT as FIRST};
use runtime::membership::{Join, JoinEffect};

/// The time that a worker has to answer.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The process that requests the joins.
const ROOT: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Worker {
    Answers,
    Refuses,
    Silent,
    /// Ends when it has received workers to join.
    Ends,
}

enum Event {
    Dialled { by: u32, worker: u32 },
    Given { by: u32, worker: u32, rest: Vec<u32> },
    Reported { by: u32, to: u32, joined: Joined },
}

struct World {
    now: Duration,
    workers: Vec<Worker>,
    /// The joins by the process that joins, and by the process that it joins for.
    joins: BTreeMap<(u32, u32), Join>,
    events: VecDeque<Event>,
    /// The dials of silent workers, by the time at which they fail: the process that dials, and the worker.
    silent: BTreeSet<(Duration, u32, u32)>,
    ended: BTreeSet<u32>,
    joined: BTreeMap<u32, usize>,
    failed: BTreeMap<u32, Vec<String>>,
    handshakes: BTreeMap<u32, usize>,
}

impl World {
    fn run(workers: Vec<Worker>, fan_out: usize, picks: &[usize]) -> World {
        let list = (0..workers.len() as u32).collect();
        let mut world = World {
            now: Duration::ZERO,
            workers,
            joins: BTreeMap::new(),
            events: VecDeque::new(),
            silent: BTreeSet::new(),
            ended: BTreeSet::new(),
            joined: BTreeMap::new(),
            failed: BTreeMap::new(),
            handshakes: BTreeMap::new(),
        };
        let mut root = Join::new(fan_out);
        let out = root.start(world.now, list);
        world.joins.insert((ROOT, ROOT), root);
        world.effects(ROOT, ROOT, out);
        let mut picks = picks.iter().copied().cycle();
        while world.step(picks.next().unwrap_or(0)) {}
        assert!(world.joins[&(ROOT, ROOT)].is_done());
        world
    }

    fn effects(&mut self, by: u32, of: u32, out: Vec<JoinEffect>) {
        for effect in out {
            match effect {
                JoinEffect::Dial { worker } => self.events.push_back(Event::Dialled { by, worker }),
                JoinEffect::Send { worker, rest } => self.events.push_back(Event::Given { by, worker, rest }),
                JoinEffect::Report(joined) if by == ROOT => {
                    joined.joined.iter().for_each(|w| *self.joined.entry(*w).or_default() += 1);
                    joined.failed.into_iter().for_each(|(w, why)| self.failed.entry(w).or_default().push(why));
                }
                JoinEffect::Report(joined) => self.events.push_back(Event::Reported { by, to: of, joined }),
            }
        }
    }

    /// Passes an event to all joins of the process `process`.
    fn tell(&mut self, process: u32, tell: impl Fn(&mut Join, Duration) -> Vec<JoinEffect>) {
        let all: Vec<_> = self.joins.range((process, 0)..=(process, u32::MAX)).map(|(k, _)| *k).collect();
        for key in all {
            let out = self.joins.get_mut(&key).map(|j| tell(j, self.now)).unwrap_or_default();
            self.effects(key.0, key.1, out);
        }
    }

    fn end(&mut self, worker: u32) {
        if !self.ended.insert(worker) {
            return;
        }
        self.joins.retain(|(by, _), _| *by != worker);
        let others: BTreeSet<u32> = self.joins.keys().map(|(by, _)| *by).collect();
        others.into_iter().for_each(|by| self.tell(by, |j, now| j.on_lost(now, worker)));
        self.joins.retain(|(_, of), _| *of != worker);
    }

    fn step(&mut self, pick: usize) -> bool {
        let Some(event) = (!self.events.is_empty()).then(|| self.events.remove(pick % self.events.len())).flatten() else {
            let silent = self.silent.first().map(|(at, ..)| *at);
            let Some(next) = self.joins.values().filter_map(Join::deadline).chain(silent).min() else { return false };
            self.now = self.now.max(next);
            while let Some((_, by, worker)) = self.silent.first().copied().filter(|(at, ..)| *at <= self.now) {
                self.silent.pop_first();
                self.tell(by, |j, now| j.on_failed(now, worker, "no answer"));
            }
            let all: BTreeSet<u32> = self.joins.keys().map(|(by, _)| *by).collect();
            all.into_iter().for_each(|by| self.tell(by, |j, now| j.on_time(now)));
            return true;
        };
        match event {
            Event::Dialled { by, .. } | Event::Given { by, .. } | Event::Reported { by, .. } if self.ended.contains(&by) => {}
            Event::Dialled { by, worker } if self.ended.contains(&worker) => self.tell(by, |j, now| j.on_failed(now, worker, "refused")),
            Event::Dialled { by, worker } => match self.workers[worker as usize] {
                Worker::Silent => _ = self.silent.insert((self.now + JOIN_TIMEOUT, by, worker)),
                Worker::Refuses => self.tell(by, |j, now| j.on_failed(now, worker, "refused")),
                Worker::Answers | Worker::Ends => {
                    *self.handshakes.entry(by).or_default() += 1;
                    self.tell(by, |j, now| j.on_joined(now, worker));
                }
            },
            Event::Given { by, worker, rest } => {
                if self.ended.contains(&worker) {
                    return true;
                }
                let mut join = Join::new(FAN_OUT);
                let out = join.start(self.now, rest);
                self.joins.insert((worker, by), join);
                self.effects(worker, by, out);
                if self.workers[worker as usize] == Worker::Ends {
                    self.end(worker);
                }
            }
            Event::Reported { by, to, joined } => self.tell(to, |j, now| j.on_report(now, by, joined.clone())),
        }
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_worker_is_reported_once(
        workers in proptest::collection::vec(prop_oneof![
            6 => Just(Worker::Answers), 1 => Just(Worker::Refuses), 1 => Just(Worker::Silent), 1 => Just(Worker::Ends),
        ], 0..80),
        fan_out in 1usize..6,
        picks in proptest::collection::vec(0usize..1000, 1..50),
    ) {
        let world = World::run(workers.clone(), fan_out, &picks);
        for (w, kind) in workers.iter().enumerate() {
            let w = w as u32;
            let (joined, failed) = (world.joined.get(&w).copied().unwrap_or(0), world.failed.get(&w).map_or(&[][..], |f| &f[..]));
            prop_assert_eq!(joined + failed.len(), 1, "worker {} {:?}", w, kind);
            match kind {
                Worker::Answers => prop_assert_eq!(joined, 1),
                Worker::Refuses => prop_assert_eq!(failed, ["refused"]),
                Worker::Silent => prop_assert_eq!(failed, ["no answer"]),
                // The worker has joined before it ended, or was found to have ended.
                Worker::Ends => {}
            }
        }
    }
}

#[test]
fn each_host_does_at_most_sixteen_handshakes() {
    let world = World::run(vec![Worker::Answers; 1024], FIRST, &[0]);
    assert_eq!(world.joined.len(), 1024);
    // A worker that was joined has taken part in handshakes for that.
    let all = |(by, n): (&u32, &usize)| (n + usize::from(*by != ROOT)) * HANDSHAKES;
    assert!(world.handshakes.iter().all(|one| all(one) <= 16), "{:?}", world.handshakes);
    assert_eq!(world.now, Duration::ZERO, "no process waited for a time to pass");
}

/// A slow worker delays no other one, and keeps its time.
#[test]
fn slow_worker_keeps_its_place_without_its_subtree() {
    let mut join = Join::new(1);
    let dials = |out: Vec<JoinEffect>| -> Vec<u32> {
        out.into_iter().filter_map(|e| if let JoinEffect::Dial { worker } = e { Some(worker) } else { None }).collect()
    };
    assert_eq!(dials(join.start(Duration::ZERO, (0..5).collect())), [0]);
    let slow = join.deadline().unwrap();
    assert!(slow < JOIN_TIMEOUT);
    assert_eq!(dials(join.on_time(slow)), [1, 3]);
    let joined = join.on_joined(slow, 0);
    assert!(!joined.iter().any(|e| matches!(e, JoinEffect::Send { .. })), "its part is with others");
    // A report for a worker counts, also if the worker was given to another host.
    join.on_joined(slow, 1);
    join.on_report(slow, 1, Joined { joined: vec![4], failed: vec![] });
    join.on_joined(slow, 3);
    let last = join.on_report(slow, 1, Joined { joined: vec![2], failed: vec![] });
    assert_eq!(last, [JoinEffect::Report(Joined { joined: vec![0, 1, 4, 3, 2], failed: vec![] })]);
    assert!(join.is_done());
}

#[test]
fn missing_rack_costs_logarithmic_time() {
    let mut workers = vec![Worker::Answers; 1024];
    workers[300..428].fill(Worker::Silent);
    let world = World::run(workers, FIRST, &[0]);
    assert_eq!((world.joined.len(), world.failed.len()), (896, 128));
    assert!(world.now <= JOIN_TIMEOUT * 10, "{:?}", world.now);
}
