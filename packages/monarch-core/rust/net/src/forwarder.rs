//! Sends frames to processes to which this process has no socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::ProcUid;

use crate::arena::Block;

/// The link has ended; no frame can be sent on it.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct LinkDown;

/// Sends frames to processes on one other host.
pub trait Forwarder: Send + Sync {
    /// The host on which the processes are, by its name in the job.
    fn host(&self) -> ProcUid;

    /// Sends `pieces`, which are whole frames in their order, to the process `to`. The component that reports the end of a process also
    /// reports frames that could not be delivered. `blocks` are the out-of-band parts of these frames and are sent before them; `first` is
    /// the number of the first one. Neither pieces nor blocks: sends one empty frame, which the host of an ended process answers with the
    /// report of that end.
    fn forward(&self, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown>;
}

/// The number of the next out-of-band part of this process.
static NEXT_PART_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Reserves numbers for `parts` out-of-band parts; returns the first number.
pub fn reserve_part_numbers(parts: usize) -> u64 {
    NEXT_PART_NUMBER.fetch_add(parts as u64, Ordering::Relaxed)
}
