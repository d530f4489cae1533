//! How thousands of workers join: whoever attaches joins a few, and each of these joins a few more on its behalf.
//!
//! Every node does the same with its list of workers: it divides the list, dials the first of each part, and hands it the rest of
//! the part. So a node does at most `FAN_OUT` handshakes that succeed, and all have joined after as many rounds as the tree is
//! deep. A worker that cannot be reached, or does not answer in time, is reported; the rest of its part is halved and both halves
//! go on at once, so that a whole rack that is missing costs a logarithm of its size in waiting, not its size. What a worker that
//! has died had not reported is dialled again: joining twice does no harm.

use std::collections::BTreeMap;
use std::time::Duration;

use wire::notice::{Joined, Joining};

use super::tree::FAN_OUT;

/// Reports wait so long for others.
pub const REPORT: Duration = Duration::from_millis(20);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinEffect {
    /// Say `on_joined` or `on_failed`.
    Dial { worker: u32, address: String },
    /// It has taken too long: an answer is not awaited any more.
    GiveUp { worker: u32 },
    /// To a worker that has joined: these are its to join.
    Send { worker: u32, joining: Joining },
    /// What became of some, for whoever gave the list.
    Report(Joined),
}

struct Part {
    /// Of the first, which is dialled or has joined, and the others that are not reported yet.
    address: String,
    rest: BTreeMap<u32, String>,
    /// Dialled, and until when it has time.
    until: Option<Duration>,
}

/// The workers that one node answers for.
pub struct Join {
    fan_out: usize,
    patience: Duration,
    /// By the worker that is first.
    parts: BTreeMap<u32, Part>,
    report: Joined,
    report_at: Option<Duration>,
    /// Handshakes tried.
    pub dialled: usize,
}

impl Join {
    /// `patience` is what one worker has to answer.
    pub fn new(patience: Duration) -> Self {
        Join::with_fan_out(patience, FAN_OUT as usize)
    }

    pub fn with_fan_out(patience: Duration, fan_out: usize) -> Self {
        Join { fan_out: fan_out.max(1), patience, parts: BTreeMap::new(), report: Joined::default(), report_at: None, dialled: 0 }
    }

    /// Nothing is left to do and to report.
    pub fn is_done(&self) -> bool {
        self.parts.is_empty() && self.report == Joined::default()
    }

    pub fn start(&mut self, now: Duration, workers: Joining) -> Vec<JoinEffect> {
        let mut out = vec![];
        self.split(now, workers.workers, self.fan_out, &mut out);
        out
    }

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
            self.parts.insert(worker, Part { address, rest, until: Some(now + self.patience) });
        }
    }

    pub fn on_joined(&mut self, now: Duration, worker: u32) -> Vec<JoinEffect> {
        let mut out = vec![];
        let Some(part) = self.parts.get_mut(&worker).filter(|p| p.until.is_some()) else { return out };
        part.until = None;
        self.report.joined.push(worker);
        if part.rest.is_empty() {
            self.parts.remove(&worker);
        } else {
            let workers = part.rest.iter().map(|(w, a)| (*w, a.clone())).collect();
            out.push(JoinEffect::Send { worker, joining: Joining { workers } });
        }
        self.news(now, &mut out);
        out
    }

    /// It cannot be reached, or refuses.
    pub fn on_failed(&mut self, now: Duration, worker: u32, why: &str) -> Vec<JoinEffect> {
        let mut out = vec![];
        if self.parts.get(&worker).is_some_and(|p| p.until.is_some()) {
            self.failed(now, worker, why, &mut out);
        }
        out
    }

    fn failed(&mut self, now: Duration, worker: u32, why: &str, out: &mut Vec<JoinEffect>) {
        let Some(part) = self.parts.remove(&worker) else { return };
        self.report.failed.push((worker, format!("{}: {why}", part.address)));
        self.split(now, part.rest.into_iter().collect(), 2, out);
        self.news(now, out);
    }

    /// A worker that joins others for us reports.
    pub fn on_report(&mut self, now: Duration, worker: u32, joined: Joined) -> Vec<JoinEffect> {
        let mut out = vec![];
        let Some(part) = self.parts.get_mut(&worker).filter(|p| p.until.is_none()) else { return out };
        // Of those it answers for, each once.
        self.report.joined.extend(joined.joined.into_iter().filter(|w| part.rest.remove(w).is_some()));
        self.report.failed.extend(joined.failed.into_iter().filter(|(w, _)| part.rest.remove(w).is_some()));
        if part.rest.is_empty() {
            self.parts.remove(&worker);
        }
        self.news(now, &mut out);
        out
    }

    /// A worker that had joined is gone; that it is, is told by others.
    pub fn on_lost(&mut self, now: Duration, worker: u32) -> Vec<JoinEffect> {
        let mut out = vec![];
        if let Some(part) = self.parts.remove(&worker) {
            if part.until.is_some() {
                self.report.failed.push((worker, format!("{}: connection lost", part.address)));
            }
            self.split(now, part.rest.into_iter().collect(), 2, &mut out);
            self.news(now, &mut out);
        }
        out
    }

    fn news(&mut self, now: Duration, out: &mut Vec<JoinEffect>) {
        if self.report == Joined::default() {
            return;
        }
        if self.parts.is_empty() {
            self.report_at = None;
            out.push(JoinEffect::Report(std::mem::take(&mut self.report)));
        } else {
            self.report_at.get_or_insert(now + REPORT);
        }
    }

    /// When `on_time` has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.parts.values().filter_map(|p| p.until).chain(self.report_at).min()
    }

    pub fn on_time(&mut self, now: Duration) -> Vec<JoinEffect> {
        let mut out = vec![];
        let late: Vec<u32> = self.parts.iter().filter(|(_, p)| p.until.is_some_and(|t| t <= now)).map(|(w, _)| *w).collect();
        for worker in late {
            out.push(JoinEffect::GiveUp { worker });
            let why = format!("no answer within {} s", self.patience.as_secs_f64());
            self.failed(now, worker, &why, &mut out);
        }
        if self.report_at.is_some_and(|t| t <= now) {
            self.report_at = None;
            out.push(JoinEffect::Report(std::mem::take(&mut self.report)));
        }
        out
    }
}
