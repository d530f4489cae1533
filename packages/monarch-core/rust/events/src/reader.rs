//! The reading end of a ring, in any process that has the descriptor.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::layout::{H_CAPACITY, H_CHANGES, H_EPOCH, H_HEAD, H_MAGIC, H_PID, H_PROC, MAGIC, SEQ, SLOT, capacity, size, slots_at};
use crate::memory::Memory;
use crate::recorder::now;

/// A field of an event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Value {
    Number(u64),
    Float(f64),
    Text(String),
    /// A text that has been overwritten.
    Lost,
}

/// A complete event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The number of the event in its process, from 0.
    pub number: u64,
    /// Nanoseconds since the epoch.
    pub time: u64,
    pub kind: u16,
    pub thread: u32,
    pub trace: [u64; 3],
    pub fields: Vec<Value>,
}

/// Nanoseconds that a reader waits for an unfinished event. The event of a thread that is off its processor for longer is lost.
const UNFINISHED_TIMEOUT: u64 = 1_000_000_000;
/// Least time between two events of a process in nanoseconds: all its threads share one counter.
const EVENT: u64 = 10;

/// One reader of a ring. Each reader has its own position and its own count of lost events.
pub struct Reader {
    memory: Memory,
    capacity: u64,
    next: u64,
    lost: u64,
    /// The time before the last read. Initially 0, the start of the machine, before which no event was written.
    looked: u64,
    /// The number of a record that was unfinished at the last read, and the time of the first read that found it so.
    unfinished: Option<(u64, u64)>,
}

/// The state of the slot of an event.
enum Slot {
    Whole([u64; SLOT]),
    Unfinished,
    Overwritten,
}

impl Reader {
    /// Opens a ring and begins with the oldest available event.
    pub fn open(fd: RawFd) -> io::Result<Reader> {
        let memory = Memory::open(fd)?;
        let words = memory.words();
        let slots = words[H_CAPACITY].load(Relaxed);
        let is_valid = words[H_MAGIC].load(Acquire) == MAGIC && capacity(slots as usize) as u64 == slots;
        if !is_valid || size(slots as usize) != words.len() * 8 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a ring of events of this version"));
        }
        Ok(Reader { memory, capacity: slots, next: 0, lost: 0, looked: 0, unfinished: None })
    }

    fn header(&self, at: usize) -> u64 {
        self.memory.words()[at].load(Acquire)
    }

    pub fn proc(&self) -> u64 {
        self.header(H_PROC)
    }

    pub fn pid(&self) -> u32 {
        self.header(H_PID) as u32
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The number of events that were begun so far.
    pub fn written(&self) -> u64 {
        self.header(H_HEAD)
    }

    /// The number of calls of `change` by the process.
    pub fn changes(&self) -> u64 {
        self.header(H_CHANGES)
    }

    /// The number of events that this reader did not get: overwritten, or never finished.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Skips all but the last events. Skipped events do not count as lost.
    pub fn skip_to_last(&mut self, events: usize) {
        self.next = self.next.max(self.written().saturating_sub(events as u64));
    }

    /// Reads the next events, in order, at most `most`. `ended`: the process writes no more, so unfinished events never finish. Otherwise
    /// the batch ends before an unfinished event, for at most `UNFINISHED_TIMEOUT` or until half of the ring waits behind it.
    pub fn drain(&mut self, most: usize, ended: bool) -> Batch {
        let mut batch = Batch::default();
        let (began, epoch) = (now(), self.header(H_EPOCH));
        let written = self.written();
        self.skip_overwritten(written, (now() - self.looked) / EVENT);
        self.looked = began;
        while self.next < written && batch.len() < most {
            match self.slot(self.next) {
                Slot::Whole(words) => batch.push(self.memory.words(), words, self.next, epoch),
                Slot::Unfinished if !ended && self.may_finish(written) => break,
                Slot::Unfinished | Slot::Overwritten => self.lost = self.lost.saturating_add(1),
            }
            self.next += 1;
        }
        batch
    }

    /// Continues with the oldest available event. A faulty process may have overwritten its own header. If the count of events goes back,
    /// or grows by more than were `possible` since the last read, at most the capacity of the ring counts as lost.
    fn skip_overwritten(&mut self, written: u64, possible: u64) {
        if written < self.next {
            self.next = written;
        }
        let oldest = written.saturating_sub(self.capacity);
        let skipped = oldest.saturating_sub(self.next);
        let lost = if skipped > possible.saturating_add(self.capacity) { self.capacity } else { skipped };
        self.lost = self.lost.saturating_add(lost);
        self.next = self.next.max(oldest);
    }

    /// Reads the next events as single records.
    pub fn read(&mut self, most: usize, ended: bool) -> Vec<Record> {
        self.drain(most, ended).decode()
    }

    /// Whether to wait for the next record. Its writer may be off its processor, or may have died.
    fn may_finish(&mut self, written: u64) -> bool {
        let since = match self.unfinished {
            Some((ticket, since)) if ticket == self.next => since,
            _ => {
                let since = now();
                self.unfinished = Some((self.next, since));
                since
            }
        };
        // The events behind it must not be overwritten meanwhile.
        written - self.next <= self.capacity / 2 && now() - since < UNFINISHED_TIMEOUT
    }

    /// The state of the slot of the event with this number. The number determines the sequence number of a whole record.
    fn slot(&self, ticket: u64) -> Slot {
        let words = &self.memory.words()[slots_at() + (ticket % self.capacity) as usize * SLOT..][..SLOT];
        let whole = ticket.wrapping_mul(2).wrapping_add(2);
        let seq = words[SEQ].load(Acquire);
        if seq != whole {
            return if seq < whole { Slot::Unfinished } else { Slot::Overwritten };
        }
        let mut copy = [0; SLOT];
        copy.iter_mut().zip(words).for_each(|(to, from)| *to = from.load(Relaxed));
        fence(Acquire);
        if words[SEQ].load(Relaxed) == whole { Slot::Whole(copy) } else { Slot::Overwritten }
    }
}
