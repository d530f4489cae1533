//! How far a sender may run ahead of a mailbox.
//!
//! Each (sending process, mailbox) pair has a window in bytes. A message costs its length plus a constant, so
//! that empty messages are bounded too. The receiver gives back what has been handled in quarters of the
//! window, so that a busy pair pays one small frame per few thousand messages. A message larger than the
//! window is let through when the window is not full, one at a time.
//!
//! Both halves are pure bookkeeping: no I/O, no clock, no waiting.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Bytes one process may have on the way to one mailbox. 8 MiB is some 20,000 small messages, and well under
/// what a thousand senders may do to a receiver's memory.
pub const WINDOW: u64 = 8 << 20;
/// Added to each message's length: what it costs the receiver beside its bytes.
pub const OVERHEAD: u64 = 256;

/// The sender's half.
#[derive(Debug)]
pub struct Window<Q> {
    outstanding: u64,
    queue: VecDeque<(u64, Q)>,
    /// Somebody is carrying queued messages out one by one; new ones go behind them.
    handing_over: bool,
}

impl<Q> Default for Window<Q> {
    fn default() -> Self {
        Window { outstanding: 0, queue: VecDeque::new(), handing_over: false }
    }
}

impl<Q> Window<Q> {
    /// May the next message go out now?
    pub fn is_open(&self) -> bool {
        self.queue.is_empty() && !self.handing_over && self.outstanding < WINDOW
    }

    /// Counts a message that goes out.
    pub fn spend(&mut self, cost: u64) {
        self.outstanding += cost;
    }

    /// Keeps a message until there is credit.
    pub fn enqueue(&mut self, cost: u64, message: Q) {
        self.queue.push_back((cost, message));
    }

    /// Takes credit back; true if the caller must now carry out what `next_out` gives until it gives none. Whoever does
    /// so already goes on with what this lets out, so that messages stay in order and nothing recurses.
    pub fn refill(&mut self, bytes: u64) -> bool {
        self.outstanding = self.outstanding.saturating_sub(bytes);
        !std::mem::replace(&mut self.handing_over, true)
    }

    /// The first queued message, if it may go out now.
    pub fn next_out(&mut self) -> Option<Q> {
        if self.outstanding < WINDOW
            && let Some((cost, m)) = self.queue.pop_front()
        {
            self.outstanding += cost;
            return Some(m);
        }
        self.handing_over = false;
        None
    }

    /// Nothing on the way and nothing waiting: the entry can be forgotten.
    pub fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.queue.is_empty() && !self.handing_over
    }

    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    pub fn take_queue(&mut self) -> Vec<Q> {
        self.queue.drain(..).map(|(_, m)| m).collect()
    }
}

/// The receiver's half, for all senders of one mailbox.
#[derive(Debug)]
pub struct Consumed<K> {
    bytes: HashMap<K, u64>,
}

impl<K> Default for Consumed<K> {
    fn default() -> Self {
        Consumed { bytes: HashMap::new() }
    }
}

impl<K: Hash + Eq + Clone> Consumed<K> {
    /// Counts a handled message; the credit to give back now, if it is worth a frame.
    pub fn add(&mut self, from: &K, cost: u64) -> Option<u64> {
        let have = self.bytes.entry(from.clone()).or_insert(0);
        *have += cost;
        if *have >= WINDOW / 4 { self.bytes.remove(from) } else { None }
    }

    /// All that has not been given back; the mailbox is closing.
    pub fn drain(&mut self) -> Vec<(K, u64)> {
        self.bytes.drain().collect()
    }
}
