//! Frames of a session that survive the end of their stream.
//!
//! The frames of a channel are numbered in the order sent. The sender keeps each frame until the receiver has acknowledged it. When a new
//! stream replaces a broken one, each side reports the number of frames that it has received, and the other side sends the later frames
//! again. Acknowledgements are frames without a number, sent between the others. No I/O here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::segment::RecvPart;

/// The frame kind of an acknowledgement; its body is the number of received frames.
pub const ACK: u8 = 0;
/// A receiver acknowledges after 1 MiB or 512 frames: rarely enough to cost nothing, and often enough that the sender keeps little.
const ACK_BYTES: usize = 1 << 20;
const ACK_FRAMES: u64 = 512;

/// The two sides disagree on the number of received frames.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Disagree {
    /// The claim belongs to an earlier stream: since then the other side has acknowledged more, or this side has received more.
    Stale,
    /// The other side claims more than was sent.
    Ahead,
}

/// Bytes of a frame that the sender keeps until they are acknowledged.
pub enum Held {
    Own(Box<[u8]>),
    /// A range of a large part. Its bytes were complete when it was queued, and they do not change.
    Part(Arc<RecvPart>, Range<usize>),
}

impl Held {
    fn bytes(&self) -> &[u8] {
        match self {
            Held::Own(bytes) => bytes,
            Held::Part(part, range) => part.bytes().ok().and_then(|b| b.get(range.clone())).unwrap_or_default(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Held::Own(bytes) => bytes.len(),
            Held::Part(_, range) => range.len(),
        }
    }
}

/// One run of bytes of a frame: the whole frame, or a section of it. `ends` marks the last one of its frame.
struct Entry {
    held: Held,
    ends: bool,
}

/// The sending side of a channel. Its owner is the session.
#[derive(Default)]
pub struct Outbox {
    /// The frames that are not acknowledged, oldest first.
    kept: VecDeque<Entry>,
    /// The number of frames in `kept`, and the number of these that have been written completely.
    frames: u64,
    done: u64,
    /// The number of acknowledged frames.
    acked: u64,
    /// The number of entries of `kept` that have been written completely.
    written: usize,
    /// The number of written bytes of the entry at `written`.
    at: usize,
    /// Acknowledgements and the prologue that wait to be written, and the number of their written bytes.
    extra: Vec<u8>,
    extra_at: usize,
    /// Total bytes of `kept`.
    bytes: usize,
    unwritten: usize,
}

impl Outbox {
    /// Queues a whole frame.
    pub fn push(&mut self, frame: Box<[u8]>) {
        self.put(Held::Own(frame), true);
    }

    /// Adds bytes to the frame at the end of the queue; `ends` marks its last bytes.
    pub fn put(&mut self, held: Held, ends: bool) {
        self.bytes += held.len();
        self.unwritten += held.len();
        self.frames += u64::from(ends);
        self.kept.push_back(Entry { held, ends });
    }

    /// Whether a frame has been written in part.
    fn is_within(&self) -> bool {
        self.at > 0 || self.written.checked_sub(1).and_then(|i| self.kept.get(i)).is_some_and(|e| !e.ends)
    }

    /// The total number of frames that have been queued.
    pub fn count(&self) -> u64 {
        self.acked + self.frames
    }

    /// Bytes kept so that they can be sent again.
    pub fn kept(&self) -> usize {
        self.bytes
    }

    /// Bytes that have not been written to the stream.
    pub fn unwritten(&self) -> usize {
        self.unwritten
    }

    /// Whether all queued bytes have been written.
    pub fn is_written(&self) -> bool {
        self.written == self.kept.len() && self.extra_at == self.extra.len()
    }

    /// Queues an acknowledgement. It is written behind the frame that is being written.
    pub fn acknowledge(&mut self, received: u64) {
        self.extra.extend_from_slice(&9u32.to_le_bytes());
        self.extra.push(ACK);
        self.extra.extend_from_slice(&received.to_le_bytes());
    }

    /// Queues bytes that are no frame. They are the first bytes on a new stream.
    pub fn prologue(&mut self, bytes: &[u8]) {
        self.extra.extend_from_slice(bytes);
    }

