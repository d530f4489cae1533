//! Pending calls: when they are complete, their outcomes, and the watchers that they notify.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use net::Poller;
use proptest::prelude::*;
use runtime::calls::pending_call::Watcher;
use runtime::{Mode, Outcome, PendingCall};
use wire::{CallId, MailboxId, ProcUid, Status};

fn cell(mode: Mode, size: usize) -> Arc<PendingCall> {
    let targets: Arc<[_]> = (0..size as u64).map(|r| (ProcUid(r / 2), MailboxId(r))).collect();
    PendingCall::new(CallId(1), mode, size, targets)
}

fn answer(c: &PendingCall, rank: u32, status: Status) -> bool {
    c.complete(Outcome::new(rank, status, &rank.to_le_bytes()))
}

#[derive(Default)]
struct Notified(Mutex<Vec<u64>>);

impl Watcher for Notified {
    fn done(&self, token: u64) {
        self.0.lock().unwrap().push(token);
    }
}

#[test]
fn first_error_ends_the_call() {
    let c = cell(Mode::FirstError, 3);
    assert!(!answer(&c, 1, Status::Ok));
    assert!(!c.is_done(0));
    assert!(answer(&c, 2, Status::Error));
    assert!(c.is_done(0));
    assert_eq!(c.error().map(|o| o.rank), Some(2));
    assert!(c.outcome(0).is_none());
}

#[test]
fn among_errors_a_death_counts_most() {
    let c = cell(Mode::FirstError, 4);
    answer(&c, 3, Status::Error);
    answer(&c, 0, Status::Error);
    assert_eq!(c.error().map(|o| o.rank), Some(3), "the first to arrive");
    answer(&c, 2, Status::ProcEnded);
    answer(&c, 1, Status::Failed);
    assert_eq!(c.error().map(|o| o.rank), Some(1), "the lowest rank that died");
}

#[test]
fn answers_of_all_ranks_end_the_call() {
    let c = cell(Mode::FirstError, 2);
    assert!(!answer(&c, 1, Status::Ok));
    assert!(answer(&c, 0, Status::Ok));
    assert!(c.error().is_none());
    assert!(c.outcomes().iter().all(Option::is_some));
}

#[test]
fn gathering_waits_for_all() {
    let c = cell(Mode::Gather, 2);
    assert!(!answer(&c, 0, Status::Error));
    assert!(!c.is_done(0));
    assert!(answer(&c, 1, Status::Ok));
    assert!(c.is_done(0));
    assert_eq!(c.error().map(|o| o.rank), Some(0));
    assert_eq!(c.size(), 2);
}

#[test]
fn rank_counts_once_and_unknown_ranks_never() {
    let c = cell(Mode::Gather, 2);
    assert!(!answer(&c, 0, Status::Ok));
    assert!(!answer(&c, 0, Status::Error));
    assert!(!answer(&c, 7, Status::Ok));
    assert!(!c.is_done(0));
    assert_eq!(c.outcome(0).map(|o| o.status), Some(Status::Ok));
    assert!(answer(&c, 1, Status::Ok));
    assert!(answer(&c, 1, Status::Error), "still of no interest");
}

#[test]
fn call_without_targets_is_done() {
    assert!(cell(Mode::Gather, 0).is_done(0) && cell(Mode::FirstError, 0).is_done(0));
    assert!(!cell(Mode::Stream, 0).is_done(0));
}

proptest! {
    /// The arrivals are returned one by one, in order, and each watcher is notified once, at its own arrival.
    #[test]
    fn stream_gives_arrivals_in_order(order in Just((0..8u32).collect::<Vec<_>>()).prop_shuffle(), early in 0usize..8) {
        let c = cell(Mode::Stream, 8);
        let notified = Arc::new(Notified::default());
        for (i, rank) in order.iter().enumerate() {
            if i == early {
                (0..8).for_each(|w| c.watch(w, notified.clone(), w as u64));
            }
            prop_assert!(!c.is_done(i));
            prop_assert!(c.arrival(i).is_none());
            prop_assert_eq!(answer(&c, *rank, Status::Ok), i == 7);
            prop_assert_eq!(c.arrival(i).map(|o| o.rank), Some(*rank));
        }
        prop_assert_eq!(notified.0.lock().unwrap().clone(), (0..8).collect::<Vec<u64>>());
    }

    #[test]
    fn call_waits_for_unanswered_ranks(answered in proptest::collection::hash_set(0u32..8, 0..8), gone in 0u64..4) {
        let c = cell(Mode::Gather, 8);
        for r in &answered {
            answer(&c, *r, Status::Ok);
        }
        let want: Vec<u32> = (0..8).filter(|r| u64::from(*r) / 2 == gone && !answered.contains(r)).collect();
        prop_assert_eq!(c.waiting_for(|p, _| p == ProcUid(gone)), want);
    }
}

/// Watchers that are added while answers arrive are notified exactly once.
#[test]
fn watcher_is_notified_exactly_once() {
    struct Counts(Vec<AtomicUsize>);
    impl Watcher for Counts {
        fn done(&self, token: u64) {
            self.0[token as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
    const WATCHERS: usize = 64;
    for mode in [Mode::Stream, Mode::Gather, Mode::FirstError] {
        for _ in 0..50 {
            let c = cell(mode, 16);
            let counts = Arc::new(Counts((0..WATCHERS).map(|_| AtomicUsize::new(0)).collect()));
            let start = Arc::new(Barrier::new(3));
            let threads: Vec<_> = (0..2u32)
                .map(|half| {
                    let (c, s) = (c.clone(), start.clone());
                    std::thread::spawn(move || {
                        s.wait();
                        for r in 0..8 {
                            answer(&c, 2 * r + half, Status::Ok);
                        }
                    })
                })
                .collect();
            start.wait();
            (0..WATCHERS).for_each(|w| c.watch(w % 16, counts.clone(), w as u64));
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert!(counts.0.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn waiter_is_notified_until_it_is_removed() {
    let poller = Poller::new().unwrap();
    let c = cell(Mode::Stream, 3);
    let (stays, goes) = (poller.waiter(), poller.waiter());
    c.add_waiter(&stays);
    c.add_waiter(&goes);
    c.remove_waiter(&goes);
    let other = c.clone();
    let thread = std::thread::spawn(move || answer(&other, 0, Status::Ok));
    assert_eq!(poller.wait(&stays, None, || c.is_done(0)), net::WaitEnd::Ready);
    assert!(!thread.join().unwrap());
    assert_eq!(Arc::strong_count(&goes), 1);
}
