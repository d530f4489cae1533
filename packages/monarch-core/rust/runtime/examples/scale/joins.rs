//! Joins of many workers: rounds, handshakes, and time.

use std::collections::BTreeMap;
use std::time::Duration;

use runtime::membership::join::{HANDSHAKES, MAX_DIRECT, ROOT_FAN_OUT};
use runtime::membership::{Join, JoinEffect};
use serde_json::{Value, json};
use wire::cast::CastFrame;
use wire::notice::Joining;

use crate::casts::micros;
use crate::costs::{Costs, us};
use crate::world::{Event, World};

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
                JoinEffect::Dial { worker, .. } => {
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
                    }
                }
                JoinEffect::GiveUp { .. } => {}
                JoinEffect::Send { worker, joining } => {
                    self.above[worker as usize + 1] = at;
                    self.world.send(at, worker as usize + 1, CastFrame::Joining(joining));
                }
                JoinEffect::Report(joined) if at == 0 => {
                    self.joined += joined.joined.len();
                    self.failed += joined.failed.len();
                    self.last = self.world.now;
                }
                JoinEffect::Report(joined) => self.world.send(at, self.above[at], CastFrame::Joined(joined)),
            }
        }
        if let Some(time) = self.joins.get(&at).and_then(Join::deadline) {
            self.world.at(time, at, Event::Time);
        }
    }
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
    let workers = (0..n as u32).map(|w| (w, format!("tcp://10.0.{}.{}:26600", w / 256, w % 256))).collect();
    let mut root = Join::with_fan_out(JOIN_TIMEOUT, if n > MAX_DIRECT { ROOT_FAN_OUT } else { MAX_DIRECT });
    let out = root.start(Duration::ZERO, Joining { workers });
    sim.joins.insert(0, root);
    sim.effects(0, out);
    while let Some((at, event)) = sim.world.next() {
        let now = sim.world.now;
        let out = match event {
            Event::Accepted => {
                sim.world.spend(at, sim.world.costs.handshake);
                continue;
            }
            Event::Frame { frame: CastFrame::Joining(joining), .. } => {
                sim.joins.entry(at).or_insert_with(|| Join::new(JOIN_TIMEOUT)).start(now, joining)
            }
            Event::Frame { from, frame: CastFrame::Joined(joined), .. } => {
                sim.joins.get_mut(&at).map(|j| j.on_report(now, from as u32 - 1, joined)).unwrap_or_default()
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
