//! A frame whose large attachments are not complete yet holds up what follows it to the same mailbox, and nothing else.
//!
//! Frames come here in the order of their source and leave in that order per lane: a receiving proc and mailbox.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

struct Waiting<T> {
    frame: T,
    /// Attachments that are missing.
    missing: Vec<u64>,
}

/// `L` names a lane, with its source; attachments are named by who sends them and its count.
pub struct Lanes<L, T> {
    lanes: HashMap<L, VecDeque<Waiting<T>>>,
    /// Attachments somebody waits for, and where.
    wanted: HashMap<u64, Vec<L>>,
    /// Complete, and nobody has asked for it yet.
    complete: HashSet<u64>,
}

impl<L, T> Default for Lanes<L, T> {
    fn default() -> Self {
        Lanes { lanes: HashMap::new(), wanted: HashMap::new(), complete: HashSet::new() }
    }
}

impl<L: Hash + Eq + Clone, T> Lanes<L, T> {
    /// The frame, if it can go on at once. Its attachments stay `complete` until `forget`: a cast's are wanted in several lanes.
    pub fn push(&mut self, lane: L, frame: T, attachments: &[u64]) -> Option<T> {
        let missing: Vec<u64> = attachments.iter().filter(|a| !self.complete.contains(a)).copied().collect();
        if missing.is_empty() && !self.lanes.contains_key(&lane) {
            return Some(frame);
        }
        for a in &missing {
            let lanes = self.wanted.entry(*a).or_default();
            if !lanes.contains(&lane) {
                lanes.push(lane.clone());
            }
        }
        self.lanes.entry(lane).or_default().push_back(Waiting { frame, missing });
        None
    }

    /// An attachment is complete; `go` gets the frames that waited for nothing else.
    pub fn complete(&mut self, attachment: u64, mut go: impl FnMut(T)) {
        self.complete.insert(attachment);
        for lane in self.wanted.remove(&attachment).unwrap_or_default() {
            let Some(queue) = self.lanes.get_mut(&lane) else { continue };
            queue.iter_mut().for_each(|w| w.missing.retain(|a| *a != attachment));
            while queue.front().is_some_and(|w| w.missing.is_empty()) {
                if let Some(w) = queue.pop_front() {
                    go(w.frame);
                }
            }
            if queue.is_empty() {
                self.lanes.remove(&lane);
            }
        }
    }

    /// Nothing that comes will name this attachment.
    pub fn forget(&mut self, attachment: u64) {
        self.complete.remove(&attachment);
    }

    /// The source or the receiver of these lanes is gone.
    pub fn drop_lanes(&mut self, mut gone: impl FnMut(&L) -> bool) {
        self.lanes.retain(|lane, _| !gone(lane));
        self.wanted.retain(|_, lanes| {
            lanes.retain(|lane| !gone(lane));
            !lanes.is_empty()
        });
    }

    pub fn waiting(&self) -> usize {
        self.lanes.values().map(VecDeque::len).sum()
    }
}
