//! Tasks on simulated time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use runtime::clock::{Clock, Simulation, SystemClock, TestClock};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

type Log = Arc<Mutex<Vec<(Duration, usize)>>>;

fn note(sim: &Arc<Simulation>, log: &Log, name: usize) -> Box<dyn FnOnce() + Send> {
    let (clock, log) = (sim.clock.clone(), log.clone());
    Box::new(move || log.lock().unwrap().push((clock.now(), name)))
}

/// A heartbeat, as an example of a repeated task.
fn beat(sim: &Arc<Simulation>, log: &Log, every: Duration) {
    let (again, log) = (Arc::downgrade(sim), log.clone());
    sim.later(
        every,
        Box::new(move || {
            let Some(sim) = again.upgrade() else { return };
            log.lock().unwrap().push((sim.now(), 0));
            beat(&sim, &log, every);
        }),
    );
}

#[test]
fn system_clock_is_monotonic() {
    let clock = SystemClock::default();
    let mut last = clock.now();
    for _ in 0..1000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
}

#[test]
fn test_clock_moves_only_when_moved() {
    let clock = TestClock::default();
    assert_eq!(clock.now(), Duration::ZERO);
    clock.move_to(secs(5));
    clock.move_to(secs(3));
    assert_eq!(clock.now(), secs(5));
}

#[test]
fn idle_simulation_jumps_to_the_next_task() {
    let (sim, log) = (Simulation::new(), Log::default());
    sim.later(secs(86_400), note(&sim, &log, 1));
    sim.later(secs(1), note(&sim, &log, 0));
    sim.run();
    assert_eq!(*log.lock().unwrap(), [(secs(1), 0), (secs(86_400), 1)]);
    assert_eq!(sim.now(), secs(86_400));
    sim.run();
    assert_eq!(sim.now(), secs(86_400), "nothing to do, no time passes");
}

#[test]
fn run_ends_at_the_end_of_its_span() {
    let (sim, log) = (Simulation::new(), Log::default());
    beat(&sim, &log, secs(3));
    sim.run_for(secs(10));
    assert_eq!(sim.now(), secs(10));
    assert_eq!(*log.lock().unwrap(), [(secs(3), 0), (secs(6), 0), (secs(9), 0)]);
    sim.run_for(secs(2));
    assert_eq!(log.lock().unwrap().last(), Some(&(secs(12), 0)), "what is due at the end runs");
}

#[test]
fn immediate_task_runs_at_the_same_time() {
    let (sim, log) = (Simulation::new(), Log::default());
    let (inner, theirs) = (sim.clone(), log.clone());
    sim.later(secs(1), Box::new(move || inner.later(Duration::ZERO, note(&inner, &theirs, 7))));
    sim.run();
    assert_eq!(*log.lock().unwrap(), [(secs(1), 7)]);
}

proptest! {
    /// Tasks run by time, and at the same time by age; two runs have the same order.
    #[test]
    fn tasks_run_in_order(delays in proptest::collection::vec(0u64..20, 0..50)) {
        let mut want: Vec<_> = delays.iter().enumerate().map(|(i, d)| (secs(*d), i)).collect();
        want.sort();
        for _ in 0..2 {
            let (sim, log) = (Simulation::new(), Log::default());
            delays.iter().enumerate().for_each(|(i, d)| sim.later(secs(*d), note(&sim, &log, i)));
            sim.run();
            prop_assert_eq!(&*log.lock().unwrap(), &want);
        }
    }
}
