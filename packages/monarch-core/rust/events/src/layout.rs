//! The layout of the memory of a ring.
//!
//! The memory begins with a page of words that describe and count. The index of names, the names, the texts, and the slots follow.

use std::sync::atomic::AtomicU64;

/// Identifies the layout and the meaning of records; a reader refuses any other value.
pub const MAGIC: u64 = u64::from_le_bytes(*b"monevt01");

/// Bytes of the page of words at the start.
pub const HEADER: usize = 4096;
/// Entries of the index of names. A name without a free entry near its own place is stored as a text.
pub const INDEX: usize = 4096;
/// Bytes for names.
pub const NAMES: usize = 128 << 10;
/// Bytes for texts, which the newest texts overwrite.
pub const TEXTS: usize = 256 << 10;

/// The words of a slot: sequence number, time, kind, number of fields and thread, trace context, fields.
pub const SLOT: usize = 16;
pub const SEQ: usize = 0;
pub const TIME: usize = 1;
pub const KIND: usize = 2;
/// Where the number of fields is in the word of the kind: a field that a type got later is not in rings of before.
pub const COUNT: u32 = 16;
pub const TRACE: usize = 3;
pub const FIELDS: usize = 6;

/// The words of the header. Each word that writers change often has a cache line of its own.
pub const H_MAGIC: usize = 0;
pub const H_PROC: usize = 1;
pub const H_PID: usize = 2;
pub const H_CAPACITY: usize = 3;
/// The number to add to the time of a record for nanoseconds since the epoch.
pub const H_EPOCH: usize = 4;
pub const H_HEAD: usize = 16;
pub const H_TEXT: usize = 32;
pub const H_NAMES: usize = 48;
/// In the ring of an agent: the number of changes of the set of rings of its host.
pub const H_CHANGES: usize = 64;

/// The number of events that the flight recorder of a proc keeps.
pub const DEFAULT_CAPACITY: usize = 1 << 14;
/// Least number of slots of a ring.
const LEAST: usize = 1 << 8;
/// Largest number of slots of a ring, 512 MiB.
const MOST: usize = 1 << 22;

/// The number of slots for at least `events` events: a power of two, within bounds.
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

/// Bytes of a ring with this many slots.
pub const fn size(capacity: usize) -> usize {
    (slots_at() + capacity * SLOT) * 8
}

/// The memory of a ring as words. All access is atomic, since other processes share it.
pub type Words = [AtomicU64];
