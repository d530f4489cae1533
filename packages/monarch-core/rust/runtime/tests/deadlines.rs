//! Deadlines of calls between two nodes of one process: expired calls, reports of their receivers, dropped messages.
#![cfg(not(feature = "shuttle"))]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::sys;
use runtime::calls::pending_call::{Outcome, Watcher};
use runtime::mailboxes::mailbox::{Consumer, Delivery};
use runtime::peers::peer::Head;
use runtime::transfers::payload::OutPart;
use runtime::{Mode, Node, Payload, PendingCall};
use wire::control::CallState;
use wire::frame::STOP;
use wire::{CallId, MailboxId, ProcUid, Status};

const HANG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(20);
/// More than the time for reports.
const REPORTED: Duration = Duration::from_millis(300);
const BOX: MailboxId = MailboxId(10);

/// A caller and a receiver, connected by a link. No housekeeping thread finds lines of code.
fn nodes() -> (Arc<Node>, Arc<Node>) {
    let (caller, receiver) = (Node::start(ProcUid(1), ProcUid(1)).unwrap(), Node::start(ProcUid(2), ProcUid(1)).unwrap());
    let (x, y) = sys::socketpair().unwrap();
    caller.peers.peer_unlinked(receiver.uid).0.link.attach(x).unwrap();
    receiver.peers.peer_unlinked(caller.uid).0.link.attach(y).unwrap();
    (caller, receiver)
}

fn call(caller: &Arc<Node>, to: &[ProcUid], left: Duration, flags: u8) -> Arc<PendingCall> {
    let call = caller.calls.start(Mode::FirstError, to.len(), to.iter().map(|uid| (*uid, BOX)).collect());
    caller.calls.limit(&call, caller.poller.now() + left, false);
    for (rank, uid) in (0..).zip(to) {
        let head = Head { dest: BOX, call_id: call.call_id, rank, flags, left: Some(left), method: b"go", ..Head::default() };
        let local = || vec![OutPart { bytes: b"x", readonly: true }];
        caller.messages.send(&caller.peers.peer(*uid), &head, &Payload::small(b"x"), local, true);
    }
    call
}

fn wait(node: &Node, call: &Arc<PendingCall>) {
    let waiter = node.poller.waiter();
    call.add_waiter(&waiter);
    node.poller.wait(&waiter, Some(node.poller.now() + HANG), || call.is_done(0));
    assert!(call.is_done(0), "the call did not end");
}

/// Waits until a call that has ended is forgotten: its waiters are notified before that.
fn wait_until_forgotten(node: &Node) {
    let until = node.poller.now() + HANG;
    while node.calls.in_flight() > 0 {
        assert!(node.poller.now() < until, "the call is still in flight");
        std::thread::yield_now();
    }
}

fn end(nodes: (Arc<Node>, Arc<Node>)) {
    nodes.0.poller.stop();
    nodes.1.poller.stop();
}

#[test]
fn receiver_drops_and_reports_a_message() {
    let (caller, receiver) = nodes();
    let expired = call(&caller, &[receiver.uid], SHORT, 0);
    wait(&caller, &expired);
    let unanswered = expired.unanswered().unwrap();
    assert_eq!(unanswered[0].0, 0);
    assert_eq!(unanswered[0].1.as_ref().map(|r| r.state.clone()), Some(CallState::Queued { behind: String::new() }));
    assert_eq!((receiver.messages.expired(), receiver.mailboxes.get(BOX).unwrap().len()), (1, 0));
    assert_eq!(expired.error().map(|o| o.status), Some(Status::Expired));
    wait_until_forgotten(&caller);
    end((caller, receiver));
}

#[test]
fn message_in_progress_is_reported_as_running() {
    let (caller, receiver) = nodes();
    let expired = call(&caller, &[receiver.uid], Duration::from_millis(200), 0);
    let mailbox = receiver.mailboxes.get(BOX).unwrap();
    let waiter = receiver.poller.waiter();
    mailbox.set_consumer(Consumer::Thread(waiter.clone()));
    receiver.poller.wait(&waiter, Some(receiver.poller.now() + HANG), || !mailbox.is_empty());
    let Some(Delivery::Message(m)) = mailbox.pop() else { panic!("no message") };
    let m = receiver.messages.begin(&mailbox, m).expect("the deadline has not passed");
    wait(&caller, &expired);
    let states: Vec<_> = expired.unanswered().unwrap().into_iter().filter_map(|(_, r)| Some(r?.state)).collect();
    assert_eq!(states, [CallState::Running { endpoint: "go".into(), place: String::new() }]);
    receiver.messages.finish(&mailbox, m.due.unwrap(), false);
    end((caller, receiver));
}

#[test]
fn answer_after_the_deadline_is_counted() {
    let (caller, receiver) = nodes();
    let expired = call(&caller, &[receiver.uid], SHORT, 0);
    wait(&caller, &expired);
    receiver.replies.send_bytes(caller.uid, expired.call_id, 0, Status::Ok, b"late");
    let waiter = caller.poller.waiter();
    let until = caller.poller.now() + HANG;
    // A dropped reply notifies no thread.
    while caller.calls.dropped_replies() == 0 && caller.poller.now() < until {
        caller.poller.wait(&waiter, Some(caller.poller.now() + SHORT), || false);
    }
    assert_eq!(caller.calls.dropped_replies(), 1);
    assert!(expired.outcome(0).is_none());
    end((caller, receiver));
}

