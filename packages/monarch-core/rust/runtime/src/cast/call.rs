//! The answers of a cast at its caller: one outcome for each target.
//!
//! Answers arrive reduced to runs of equal answers, and stay in this form: a reader finds an outcome by its index. A single answer that was
//! sent ahead of the reduced ones, and the end of a target that supervision reports, take precedence over the reduced answers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock};

use wire::cast::{Answer, CastMode, Reduced};
use wire::runs::{ENDED, Run, SEPARATE, UNREACHED};
use wire::{Runs, Status};

/// The caller's state of a cast: a call of all targets of a group, and the answers received so far.
pub struct CastCall {
    pub mode: CastMode,
    size: u32,
    /// Outcomes that arrived outside the reduced answers, by index.
    single: BTreeMap<u32, (Status, Arc<[u8]>)>,
    first_error: Option<u32>,
    runs: Option<Runs>,
    /// The index at which each run ends, and the run's offset in `runs`; computed at the first lookup.
    ends: OnceLock<Vec<(u32, u32)>>,
    /// The number of targets whose outcome neither the reduced answers nor supervision have reported.
    unreported: u32,
}

/// True if the status of a run contains no outcome of the target: the outcome comes separately.
fn is_absent(status: u8) -> bool {
    matches!(status, ENDED | SEPARATE | UNREACHED)
}

impl CastCall {
    pub fn new(mode: CastMode, size: u32) -> Self {
        CastCall { mode, size, single: BTreeMap::new(), first_error: None, runs: None, ends: OnceLock::new(), unreported: 0 }
    }

    /// True when all outcomes have arrived; a call with `CastMode::FirstError` is done with the first error.
    pub fn is_done(&self) -> bool {
        self.mode == CastMode::FirstError && self.error().is_some() || self.missing() == 0
    }

    /// The number of outcomes that have not arrived.
    pub fn missing(&self) -> u32 {
        match &self.runs {
            Some(_) => self.unreported,
            None => self.size - self.single.len() as u32,
        }
    }

    /// True when the reduced answers have arrived and only ended targets lack an outcome: supervision will report these ends.
    pub fn waits_for_supervision(&self) -> bool {
        self.runs.is_some() && self.unreported > 0
    }

    /// Adds the outcome of one target; false if it was known.
    fn add_outcome(&mut self, index: u32, status: Status, bytes: Arc<[u8]>) -> bool {
        let known = match self.runs_at(index) {
            Some((status, _)) => !is_absent(status),
            None => false,
        };
        if known || index >= self.size {
            return false;
        }
        let Entry::Vacant(place) = self.single.entry(index) else { return false };
        place.insert((status, bytes));
        if status != Status::Ok && self.first_error.is_none() {
            self.first_error = Some(index);
        }
        self.unreported = self.unreported.saturating_sub(u32::from(self.runs.is_some()));
        true
    }

    /// Takes an answer that was sent ahead of the reduced ones; false if the outcome of its target was known.
    pub fn on_answer(&mut self, answer: Answer) -> bool {
        self.add_outcome(answer.index, answer.status, answer.bytes)
    }

    /// Takes the end of a target, which will not answer; false if the outcome of the target was known.
    pub fn on_ended(&mut self, index: u32, status: Status, why: Arc<[u8]>) -> bool {
        self.add_outcome(index, status, why)
    }

    /// Takes the reduced answers of all targets; false if they had arrived before, or if their number of targets is wrong.
    pub fn on_reduced(&mut self, reduced: Reduced) -> bool {
        if self.runs.is_some() || reduced.runs.targets() != self.size {
            return false;
        }
        self.runs = Some(reduced.runs);
        if self.single.is_empty() {
            self.unreported = self.runs.as_ref().map_or(0, Runs::absent);
        } else {
            let gone: Vec<(u32, u32)> = self.ranges().filter(|(_, _, status)| is_absent(*status)).map(|(a, b, _)| (a, b)).collect();
            self.unreported = gone.iter().map(|(from, to)| to - from - self.single.range(from..to).count() as u32).sum();
        }
        true
    }

    /// The runs of the reduced answers: first index, index after the last, status.
    fn ranges(&self) -> impl Iterator<Item = (u32, u32, u8)> {
        self.runs.iter().flat_map(Runs::iter).scan(0u32, |at, run| {
            let from = *at;
            *at = at.saturating_add(run.count);
            Some((from, *at, run.status))
        })
    }

    /// The reduced answer of one target.
    fn runs_at(&self, index: u32) -> Option<(u8, &[u8])> {
        let runs = self.runs.as_ref()?;
        let ends = self.ends.get_or_init(|| {
            let add = |end: &mut u32, (offset, run): (u32, Run<'_>)| {
                *end = end.saturating_add(run.count);
                Some((*end, offset))
            };
            runs.offsets().scan(0, add).collect()
        });
        let (_, offset) = ends.get(ends.partition_point(|(end, _)| *end <= index))?;
        runs.at(*offset).map(|run| (run.status, run.bytes))
    }

    /// The outcome of one target; `None` if it has not arrived.
    pub fn outcome(&self, index: u32) -> Option<(Status, &[u8])> {
        let reduced = || self.runs_at(index).and_then(|(status, bytes)| Some((Status::from_u8(status).ok()?, bytes)));
        // An answer that was sent before the target ended takes precedence, unless supervision has reported the end already.
        self.single.get(&index).map(|(status, bytes)| (*status, &bytes[..])).or_else(reduced)
    }

    /// All outcomes that have arrived, as runs of equal ones: first index, index after the last, status, bytes.
    pub fn outcomes(&self) -> Vec<(u32, u32, Status, &[u8])> {
        let mut all = Vec::new();
        let mut at = 0u32;
        for run in self.runs.iter().flat_map(Runs::iter) {
            let end = at.saturating_add(run.count);
            for (index, (status, bytes)) in self.single.range(at..end) {
                if let (true, Ok(status)) = (at < *index, Status::from_u8(run.status)) {
                    all.push((at, *index, status, run.bytes));
                }
                all.push((*index, index + 1, *status, &bytes[..]));
                at = index + 1;
            }
            if let (true, Ok(status)) = (at < end, Status::from_u8(run.status)) {
                all.push((at, end, status, run.bytes));
            }
            at = end;
        }
        all.extend(self.single.range(at..).map(|(index, (status, bytes))| (*index, index + 1, *status, &bytes[..])));
        all
    }

    /// The index of the error that ends the call: the lowest ended target, else the error that arrived first, else the lowest error.
    pub fn error(&self) -> Option<u32> {
        if self.first_error.is_none() && self.runs.as_ref().is_none_or(|r| r.errors() == 0) {
            return None;
        }
        let ended = |s: Status| matches!(s, Status::Failed | Status::ProcEnded);
        let all = self.outcomes();
        let lowest = |wanted: &dyn Fn(Status) -> bool| all.iter().find(|(_, _, s, _)| wanted(*s)).map(|(from, ..)| *from);
        lowest(&ended).or(self.first_error).or_else(|| lowest(&|s| s != Status::Ok))
    }
}
