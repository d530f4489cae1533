//! Frames of one process of another host that wait for the large parts that they name.
//!
//! A part comes beside its frame, often later than the frame. Parts that are sent come in the order of their numbers; parts that this
//! process pulls come in any order. A frame that is incomplete holds back the later frames of its sender, so their order stays, and no
//! frame of another sender. No I/O here.

use std::collections::VecDeque;

use net::RecvPart;
use wire::{Frame, Part};

use crate::node::lending::parts_of;

#[derive(Default)]
pub struct Assembly {
    parts: VecDeque<(u64, RecvPart)>,
    held: VecDeque<Frame>,
    /// Somebody is handling what was held.
    busy: bool,
}

/// Parts of the frame come beside it.
pub fn waits(frame: &Frame) -> bool {
    parts_of(frame).iter().any(|p| matches!(p, Part::Ahead { .. } | Part::Lent { .. }))
}

impl Assembly {
    /// A frame has come: it is given back if it is to be handled now.
    pub fn frame(&mut self, frame: Frame) -> Option<Frame> {
        if self.is_empty() && self.is_whole(&frame) {
            return Some(frame);
        }
        self.held.push_back(frame);
        None
    }

    /// A part has come; true if the caller is to handle what `next_whole` gives, until there is none.
    pub fn part(&mut self, number: u64, part: RecvPart) -> bool {
        self.parts.push_back((number, part));
        let begin = !self.busy && self.held.front().is_some_and(|f| self.is_whole(f));
        self.busy |= begin;
        begin
    }

    /// The next frame that was held and is whole now.
    pub fn next_whole(&mut self) -> Option<Frame> {
        self.busy = self.held.front().is_some_and(|f| self.is_whole(f));
        if self.busy { self.held.pop_front() } else { None }
    }

    /// Takes the part for its frame.
    pub fn take(&mut self, number: u64) -> Option<RecvPart> {
        // The first, but for senders that have taken their numbers at once, and for parts that were fetched.
        let place = self.parts.iter().position(|(n, _)| *n == number)?;
        self.parts.remove(place).map(|(_, part)| part)
    }

    /// Nothing is held, and nobody is handling what was.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && !self.busy
    }

    fn is_whole(&self, frame: &Frame) -> bool {
        let is_there = |number: u64| self.parts.iter().rev().any(|(n, _)| *n == number);
        let parts = parts_of(frame);
        // Those that are sent come in their order, so the last of them was the last to come; each that is fetched comes when it likes.
        let sent = parts.iter().rev().find_map(|p| if let Part::Ahead { number, .. } = p { Some(*number) } else { None });
        let mut fetched = parts.iter().filter_map(|p| if let Part::Lent { number, .. } = p { Some(*number) } else { None });
        sent.is_none_or(is_there) && fetched.all(is_there)
    }
}
