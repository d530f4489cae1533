//! Time, as a state machine sees it.
//!
//! A state machine asks its clock instead of the system, so that a test can give it one that costs nothing: a
//! `Simulation` runs what is due and, when nothing is left for now, jumps to the next time at which something is.
//! Hours pass in microseconds, and the same tasks run in the same order every time. It orders them by the very
//! `Timers` that the poller uses: by time, and at the same time in the order in which they were added.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use net::timers::{Task, Timers};

pub trait Clock: Send + Sync {
    /// Time since the clock's own beginning; never goes back.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Clock for net::Timeline {
    fn now(&self) -> Duration {
        self.elapsed()
    }
}

/// A clock that stands until it is moved. It begins at zero.
#[derive(Default)]
pub struct TestClock {
    nanos: AtomicU64,
}

impl TestClock {
    /// Moves on to `to`; a clock that is ahead stays where it is. The end of time is after 584 years.
    pub fn move_to(&self, to: Duration) {
        self.nanos.fetch_max(to.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::AcqRel);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}

/// Runs tasks on simulated time, all on the thread that calls `run`.
pub struct Simulation {
    pub clock: Arc<TestClock>,
    /// What zero on the clock is to `Timers`; only differences to it matter.
    zero: Instant,
    timers: Mutex<Timers>,
}

impl Default for Simulation {
    fn default() -> Self {
        Simulation { clock: Arc::default(), zero: Instant::now(), timers: Mutex::default() }
    }
}

impl Simulation {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Runs the task `delay` from now; a task may add others.
    pub fn later(&self, delay: Duration, task: Task) {
        self.timers().add(self.zero + self.now() + delay, task);
    }

    /// Moves to the next time at which something is due and runs that, unless it is after `end`; false if nothing ran.
    fn step(&self, end: Duration) -> bool {
        let Some(left) = self.timers().timeout(self.zero + self.now()) else { return false };
        if self.now() + left > end {
            return false;
        }
        self.clock.move_to(self.now() + left);
        let due = self.timers().due(self.zero + self.now());
        due.into_iter().for_each(|task| task());
        true
    }

    /// Runs until nothing is left to do.
    pub fn run(&self) {
        while self.step(Duration::MAX) {}
    }

    /// Runs what is due within `time`, which then has passed.
    pub fn run_for(&self, time: Duration) {
        let end = self.now() + time;
        while self.step(end) {}
        self.clock.move_to(end);
    }
}
