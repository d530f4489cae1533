//! A cast to all procs and their answers. The client is not one of the hosts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime::cast::{Effect, Relay, Source};
use serde_json::{Value, json};
use wire::cast::{CastBody, CastFrame, CastMode};
use wire::{CallId, GroupSlice, MailboxId, ProcUid, Runs, Status};

use crate::costs::{Costs, us};
use crate::world::{Event, Frame, World};

pub const PROCS: u32 = 8;

/// The answers of the procs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// Equal answers, as of a method that returns nothing.
    Equal,
    /// A different answer of 16 bytes from each proc.
    Different,
}

/// The call of the client: the reduced answers, and the number of procs whose ends were reported.
struct Call {
    mode: CastMode,
    ended: u32,
    answers: Option<Runs>,
}

impl Call {
    fn new(mode: CastMode) -> Self {
        Call { mode, ended: 0, answers: None }
    }

    fn is_done(&self) -> bool {
        let has_error = || self.ended > 0 || self.answers.as_ref().is_some_and(|runs| runs.errors() > 0);
        self.mode == CastMode::FirstError && has_error() || self.answers.as_ref().is_some_and(|runs| runs.absent() <= self.ended)
    }
}

struct Casts {
    world: World,
    relays: Vec<Relay>,
    source: Source,
    call: Option<Call>,
    answers: Answers,
    /// The frames that the root has received for the last cast.
    back: Vec<(ProcUid, CastFrame)>,
}

fn uid(host: usize) -> ProcUid {
    ProcUid(1 + host as u64)
}

impl Casts {
    fn new(n: usize, fan_out: u32, answers: Answers, costs: &Costs) -> (Self, wire::GroupId) {
        let mut source = Source::new(ProcUid(u64::MAX));
        let procs =
            |host: usize| (0..PROCS).map(|p| (ProcUid(((host as u64) << 32) | u64::from(p)), (host as u32 - 1) * PROCS + p)).collect();
        let group = source.group(GroupSlice::whole(MailboxId(5), uid(0), (1..=n).map(|h| (uid(h), procs(h)))));
        let relays = (0..=n).map(|h| Relay::with_fan_out(uid(h), fan_out)).collect();
        (Casts { world: World::new(n + 1, costs, 7), relays, source, call: None, answers, back: vec![] }, group)
    }

    fn effects(&mut self, at: usize, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Send { to, frame } => self.world.send(at, to.0 as usize - 1, Frame::Cast(frame)),
                Effect::Return { frame: CastFrame::Reduced(r), .. } => {
                    let start = Instant::now();
                    if let Some(call) = &mut self.call {
                        call.answers = Some(r.runs);
                    }
                    self.world.root_cpu += start.elapsed();
                }
                Effect::Return { .. } => {}
                Effect::Deliver(d) => {
                    for t in d.targets {
                        self.world.spend(at, self.world.costs.local_send);
                        let back = us(2.0 * self.world.costs.local_hop + self.world.costs.handle);
                        let time = self.world.busy[at] + back;
                        self.world.at(time, at, Event::Reply { cast_id: d.cast_id, index: t.index });
                    }
                }
            }
        }
        if let Some(time) = self.relays[at].deadline() {
            self.world.at(time, at, Event::Time);
        }
    }

    /// Runs one cast until all procs have answered. With `dies`, this host ends at that time, and its neighbours notice that.
    fn cast(&mut self, group: wire::GroupId, mode: CastMode, dies: Option<(usize, Duration)>) -> Duration {
        self.world.reset_counts();
        self.back.clear();
        let begin = self.world.now;
        let start = Instant::now();
        let body = CastBody { sender: MailboxId(1), call_id: CallId(2), method: b"step", parts: &[0; 64], ..CastBody::default() };
        self.call = Some(Call::new(mode));
        let Some(cast) = self.source.cast(group, mode, body.encode(), None) else { return Duration::ZERO };
        let out = self.relays[0].on_source(begin, cast);
        self.world.root_cpu += start.elapsed();
        self.effects(0, out);
        if let Some((host, after)) = dies {
            let received_at = begin + after + us(self.world.costs.hop);
            self.world.at(begin + after, host, Event::Lost { ended_host: host });
            (0..self.relays.len()).filter(|h| *h != host).for_each(|h| self.world.at(received_at, h, Event::Lost { ended_host: host }));
        }
        while let Some((at, event)) = self.world.next() {
            let now = self.world.now;
            let out = match event {
                Event::Frame { from, frame: Frame::Cast(frame), .. } if at == 0 => {
                    let bytes = frame.encode();
                    self.back.push((uid(from), frame));
                    let start = Instant::now();
                    let Ok(frame) = CastFrame::decode(&bytes) else { continue };
                    let out = self.relays[0].on_frame(now, uid(from), frame);
                    self.world.root_cpu += start.elapsed();
                    out
                }
                Event::Frame { from, frame: Frame::Cast(frame), .. } => self.relays[at].on_frame(now, uid(from), frame),
                Event::Reply { cast_id, index } => {
                    self.world.spend(at, self.world.costs.local_send);
                    let bytes: Arc<[u8]> = match self.answers {
                        Answers::Equal => Arc::new([0x80, 5, b'N', b'.']),
                        Answers::Different => u128::from(index).to_le_bytes().as_slice().into(),
                    };
                    self.relays[at].on_reply(now, cast_id, index, Status::Ok, bytes)
                }
                Event::Lost { ended_host } if ended_host == at => {
                    self.world.alive[at] = false;
                    continue;
                }
                Event::Lost { ended_host } => {
                    let out = self.relays[at].on_hosts_ended(now, &[uid(ended_host)]);
                    if let (0, Some(call)) = (at, &mut self.call) {
                        call.ended += PROCS;
                    }
                    out
                }
                Event::Time => self.relays[at].on_time(now),
                _ => continue,
            };
            self.effects(at, out);
            if at == 0 && self.call.as_ref().is_some_and(Call::is_done) {
                break;
            }
        }
        assert!(self.call.as_ref().is_some_and(Call::is_done), "the cast is not over");
        self.world.now.max(self.world.busy[0]) - begin
    }
}

