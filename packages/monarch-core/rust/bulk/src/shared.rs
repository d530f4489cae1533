//! Words of memory that two processes share: epochs and hazards.
//!
//! A registration has a slot in its owner's table of epochs. The word in the slot is the epoch of the registration for as long as that
//! exists. Other processes map the table for reading. A process that copies first writes the slot into one of its own hazard words, which
//! the owner can read, and then reads the epoch. An owner that ends a registration first changes the epoch and then reads the hazards. All
//! four accesses are sequentially consistent, so at least one of the two processes notices the other: memory is not freed during a copy,
//! and no copy of ended memory begins. The end of its connection shows the death of a process, and its hazards are dropped with the
//! connection.
//!
//! The kernel frees the memory of an ended process, which takes 0.1 s for each GiB, before it closes the descriptors and reports the end.
//! So the word after the epochs is a robust futex, which the kernel marks as soon as the owner's thread ends.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use net::sys::{self as base, Share};

use crate::sys;

/// Most registrations of one process at a time. The table is sparse: pages that were never used do not exist.
pub const SLOTS: u32 = 1 << 20;
/// The index of the life word, which follows the epochs. `EPOCHS` counts both.
const LIFE: usize = SLOTS as usize;
pub const EPOCHS: usize = LIFE + 1;
/// Hazard words of one connection. The first word is the highest index ever used.
pub const HAZARDS: usize = 8192;
/// The bit of a hazard that is a mapping. It keeps the memory, but does not delay the report that a registration has ended.
const MAPPED: u64 = 1 << 63;

/// Words in shared memory, as either side maps them.
pub struct Words {
    fd: OwnedFd,
    base: *const AtomicU64,
    count: usize,
}

// SAFETY: all access is atomic, and the mapping exists as long as the value.
unsafe impl Send for Words {}
unsafe impl Sync for Words {}

impl Words {
    pub fn new(name: &std::ffi::CStr, count: usize) -> io::Result<Words> {
        Words::of(sys::sealed_memfd(name, (count * 8) as u64, false)?, count, &Share::Shared)
    }

    /// Words of another process. Fails if that process could shrink the memory, because an access would then raise SIGBUS.
    pub fn received(fd: OwnedFd, count: usize, writable: bool) -> io::Result<Words> {
        if !sys::is_sealed(fd.as_raw_fd(), (count * 8) as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared words that could shrink"));
        }
        Words::of(fd, count, if writable { &Share::Shared } else { &Share::SharedReadOnly })
    }

    fn of(fd: OwnedFd, count: usize, share: &Share) -> io::Result<Words> {
        let base = base::map(fd.as_raw_fd(), 0, count * 8, share)?;
        Ok(Words { fd, base: base.cast_const().cast(), count })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    /// The word at `index`; `None` beyond the end.
    pub fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the mapping, which is aligned to pages and exists as long as `self`. All processes access it atomically.
        (index < self.count).then(|| unsafe { &*self.base.add(index) })
    }

    /// The half of the life word that the kernel uses: a futex.
    fn life(&self) -> Option<&AtomicU32> {
        // SAFETY: a part of an aligned word that has no other use.
        self.word(LIFE).map(|w| unsafe { &*(&raw const *w).cast() })
    }

    /// For the epochs of this process: the kernel marks the life word when the calling thread ends.
    pub fn live(&self) {
        if let Some(life) = self.life() {
            life.store(sys::thread_id() & libc::FUTEX_TID_MASK, Ordering::SeqCst);
            sys::mark_at_end(life);
        }
    }

    /// For the epochs of another process: whether it has ended, or is about to end.
    pub fn has_ended(&self) -> bool {
        self.life().is_some_and(|life| life.load(Ordering::Acquire) & libc::FUTEX_OWNER_DIED != 0)
    }

    pub fn load(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |w| w.load(Ordering::SeqCst))
    }

    pub fn store(&self, index: usize, value: u64) {
        if let Some(w) = self.word(index) {
            w.store(value, Ordering::SeqCst);
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and references to it borrow `self`.
        unsafe { base::unmap(self.base.cast_mut().cast(), self.count * 8) };
    }
}

/// Whether this side uses the slot. `copying`: mappings do not count.
pub fn is_used(hazards: &Words, slot: u32, copying: bool) -> bool {
    let high = (hazards.load(0) as usize).min(HAZARDS - 1);
    (1..=high).any(|i| match hazards.load(i) {
        0 => false,
        word if copying && word & MAPPED != 0 => false,
        word => word & !MAPPED == u64::from(slot) + 1,
    })
}

/// The value of a hazard word.
pub fn hazard(slot: u32, mapped: bool) -> u64 {
    (u64::from(slot) + 1) | if mapped { MAPPED } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_end_is_marked_for_others() {
        let words = std::sync::Arc::new(Words::new(c"monarch-rdma-test", EPOCHS).unwrap());
        let received = Words::received(words.fd().try_clone_to_owned().unwrap(), EPOCHS, false).unwrap();
        assert!(!received.has_ended());
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (started, lives) = std::sync::mpsc::channel();
        let its = words.clone();
        let thread = std::thread::spawn(move || {
            its.live();
            started.send(()).unwrap();
            gone.recv().unwrap_err();
        });
        lives.recv().unwrap();
        assert!(!received.has_ended());
        drop(go);
        thread.join().unwrap();
        assert!(received.has_ended());
    }
}
