//! The frames that concern only a link: its segments of shared memory, and their blocks.

use std::sync::Arc;

use wire::control::Control;
use wire::{BlockId, Frame};

use super::Link;
use crate::lock::lock;
use crate::segment::RecvSegment;
use crate::sys::Descriptors;

impl Link {
    /// Handles the frames that concern only this link; returns all others.
    pub(super) fn own_frame(&self, f: Frame, fds: &mut Descriptors) -> Option<Frame> {
        match f {
            Frame::Control(Control::Segment { segment, len }) => {
                match fds.pop_front().flatten() {
                    Some(fd) => drop(lock(&self.segments).insert(segment, Arc::new(RecvSegment::new(fd, len)))),
                    // Messages that already name the segment are incomplete. The peer announces it again before later ones.
                    None => drop(self.send(&[&Frame::Control(Control::SegmentLost { segment }).encode()], Vec::new())),
                }
                None
            }
            Frame::Control(Control::SegmentLost { segment }) => {
                lock(&self.shared).forget(segment);
                None
            }
            Frame::Control(Control::SegmentGone { segment }) => {
                lock(&self.segments).remove(&segment);
                None
            }
            Frame::Control(Control::Release { blocks }) => {
                self.returned(&blocks);
                None
            }
            other => Some(other),
        }
    }

    fn returned(&self, blocks: &[BlockId]) {
        let freed = lock(&self.shared).release_uses(blocks);
        drop(freed);
        let gone = lock(&self.shared).sweep();
        for segment in gone {
            let _ = self.send(&[&Frame::Control(Control::SegmentGone { segment }).encode()], Vec::new());
        }
    }
}
