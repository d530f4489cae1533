//! Credit: the number of bytes that a sender may have in transit to a mailbox.
//!
//! Each pair of a sending process and a mailbox has a window in bytes. A message costs its length plus a constant, which bounds the number
//! of empty messages too. The receiver returns the credit of handled messages in quarters of the window, so a busy pair needs one small
//! frame for a few thousand messages. A message that is larger than the window is sent when the window is not full, one message at a time.
//!
//! Both halves only count: they do no I/O, have no clock, and never wait.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The bytes that one process may have in transit to one mailbox. 8 MiB hold about 20,000 small messages, and a thousand senders with full
/// windows do not exhaust the memory of a receiver.
pub const WINDOW: u64 = 8 << 20;
/// Added to the length of each message: its cost to the receiver besides its bytes.
pub const OVERHEAD: u64 = 256;

/// The sender's half: the bytes in transit, and the queued messages.
#[derive(Debug)]
pub struct Window<Q> {
    /// The bytes in transit.
    outstanding: u64,
    /// The messages that wait for credit, with their costs.
    queue: VecDeque<(u64, Q)>,
    /// A thread is sending the queued messages one after another; new messages are queued behind them.
    handing_over: bool,
}

impl<Q> Default for Window<Q> {
    fn default() -> Self {
        Window { outstanding: 0, queue: VecDeque::new(), handing_over: false }
    }
}

impl<Q> Window<Q> {
    /// True if the next message may be sent now.
    pub fn is_open(&self) -> bool {
        self.queue.is_empty() && !self.handing_over && self.outstanding < WINDOW
    }

    /// Counts a message that is sent.
    pub fn spend(&mut self, cost: u64) {
        self.outstanding += cost;
    }

    /// Queues a message until there is credit.
    pub fn enqueue(&mut self, cost: u64, message: Q) {
        self.queue.push_back((cost, message));
    }

    /// Takes returned credit; true if the caller must now send all messages that `next_out` returns. A thread that is already doing so
    /// continues with the messages that this credit releases, so messages stay in order and calls do not nest.
    pub fn refill(&mut self, bytes: u64) -> bool {
        self.outstanding = self.outstanding.saturating_sub(bytes);
        !std::mem::replace(&mut self.handing_over, true)
    }

    /// The first queued message, if it may be sent now.
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

    /// True if no message is in transit or queued, so the entry can be removed.
    pub fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.queue.is_empty() && !self.handing_over
    }

    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Removes and returns all queued messages.
    pub fn take_queue(&mut self) -> Vec<Q> {
        self.queue.drain(..).map(|(_, m)| m).collect()
    }
}

/// The receiver's half, for all senders to one mailbox.
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
    /// Counts a handled message. Returns the credit to send now, if it is a quarter of the window.
    pub fn add(&mut self, from: &K, cost: u64) -> Option<u64> {
        let have = self.bytes.entry(from.clone()).or_insert(0);
        *have += cost;
        if *have >= WINDOW / 4 { self.bytes.remove(from) } else { None }
    }

    /// All credit that has not been returned: the mailbox is closing.
    pub fn drain(&mut self) -> Vec<(K, u64)> {
        self.bytes.drain().collect()
    }
}
