//! Timers: tasks that run at a later time, on the I/O thread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// A function that runs once.
pub type Task = Box<dyn FnOnce() + Send>;

/// The tasks by their due times. The poller owns them.
#[derive(Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
    tasks: std::collections::HashMap<u64, Task>,
    next: u64,
}

impl Timers {
    /// Adds a task. Returns its number, and true if it is now the earliest one.
    pub fn add(&mut self, due: Instant, task: Task) -> (u64, bool) {
        let first = self.heap.peek().is_none_or(|Reverse((t, _))| due < *t);
        self.next += 1;
        self.heap.push(Reverse((due, self.next)));
        self.tasks.insert(self.next, task);
        (self.next, first)
    }

    /// Drops a task that has not run.
    pub fn cancel(&mut self, number: u64) -> Option<Task> {
        self.tasks.remove(&number)
    }

    pub fn timeout(&mut self, now: Instant) -> Option<Duration> {
        while self.heap.peek().is_some_and(|Reverse((_, number))| !self.tasks.contains_key(number)) {
            self.heap.pop();
        }
        self.heap.peek().map(|Reverse((t, _))| t.saturating_duration_since(now))
    }

    pub fn due(&mut self, now: Instant) -> Vec<Task> {
        let mut out = Vec::new();
        while let Some(Reverse((t, id))) = self.heap.peek() {
            if *t > now {
                break;
            }
            out.extend(self.tasks.remove(id));
            self.heap.pop();
        }
        out
    }
}
