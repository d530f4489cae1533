//! Frames that survive the end of their stream.
//!
//! Frames of a channel are numbered by counting. The sender keeps what the receiver has not acknowledged; when a new stream takes the
//! place of one that broke, each side says how much it has received, and the other sends the rest again. Acknowledgements are frames
//! without a number, between others. No I/O here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::segment::RecvPart;

/// The kind of an acknowledgement; the body is a count.
pub const ACK: u8 = 0;
/// An acknowledgement is due after so many bytes, or so many frames: few enough to cost nothing, and the sender keeps little.
const ACK_BYTES: usize = 1 << 20;
const ACK_FRAMES: u64 = 512;

/// The two sides do not agree on what was received.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Disagree {
    /// A claim was made earlier, for another attempt: the other side has acknowledged more since, or this side has received more.
    Stale,
    /// The other side claims more than was sent.
    Ahead,
}

/// Bytes that are kept until they are acknowledged.
pub enum Held {
    Own(Box<[u8]>),
    /// A stretch of a part whose bytes were there when it was put in: they stay.
    Part(Arc<RecvPart>, Range<usize>),
}

impl Held {
    fn bytes(&self) -> &[u8] {
        match self {
            Held::Own(bytes) => bytes,
            Held::Part(part, stretch) => part.bytes().ok().and_then(|b| b.get(stretch.clone())).unwrap_or_default(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Held::Own(bytes) => bytes.len(),
            Held::Part(_, stretch) => stretch.len(),
        }
    }
}

/// A frame, or a part of it.
struct Entry {
    held: Held,
    ends: bool,
}

/// What goes out.
#[derive(Default)]
pub struct Outbox {
    /// Frames that are not acknowledged, the oldest first.
    kept: VecDeque<Entry>,
    /// How many frames these are, and how many of them have been written whole.
    frames: u64,
    done: u64,
    /// How many frames were acknowledged.
    acked: u64,
    /// How many entries of `kept` have been written whole.
    written: usize,
    /// Bytes of the next one that have been written.
    at: usize,
    /// Acknowledgements on their way, and how much of them has been written.
    extra: Vec<u8>,
    extra_at: usize,
    /// Bytes in `kept`.
    bytes: usize,
    unwritten: usize,
}

impl Outbox {
    pub fn push(&mut self, frame: Box<[u8]>) {
        self.put(Held::Own(frame), true);
    }

    /// More of a frame; `ends` with its last part. What is empty is no part.
    pub fn put(&mut self, held: Held, ends: bool) {
        self.bytes += held.len();
        self.unwritten += held.len();
        self.frames += u64::from(ends);
        self.kept.push_back(Entry { held, ends });
    }

    /// Of the next frame something has been written.
    fn is_within(&self) -> bool {
        self.at > 0 || self.written.checked_sub(1).and_then(|i| self.kept.get(i)).is_some_and(|e| !e.ends)
    }

    /// How many frames were given to it in all.
    pub fn count(&self) -> u64 {
        self.acked + self.frames
    }

    /// Bytes kept for a replay.
    pub fn kept(&self) -> usize {
        self.bytes
    }

    /// Bytes that wait for the stream.
    pub fn unwritten(&self) -> usize {
        self.unwritten
    }

    pub fn is_written(&self) -> bool {
        self.written == self.kept.len() && self.extra_at == self.extra.len()
    }

    /// An acknowledgement, behind the frame that is being written.
    pub fn acknowledge(&mut self, received: u64) {
        self.extra.extend_from_slice(&9u32.to_le_bytes());
        self.extra.push(ACK);
        self.extra.extend_from_slice(&received.to_le_bytes());
    }

    /// Bytes that are no frame and go first over a new stream.
    pub fn prologue(&mut self, bytes: &[u8]) {
        self.extra.extend_from_slice(bytes);
    }

    /// What to write next, at most so many pieces.
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

    /// So many bytes of what `pieces` gave have been written.
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

    /// Counts bytes of one entry; what is left over.
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

    /// The other side has received so many frames.
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

    /// Whether a new stream can go on where the other side claims to be.
    pub fn can_resume(&self, received: u64) -> Result<(), Disagree> {
        match received.checked_sub(self.acked) {
            None => Err(Disagree::Stale),
            Some(fresh) if fresh > self.frames => Err(Disagree::Ahead),
            Some(_) => Ok(()),
        }
    }

    /// A new stream, over which the other side has said how many frames it has.
    pub fn resume(&mut self, received: u64) -> Result<(), Disagree> {
        self.can_resume(received)?;
        // As if all had been written, so that what has come can go; and then nothing of the rest.
        (self.written, self.done, self.at) = (self.kept.len(), self.frames, 0);
        self.acked(received)?;
        (self.written, self.done) = (0, 0);
        self.extra.clear();
        self.extra_at = 0;
        self.unwritten = self.bytes;
        Ok(())
    }
}

/// What comes in.
#[derive(Default)]
pub struct Inbox {
    pub received: u64,
    acked: u64,
    bytes: usize,
}

impl Inbox {
    /// A whole frame of so many bytes has come; true if an acknowledgement is due.
    pub fn took(&mut self, bytes: usize) -> bool {
        self.received += 1;
        self.bytes += bytes;
        self.bytes >= ACK_BYTES || self.received - self.acked >= ACK_FRAMES
    }

    pub fn acknowledged(&mut self) {
        self.acked = self.received;
        self.bytes = 0;
    }
}
