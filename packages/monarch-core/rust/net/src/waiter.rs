//! A thread that waits for an event.
//!
//! A waiter sleeps in one of two ways: on a futex (a follower), or inside `epoll_wait` because it reads the sockets for all threads (the
//! leader). The notifying thread need not know which.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sys;

/// The thread is awake, and no notification is pending.
pub(crate) const IDLE: u32 = 0;
/// A notification is pending.
pub(crate) const NOTIFIED: u32 = 1;
/// The thread sleeps on its futex.
pub(crate) const SLEEPING: u32 = 2;
/// The thread leads: it sleeps in `epoll_wait`.
pub(crate) const LEADING: u32 = 3;

thread_local! {
    /// The waiter of this thread while it leads. A notification by the leading thread itself needs no eventfd.
    pub(crate) static LEADING_WAITER: Cell<*const Waiter> = const { Cell::new(std::ptr::null()) };
    /// The number of sleeping threads that this thread has woken. A leader that has woken a thread stops leading.
    pub(crate) static WOKEN_COUNT: Cell<u32> = const { Cell::new(0) };
}

/// The state of one waiting thread: `IDLE`, `NOTIFIED`, `SLEEPING` or `LEADING`.
pub struct Waiter {
    pub(crate) state: AtomicU32,
    /// The eventfd that ends the `epoll_wait` of a leader.
    leader_wake: std::os::fd::RawFd,
}

impl Waiter {
    pub(crate) fn new(leader_wake: std::os::fd::RawFd) -> Self {
        Waiter { state: AtomicU32::new(IDLE), leader_wake }
    }

    /// Whether the thread of this waiter sleeps.
    pub fn is_asleep(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), SLEEPING | LEADING)
    }

    /// Waits up to `bound` for a notification, without sleeping.
    pub(crate) fn is_notified_within(&self, bound: Duration) -> bool {
        let until = Instant::now() + bound;
        while self.state.load(Ordering::Acquire) != NOTIFIED {
            if Instant::now() >= until {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Ends the current wait or, if there is none, the next one.
    pub fn notify(&self) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            SLEEPING => {
                sys::futex_wake(&self.state);
                WOKEN_COUNT.set(WOKEN_COUNT.get() + 1);
            }
            LEADING if !std::ptr::eq(LEADING_WAITER.get(), self) => sys::eventfd_signal(self.leader_wake),
            _ => {}
        }
    }
}
