//! The join tree of many workers: the client (or its agent) joins a few workers, and each of these joins some of the others for it.
//!
//! Every node of the tree handles its list of workers in the same way: it divides the list into parts, dials the first worker of each part,
//! and sends it the rest of the part. All workers have joined after as many rounds as the tree has levels. A worker that cannot be reached
//! is reported as failed, and the two halves of its part continue at once, so a missing rack costs the logarithm of its size in waiting. A
//! slow worker does not delay the others either, and keeps its own time limit. When a worker dies, the workers of its part that it had not
//! reported are dialled again: a second join of the same worker has no effect.
//!
//! An edge of the tree takes three TLS handshakes: one for the join and two for the streams of a session. To limit a node to about 15
//! handshakes, the root joins 5 workers, and every other node 4. Up to `MAX_DIRECT` workers are joined directly by the root, without a
//! tree.

use std::collections::BTreeMap;
use std::time::Duration;

use wire::notice::{Joined, Joining};

/// The largest number of workers that the root joins directly, without a tree.
pub const MAX_DIRECT: usize = 16;
/// The number of workers that the root joins in a tree, and that every other node joins: 15 handshakes each.
pub const ROOT_FAN_OUT: usize = 5;
pub const FAN_OUT: usize = 4;
/// The number of TLS handshakes of one edge of the tree.
pub const HANDSHAKES: usize = 3;
/// How long a report waits for further results, so that many results share one message.
pub const REPORT_DELAY: Duration = Duration::from_millis(5);
/// The time after which the rest of a slow worker's part continues without this worker.
pub const SLOW_TIMEOUT: Duration = Duration::from_secs(1);

/// An action of `Join` for its caller, the gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinEffect {
    /// Dial the worker, then call `on_joined` or `on_failed`.
    Dial { worker: u32, address: String },
    /// The worker's time is over: stop waiting for its answer.
    GiveUp { worker: u32 },
    /// Send a joined worker the rest of its part, which it joins.
    Send { worker: u32, joining: Joining },
    /// Send the results of some workers to the node that gave the list.
    Report(Joined),
}

/// A part of the list of workers: its first worker (the key in `Join::parts`) and the rest.
struct Part {
    /// The address of the first worker, which is dialled or has joined.
    address: String,
    rest: BTreeMap<u32, String>,
    /// The time limit of the first worker's answer; `None` when it has joined.
    until: Option<Duration>,
    /// The time after which the rest is taken from a slow first worker.
    slow: Option<Duration>,
}

/// The workers that one node joins, directly or through others.
pub struct Join {
    fan_out: usize,
    timeout: Duration,
    /// The parts, by their first worker.
    parts: BTreeMap<u32, Part>,
    report: Joined,
    report_at: Option<Duration>,
    /// The number of workers that were dialled.
    pub dialled: usize,
}

impl Join {
    /// `timeout` is the time limit of one worker's answer.
    pub fn new(timeout: Duration) -> Self {
        Join::with_fan_out(timeout, FAN_OUT)
    }

    pub fn with_fan_out(timeout: Duration, fan_out: usize) -> Self {
        Join { fan_out: fan_out.max(1), timeout, parts: BTreeMap::new(), report: Joined::default(), report_at: None, dialled: 0 }
    }

    /// True when all workers are joined or failed, and reported.
    pub fn is_done(&self) -> bool {
        self.parts.is_empty() && self.report == Joined::default()
    }

    /// Begins to join the workers of a list.
    pub fn start(&mut self, now: Duration, workers: Joining) -> Vec<JoinEffect> {
        let mut out = vec![];
        self.split(now, workers.workers, self.fan_out, &mut out);
        out
    }

    /// Divides workers into parts, and dials the first worker of each part.
    fn split(&mut self, now: Duration, workers: Vec<(u32, String)>, parts: usize, out: &mut Vec<JoinEffect>) {
        let n = workers.len();
        let k = parts.min(n);
        let mut workers = workers.into_iter();
        for i in 0..k {
            let mut part = workers.by_ref().take(n * (i + 1) / k - n * i / k);
            let Some((worker, address)) = part.next() else { continue };
            let rest = part.collect();
            self.dialled += 1;
            out.push(JoinEffect::Dial { worker, address: address.clone() });
            let (until, slow) = (Some(now + self.timeout), Some(now + SLOW_TIMEOUT));
            self.parts.insert(worker, Part { address, rest, until, slow });
        }
    }

