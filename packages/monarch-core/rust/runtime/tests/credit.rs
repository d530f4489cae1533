//! Credit against a model: a sender, a queue between them, and a receiver.

use std::collections::VecDeque;

use proptest::prelude::*;
use runtime::mailboxes::credit::{Consumed, OVERHEAD, WINDOW, Window};

#[derive(Debug, Clone)]
enum Op {
    Send(u64),
    /// The receiver handles its oldest message.
    Handle,
}

fn op() -> impl Strategy<Value = Op> {
    let cost = prop_oneof![Just(OVERHEAD), OVERHEAD..WINDOW / 3, WINDOW / 2..3 * WINDOW];
    prop_oneof![cost.prop_map(Op::Send), Just(Op::Handle)]
}

#[derive(Default)]
struct Pair {
    window: Window<(u64, u64)>,
    consumed: Consumed<u8>,
    on_the_way: VecDeque<(u64, u64)>,
    handled: Vec<u64>,
    sent: u64,
}

impl Pair {
    fn go_out(&mut self, m: (u64, u64)) {
        // Only the last message may exceed the window.
        assert!(self.window.outstanding() - m.1 < WINDOW);
        self.on_the_way.push_back(m);
    }

    fn send(&mut self, cost: u64) {
        let m = (self.sent, cost);
        self.sent += 1;
        if self.window.is_open() {
            self.window.spend(cost);
            self.go_out(m);
        } else {
            self.window.enqueue(cost, m);
        }
    }

    fn refill(&mut self, bytes: u64) {
        assert!(self.window.refill(bytes));
        assert!(!self.window.refill(0), "one at a time carries out");
        while let Some(m) = self.window.next_out() {
            self.go_out(m);
        }
    }

    fn handle(&mut self) -> bool {
        let Some((n, cost)) = self.on_the_way.pop_front() else { return false };
        self.handled.push(n);
        if let Some(bytes) = self.consumed.add(&0, cost) {
            assert!(bytes >= WINDOW / 4);
            self.refill(bytes);
        }
        true
    }
}

proptest! {
    #[test]
    fn credit_bounds_and_comes_back(ops in proptest::collection::vec(op(), 0..300)) {
        let mut p = Pair::default();
        for op in ops {
            match op {
                Op::Send(cost) => p.send(cost),
                Op::Handle => drop(p.handle()),
            }
            let owed: u64 = p.on_the_way.iter().map(|m| m.1).sum();
            prop_assert!(owed <= p.window.outstanding());
            prop_assert!(p.window.outstanding() - owed < WINDOW / 4, "what is handled is given back in quarters");
        }
        // No message is stuck: the receiver alone empties both ends.
        while p.handle() {}
        prop_assert_eq!(p.handled, (0..p.sent).collect::<Vec<_>>());
        for (_, bytes) in p.consumed.drain() {
            p.window.refill(bytes);
            prop_assert!(p.window.next_out().is_none());
        }
        prop_assert_eq!(p.window.outstanding(), 0);
        prop_assert!(p.window.is_idle());
    }
}

#[test]
fn message_larger_than_the_window_is_sent_alone() {
    let mut w: Window<&str> = Window::default();
    assert!(w.is_open());
    w.spend(5 * WINDOW);
    assert!(!w.is_open());
    w.enqueue(5 * WINDOW, "second");
    w.enqueue(1, "third");
    assert!(w.refill(5 * WINDOW));
    assert_eq!(w.next_out(), Some("second"));
    assert_eq!(w.next_out(), None);
    assert!(!w.is_open());
    assert!(w.refill(5 * WINDOW));
    assert_eq!(w.next_out(), Some("third"));
    assert_eq!(w.next_out(), None);
    assert!(w.is_open() && !w.is_idle());
}

#[test]
fn new_messages_go_behind_those_being_carried_out() {
    let mut w: Window<u8> = Window::default();
    w.spend(WINDOW);
    w.enqueue(1, 1);
    assert!(w.refill(WINDOW));
    assert_eq!(w.next_out(), Some(1));
    assert!(!w.is_open(), "the first may not have arrived yet");
    w.enqueue(1, 2);
    assert_eq!(w.next_out(), Some(2));
    assert_eq!(w.next_out(), None);
    assert!(w.is_open());
}

#[test]
fn senders_are_counted_apart() {
    let mut c: Consumed<u8> = Consumed::default();
    assert_eq!(c.add(&1, WINDOW / 4 - 1), None);
    assert_eq!(c.add(&2, 5), None);
    assert_eq!(c.add(&1, 1), Some(WINDOW / 4));
    assert_eq!(c.drain(), [(2, 5)]);
    assert_eq!(c.drain(), []);
}
