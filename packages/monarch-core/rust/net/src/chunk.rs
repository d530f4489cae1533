//! Bytes that a link has yet to write.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::arena::Segment;

/// Queued frames are merged up to about this size, so that one system call writes many of them.
const MERGE: usize = 256 << 10;

/// A descriptor that is sent to the peer with a chunk.
pub(crate) enum Passed {
    Own(OwnedFd),
    /// The segment's own descriptor. No new descriptor is needed, so a process that has none left can still announce its segments.
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

/// Bytes in the queue of a link, with the descriptors that are sent with their first byte.
#[derive(Default)]
pub(crate) struct Chunk {
    pub bytes: Vec<u8>,
    pub at: usize,
    pub fds: Vec<Passed>,
    /// The time before which the chunk is not written: the end of a test's delay, or of the wait after a shortage. `None`: at once.
    pub due: Option<Instant>,
}

impl Chunk {
    pub fn is_due(&self) -> bool {
        self.due.is_none_or(|due| due <= Instant::now())
    }
}

/// Queues `release` and `pieces`, without their first `skip` bytes.
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
