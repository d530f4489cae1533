//! A forked child of a process that uses the runtime is inert.
//!
//! The child has the parent's memory and descriptors, but none of its threads. Both processes share each epoll set, event counter, socket
//! and shared memory. The child must not read, write, change or free any of them. So every system call of the data path first calls
//! `check`, and every destructor that would return a resource does nothing in the child. A thread that the child does not have may hold any
//! of the locks.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a fork of one that uses the runtime.
#[inline]
pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Makes this process inert for the rest of its life.
pub fn become_child() {
    CHILD.store(true, Ordering::SeqCst);
}

/// The error of every operation in the child.
#[inline]
pub(crate) fn check() -> io::Result<()> {
    if is_child() { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(()) }
}
