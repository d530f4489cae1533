//! The reading end of a ring, in any process that has the descriptor.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use serde::{Deserialize, Serialize};

use crate::layout::{
    FIELDS, H_CAPACITY, H_EPOCH, H_HEAD, H_MAGIC, H_PID, H_PROC, KIND, MAGIC, SEQ, SLOT, TIME, TRACE, capacity, size, slots_at,
};
use crate::memory::Memory;
use crate::table::{Unit, type_of};
use crate::text;

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

pub struct Reader {
    memory: Memory,
    capacity: u64,
    next: u64,
    lost: u64,
    /// A record that was not finished at the last look.
    unfinished: Option<u64>,
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
        Ok(Reader { memory, capacity: slots, next: 0, lost: 0, unfinished: None })
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

    /// Events that this reader did not get: overwritten, or never finished.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Skips all but the last events; these do not count as lost.
    pub fn skip_to_last(&mut self, events: usize) {
        self.next = self.next.max(self.written().saturating_sub(events as u64));
    }

    /// The next events, in order, at most so many. `ended`: the process writes no more, so what is not finished never will be. Else an
    /// event that is not finished is waited for, until the next call.
    pub fn read(&mut self, most: usize, ended: bool) -> Vec<Record> {
        let mut records = Vec::new();
        let written = self.written();
        let oldest = written.saturating_sub(self.capacity);
        self.lost += oldest.saturating_sub(self.next);
        self.next = self.next.max(oldest);
        while self.next < written && records.len() < most {
            match self.slot(self.next) {
                Slot::Whole(words) => records.push(self.record(&words)),
                Slot::Unfinished if !ended && self.unfinished != Some(self.next) => {
                    self.unfinished = Some(self.next);
                    break;
                }
                Slot::Unfinished | Slot::Overwritten => self.lost += 1,
            }
            self.next += 1;
        }
        records
    }

    fn slot(&self, ticket: u64) -> Slot {
        let words = &self.memory.words()[slots_at() + (ticket % self.capacity) as usize * SLOT..][..SLOT];
        let whole = 2 * ticket + 2;
        let seq = words[SEQ].load(Acquire);
        if seq != whole {
            return if seq < whole { Slot::Unfinished } else { Slot::Overwritten };
        }
        let mut copy = [0; SLOT];
        copy.iter_mut().zip(words).for_each(|(to, from)| *to = from.load(Relaxed));
        fence(Acquire);
        if words[SEQ].load(Relaxed) == whole { Slot::Whole(copy) } else { Slot::Overwritten }
    }

    fn record(&self, words: &[u64; SLOT]) -> Record {
        let kind = words[KIND] as u16;
        let fields = type_of(kind).map_or(&[][..], |t| t.fields);
        let value = |(field, word): (&crate::table::Field, &u64)| match field.unit {
            Unit::Name | Unit::Text => text::read(self.memory.words(), *word).map_or(Value::Lost, Value::Text),
            Unit::Float => Value::Float(f64::from_bits(*word)),
            _ => Value::Number(*word),
        };
        Record {
            number: self.next,
            time: words[TIME].wrapping_add(self.header(H_EPOCH)),
            kind,
            thread: (words[KIND] >> 32) as u32,
            trace: [words[TRACE], words[TRACE + 1], words[TRACE + 2]],
            fields: fields.iter().zip(&words[FIELDS..]).map(value).collect(),
        }
    }
}