#[test]
fn silent_receiver_does_not_keep_the_call() {
    let (caller, receiver) = nodes();
    receiver.poller.stop();
    let expired = call(&caller, &[receiver.uid], SHORT, 0);
    wait(&caller, &expired);
    assert_eq!(expired.unanswered(), Some(vec![(0, None)]));
    wait_until_forgotten(&caller);
    end((caller, receiver));
}

#[test]
fn stop_outlives_its_deadline() {
    let (caller, receiver) = nodes();
    let expired = call(&caller, &[receiver.uid], SHORT, STOP);
    wait(&caller, &expired);
    assert_eq!(receiver.mailboxes.get(BOX).unwrap().len(), 1, "the stop is still there");
    end((caller, receiver));
}

#[test]
fn operation_that_goes_on_is_answered_later() {
    let (caller, receiver) = nodes();
    let operation = caller.calls.start(Mode::Gather, 1, Arc::from([(receiver.uid, BOX)]));
    caller.calls.limit(&operation, caller.poller.now() + SHORT, true);
    wait(&caller, &operation);
    assert!(operation.unanswered().is_some());
    caller.calls.unlimit(&operation);
    assert!(!operation.is_done(0));
    receiver.replies.send_bytes(caller.uid, operation.call_id, 0, Status::Ok, b"done");
    wait(&caller, &operation);
    assert_eq!(operation.outcome(0).map(|o| o.status), Some(Status::Ok));
    end((caller, receiver));
}

/// An observer that awaits the operation again, without a deadline, as soon as its end by the deadline is known.
struct WaitsAgain(Arc<Node>, Mutex<Option<Arc<PendingCall>>>);

impl Watcher for WaitsAgain {
    fn done(&self, _token: u64) {
        if let Some(call) = self.1.lock().unwrap().take() {
            self.0.calls.unlimit(&call);
        }
    }
}

#[test]
fn operation_awaited_again_at_its_end_is_answered() {
    let (caller, receiver) = nodes();
    // No receiver reports in the first round, and all of them in the second one.
    for reports in [false, true] {
        let call = caller.calls.start(Mode::Gather, 1, Arc::from([(receiver.uid, BOX)]));
        caller.calls.limit(&call, caller.poller.now() + SHORT, true);
        if reports {
            let head = Head { dest: BOX, call_id: call.call_id, left: Some(SHORT), method: b"go", ..Head::default() };
            let local = || vec![OutPart { bytes: b"x", readonly: true }];
            caller.messages.send(&caller.peers.peer(receiver.uid), &head, &Payload::small(b"x"), local, true);
        }
        let again = Arc::new(WaitsAgain(caller.clone(), Mutex::new(Some(call.clone()))));
        call.watch(0, again.clone(), 0);
        let waiter = caller.poller.waiter();
        caller.poller.wait(&waiter, Some(caller.poller.now() + 2 * SHORT + 2 * REPORTED), || false);
        assert!(again.1.lock().unwrap().is_none(), "the call did not expire");
        assert_eq!(caller.calls.in_flight(), 1, "the call is pending");
        caller.calls.complete(call.call_id, Outcome::new(0, Status::Ok, b"done"));
        assert!(call.is_done(0) && call.error().is_none());
    }
    end((caller, receiver));
}

/// An observer that drops the call as soon as its end is known.
struct Drops(Arc<Node>, Mutex<Option<Arc<PendingCall>>>);

impl Watcher for Drops {
    fn done(&self, _token: u64) {
        if let Some(call) = self.1.lock().unwrap().take() {
            self.0.calls.drop_call(&call);
        }
    }
}

#[test]
fn error_after_the_end_was_not_left_unread() {
    let (caller, receiver) = nodes();
    let expired = call(&caller, &[receiver.uid], SHORT, 0);
    let call_id = expired.call_id;
    let drops = Arc::new(Drops(caller.clone(), Mutex::new(Some(expired))));
    drops.1.lock().unwrap().clone().unwrap().watch(0, drops.clone(), 0);
    let waiter = caller.poller.waiter();
    caller.poller.wait(&waiter, Some(caller.poller.now() + SHORT + 2 * REPORTED), || drops.1.lock().unwrap().is_none());
    assert!(drops.1.lock().unwrap().is_none(), "the call did not expire");
    caller.calls.complete(call_id, Outcome::new(0, Status::Error, b"of the same deadline"));
    assert!(caller.system.pop().is_none());
    end((caller, receiver));
}

#[test]
fn outcome_after_the_end_is_dropped() {
    let (caller, receiver) = nodes();
    let expired = call(&caller, &[receiver.uid], SHORT, 0);
    wait(&caller, &expired);
    assert!(expired.complete(Outcome::new(0, Status::Error, b"late")));
    assert_eq!(expired.error().map(|o| o.status), Some(Status::Expired));
    assert_eq!(expired.unanswered().map(|found| found.len()), Some(1));
    end((caller, receiver));
}

#[test]
fn unsent_call_is_over_at_once() {
    let (caller, receiver) = nodes();
    let unsent = caller.calls.start(Mode::FirstError, 2, Arc::from([(receiver.uid, BOX), (caller.uid, BOX)]));
    caller.calls.expire_unsent(&unsent);
    let states: Vec<_> = unsent.unanswered().unwrap().into_iter().filter_map(|(_, r)| Some(r?.state)).collect();
    assert_eq!(states, [CallState::Unsent, CallState::Unsent]);
    assert_ne!(unsent.call_id, CallId::NONE);
    assert_eq!(caller.calls.in_flight(), 0);
    end((caller, receiver));
}
