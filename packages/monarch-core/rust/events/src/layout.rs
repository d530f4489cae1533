//! What lies where in the memory of a ring.
//!
//! A page of words that describe it and count, the index of names, the names, the texts, and the slots.

use std::sync::atomic::AtomicU64;

/// Changes with the layout and with the meaning of a record: a reader refuses another one.
pub const MAGIC: u64 = u64::from_le_bytes(*b"monevt01");

pub const HEADER: usize = 4096;
/// Places in the index of names; a name that finds none near its own is a text.
pub const INDEX: usize = 4096;
pub const NAMES: usize = 128 << 10;
pub const TEXTS: usize = 256 << 10;

/// The words of a slot: sequence number, time, kind and thread, trace context, fields.
pub const SLOT: usize = 16;
pub const SEQ: usize = 0;
pub const TIME: usize = 1;
pub const KIND: usize = 2;
pub const TRACE: usize = 3;
pub const FIELDS: usize = 6;

/// The words of the header. What writers change often has a cache line for itself.
pub const H_MAGIC: usize = 0;
pub const H_PROC: usize = 1;
pub const H_PID: usize = 2;
pub const H_CAPACITY: usize = 3;
/// What to add to a time of a record to get nanoseconds since the epoch.
pub const H_EPOCH: usize = 4;
pub const H_HEAD: usize = 16;
pub const H_TEXT: usize = 32;
pub const H_NAMES: usize = 48;
/// In the ring of an agent: how often the set of rings of its host has changed.
pub const H_CHANGES: usize = 64;

/// The flight recorder of a proc keeps so many events.
pub const DEFAULT_CAPACITY: usize = 1 << 14;
const LEAST: usize = 1 << 8;
const MOST: usize = 1 << 22;

/// The number of slots for so many events: a power of two, within bounds.
pub fn capacity(events: usize) -> usize {
    events.clamp(LEAST, MOST).next_power_of_two()
}

pub const fn index_at() -> usize {
    HEADER / 8
}

pub const fn names_at() -> usize {
    index_at() + INDEX
}

pub const fn texts_at() -> usize {
    names_at() + NAMES / 8
}

pub const fn slots_at() -> usize {
    texts_at() + TEXTS / 8
}

/// Bytes of a ring with so many slots.
pub const fn size(capacity: usize) -> usize {
    (slots_at() + capacity * SLOT) * 8
}

/// The memory of a ring as words; all access is atomic, since other processes see it too.
pub type Words = [AtomicU64];
