//! Hosts on simulated time. Each host has one thread, which handles events one after another, and links with a latency.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use wire::cast::CastFrame;
use wire::greeting;
use wire::join_tree::TreeMessage;

use crate::costs::{Costs, Dice, us};

/// A frame between hosts.
pub enum Frame {
    Cast(CastFrame),
    Tree(TreeMessage),
}

impl Frame {
    fn len(&self) -> usize {
        match self {
            Frame::Cast(frame) => frame.encode().len(),
            Frame::Tree(message) => greeting::encode(message).len(),
        }
    }
}

/// An event at a host.
pub enum Event {
    Frame {
        from: usize,
        frame: Frame,
        size: usize,
    },
    /// A proc of the host has answered.
    Reply {
        cast_id: u64,
        index: u32,
    },
    Time,
    /// The link of the host to a neighbour has ended.
    Lost {
        ended_host: usize,
    },
    /// A handshake with a worker is over.
    Joined {
        worker: usize,
    },
    /// A worker has not answered in time.
    Unanswered {
        worker: usize,
    },
    /// Another host has dialled this one, and the handshake begins.
    Accepted,
}

struct Due(Duration, u64, usize, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// Time, the queue of events, and the traffic of each host.
pub struct World {
    pub costs: Costs,
    pub dice: Dice,
    pub now: Duration,
    queue: BinaryHeap<Reverse<Due>>,
    count: u64,
    /// Until when each host's thread is busy.
    pub busy: Vec<Duration>,
    pub alive: Vec<bool>,
    pub sent: Vec<usize>,
    pub received: Vec<usize>,
    pub bytes: Vec<usize>,
    /// The last arrival on each link: the frames of a link do not overtake each other.
    last: std::collections::HashMap<(usize, usize), Duration>,
    /// Measured CPU time of the root.
    pub root_cpu: Duration,
}

impl World {
    pub fn new(hosts: usize, costs: &Costs, seed: u64) -> Self {
        World {
            costs: costs.clone(),
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            count: 0,
            busy: vec![Duration::ZERO; hosts],
            alive: vec![true; hosts],
            sent: vec![0; hosts],
            received: vec![0; hosts],
            bytes: vec![0; hosts],
            last: Default::default(),
            root_cpu: Duration::ZERO,
        }
    }

    pub fn at(&mut self, time: Duration, host: usize, event: Event) {
        self.count += 1;
        self.queue.push(Reverse(Due(time, self.count, host, event)));
    }

    pub fn spend(&mut self, host: usize, cost: f64) {
        self.busy[host] = self.busy[host].max(self.now) + us(cost);
    }

    /// Sends a frame. The thread of the host does it after its earlier work.
    pub fn send(&mut self, from: usize, to: usize, frame: Frame) {
        // The time to encode a frame counts for the root; of other hosts' frames only the size counts.
        let start = Instant::now();
        let size = frame.len() + 8;
        if from == 0 {
            self.root_cpu += start.elapsed();
        }
        self.sent[from] += 1;
        self.bytes[from] += size;
        self.spend(from, self.costs.send + size as f64 * self.costs.byte);
        if !self.alive[to] {
            return;
        }
        let jitter = -self.costs.jitter * (1.0 - self.dice.unit()).ln();
        let mut arrival = self.busy[from] + us(self.costs.hop + jitter + size as f64 * self.costs.wire_byte);
        let last = self.last.entry((from, to)).or_default();
        arrival = arrival.max(*last);
        *last = arrival;
        self.at(arrival, to, Event::Frame { from, frame, size });
    }

    /// The next event at a host that has not ended, at a time when its thread is free.
    pub fn next(&mut self) -> Option<(usize, Event)> {
        loop {
            let Reverse(Due(time, _, host, event)) = self.queue.pop()?;
            if !self.alive[host] {
                continue;
            }
            if self.busy[host] > time {
                // The event waits until the thread is free.
                let free = self.busy[host];
                self.at(free, host, event);
                continue;
            }
            self.now = time;
            if let Event::Frame { size, .. } = &event {
                self.received[host] += 1;
                let cost = self.costs.receive + *size as f64 * self.costs.byte;
                self.spend(host, cost);
            }
            return Some((host, event));
        }
    }

    pub fn reset_counts(&mut self) {
        for counts in [&mut self.sent, &mut self.received, &mut self.bytes] {
            counts.fill(0);
        }
        self.root_cpu = Duration::ZERO;
    }
}
