//! One sequence of frames from a process to a host, whatever way they take.
//!
//! The source counts what it sends to each host, directly or by a cast. The host's agent delivers in that order: it holds what
//! comes early, and drops what it has seen. So casts may be resent by anybody who has them.

use std::collections::{BTreeMap, HashMap};

use wire::cast::Order;
use wire::{ProcUid, Span};

/// A host to which frames are counted: an index, because a cast counts thousands of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Counter(u32);

/// Gives the numbers, in one process.
#[derive(Default)]
pub struct OutOrder {
    counters: HashMap<ProcUid, Counter>,
    next: Vec<u64>,
}

impl OutOrder {
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

    /// The host has forgotten all numbers.
    pub fn restart(&mut self, host: ProcUid) {
        if let Some(Counter(at)) = self.counters.get(&host) {
            self.next[*at as usize] = 0;
        }
    }

    /// The numbers of one cast to these hosts.
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

/// The positions of a whole group.
pub fn all(hosts: usize) -> Span {
    Span::new(0, hosts as u32)
}

struct From<T> {
    next: u64,
    early: BTreeMap<u64, T>,
}

/// Puts frames back in order, at their destination; by the process that sent them.
pub struct InOrder<T> {
    from: HashMap<ProcUid, From<T>>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        InOrder { from: HashMap::new() }
    }
}

impl<T> InOrder<T> {
    /// A frame has come; `deliver` gets what is due by it, in order.
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

    /// A frame with this number would be delivered at once.
    pub fn is_due(&self, source: ProcUid, number: u64) -> bool {
        self.from.get(&source).map_or(0, |f| f.next) == number
    }

    /// A frame with this number would be dropped.
    pub fn seen(&self, source: ProcUid, number: u64) -> bool {
        self.from.get(&source).is_some_and(|f| number < f.next || f.early.contains_key(&number))
    }

    /// The process is gone: what it sent early will never be due.
    pub fn forget(&mut self, source: ProcUid) -> usize {
        self.from.remove(&source).map_or(0, |f| f.early.len())
    }

    /// Frames that have come early.
    pub fn held(&self) -> usize {
        self.from.values().map(|f| f.early.len()).sum()
    }
}
