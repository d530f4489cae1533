//! The clock of a state machine: real time, or simulated time for tests.
//!
//! A state machine asks its clock for the time and never asks the system. A test can therefore give it a clock that costs nothing: a
//! `Simulation` runs the tasks that are due, and then jumps to the time of the next task. Hours of simulated time take microseconds, and
//! the same tasks run in the same order every time. The order is that of `Timers`, which the poller uses too: by time, and tasks of the
//! same time in the order in which they were added.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use net::timers::{Task, Timers};

/// The source of time that a state machine is given.
pub trait Clock: Send + Sync {
    /// The time since this clock began. It never goes back.
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

/// A clock that advances only when a test moves it. It begins at zero.
#[derive(Default)]
pub struct TestClock {
    nanos: AtomicU64,
}

impl TestClock {
    /// Advances the clock to `to`; a clock that is later than `to` keeps its time. The largest time is 584 years.
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
    /// The instant that `Timers` receives for time zero; only differences to it matter.
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

    /// Runs the task after `delay`. A task may add other tasks.
    pub fn later(&self, delay: Duration, task: Task) {
        self.timers().add(self.zero + self.now() + delay, task);
    }

    /// Advances to the time of the next task and runs all tasks of that time, unless the time is after `end`; false if no task ran.
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

    /// Runs all tasks, in the order of their times.
    pub fn run(&self) {
        while self.step(Duration::MAX) {}
    }

    /// Runs all tasks that are due within `time`, and advances the clock by `time`.
    pub fn run_for(&self, time: Duration) {
        let end = self.now() + time;
        while self.step(end) {}
        self.clock.move_to(end);
    }
}
