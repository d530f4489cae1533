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

/// An event that was read; whole.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Counts the events of the process, from 0.
    pub number: u64,
    /// Nanoseconds since the epoch.
    pub time: u64,
    pub kind: u16,
    pub thread: u32,
    pub trace: [u64; 3],
    pub fields: Vec<Value>,
}

/// Nanoseconds. A thread that is kept from its processor for longer loses the event that it writes.
const PATIENCE: u64 = 1_000_000_000;
/// Nanoseconds that a process needs for an event at least, with all its threads: they take turns to count it.
const EVENT: u64 = 10;

pub struct Reader {
    memory: Memory,
    capacity: u64,
    next: u64,
    lost: u64,
    /// The time before the last look; at first that of the start of the machine, before which nothing was written.
    looked: u64,
    /// A record that was not finished at the last look, and the time of the first look that found it so.
    unfinished: Option<(u64, u64)>,
}

enum Slot {
    Whole([u64; SLOT]),
    Unfinished,
    Overwritten,
}

impl Reader {
    /// Begins with the oldest event that is still there.
    pub fn open(fd: RawFd) -> io::Result<Reader> {
        let memory = Memory::open(fd)?;
        let words = memory.words();
        let slots = words[H_CAPACITY].load(Relaxed);
        let makes_sense = words[H_MAGIC].load(Acquire) == MAGIC && capacity(slots as usize) as u64 == slots;
        if !makes_sense || size(slots as usize) != words.len() * 8 {
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

    /// Events that were begun so far.
    pub fn written(&self) -> u64 {
        self.header(H_HEAD)
    }

    /// How often `change` was called by the process.
    pub fn changes(&self) -> u64 {
        self.header(H_CHANGES)
    }

    /// Events that this reader did not get: overwritten, or never finished.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Skips all but the last events; these do not count as lost.
    pub fn skip_to_last(&mut self, events: usize) {
        self.next = self.next.max(self.written().saturating_sub(events as u64));
    }

    /// The next events, in order, at most so many. `ended`: the process writes no more, so what is not finished never will be. Else an
    /// event that is not finished is waited for: the batch ends before it, for `PATIENCE` or until half of the ring waits behind it.
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

    /// Goes to the oldest event that is still there. A process may have written anything over its own head: a count that goes back, or that
    /// grows by more events than were `possible` since the last look, counts no more events as lost than the ring has.
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

    /// The same, record by record.
    pub fn read(&mut self, most: usize, ended: bool) -> Vec<Record> {
        self.drain(most, ended).decode()
    }

    /// Whether the next record is waited for. A writer may have lost its processor in the middle, or never come back.
    fn may_finish(&mut self, written: u64) -> bool {
        let since = match self.unfinished {
            Some((ticket, since)) if ticket == self.next => since,
            _ => {
                let since = now();
                self.unfinished = Some((self.next, since));
                since
            }
        };
        // What waits behind it must not be overwritten.
        written - self.next <= self.capacity / 2 && now() - since < PATIENCE
    }

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
