//! The ring of this process: on, off, and inert in a forked child.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::ring::Ring;

/// The ring that events go to; null: none, and an event costs this load and a test.
static CURRENT: AtomicPtr<Ring> = AtomicPtr::new(std::ptr::null_mut());
/// A child has its parent's mapping, which is the parent's alone to write to.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Made once; threads may be about to write at any time, so it stays mapped while it is off.
static MADE: Mutex<Option<&'static Ring>> = Mutex::new(None);

/// Nanoseconds of a clock that is never set.
#[inline]
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local structure that the kernel, or the page it shares with us, fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The same while events are recorded, else 0.
#[inline]
pub fn now_if_on() -> u64 {
    if is_on() { now() } else { 0 }
}

/// Events are recorded.
#[inline]
pub fn is_on() -> bool {
    !CURRENT.load(Ordering::Relaxed).is_null()
}

#[inline]
pub(crate) fn current() -> Option<&'static Ring> {
    let ring = CURRENT.load(Ordering::Acquire);
    // SAFETY: a ring that was leaked, or null.
    unsafe { ring.as_ref() }
}

/// Records from now on, in a ring for at least so many events; the descriptor is for readers. A process that has had a ring goes on with
/// that, and there is no descriptor: whoever keeps rings has it.
pub fn start(proc: u64, events: usize) -> io::Result<Option<OwnedFd>> {
    if IS_CHILD.load(Ordering::Relaxed) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let (ring, fd) = match *made {
        Some(ring) => (ring, None),
        None => {
            let (ring, fd) = Ring::create(proc, events)?;
            // SAFETY: the function stores to atomics only.
            unsafe { libc::pthread_atfork(None, None, Some(become_child)) };
            (&*Box::leak(Box::new(ring)), Some(fd))
        }
    };
    *made = Some(ring);
    CURRENT.store(std::ptr::from_ref(ring).cast_mut(), Ordering::Release);
    Ok(fd)
}

/// Records no more. Readers keep what there is.
pub fn stop() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
}

/// Of an agent, also while it does not record: the set of rings that it keeps has changed. Readers of its own ring see it.
pub fn change() {
    if let (false, Some(ring)) = (IS_CHILD.load(Ordering::Relaxed), *MADE.lock().unwrap_or_else(PoisonError::into_inner)) {
        ring.change();
    }
}

extern "C" fn become_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    stop();
}
