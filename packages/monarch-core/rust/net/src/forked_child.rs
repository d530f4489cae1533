//! A forked child of a process that uses the runtime is inert.
//!
//! The child has the parent's memory and descriptors, but none of its threads. Epoll sets, event counters, sockets and shared memory are
//! one object for both processes: the child must not read, write, change or free any of them. So every system call of the data path looks
//! here first, and every destructor that gives something back does nothing. Locks may be held by threads that the child does not have.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

/// This process is a fork of one that uses the runtime.
#[inline]
pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Makes this process inert, for good.
pub fn become_child() {
    CHILD.store(true, Ordering::SeqCst);
}

/// The error of every operation in the child.
#[inline]
pub(crate) fn check() -> io::Result<()> {
    if is_child() { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(()) }
}
