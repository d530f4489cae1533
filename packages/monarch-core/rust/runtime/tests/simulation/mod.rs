//! Tasks on simulated time, all on the thread that runs them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

pub type Task = Box<dyn FnOnce() + Send>;

/// Runs tasks on simulated time, in the order of their times; tasks of the same time in the order in which they were added.
#[derive(Default)]
pub struct Simulation(Mutex<Schedule>);

#[derive(Default)]
struct Schedule {
    now: Duration,
    added: u64,
    tasks: BTreeMap<(Duration, u64), Task>,
}

impl Simulation {
    pub fn now(&self) -> Duration {
        self.0.lock().unwrap().now
    }

    pub fn later(&self, delay: Duration, task: Task) {
        let mut schedule = self.0.lock().unwrap();
        let key = (schedule.now + delay, schedule.added);
        schedule.added += 1;
        schedule.tasks.insert(key, task);
    }

    pub fn run(&self) {
        let next = || {
            let mut schedule = self.0.lock().unwrap();
            let ((time, _), task) = schedule.tasks.pop_first()?;
            schedule.now = time;
            Some(task)
        };
        while let Some(task) = next() {
            task();
        }
    }
}
