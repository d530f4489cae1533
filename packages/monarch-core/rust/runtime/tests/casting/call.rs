//! The caller of a cast: one outcome for each target. The first outcome of a target counts, whether it is an answer that was sent ahead of
//! the reduced ones, a reduced answer, or the end of the target.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use wire::Status;
use wire::cast::Reduced;
use wire::runs::{ENDED, SEPARATE, UNREACHED};

/// A call of all targets of a group, and the outcomes received so far.
pub struct CastCall {
    size: u32,
    outcomes: BTreeMap<u32, (Status, Box<[u8]>)>,
    is_reduced: bool,
}

impl CastCall {
    pub fn new(size: u32) -> Self {
        CastCall { size, outcomes: BTreeMap::new(), is_reduced: false }
    }

    /// The outcomes by the index of their target.
    pub fn outcomes(&self) -> &BTreeMap<u32, (Status, Box<[u8]>)> {
        &self.outcomes
    }

    /// Takes the outcome of one target.
    pub fn on_outcome(&mut self, index: u32, status: Status, bytes: &[u8]) {
        assert!(index < self.size);
        if let Entry::Vacant(place) = self.outcomes.entry(index) {
            place.insert((status, bytes.into()));
        }
    }

    /// Takes the reduced answers of all targets, which come once.
    pub fn on_reduced(&mut self, reduced: Reduced) {
        assert!(!std::mem::replace(&mut self.is_reduced, true), "answers of a call came twice");
        assert_eq!(reduced.runs.targets(), self.size);
        let mut index = 0;
        for run in reduced.runs.iter() {
            for at in index..index + run.count {
                // The outcome of these targets comes separately.
                if !matches!(run.status, ENDED | SEPARATE | UNREACHED) {
                    self.on_outcome(at, Status::from_u8(run.status).unwrap(), run.bytes);
                }
            }
            index += run.count;
        }
    }
}
