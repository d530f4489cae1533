//! Tombstones: the ends of processes and of actors of this process.
//!
//! A message to something that has ended must fail at once, and a handle may appear at any time, so a tombstone is kept for ever. The end
//! itself, a text or an exit report of some hundred bytes, is kept for the last `KEPT_ENDS` only; older tombstones have the id, in eight
//! bytes, and share one end. A process that was lost with its host may come back: then its tombstone is removed.
//!
//! It needs nothing from other components. The first end of an id counts, until its tombstone is removed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// The number of ends that are kept: about 1 MiB.
const KEPT_ENDS: usize = 4096;

/// The tombstones of one kind of thing.
pub struct Tombstones<Id, End> {
    kept: HashMap<Id, End>,
    /// The keys of `kept`, oldest first.
    order: VecDeque<Id>,
    /// The ids whose ends are not kept.
    old: HashSet<Id>,
    /// The end of all ids of `old`.
    old_end: End,
    /// The ids that may come back.
    returnable: HashSet<Id>,
}

impl<Id: Copy + Eq + Hash, End: Clone> Tombstones<Id, End> {
    /// No tombstones; `old_end` stands for the ends that are no longer kept.
    pub fn new(old_end: End) -> Self {
        Tombstones { kept: HashMap::new(), order: VecDeque::new(), old: HashSet::new(), old_end, returnable: HashSet::new() }
    }

    /// The end, if there is a tombstone.
    pub fn get(&self, id: Id) -> Option<End> {
        self.kept.get(&id).cloned().or_else(|| self.get_old(id))
    }

    /// The shared end, if that of the id is not kept.
    pub fn get_old(&self, id: Id) -> Option<End> {
        self.old.contains(&id).then(|| self.old_end.clone())
    }

    /// Inserts a tombstone; false if there is one. `is_returnable`: the tombstone can be removed.
    pub fn insert(&mut self, id: Id, end: End, is_returnable: bool) -> bool {
        if self.kept.contains_key(&id) || self.old.contains(&id) {
            return false;
        }
        self.kept.insert(id, end);
        self.order.push_back(id);
        if is_returnable {
            self.returnable.insert(id);
        }
        if self.order.len() > KEPT_ENDS
            && let Some(first) = self.order.pop_front()
        {
            self.kept.remove(&first);
            self.old.insert(first);
        }
        true
    }

    /// Removes the tombstone of an id that may come back; true if there is no tombstone now.
    pub fn remove(&mut self, id: Id) -> bool {
        if self.returnable.remove(&id) && !self.old.remove(&id) {
            self.kept.remove(&id);
            self.order.retain(|other| *other != id);
        }
        !self.kept.contains_key(&id) && !self.old.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tombstones() -> Tombstones<u64, u64> {
        Tombstones::new(u64::MAX)
    }

    #[test]
    fn first_report_of_an_end_counts() {
        let mut all = tombstones();
        assert!(all.get(1).is_none());
        assert!(all.insert(1, 10, false) && !all.insert(1, 11, false));
        assert_eq!(all.get(1), Some(10));
    }

    #[test]
    fn old_tombstones_keep_no_end() {
        let mut all = tombstones();
        for id in 0..=KEPT_ENDS as u64 {
            all.insert(id, id, false);
        }
        assert_eq!((all.get(0), all.get_old(0)), (Some(u64::MAX), Some(u64::MAX)));
        assert_eq!((all.get(1), all.get_old(1)), (Some(1), None));
        assert_eq!((all.kept.len(), all.order.len(), all.old.len()), (KEPT_ENDS, KEPT_ENDS, 1));
        // A later report of the same end changes nothing.
        assert!(!all.insert(0, 7, false));
        assert_eq!(all.get(0), Some(u64::MAX));
    }

    #[test]
    fn only_returnable_tombstones_are_removed() {
        let mut all = tombstones();
        all.insert(1, 1, true);
        all.insert(2, 2, false);
        assert!(all.remove(1) && all.remove(3) && !all.remove(2));
        assert!(all.get(1).is_none());
        // A process may be lost again, and again have a tombstone that is removed.
        assert!(all.insert(1, 4, true));
        assert_eq!((all.kept.len(), all.order.len()), (2, 2));
        for id in 10..=10 + KEPT_ENDS as u64 {
            all.insert(id, id, false);
        }
        assert_eq!(all.get(1), Some(u64::MAX));
        assert!(all.remove(1) && !all.remove(2));
        assert!(all.get(1).is_none() && all.get(2).is_some() && all.returnable.is_empty());
    }
}
