//! The order of the frames that other hosts send to this one, numbered frames and casts together. It does no I/O.
//!
//! What it needs: the caller delivers what `next` returns.
//!
//! What always holds:
//! - The frames of a sender are delivered in the order of their numbers.
//! - One thread delivers at a time. It begins after a `Turn` other than `Wait`, and stops when `next` returns none.

use std::collections::VecDeque;

use wire::{ProcUid, Route};

use crate::cast::{Delivery, InOrder};

/// A frame whose turn has come.
pub(super) enum Due {
    /// A numbered frame that was sent directly.
    Direct(Route, Box<[u8]>),
    /// A cast that came down the tree.
    Cast(Delivery),
    /// The frame that is being handled: it was not copied.
    This,
}

/// The next step of the caller after the arrival of a frame.
#[derive(PartialEq, Eq)]
pub(super) enum Turn {
    /// Deliver this frame, and then what `next` returns.
    This,
    /// Deliver what `next` returns.
    Next,
    /// Nothing: the frame waits for an earlier one, or another thread delivers.
    Wait,
}

/// The incoming frames of a job: those whose turn has not come (`order`), and those to be delivered now (`due`). While `busy`, a thread
/// delivers them. The job owns it.
#[derive(Default)]
pub(super) struct Arrivals {
    order: InOrder<Due>,
    due: VecDeque<Due>,
    busy: bool,
}

impl Arrivals {
    /// Takes a numbered frame that was sent directly.
    pub fn direct(&mut self, head: &Route, body: &[u8]) -> Turn {
        let Arrivals { order, due, busy } = self;
        let number = head.seq - 1;
        let at_once = !*busy && order.is_due(head.from, number);
        let this = if at_once { Due::This } else { Due::Direct(*head, body.into()) };
        order.accept(head.from, number, this, |d| {
            if !matches!(d, Due::This) {
                due.push_back(d);
            }
        });
        self.turn(at_once)
    }

    /// Takes a cast that came down the tree.
    pub fn cast(&mut self, delivery: Delivery) -> Turn {
        let due = &mut self.due;
        self.order.accept(delivery.group.source, delivery.order, Due::Cast(delivery), |d| due.push_back(d));
        self.turn(false)
    }

    fn turn(&mut self, at_once: bool) -> Turn {
        if self.busy || !at_once && self.due.is_empty() {
            return Turn::Wait;
        }
        self.busy = true;
        if at_once { Turn::This } else { Turn::Next }
    }

    /// The next frame to deliver.
    pub fn next(&mut self) -> Option<Due> {
        let next = self.due.pop_front();
        self.busy = next.is_some();
        next
    }

    /// Frees the frames of a lost process that wait for an earlier one.
    pub fn forget(&mut self, proc: ProcUid) {
        self.order.forget(proc);
    }

    /// The number of frames that wait for an earlier one.
    pub fn held(&self) -> usize {
        self.order.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u64) -> Route {
        Route { from: ProcUid(1), from_host: ProcUid(1), to: ProcUid(2), to_host: ProcUid(2), seq }
    }

    fn number(due: Option<Due>) -> Option<u64> {
        due.map(|due| if let Due::Direct(head, _) = due { head.seq } else { panic!("another frame") })
    }

    #[test]
    fn early_frame_waits_for_its_turn() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.direct(&head(2), b"second") == Turn::Wait);
        assert_eq!(arrivals.held(), 1);
        assert!(arrivals.direct(&head(1), b"first") == Turn::This);
        assert_eq!((number(arrivals.next()), number(arrivals.next()), arrivals.held()), (Some(2), None, 0));
    }

    #[test]
    fn one_thread_delivers_at_a_time() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.direct(&head(1), b"first") == Turn::This);
        // Another thread brings the next frame, which the first thread delivers.
        assert!(arrivals.direct(&head(2), b"second") == Turn::Wait);
        assert_eq!((number(arrivals.next()), number(arrivals.next())), (Some(2), None));
        assert!(arrivals.direct(&head(3), b"third") == Turn::This);
    }
}