    /// The next bytes to write, in at most `most` slices.
    pub fn pieces(&self, most: usize) -> Vec<&[u8]> {
        let mut out: Vec<&[u8]> = Vec::with_capacity(most.min(16));
        let (mut next, mut at, mut within) = (self.written, self.at, self.is_within());
        while within && out.len() < most {
            let entry = &self.kept[next];
            out.push(&entry.held.bytes()[at..]);
            (next, at, within) = (next + 1, 0, !entry.ends);
        }
        if self.extra_at < self.extra.len() && !within {
            out.push(&self.extra[self.extra_at..]);
        }
        out.extend(self.kept.range(next..).take(most.saturating_sub(out.len())).map(|e| e.held.bytes()));
        out
    }

    /// Counts `n` bytes of the slices of `pieces` as written.
    pub fn wrote(&mut self, mut n: usize) {
        while n > 0 && self.is_within() {
            n = self.advance(n);
        }
        if n > 0 && self.extra_at < self.extra.len() {
            let step = n.min(self.extra.len() - self.extra_at);
            self.extra_at += step;
            n -= step;
            if self.extra_at == self.extra.len() {
                self.extra.clear();
                self.extra_at = 0;
            }
        }
        while n > 0 && self.written < self.kept.len() {
            n = self.advance(n);
        }
    }

    /// Counts written bytes of one entry; returns the number of bytes that belong to later entries.
    fn advance(&mut self, n: usize) -> usize {
        let entry = &self.kept[self.written];
        let step = n.min(entry.held.len() - self.at);
        self.at += step;
        self.unwritten -= step;
        if self.at == entry.held.len() {
            self.at = 0;
            self.written += 1;
            self.done += u64::from(entry.ends);
        }
        n - step
    }

    /// Drops the frames that the other side has acknowledged; `received` is their number since the start of the session.
    pub fn acked(&mut self, received: u64) -> Result<(), Disagree> {
        let Some(fresh) = received.checked_sub(self.acked) else { return Ok(()) };
        if fresh > self.done {
            return Err(Disagree::Ahead);
        }
        for _ in 0..fresh {
            while let Some(entry) = self.kept.pop_front() {
                self.bytes -= entry.held.len();
                self.written -= 1;
                if entry.ends {
                    break;
                }
            }
        }
        self.acked = received;
        self.done -= fresh;
        self.frames -= fresh;
        if self.kept.is_empty() && self.kept.capacity() > 1024 {
            self.kept = VecDeque::new();
        }
        Ok(())
    }

    /// Whether a new stream can continue after the `received` frames that the other side reports.
    pub fn can_resume(&self, received: u64) -> Result<(), Disagree> {
        match received.checked_sub(self.acked) {
            None => Err(Disagree::Stale),
            Some(fresh) if fresh > self.frames => Err(Disagree::Ahead),
            Some(_) => Ok(()),
        }
    }

    /// Continues on a new stream after the `received` frames that the other side has reported.
    pub fn resume(&mut self, received: u64) -> Result<(), Disagree> {
        self.can_resume(received)?;
        // First all entries count as written, so that the acknowledged ones can be dropped. Then none of the rest counts as written.
        (self.written, self.done, self.at) = (self.kept.len(), self.frames, 0);
        self.acked(received)?;
        (self.written, self.done) = (0, 0);
        self.extra.clear();
        self.extra_at = 0;
        self.unwritten = self.bytes;
        Ok(())
    }
}

/// The receiving side of a channel.
#[derive(Default)]
pub struct Inbox {
    pub received: u64,
    acked: u64,
    bytes: usize,
}

impl Inbox {
    /// Counts a complete frame of `bytes` bytes; returns true if an acknowledgement is due.
    pub fn took(&mut self, bytes: usize) -> bool {
        self.received += 1;
        self.bytes += bytes;
        self.bytes >= ACK_BYTES || self.received - self.acked >= ACK_FRAMES
    }

    /// Counts an acknowledgement of all received frames.
    pub fn acknowledged(&mut self) {
        self.acked = self.received;
        self.bytes = 0;
    }
}
