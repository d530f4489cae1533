//! Frames that survive the end of their stream.
//!
//! Frames of a channel are numbered by counting. The sender keeps what the receiver has not acknowledged; when a new stream takes the
//! place of one that broke, each side says how much it has received, and the other sends the rest again. Acknowledgements are frames
//! without a number, between others. No I/O here.

use std::collections::VecDeque;

/// The kind of an acknowledgement; the body is a count.
pub const ACK: u8 = 0;
/// An acknowledgement is due after so many bytes, or so many frames: few enough to cost nothing, and the sender keeps little.
const ACK_BYTES: usize = 256 << 10;
const ACK_FRAMES: u64 = 512;

/// The two sides do not agree on what was received.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Disagree;

/// What goes out.
#[derive(Default)]
pub struct Outbox {
    /// Frames that are not acknowledged, the oldest first.
    kept: VecDeque<Box<[u8]>>,
    /// How many frames were acknowledged.
    acked: u64,
    /// How many of `kept` have been written whole.
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
        self.bytes += frame.len();
        self.unwritten += frame.len();
        self.kept.push_back(frame);
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
        let mut next = self.written;
        if self.at > 0 {
            out.push(&self.kept[next][self.at..]);
            next += 1;
        }
        if self.extra_at < self.extra.len() {
            out.push(&self.extra[self.extra_at..]);
        }
        out.extend(self.kept.range(next..).take(most.saturating_sub(out.len())).map(|f| &f[..]));
        out
    }

    /// So many bytes of what `pieces` gave have been written.
    pub fn wrote(&mut self, mut n: usize) {
        if self.at > 0 {
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

    /// Counts bytes of one frame; what is left over.
    fn advance(&mut self, n: usize) -> usize {
        let step = n.min(self.kept[self.written].len() - self.at);
        self.at += step;
        self.unwritten -= step;
        if self.at == self.kept[self.written].len() {
            self.at = 0;
            self.written += 1;
        }
        n - step
    }

    /// The other side has received so many frames.
    pub fn acked(&mut self, received: u64) -> Result<(), Disagree> {
        let Some(fresh) = received.checked_sub(self.acked) else { return Ok(()) };
        if fresh > self.written as u64 {
            return Err(Disagree);
        }
        for _ in 0..fresh {
            self.bytes -= self.kept.pop_front().map_or(0, |f| f.len());
        }
        self.acked = received;
        self.written -= fresh as usize;
        if self.kept.is_empty() && self.kept.capacity() > 1024 {
            self.kept = VecDeque::new();
        }
        Ok(())
    }

    /// A new stream, over which the other side has said how many frames it has.
    pub fn resume(&mut self, received: u64) -> Result<(), Disagree> {
        if received < self.acked || received - self.acked > self.kept.len() as u64 {
            return Err(Disagree);
        }
        self.written = (received - self.acked) as usize;
        self.at = 0;
        self.acked(received)?;
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
