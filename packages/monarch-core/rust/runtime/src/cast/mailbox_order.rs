//! The order of frames to one mailbox, while large parts are missing. A frame with missing attachments delays only the later frames to the
//! same mailbox.
//!
//! Frames enter in the order of their source, and leave in this order in each mailbox queue, which is identified by a source with a
//! receiving proc and mailbox.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// A frame in its queue.
struct Waiting<T> {
    frame: T,
    /// The attachments that have not arrived completely.
    missing: Vec<u64>,
}

/// All mailbox queues. `L` identifies a queue; an attachment is identified by its sender and a number.
pub struct MailboxOrder<L, T> {
    queues: HashMap<L, VecDeque<Waiting<T>>>,
    /// The queues that wait for each missing attachment.
    wanted: HashMap<u64, Vec<L>>,
    /// Attachments that are complete and that later frames may name.
    complete: HashSet<u64>,
}

impl<L, T> Default for MailboxOrder<L, T> {
    fn default() -> Self {
        MailboxOrder { queues: HashMap::new(), wanted: HashMap::new(), complete: HashSet::new() }
    }
}

impl<L: Hash + Eq + Clone, T> MailboxOrder<L, T> {
    /// Returns the frame if it can be delivered at once. Its attachments stay in `complete` until `forget`: several queues may need the
    /// attachments of a cast.
    pub fn push(&mut self, key: L, frame: T, attachments: &[u64]) -> Option<T> {
        let missing: Vec<u64> = attachments.iter().filter(|a| !self.complete.contains(a)).copied().collect();
        if missing.is_empty() && !self.queues.contains_key(&key) {
            return Some(frame);
        }
        for a in &missing {
            let queues = self.wanted.entry(*a).or_default();
            if !queues.contains(&key) {
                queues.push(key.clone());
            }
        }
        self.queues.entry(key).or_default().push_back(Waiting { frame, missing });
        None
    }

    /// Notes that an attachment is complete; `go` receives the frames that now have all attachments and no earlier frame before them.
    pub fn complete(&mut self, attachment: u64, mut go: impl FnMut(T)) {
        self.complete.insert(attachment);
        for key in self.wanted.remove(&attachment).unwrap_or_default() {
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            queue.iter_mut().for_each(|w| w.missing.retain(|a| *a != attachment));
            while queue.front().is_some_and(|w| w.missing.is_empty()) {
                if let Some(w) = queue.pop_front() {
                    go(w.frame);
                }
            }
            if queue.is_empty() {
                self.queues.remove(&key);
            }
        }
    }

    /// Forgets a complete attachment that no later frame will name.
    pub fn forget(&mut self, attachment: u64) {
        self.complete.remove(&attachment);
    }

    /// Removes the queues whose source or receiver has ended.
    pub fn drop_queues(&mut self, mut gone: impl FnMut(&L) -> bool) {
        self.queues.retain(|key, _| !gone(key));
        self.wanted.retain(|_, queues| {
            queues.retain(|key| !gone(key));
            !queues.is_empty()
        });
    }

    /// The number of frames that wait.
    pub fn waiting(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }
}
