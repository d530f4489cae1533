//! Transport of frames to a process without a socket to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::ProcUid;

use crate::arena::Block;

/// The other side is gone.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct LinkDown;

/// Takes frames to processes on other hosts.
pub trait Carrier: Send + Sync {
    /// Where they go, by the name that the host has in the job.
    fn host(&self) -> ProcUid;

    /// Whole frames, in order. What cannot be delivered is reported by whoever reports the end of the process.
    /// The blocks go first: they are large parts of these frames, and the first of them has this number. Neither pieces nor blocks: one
    /// empty frame, which the host of an ended process answers with the end.
    fn carry(&self, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown>;
}

/// How many parts this process has sent ahead of their frames: their numbers.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// Numbers for so many parts that go ahead of their frames; the first of them.
pub fn number_ahead(parts: usize) -> u64 {
    AHEAD.fetch_add(parts as u64, Ordering::Relaxed)
}
