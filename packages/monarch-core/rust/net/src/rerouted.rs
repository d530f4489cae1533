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
use crate::forwarder::{Carrier, LinkDown, number_ahead};

/// Sends a run of whole frames by the carrier. `lent` returns the block for an id.
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

/// Replaces references to shared memory by numbers of out-of-band parts, and collects their blocks. Returns the first number.
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
            *part = Part::OutOfBand { number: first + blocks.len() as u64, len, readonly };
            blocks.push(block);
        }
    }
    first
}
