//! Hosts of a job end: the time until all others know of it, and the work of the root, supervision included.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime::Supervision;
use runtime::cast::{NoticeEffect, Notices};
use runtime::supervision::{Action, Kind, Owner};
use serde_json::{Value, json};
use wire::cast::CastFrame;
use wire::notice::Ended;
use wire::{MailboxId, ProcUid};

use crate::casts::{PROCS, micros};
use crate::costs::{Costs, us};
use crate::world::{Event, World};

struct Deaths {
    world: World,
    hosts: Vec<Notices>,
    supervision: Supervision,
    known: Vec<usize>,
    /// Scheduled notices of ends: the host that notices, and the ended host.
    noticing: HashSet<(usize, usize)>,
    notified: usize,
    supervision_cpu: Duration,
    last: Duration,
}

fn uid(host: usize) -> ProcUid {
    ProcUid(1 + host as u64)
}

fn procs(host: usize) -> impl Iterator<Item = ProcUid> {
    (0..PROCS).map(move |p| ProcUid(((host as u64 + 1) << 32) | u64::from(p)))
}

impl Deaths {
    fn new(n: usize, costs: &Costs, seed: u64) -> Self {
        let mut supervision = Supervision::default();
        let all: Vec<ProcUid> = (1..=n).flat_map(procs).collect();
        supervision.created(MailboxId(1), Owner::Process, Kind::Procs, all.clone());
        supervision.created(MailboxId(2), Owner::Process, Kind::Actors, all);
        let mut sim = Deaths {
            world: World::new(n + 1, costs, seed),
            hosts: (0..=n).map(|h| Notices::new(uid(h))).collect(),
            supervision,
            known: vec![0; n + 1],
            noticing: HashSet::new(),
            notified: 0,
            supervision_cpu: Duration::ZERO,
            last: Duration::ZERO,
        };
        let out = sim.hosts[0].set_hosts(Duration::ZERO, (1..=n).map(uid).collect());
        sim.effects(0, out);
        sim.run();
        sim
    }

    fn effects(&mut self, at: usize, out: Vec<NoticeEffect>) {
        for effect in out {
            match effect {
                NoticeEffect::Send { to, notice } => self.world.send(at, to.0 as usize - 1, CastFrame::Notice(notice)),
                NoticeEffect::Report(all) => {
                    self.known[at] += all.len();
                    self.last = self.world.now;
                    if at == 0 {
                        let start = Instant::now();
                        let ends: Vec<_> = all.iter().flat_map(|e| procs(e.uid.0 as usize - 1)).map(|p| (p, false)).collect();
                        let actions = self.supervision.procs_ended(&ends);
                        self.notified += actions.iter().filter(|a| matches!(a, Action::Tell(_))).count();
                        let took = start.elapsed();
                        self.supervision_cpu += took;
                        self.world.spend(0, took.as_secs_f64() * 1e6);
                    }
                }
            }
        }
        if let Some(time) = self.hosts[at].deadline() {
            self.world.at(time, at, Event::Time);
        }
        // A host with an ended neighbour notices the end.
        let lost: Vec<usize> = self.hosts[at].neighbours().map(|n| n.0 as usize - 1).filter(|n| !self.world.alive[*n]).collect();
        for ended_host in lost {
            self.notice(at, ended_host);
        }
    }

    fn notice(&mut self, at: usize, ended_host: usize) {
        if self.noticing.insert((at, ended_host)) {
            let time = self.world.now + us(self.world.costs.hop + self.world.costs.notice * self.world.dice.unit());
            self.world.at(time, at, Event::Lost { ended_host });
        }
    }

    fn run(&mut self) {
        while let Some((at, event)) = self.world.next() {
            let now = self.world.now;
            let out = match event {
                Event::Frame { from, frame: CastFrame::Notice(n), .. } => self.hosts[at].on_notice(now, uid(from), n),
                Event::Lost { ended_host } => {
                    self.hosts[at].on_ended(now, vec![Ended { uid: uid(ended_host), host: true, why: Arc::new([0; 48]) }])
                }
                Event::Time if self.hosts[at].deadline().is_some_and(|t| t <= now) => self.hosts[at].on_time(now),
                _ => continue,
            };
            self.effects(at, out);
        }
    }
}

/// Measures the end of `deaths` hosts at the same time: the host `first`, and others by chance.
pub fn measure(n: usize, deaths: usize, first: usize, seed: u64, costs: &Costs) -> Value {
    let mut sim = Deaths::new(n, costs, seed);
    sim.world.reset_counts();
    let mut die = HashSet::from([first]);
    while die.len() < deaths {
        die.insert(1 + sim.world.dice.below(n));
    }
    let begin = sim.world.now;
    die.iter().for_each(|ended_host| sim.world.alive[*ended_host] = false);
    for at in (0..=n).filter(|h| !die.contains(h)) {
        let near: Vec<usize> = sim.hosts[at].neighbours().map(|u| u.0 as usize - 1).filter(|h| die.contains(h)).collect();
        near.into_iter().for_each(|ended_host| sim.notice(at, ended_host));
    }
    sim.run();
    let all_know = (0..=n).filter(|h| !die.contains(h)).all(|h| sim.known[h] == deaths);
    assert!(all_know && sim.notified == deaths * PROCS as usize, "a host does not know of an end");
    json!({
        "bench": "deaths", "hosts": n, "deaths": deaths, "first": first, "seed": seed, "ms": micros(sim.last - begin) / 1000.0,
        "root_sent": sim.world.sent[0], "root_received": sim.world.received[0], "root_bytes": sim.world.bytes[0],
        "root_owner_told": sim.notified, "root_supervision_us": micros(sim.supervision_cpu),
        "most_sent_by_a_host": sim.world.sent.iter().max(),
    })
}
