//! Words of memory that two processes see: epochs and hazards.
//!
//! A registration has a slot in its owner's table of epochs; the word there is the epoch of the registration for as long as it lasts.
//! Others map the table for reading. Whoever copies first writes the slot into a word of its own hazards, which the owner sees, and then
//! looks at the epoch; the owner that ends a registration first changes the epoch, and then looks at the hazards. All four are sequentially
//! consistent, so at least one of the two sees the other: memory is not given back while somebody copies, and nobody begins to copy
//! what has ended. A process that dies in the middle is known by the end of its connection, and its hazards go with it.
//!
//! The kernel closes the descriptors of a process, and tells of its end, when it has taken its memory back, 0.1 s for each GiB. So the word
//! after the epochs is a robust futex: what a thread holds when it ends the kernel marks at once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use net::sys::{self as base, Share};

use crate::sys;

/// Registrations of one process at a time. Sparse: pages that were never used do not exist.
pub const SLOTS: u32 = 1 << 20;
/// The word that says whether the owner lives, and so many words with it.
const LIFE: usize = SLOTS as usize;
pub const EPOCHS: usize = LIFE + 1;
/// Words of hazards of one connection; the first is how many have ever been used.
pub const HAZARDS: usize = 8192;
/// The hazard is a mapping, which holds memory back but no report that a registration has ended.
const MAPPED: u64 = 1 << 63;

/// Words in shared memory, of either side.
pub struct Words {
    fd: OwnedFd,
    base: *const AtomicU64,
    count: usize,
}

// SAFETY: all access is atomic, and the mapping lives as long as the value.
unsafe impl Send for Words {}
unsafe impl Sync for Words {}

impl Words {
    pub fn new(name: &std::ffi::CStr, count: usize) -> io::Result<Words> {
        Words::of(sys::sealed_memfd(name, (count * 8) as u64, false)?, count, &Share::Shared)
    }

    /// Words that another process has made; refused if it could make them go away under us.
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

    /// None beyond the end.
    pub fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the mapping, which is aligned to pages and lives as long as `self`; everybody uses it atomically.
        (index < self.count).then(|| unsafe { &*self.base.add(index) })
    }

    /// The kernel's half of the word: a futex.
    fn life(&self) -> Option<&AtomicU32> {
        // SAFETY: as large and aligned as a word, which is used as nothing else.
        self.word(LIFE).map(|w| unsafe { &*(&raw const *w).cast() })
    }

    /// Of epochs of this process: they tell when the calling thread ends.
    pub fn live(&self) {
        if let Some(life) = self.life() {
            life.store(sys::thread_id() & libc::FUTEX_TID_MASK, Ordering::SeqCst);
            sys::mark_at_end(life);
        }
    }

    /// Of epochs of another process: it has ended, or is about to.
    pub fn is_over(&self) -> bool {
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
        // SAFETY: our own mapping; references to it borrow `self`.
        unsafe { base::unmap(self.base.cast_mut().cast(), self.count * 8) };
    }
}

/// Does this side use the slot? `copying`: mappings do not count.
pub fn is_used(hazards: &Words, slot: u32, copying: bool) -> bool {
    let high = (hazards.load(0) as usize).min(HAZARDS - 1);
    (1..=high).any(|i| match hazards.load(i) {
        0 => false,
        word if copying && word & MAPPED != 0 => false,
        word => word & !MAPPED == u64::from(slot) + 1,
    })
}

/// What a hazard word is set to.
pub fn hazard(slot: u32, mapped: bool) -> u64 {
    (u64::from(slot) + 1) | if mapped { MAPPED } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_thread_is_marked_for_others() {
        let words = std::sync::Arc::new(Words::new(c"monarch-rdma-test", EPOCHS).unwrap());
        let theirs = Words::received(words.fd().try_clone_to_owned().unwrap(), EPOCHS, false).unwrap();
        assert!(!theirs.is_over());
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (told, lives) = std::sync::mpsc::channel();
        let its = words.clone();
        let thread = std::thread::spawn(move || {
            its.live();
            told.send(()).unwrap();
            gone.recv().unwrap_err();
        });
        lives.recv().unwrap();
        assert!(!theirs.is_over());
        drop(go);
        thread.join().unwrap();
        assert!(theirs.is_over());
    }
}
