//! Frames that were encoded for a socket and go to another host instead.
//!
//! Frames for a process may already wait when its host becomes known. They name their large parts by blocks of shared memory, which other
//! hosts cannot map: the parts are sent out-of-band, like those of all frames between hosts. Control frames about shared memory are left
//! out.

use std::sync::Arc;

use wire::control::Control;
use wire::routed::Frames;
use wire::{BlockId, Frame, Part, ProcUid};

use crate::arena::Block;
use crate::forwarder::{Forwarder, LinkDown, reserve_part_numbers};

/// Sends a run of whole frames by the forwarder. `find_block` returns the block for an id.
pub(crate) fn forward(
    forwarder: &dyn Forwarder,
    to: ProcUid,
    run: &[u8],
    mut find_block: impl FnMut(BlockId) -> Option<Arc<Block>>,
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
                let first = send_out_of_band(parts, &mut blocks, &mut find_block);
                if !blocks.is_empty() {
                    forwarder.forward(to, &[&changed.encode()], &blocks, first)?;
                    continue;
                }
            }
            _ => {}
        }
        forwarder.forward(to, &[whole], &[], 0)?;
    }
    Ok(())
}

/// Replaces references to shared memory by numbers of out-of-band parts, and collects their blocks. Returns the first number.
fn send_out_of_band(parts: &mut [Part], blocks: &mut Vec<Arc<Block>>, find_block: &mut impl FnMut(BlockId) -> Option<Arc<Block>>) -> u64 {
    let shared = parts.iter().filter(|p| matches!(p, Part::Shared { .. })).count();
    if shared == 0 {
        return 0;
    }
    let first = reserve_part_numbers(shared);
    for part in parts {
        if let Part::Shared { block, len, readonly } = *part
            && let Some(block) = find_block(block)
        {
            *part = Part::OutOfBand { number: first + blocks.len() as u64, len, readonly };
            blocks.push(block);
        }
    }
    first
}
