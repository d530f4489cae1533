//! Frames of one process of another host, and the large parts that they name: a frame is handled when its parts are there.
//!
//! The parts come beside the frames, in the order of their numbers, and later than what names them as often as not. What follows a frame
//! that is not whole waits with it, so the order of what one process sends to another stays. Others are not held up. No I/O here.

use std::collections::VecDeque;

use net::RecvPart;
use wire::{Frame, Part};

#[derive(Default)]
pub struct Assembly {
    parts: VecDeque<(u64, RecvPart)>,
    held: VecDeque<Frame>,
    /// Somebody is handling what was held.
    busy: bool,
}

/// The number of the last part that the frame waits for.
pub fn last_part(frame: &Frame) -> Option<u64> {
    let parts = match frame {
        Frame::Message(m) => &m.parts,
        Frame::Reply(r) => &r.parts,
        _ => return None,
    };
    parts.iter().rev().find_map(|p| if let Part::Ahead { number, .. } = p { Some(*number) } else { None })
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
        // The first, but for senders that have taken their numbers at once.
        let place = self.parts.iter().position(|(n, _)| *n == number)?;
        self.parts.remove(place).map(|(_, part)| part)
    }

    /// Nothing is held, and nobody is handling what was.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && !self.busy
    }

    fn is_whole(&self, frame: &Frame) -> bool {
        // In their order, and the last of them was the last to come.
        last_part(frame).is_none_or(|last| self.parts.iter().rev().any(|(n, _)| *n == last))
    }
}
