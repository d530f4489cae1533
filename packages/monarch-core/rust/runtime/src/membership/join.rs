//! The join tree of many workers: the client (or its agent) joins a few workers, and each of these joins some of the others for it.
//!
//! Every node of the tree handles its list of workers in the same way: it divides the list into parts, dials the first worker of each part,
//! and sends it the rest of the part. All workers have joined after as many rounds as the tree has levels. A worker that cannot be reached
//! is reported as failed, and the two halves of its part continue at once, so a missing rack costs the logarithm of its size in waiting. A
//! slow worker does not delay the others either; the caller limits the time of its dial. When a worker dies, the workers of its part that
//! it had not reported are dialled again: a second join of the same worker has no effect.
//!
//! An edge of the tree takes three TLS handshakes: one for the join and two for the streams of a session. To limit a node to about 15
//! handshakes, the root joins 5 workers, and every other node 4. Up to `MAX_DIRECT` workers are joined directly by the root, without a
//! tree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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
    Dial { worker: u32 },
    /// Send a joined worker the rest of its part, which it joins.
    Send { worker: u32, rest: Vec<u32> },
    /// Send the results of some workers to the node that gave the list.
    Report(Joined),
}

/// The outcomes of some workers: those that have joined, and those that have not, with the reason.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Joined {
    pub joined: Vec<u32>,
    pub failed: Vec<(u32, String)>,
}

/// A part of the list of workers: its first worker (the key in `Join::parts`) and the rest.
struct Part {
    rest: BTreeSet<u32>,
    has_joined: bool,
    /// The time after which the rest is taken from a slow first worker.
    slow: Option<Duration>,
}

/// The workers that one node joins, directly or through others.
pub struct Join {
    fan_out: usize,
    /// The parts, by their first worker.
    parts: BTreeMap<u32, Part>,
    report: Joined,
    report_at: Option<Duration>,
}

impl Join {
    pub fn new(fan_out: usize) -> Self {
        Join { fan_out: fan_out.max(1), parts: BTreeMap::new(), report: Joined::default(), report_at: None }
    }

    /// True when all workers are joined or failed, and reported.
    pub fn is_done(&self) -> bool {
        self.parts.is_empty() && self.report == Joined::default()
    }

    /// Begins to join the workers of a list.
    pub fn start(&mut self, now: Duration, workers: Vec<u32>) -> Vec<JoinEffect> {
        let mut out = vec![];
        self.split(now, workers, self.fan_out, &mut out);
        out
    }

    /// Divides workers into parts, and dials the first worker of each part.
    fn split(
        &mut self,
        now: Duration,
        workers: impl IntoIterator<Item = u32, IntoIter: ExactSizeIterator>,
        parts: usize,
        out: &mut Vec<JoinEffect>,
    ) {
        let mut workers = workers.into_iter();
        let n = workers.len();
        let k = parts.min(n);
        for i in 0..k {
            let mut part = workers.by_ref().take(n * (i + 1) / k - n * i / k);
            let Some(worker) = part.next() else { continue };
            let rest = part.collect();
            out.push(JoinEffect::Dial { worker });
            self.parts.insert(worker, Part { rest, has_joined: false, slow: Some(now + SLOW_TIMEOUT) });
        }
    }

    /// Takes a successful dial: the worker has joined.
    pub fn on_joined(&mut self, now: Duration, worker: u32) -> Vec<JoinEffect> {
        let mut out = vec![];
        let Some(part) = self.parts.get_mut(&worker).filter(|p| !p.has_joined) else { return out };
        (part.has_joined, part.slow) = (true, None);
        self.report.joined.push(worker);
        if part.rest.is_empty() {
            self.parts.remove(&worker);
        } else {
            out.push(JoinEffect::Send { worker, rest: part.rest.iter().copied().collect() });
        }
        self.schedule_report(now, &mut out);
        out
    }

    /// Takes a failed dial: the worker cannot be reached, refuses, or has not answered in time. Its part continues in two halves.
    pub fn on_failed(&mut self, now: Duration, worker: u32, why: &str) -> Vec<JoinEffect> {
        let mut out = vec![];
        if self.parts.get(&worker).is_none_or(|p| p.has_joined) {
            return out;
        }
        if let Some(part) = self.parts.remove(&worker) {
            self.report.failed.push((worker, why.to_owned()));
            self.split(now, part.rest, 2, &mut out);
            self.schedule_report(now, &mut out);
        }
        out
    }

    /// Takes the report of a worker that joins others for this node.
    pub fn on_report(&mut self, now: Duration, worker: u32, joined: Joined) -> Vec<JoinEffect> {
        let mut out = vec![];
        // Each worker is reported once. The reporting worker may have joined workers that belong to another part by now, so joined workers
        // are accepted from all parts. Failed workers are accepted only from its own part: another worker may still reach them.
        for part in self.parts.values_mut() {
            self.report.joined.extend(joined.joined.iter().filter(|w| part.rest.remove(w)));
        }
        if let Some(part) = self.parts.get_mut(&worker).filter(|p| p.has_joined) {
            self.report.failed.extend(joined.failed.into_iter().filter(|(w, _)| part.rest.remove(w)));
        }
        self.parts.retain(|_, p| !p.has_joined || !p.rest.is_empty());
        self.schedule_report(now, &mut out);
        out
    }

    /// Takes the loss of a worker that was dialled or had joined. Its end is reported by other components.
    pub fn on_lost(&mut self, now: Duration, worker: u32) -> Vec<JoinEffect> {
        let mut out = vec![];
        if let Some(part) = self.parts.remove(&worker) {
            if !part.has_joined {
                self.report.failed.push((worker, "connection lost".to_owned()));
            }
            self.split(now, part.rest, 2, &mut out);
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
        self.parts.values().filter_map(|p| p.slow.filter(|_| !p.rest.is_empty())).chain(self.report_at).min()
    }

    /// Takes the rest of the part from slow workers, and sends the report that is due.
    pub fn on_time(&mut self, now: Duration) -> Vec<JoinEffect> {
        let mut out = vec![];
        let mut waiting = vec![];
        for part in self.parts.values_mut().filter(|p| p.slow.is_some_and(|t| t <= now)) {
            part.slow = None;
            waiting.push(std::mem::take(&mut part.rest));
        }
        waiting.into_iter().for_each(|rest| self.split(now, rest, 2, &mut out));
        if self.report_at.is_some_and(|t| t <= now) {
            self.report_at = None;
            out.push(JoinEffect::Report(std::mem::take(&mut self.report)));
        }
        out
    }
}