    /// Takes a successful dial: the worker has joined.
    pub fn on_joined(&mut self, now: Duration, worker: u32) -> Vec<JoinEffect> {
        let mut out = vec![];
        let Some(part) = self.parts.get_mut(&worker).filter(|p| p.until.is_some()) else { return out };
        (part.until, part.slow) = (None, None);
        self.report.joined.push(worker);
        if part.rest.is_empty() {
            self.parts.remove(&worker);
        } else {
            let workers = part.rest.iter().map(|(w, a)| (*w, a.clone())).collect();
            out.push(JoinEffect::Send { worker, joining: Joining { workers } });
        }
        self.schedule_report(now, &mut out);
        out
    }

    /// Takes a failed dial: the worker cannot be reached, or refuses.
    pub fn on_failed(&mut self, now: Duration, worker: u32, why: &str) -> Vec<JoinEffect> {
        let mut out = vec![];
        if self.parts.get(&worker).is_some_and(|p| p.until.is_some()) {
            self.failed(now, worker, why, &mut out);
        }
        out
    }

    /// Reports a worker as failed, and continues with its part in two halves.
    fn failed(&mut self, now: Duration, worker: u32, why: &str, out: &mut Vec<JoinEffect>) {
        let Some(part) = self.parts.remove(&worker) else { return };
        self.report.failed.push((worker, format!("{}: {why}", part.address)));
        self.split(now, part.rest.into_iter().collect(), 2, out);
        self.schedule_report(now, out);
    }

    /// Takes the report of a worker that joins others for this node.
    pub fn on_report(&mut self, now: Duration, worker: u32, joined: Joined) -> Vec<JoinEffect> {
        let mut out = vec![];
        // Each worker is reported once. The reporting worker may have joined workers that belong to another part by now, so joined workers
        // are accepted from all parts. Failed workers are accepted only from its own part: another worker may still reach them.
        for part in self.parts.values_mut() {
            self.report.joined.extend(joined.joined.iter().filter(|w| part.rest.remove(w).is_some()));
        }
        if let Some(part) = self.parts.get_mut(&worker).filter(|p| p.until.is_none()) {
            self.report.failed.extend(joined.failed.into_iter().filter(|(w, _)| part.rest.remove(w).is_some()));
        }
        self.parts.retain(|_, p| p.until.is_some() || !p.rest.is_empty());
        self.schedule_report(now, &mut out);
        out
    }

    /// Takes the loss of a worker that was dialled or had joined. Its end is reported by other components.
    pub fn on_lost(&mut self, now: Duration, worker: u32) -> Vec<JoinEffect> {
        let mut out = vec![];
        if let Some(part) = self.parts.remove(&worker) {
            if part.until.is_some() {
                self.report.failed.push((worker, format!("{}: connection lost", part.address)));
            }
            self.split(now, part.rest.into_iter().collect(), 2, &mut out);
            self.schedule_report(now, &mut out);
        }
        out
    }

    /// Sends the report if no part is left, or plans it.
    fn schedule_report(&mut self, now: Duration, out: &mut Vec<JoinEffect>) {
        if self.report == Joined::default() {
            return;
        }
        if self.parts.is_empty() {
            self.report_at = None;
            out.push(JoinEffect::Report(std::mem::take(&mut self.report)));
        } else {
            self.report_at.get_or_insert(now + REPORT_DELAY);
        }
    }

    /// The time of the next call of `on_time`.
    pub fn deadline(&self) -> Option<Duration> {
        self.parts.values().flat_map(|p| [p.until, p.slow.filter(|_| !p.rest.is_empty())]).flatten().chain(self.report_at).min()
    }

    /// Handles the time limits and the report that are due now.
    pub fn on_time(&mut self, now: Duration) -> Vec<JoinEffect> {
        let mut out = vec![];
        let mut waiting = vec![];
        for part in self.parts.values_mut().filter(|p| p.slow.is_some_and(|t| t <= now)) {
            part.slow = None;
            waiting.push(std::mem::take(&mut part.rest));
        }
        waiting.into_iter().for_each(|rest| self.split(now, rest.into_iter().collect(), 2, &mut out));
        let late: Vec<u32> = self.parts.iter().filter(|(_, p)| p.until.is_some_and(|t| t <= now)).map(|(w, _)| *w).collect();
        for worker in late {
            out.push(JoinEffect::GiveUp { worker });
            let why = format!("no answer within {} s", self.timeout.as_secs_f64());
            self.failed(now, worker, &why, &mut out);
        }
        if self.report_at.is_some_and(|t| t <= now) {
            self.report_at = None;
            out.push(JoinEffect::Report(std::mem::take(&mut self.report)));
        }
        out
    }
}
