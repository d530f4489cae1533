//! The ring of this process: on, off, and inert in a forked child.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::ring::Ring;

/// The ring that receives the events, or null. Without a ring, an event costs this load and a test.
static CURRENT: AtomicPtr<Ring> = AtomicPtr::new(std::ptr::null_mut());
/// Set in a forked child. The child has its parent's mapping, into which only the parent may write.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The ring, made once. It stays mapped while recording is off, because threads may still write to it.
static MADE: Mutex<Option<&'static Ring>> = Mutex::new(None);

/// Nanoseconds of a monotonic clock.
#[inline]
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local structure that the kernel, or its shared page, fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The time while events are recorded, otherwise 0.
#[inline]
pub fn now_if_on() -> u64 {
    if is_on() { now() } else { 0 }
}

/// Whether events are recorded.
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

/// Starts to record, in a ring for at least `events` events. Returns the descriptor for readers. A process that already has a ring
/// continues with it, and the result is `None`: the collector already has the descriptor.
pub fn start(proc: u64, events: usize) -> io::Result<Option<OwnedFd>> {
    if IS_CHILD.load(Ordering::Relaxed) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let (ring, fd) = match *made {
        Some(ring) => (ring, None),
        None => {
            let (ring, fd) = Ring::create(proc, events)?;
            // SAFETY: the function only stores to atomics.
            unsafe { libc::pthread_atfork(None, None, Some(become_child)) };
            (&*Box::leak(Box::new(ring)), Some(fd))
        }
    };
    *made = Some(ring);
    CURRENT.store(std::ptr::from_ref(ring).cast_mut(), Ordering::Release);
    Ok(fd)
}

/// Stops the recording. Readers keep the recorded events.
pub fn stop() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
}

/// Called by an agent, also while it does not record: counts a change of the set of rings of its host. Readers of its own ring read the
/// count.
pub fn change() {
    if let (false, Some(ring)) = (IS_CHILD.load(Ordering::Relaxed), *MADE.lock().unwrap_or_else(PoisonError::into_inner)) {
        ring.change();
    }
}

extern "C" fn become_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    stop();
}
