//! How thousands of workers join: whoever attaches joins a few, and each of these joins a few more on its behalf.
//!
//! Every node does the same with its list of workers: it divides the list, dials the first of each part, and hands it the rest of
//! the part, and all have joined after as many rounds as the tree is deep. A worker that cannot be reached is reported; the rest of
//! its part is halved and both halves go on at once, so that a whole rack that is missing costs a logarithm of its size in waiting,
//! not its size. One that is slow to answer keeps nobody else waiting either, and has its time. What a worker that has died had not
//! reported is dialled again: joining twice does no harm.
//!
//! An edge of the tree takes three TLS handshakes, one to join and two for the streams of a trunk. Nobody is to do more than 16, so
//! whoever attaches joins 5 workers, and each of these 4. So few workers that all that is no matter are joined directly.

use std::collections::BTreeMap;
use std::time::Duration;

use wire::notice::{Joined, Joining};

/// At most so many workers are joined by who attaches.
pub const DIRECT: usize = 16;
/// Of more than that who attaches joins so many, and whoever has joined joins so many: 15 handshakes each.
pub const ROOT: usize = 5;
pub const FAN_OUT: usize = 4;
/// TLS handshakes of one edge.
pub const HANDSHAKES: usize = 3;
/// Reports wait so long for others.
pub const REPORT: Duration = Duration::from_millis(5);
/// Others do not wait longer than this for a worker that is slow.
pub const SLOW: Duration = Duration::from_secs(1);

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
    /// Until then it keeps its part.
    slow: Option<Duration>,
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
        Join::with_fan_out(patience, FAN_OUT)
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
            let (until, slow) = (Some(now + self.patience), Some(now + SLOW));
            self.parts.insert(worker, Part { address, rest, until, slow });
        }
    }

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
        // Each once. It may have had some join that are somebody else's by now; what it could not do, others still may.
        for part in self.parts.values_mut() {
            self.report.joined.extend(joined.joined.iter().filter(|w| part.rest.remove(w).is_some()));
        }
        if let Some(part) = self.parts.get_mut(&worker).filter(|p| p.until.is_none()) {
            self.report.failed.extend(joined.failed.into_iter().filter(|(w, _)| part.rest.remove(w).is_some()));
        }
        self.parts.retain(|_, p| p.until.is_some() || !p.rest.is_empty());
        self.news(now, &mut out);
        out
    }

    /// A worker that had joined is gone; others report that.
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
        self.parts.values().flat_map(|p| [p.until, p.slow.filter(|_| !p.rest.is_empty())]).flatten().chain(self.report_at).min()
    }

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
