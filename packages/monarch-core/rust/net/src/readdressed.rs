//! Frames that were made for a socket, and go to another host.
//!
//! Where a process is may turn out when something for it waits already. Large parts of that are named by blocks of shared memory, which
//! does not reach so far: they go ahead, like those of all frames between hosts. What two neighbours tell each other about shared memory
//! is left out.

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
