//! Joins of many workers: rounds, handshakes, and time.

use std::collections::BTreeMap;
use std::time::Duration;

use runtime::membership::join::{FAN_OUT, HANDSHAKES, Joined, MAX_DIRECT, ROOT_FAN_OUT};
use runtime::membership::{Join, JoinEffect};
use serde_json::{Value, json};
use wire::ProcUid;
use wire::control::HostEntry;
use wire::join_tree::{JoinFailure, TreeMessage, Worker, WorkerInfo};

use crate::casts::micros;
use crate::costs::{Costs, us};
use crate::world::{Event, Frame, World};

/// The time limit of one dial.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

struct Joins {
    world: World,
    joins: BTreeMap<usize, Join>,
    /// The host from which each worker has received its list.
    above: Vec<usize>,
    depth: Vec<usize>,
    handshakes: Vec<usize>,
    joined: usize,
    failed: usize,
    last: Duration,
}

impl Joins {
    /// Carries out the effects of a join at host `at`. Host 0 is the client; the workers follow.
    fn effects(&mut self, at: usize, out: Vec<JoinEffect>) {
        for effect in out {
            match effect {
                JoinEffect::Dial { worker } => {
                    let worker = worker as usize + 1;
                    // TCP, TLS and the join itself take three round trips, and CPU time at both ends. The client signs the certificate: the
                    // request goes up the tree by which this host has joined.
                    self.world.spend(at, self.world.costs.handshake);
                    let there = self.world.busy[at] + us(3.0 * self.world.costs.hop);
                    self.world.at(there, worker, Event::Accepted);
                    let way = 2.0 * self.depth[at] as f64 * (self.world.costs.hop + self.world.costs.send + self.world.costs.receive);
                    let back = there + us(self.world.costs.handshake + 3.0 * self.world.costs.hop + way + self.world.costs.sign);
                    if self.world.alive[worker] {
                        self.handshakes[at] += HANDSHAKES;
                        self.handshakes[worker] += HANDSHAKES;
                        self.world.spend(0, self.world.costs.sign);
                        self.depth[worker] = self.depth[at] + 1;
                        self.world.at(back, at, Event::Joined { worker });
                    } else {
                        self.world.at(self.world.now + JOIN_TIMEOUT, at, Event::Unanswered { worker });
                    }
                }
                JoinEffect::Send { worker, rest } => {
                    self.above[worker as usize + 1] = at;
                    self.world.send(at, worker as usize + 1, Frame::Tree(part(rest)));
                }
                JoinEffect::Report(joined) if at == 0 => {
                    self.joined += joined.joined.len();
                    self.failed += joined.failed.len();
                    self.last = self.world.now;
                }
                JoinEffect::Report(joined) => self.world.send(at, self.above[at], Frame::Tree(report(joined))),
            }
        }
        if let Some(time) = self.joins.get(&at).and_then(Join::deadline) {
            self.world.at(time, at, Event::Time);
        }
    }
}

/// The message with a part of the list.
fn part(ranks: Vec<u32>) -> TreeMessage {
    let worker = |rank: u32| {
        let (name, tcp) = (format!("host{rank}"), (format!("10.0.{}.{}", rank / 256, rank % 256), 26600));
        (rank, Worker { entry: HostEntry { host: ProcUid(rank.into()), name, unix: String::new(), tcp, places: vec![] }, agent: 0 })
    };
    TreeMessage::Part { run: 1, within_ms: 30_000, fan_out: FAN_OUT as u32, workers: ranks.into_iter().map(worker).collect() }
}

/// The message with the outcomes of workers.
fn report(outcomes: Joined) -> TreeMessage {
    let info = |rank: u32| {
        let (agent, by) = (u64::from(rank), ProcUid(rank.into()));
        (rank, WorkerInfo { agent, name: format!("host{rank}"), pid: rank, release: "0.1.0".to_owned(), by })
    };
    let failed = outcomes.failed.into_iter().map(|(rank, why)| (rank, JoinFailure::other(why))).collect();
    TreeMessage::Report { run: 1, joined: outcomes.joined.into_iter().map(info).collect(), failed }
}

/// Measures the joins of `n` workers, of which `missing` do not answer.
pub fn measure(n: usize, missing: usize, costs: &Costs) -> Value {
    let mut sim = Joins {
        world: World::new(n + 1, costs, 11),
        joins: BTreeMap::new(),
        above: vec![0; n + 1],
        depth: vec![0; n + 1],
        handshakes: vec![0; n + 1],
        joined: 0,
        failed: 0,
        last: Duration::ZERO,
    };
    let mut left = missing;
    while left > 0 {
        let ended_host = 1 + sim.world.dice.below(n);
        left -= usize::from(std::mem::replace(&mut sim.world.alive[ended_host], false));
    }
    let mut root = Join::new(if n > MAX_DIRECT { ROOT_FAN_OUT } else { MAX_DIRECT });
    let out = root.start(Duration::ZERO, (0..n as u32).collect());
    sim.joins.insert(0, root);
    sim.effects(0, out);
    while let Some((at, event)) = sim.world.next() {
        let now = sim.world.now;
        let out = match event {
            Event::Accepted => {
                sim.world.spend(at, sim.world.costs.handshake);
                continue;
            }
            Event::Frame { frame: Frame::Tree(TreeMessage::Part { workers, .. }), .. } => {
                let workers = workers.into_iter().map(|(rank, _)| rank).collect();
                sim.joins.entry(at).or_insert_with(|| Join::new(FAN_OUT)).start(now, workers)
            }
            Event::Frame { from, frame: Frame::Tree(TreeMessage::Report { joined, failed, .. }), .. } => {
                let joined = joined.into_iter().map(|(rank, _)| rank).collect();
                let outcomes = Joined { joined, failed: failed.into_iter().map(|(rank, failure)| (rank, failure.why)).collect() };
                sim.joins.get_mut(&at).map(|j| j.on_report(now, from as u32 - 1, outcomes)).unwrap_or_default()
            }
            Event::Unanswered { worker } => {
                sim.joins.get_mut(&at).map(|j| j.on_failed(now, worker as u32 - 1, "no answer")).unwrap_or_default()
            }
            Event::Joined { worker } => sim.joins.get_mut(&at).map(|j| j.on_joined(now, worker as u32 - 1)).unwrap_or_default(),
            Event::Time => sim.joins.get_mut(&at).map(|j| j.on_time(now)).unwrap_or_default(),
            _ => continue,
        };
        sim.effects(at, out);
    }
    assert_eq!((sim.joined, sim.failed), (n - missing, missing), "not all are reported");
    json!({
        "bench": "attach", "workers": n, "missing": missing, "depth": sim.depth.iter().max(), "ms": micros(sim.last) / 1000.0,
        "most_handshakes": sim.handshakes.iter().max(), "root_handshakes": sim.handshakes[0],
    })
}
