//! The frames of one sender on another host that wait in the receiving process for their large parts.
//!
//! A large part arrives beside its frame, often later. Parts that the sender pushes arrive in the order of their numbers; parts that this
//! process pulls arrive in any order. An incomplete frame delays the later frames of its sender, which keeps their order, but no frames of
//! other senders. This state machine does no I/O.

use std::collections::VecDeque;

use net::RecvPart;
use wire::{Frame, Part};

/// The frames and parts of one sender that wait for each other. The peer owns it.
#[derive(Default)]
pub struct Assembly {
    /// The parts that have arrived, with their numbers, and whose frames have not been handled.
    parts: VecDeque<(u64, RecvPart)>,
    /// The frames that wait, in their order.
    held: VecDeque<Frame>,
    /// A thread is handling frames that were held.
    busy: bool,
}

/// The parts of a frame.
pub(crate) fn parts_of(frame: &Frame) -> &[Part] {
    match frame {
        Frame::Message(m) => &m.parts,
        Frame::Reply(r) => &r.parts,
        _ => &[],
    }
}

/// True if the frame names parts that arrive beside it.
pub fn waits(frame: &Frame) -> bool {
    parts_of(frame).iter().any(|p| matches!(p, Part::OutOfBand { .. } | Part::Offered { .. }))
}

impl Assembly {
    /// Takes a frame. Returns it if it can be handled now; otherwise holds it.
    pub fn frame(&mut self, frame: Frame) -> Option<Frame> {
        if self.is_empty() && self.is_whole(&frame) {
            return Some(frame);
        }
        self.held.push_back(frame);
        None
    }

    /// Takes a part; true if the caller must now handle all frames that `next_whole` returns.
    pub fn part(&mut self, number: u64, part: RecvPart) -> bool {
        self.parts.push_back((number, part));
        let begin = !self.busy && self.held.front().is_some_and(|f| self.is_whole(f));
        self.busy |= begin;
        begin
    }

    /// The next held frame, if it is complete now.
    pub fn next_whole(&mut self) -> Option<Frame> {
        self.busy = self.held.front().is_some_and(|f| self.is_whole(f));
        if self.busy { self.held.pop_front() } else { None }
    }

    /// Removes and returns a part.
    pub fn take(&mut self, number: u64) -> Option<RecvPart> {
        // Usually the first part; other positions occur when a sender reserved several numbers at once, and for pulled parts.
        let place = self.parts.iter().position(|(n, _)| *n == number)?;
        self.parts.remove(place).map(|(_, part)| part)
    }

    /// True if no frame is held and no thread handles held frames.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && !self.busy
    }

    /// True if all parts of the frame have arrived.
    fn is_whole(&self, frame: &Frame) -> bool {
        let is_there = |number: u64| self.parts.iter().rev().any(|(n, _)| *n == number);
        let parts = parts_of(frame);
        // Pushed parts arrive in order, so only the last one is looked up. Pulled parts arrive in any order.
        let sent = parts.iter().rev().find_map(|p| if let Part::OutOfBand { number, .. } = p { Some(*number) } else { None });
        let mut fetched = parts.iter().filter_map(|p| if let Part::Offered { number, .. } = p { Some(*number) } else { None });
        sent.is_none_or(is_there) && fetched.all(is_there)
    }
}
