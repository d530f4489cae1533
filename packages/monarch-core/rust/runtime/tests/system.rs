//! The queue of the housekeeping thread.

use std::sync::Arc;

use net::Poller;
use runtime::SystemEvent;
use runtime::supervision::Member;
use runtime::system::SystemQueue;
use wire::exit::ProcEnd;
use wire::{CallId, ExitReason, MailboxId, ProcUid};

fn ended(uid: u64) -> SystemEvent {
    let end =
        ProcEnd { pid: 1, started: true, host: "h".into(), reason: ExitReason::Returned, cleaning: vec![], output: vec![], recent: vec![] };
    SystemEvent::ProcsEnded { ends: vec![(ProcUid(uid), end)] }
}

#[test]
fn events_come_in_order() {
    let q = SystemQueue::default();
    assert!(q.is_empty() && q.pop().is_none());
    q.push(ended(1));
    q.push(SystemEvent::RootLost);
    assert!(matches!(q.pop(), Some(SystemEvent::ProcsEnded { ends }) if ends[0].0 == ProcUid(1)));
    assert!(matches!(q.pop(), Some(SystemEvent::RootLost)));
    assert!(q.pop().is_none());
}

#[test]
fn only_failures_are_in_flight() {
    let q = SystemQueue::default();
    q.push(SystemEvent::StopProc { grace_ms: 0, drain: None, reason: String::new() });
    q.push(SystemEvent::Request { from: ProcUid(1), kind: 7, call_id: CallId::NONE, body: vec![] });
    q.settle();
    let member = Member { mesh: MailboxId(1), rank: 0 };
    q.push(SystemEvent::ActorFailed { from: ProcUid(1), member, failure: vec![] });
    q.push(ended(3));
    assert_eq!(q.failures_in_flight(), 2);
    q.failure_handled();
    assert_eq!(q.failures_in_flight(), 1);
}

/// Threads that settle go on after the last failure is handled, and do go on.
#[test]
fn settling_waits_for_the_failures() {
    for _ in 0..100 {
        let q = Arc::new(SystemQueue::default());
        (0..3).for_each(|n| q.push(ended(n)));
        let settling: Vec<_> = (0..3)
            .map(|_| {
                let q = q.clone();
                std::thread::spawn(move || {
                    q.settle();
                    assert_eq!(q.failures_in_flight(), 0);
                })
            })
            .collect();
        while q.pop().is_some() {
            q.failure_handled();
        }
        settling.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn push_wakes_the_waiter() {
    let poller = Poller::new().unwrap();
    let q = Arc::new(SystemQueue::default());
    let w = poller.waiter();
    q.set_waiter(w.clone());
    for _ in 0..200 {
        let theirs = q.clone();
        let thread = std::thread::spawn(move || theirs.push(SystemEvent::RootLost));
        assert_eq!(poller.wait(&w, None, || !q.is_empty()), net::WaitEnd::Ready);
        assert!(q.pop().is_some());
        thread.join().unwrap();
    }
}