impl Casts {
    /// The processor time of the root alone, with the answers of the last cast: the state of thousands of other hosts is not in its caches.
    fn root_alone(&mut self, group: wire::GroupId) -> Duration {
        let now = self.world.now;
        let start = Instant::now();
        let body = CastBody { sender: MailboxId(1), call_id: CallId(2), method: b"step", parts: &[0; 64], ..CastBody::default() };
        let mut call = Call::new(CastMode::FirstError);
        let Some(cast) = self.source.cast(group, CastMode::FirstError, body.encode(), None) else { return Duration::ZERO };
        let number = cast.number;
        let mut sent = 0;
        for effect in self.relays[0].on_source(now, cast) {
            if let Effect::Send { frame, .. } = effect {
                sent += frame.encode().len();
            }
        }
        let mut spent = start.elapsed();
        assert!(sent > 0, "nothing was sent");
        let answers = self.back.iter().filter_map(|(from, frame)| match frame {
            CastFrame::Reduced(r) => Some((*from, CastFrame::Reduced(wire::cast::Reduced { number, ..r.clone() }).encode())),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        let start = Instant::now();
        for (from, bytes) in &answers {
            let Ok(frame) = CastFrame::decode(bytes) else { continue };
            for effect in self.relays[0].on_frame(now, *from, frame) {
                if let Effect::Return { frame: CastFrame::Reduced(r), .. } = effect {
                    call.answers = Some(r.runs);
                }
            }
        }
        spent += start.elapsed();
        assert!(call.is_done(), "the cast is not over");
        spent
    }
}

fn median<T: Ord + Copy>(mut all: Vec<T>) -> T {
    all.sort_unstable();
    all[all.len() / 2]
}

pub fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}

/// Measures the latency of a cast and all answers, and the work of the root for it.
pub fn measure(n: usize, fan_out: u32, answers: Answers, casts: usize, costs: &Costs) -> Value {
    let (mut sim, group) = Casts::new(n, fan_out, answers, costs);
    let first = sim.cast(group, CastMode::FirstError, None);
    let (first_cpu, first_bytes) = (sim.world.root_cpu, sim.world.bytes[0]);
    let (mut times, mut cpu, mut sent, mut received) = (vec![], vec![], 0, 0);
    for _ in 0..casts {
        times.push(sim.cast(group, CastMode::FirstError, None));
        cpu.push(sim.world.root_cpu);
        sent = sent.max(sim.world.sent[0]);
        received = received.max(sim.world.received[0]);
    }
    let bytes = sim.world.bytes[0];
    let alone = median((0..casts).map(|_| sim.root_alone(group)).collect());
    json!({
        "bench": "cast", "hosts": n, "procs": n as u32 * PROCS, "fan_out": fan_out, "answers": format!("{answers:?}").to_lowercase(),
        "p50_us": micros(median(times.clone())), "max_us": micros(times.iter().max().copied().unwrap_or_default()),
        "root_sent": sent, "root_received": received, "root_bytes": bytes,
        "root_cpu_us": micros(median(cpu)),
        "root_cpu_alone_us": micros(alone),
        "first_us": micros(first), "first_root_cpu_us": micros(first_cpu),
        "first_root_bytes": first_bytes,
    })
}

/// Measures a cast during which the head of one of the root's subtrees ends.
pub fn measure_death(n: usize, fan_out: u32, costs: &Costs) -> Value {
    let (mut sim, group) = Casts::new(n, fan_out, Answers::Equal, costs);
    sim.cast(group, CastMode::FirstError, None);
    let calm = sim.cast(group, CastMode::FirstError, None);
    let time = sim.cast(group, CastMode::Gather, Some((1, calm / 3)));
    json!({
        "bench": "cast_death", "hosts": n, "procs": n as u32 * PROCS, "fan_out": fan_out, "calm_us": micros(calm), "us": micros(time),
        "root_sent": sim.world.sent[0], "root_received": sim.world.received[0],
    })
}
