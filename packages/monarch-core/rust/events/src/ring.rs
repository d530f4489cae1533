//! The writing end of a ring.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::layout::{
    COUNT, FIELDS, H_CAPACITY, H_CHANGES, H_EPOCH, H_HEAD, H_MAGIC, H_PID, H_PROC, KIND, MAGIC, SEQ, SLOT, TIME, TRACE, Words, capacity,
    size, slots_at,
};
use crate::memory::Memory;
use crate::recorder::now;
use crate::text;
use crate::trace::trace;

/// The ring of one process, into which all its threads write.
pub struct Ring {
    memory: Memory,
    mask: u64,
}

thread_local! {
    static THREAD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The kernel's id of this thread, requested once.
fn thread() -> u32 {
    THREAD.with(|t| {
        if t.get() == 0 {
            // SAFETY: takes no arguments and cannot fail.
            t.set(unsafe { libc::gettid() } as u32);
        }
        t.get()
    })
}

/// A slot is prefetched this many events before its use, because most rings are larger than a processor's cache.
const AHEAD: u64 = 2;

impl Ring {
    /// A ring for at least `events` events of this process, which is `proc` in its job, and the descriptor for readers.
    pub fn create(proc: u64, events: usize) -> io::Result<(Ring, OwnedFd)> {
        let capacity = capacity(events);
        let (memory, fd) = Memory::create(size(capacity))?;
        let words = memory.words();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        for (at, value) in
            [(H_PROC, proc), (H_PID, u64::from(std::process::id())), (H_CAPACITY, capacity as u64), (H_EPOCH, epoch.wrapping_sub(now()))]
        {
            words[at].store(value, Relaxed);
        }
        words[H_MAGIC].store(MAGIC, Release);
        Ok((Ring { memory, mask: capacity as u64 - 1 }, fd))
    }

    /// Counts a change of the set of rings of the host; readers read the count.
    pub fn change(&self) {
        self.memory.words()[H_CHANGES].fetch_add(1, Release);
    }

    pub fn name(&self, bytes: &[u8]) -> u64 {
        text::name(self.memory.words(), bytes)
    }

    pub fn text(&self, bytes: &[u8]) -> u64 {
        text::text(self.memory.words(), bytes)
    }

    /// Writes an event. Nothing is written if another thread, a whole round behind or ahead, writes the same slot: readers count the event
    /// as lost.
    #[inline]
    pub fn write<const N: usize>(&self, kind: u16, fields: &[u64; N]) {
        const { assert!(N <= SLOT - FIELDS) };
        let words = self.memory.words();
        let ticket = words[H_HEAD].fetch_add(1, Relaxed);
        let slot = &words[slots_at() + (ticket & self.mask) as usize * SLOT..][..SLOT];
        self.fetch(words, ticket + AHEAD);
        let seq = &slot[SEQ];
        let (before, writing) = (seq.load(Relaxed), 2 * ticket + 1);
        if before & 1 == 1 || before > writing || seq.compare_exchange(before, writing, Relaxed, Relaxed).is_err() {
            return;
        }
        // A reader of any word of the record also reads the mark that it is being written.
        fence(Release);
        slot[TIME].store(now(), Relaxed);
        slot[KIND].store(u64::from(kind) | (N as u64) << COUNT | u64::from(thread()) << 32, Relaxed);
        for (word, part) in slot[TRACE..FIELDS].iter().zip(trace()) {
            word.store(part, Relaxed);
        }
        for (word, field) in slot[FIELDS..].iter().zip(fields) {
            word.store(*field, Relaxed);
        }
        seq.store(writing + 1, Release);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn fetch(&self, words: &Words, ticket: u64) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        let slot = &words[slots_at() + (ticket & self.mask) as usize * SLOT..][..SLOT];
        // SAFETY: a prefetch of mapped memory.
        unsafe {
            _mm_prefetch::<_MM_HINT_ET0>((&raw const slot[0]).cast());
            _mm_prefetch::<_MM_HINT_ET0>((&raw const slot[SLOT / 2]).cast());
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn fetch(&self, _words: &Words, _ticket: u64) {}
}
