//! Frames that were made for a socket, and go to another host.
//!
//! The host of a process may become known when frames for it wait already. Their large parts are named by blocks of shared memory, which
//! other hosts cannot map: the parts are sent out-of-band, like those of all frames between hosts. Messages of the two ends of a link about
//! shared memory are left out.

use std::sync::Arc;

use wire::control::Control;
use wire::routed::Frames;
use wire::{BlockId, Frame, Part, ProcUid};

use crate::arena::Block;
use crate::carrier::{Carrier, LinkDown, number_ahead};

/// Gives a run of whole frames to the carrier; `lent` has the blocks that they name.
pub(crate) fn carry(
    carrier: &dyn Carrier,
    to: ProcUid,
    run: &[u8],
    mut lent: impl FnMut(BlockId) -> Option<Arc<Block>>,
) -> Result<(), LinkDown> {
    let mut at = 0;
    for frame in Frames::of(run) {
        let whole = &run[at..at + 4 + frame.len()];
        at += whole.len();
        let mut blocks = Vec::new();
        match Frame::decode(frame) {
            Ok(Frame::Control(
                Control::Segment { .. } | Control::SegmentGone { .. } | Control::SegmentLost { .. } | Control::Release { .. },
            )) => continue,
            Ok(mut changed @ (Frame::Message(_) | Frame::Reply(_))) => {
                let parts = match &mut changed {
                    Frame::Message(m) => &mut m.parts,
                    Frame::Reply(r) => &mut r.parts,
                    _ => continue,
                };
                let first = go_ahead(parts, &mut blocks, &mut lent);
                if !blocks.is_empty() {
                    carrier.carry(to, &[&changed.encode()], &blocks, first)?;
                    continue;
                }
            }
            _ => {}
        }
        carrier.carry(to, &[whole], &[], 0)?;
    }
    Ok(())
}

/// Names those parts by numbers that are in shared memory; the first of the numbers.
fn go_ahead(parts: &mut [Part], blocks: &mut Vec<Arc<Block>>, lent: &mut impl FnMut(BlockId) -> Option<Arc<Block>>) -> u64 {
    let shared = parts.iter().filter(|p| matches!(p, Part::Shared { .. })).count();
    if shared == 0 {
        return 0;
    }
    let first = number_ahead(shared);
    for part in parts {
        if let Part::Shared { block, len, readonly } = *part
            && let Some(block) = lent(block)
        {
            *part = Part::Ahead { number: first + blocks.len() as u64, len, readonly };
            blocks.push(block);
        }
    }
    first
}
