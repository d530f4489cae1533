//! Bytes that a link has still to write.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::arena::Segment;

/// Queued frames are merged into pieces of about this size.
const MERGE: usize = 256 << 10;

/// A descriptor on its way to the peer.
pub(crate) enum Passed {
    Own(OwnedFd),
    /// The segment's own one: who is out of descriptors can still lend what it has.
    Segment(Arc<Segment>),
}

impl AsRawFd for Passed {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Passed::Own(fd) => fd.as_raw_fd(),
            Passed::Segment(segment) => segment.fd().as_raw_fd(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Chunk {
    pub bytes: Vec<u8>,
    pub at: usize,
    pub fds: Vec<Passed>,
    /// Not before this.
    pub due: Option<Instant>,
}

impl Chunk {
    pub fn is_due(&self) -> bool {
        self.due.is_none_or(|due| due <= Instant::now())
    }
}

/// Queues what lies behind the first `skip` bytes.
pub(crate) fn enqueue(
    queue: &mut VecDeque<Chunk>,
    queued: &AtomicUsize,
    release: &[u8],
    pieces: &[&[u8]],
    mut skip: usize,
    fds: Vec<Passed>,
    due: Option<Instant>,
) {
    let merge = fds.is_empty() && due.is_none() && queue.back().is_some_and(|c| c.bytes.len() < MERGE);
    if !merge {
        queue.push_back(Chunk { fds, due, ..Chunk::default() });
    }
    let Some(chunk) = queue.back_mut() else { return };
    let before = chunk.bytes.len();
    for piece in std::iter::once(&release).chain(pieces) {
        let cut = skip.min(piece.len());
        skip -= cut;
        chunk.bytes.extend_from_slice(&piece[cut..]);
    }
    queued.fetch_add(chunk.bytes.len() - before, Ordering::Relaxed);
    if chunk.bytes.is_empty() {
        queue.pop_back();
    }
}
