//! The sequence of frames from one process to one host, independent of the route of each frame.
//!
//! The source numbers the frames that it sends to each host, directly or by a cast. The host's agent delivers them in this order: it holds
//! frames that arrive early, and drops frames that it has seen. So every host that has a cast may send it again.

use std::collections::{BTreeMap, HashMap};

use wire::cast::Order;
use wire::{ProcUid, Span};

/// The counter of frames to one host. It is an index and no uid, because a cast increments thousands of counters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Counter(u32);

/// Assigns the sequence numbers, in one process.
#[derive(Default)]
pub struct OutOrder {
    counters: HashMap<ProcUid, Counter>,
    next: Vec<u64>,
}

impl OutOrder {
    /// The counter of frames to a host.
    pub fn counter(&mut self, host: ProcUid) -> Counter {
        *self.counters.entry(host).or_insert_with(|| {
            self.next.push(0);
            Counter(self.next.len() as u32 - 1)
        })
    }

    /// The number of the next frame to this host.
    pub fn next(&mut self, host: ProcUid) -> u64 {
        let Counter(at) = self.counter(host);
        let next = &mut self.next[at as usize];
        *next += 1;
        *next - 1
    }

    /// Starts the sequence to a host again: the host has lost its state.
    pub fn restart(&mut self, host: ProcUid) {
        if let Some(Counter(at)) = self.counters.get(&host) {
            self.next[*at as usize] = 0;
        }
    }

    /// Assigns the numbers of one cast to these hosts.
    pub fn cast(&mut self, hosts: &[Counter]) -> Order {
        let mut order = Order::default();
        let mut run: Option<u64> = None;
        for (position, Counter(at)) in hosts.iter().enumerate() {
            let Some(next) = self.next.get_mut(*at as usize) else { continue };
            if run.is_some_and(|number| number != *next) {
                order.push(position as u32, run.unwrap_or(0));
            }
            run = Some(*next);
            *next += 1;
        }
        if let Some(number) = run {
            order.push(hosts.len() as u32, number);
        }
        order
    }
}

/// The span of all positions of a group.
pub fn all(hosts: usize) -> Span {
    Span::new(0, hosts as u32)
}

/// The frames from one process: the number that is due, and the frames that arrived early.
struct From<T> {
    next: u64,
    early: BTreeMap<u64, T>,
}

/// Restores the order of frames at their destination, for each process that sent them.
pub struct InOrder<T> {
    from: HashMap<ProcUid, From<T>>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        InOrder { from: HashMap::new() }
    }
}

impl<T> InOrder<T> {
    /// Takes a frame. `deliver` receives, in order, the frames that are now due.
    pub fn accept(&mut self, source: ProcUid, number: u64, frame: T, mut deliver: impl FnMut(T)) {
        let from = self.from.entry(source).or_insert_with(|| From { next: 0, early: BTreeMap::new() });
        if number != from.next {
            if number > from.next {
                from.early.entry(number).or_insert(frame);
            }
            return;
        }
        from.next += 1;
        deliver(frame);
        while let Some(frame) = from.early.remove(&from.next) {
            from.next += 1;
            deliver(frame);
        }
    }

    /// True if a frame with this number would be delivered at once.
    pub fn is_due(&self, source: ProcUid, number: u64) -> bool {
        self.from.get(&source).map_or(0, |f| f.next) == number
    }

    /// True if a frame with this number would be dropped.
    pub fn seen(&self, source: ProcUid, number: u64) -> bool {
        self.from.get(&source).is_some_and(|f| number < f.next || f.early.contains_key(&number))
    }

    /// Removes the state of a process that has ended; returns the number of its early frames, which will never be due.
    pub fn forget(&mut self, source: ProcUid) -> usize {
        self.from.remove(&source).map_or(0, |f| f.early.len())
    }

    /// The number of frames that wait for earlier ones.
    pub fn held(&self) -> usize {
        self.from.values().map(|f| f.early.len()).sum()
    }
}
