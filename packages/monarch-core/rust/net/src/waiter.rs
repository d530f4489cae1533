//! A thread that waits for an event.
//!
//! A waiter sleeps in one of two ways: on a futex (a follower), or inside `epoll_wait` because it reads the sockets for all threads (the
//! leader). The notifying thread need not know which.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sys;

pub(crate) const IDLE: u32 = 0;
pub(crate) const NOTIFIED: u32 = 1;
pub(crate) const SLEEPING: u32 = 2;
pub(crate) const LEADING: u32 = 3;

thread_local! {
    /// The waiter of this thread while it leads, to tell notifications of itself from others'.
    pub(crate) static LED_BY: Cell<*const Waiter> = const { Cell::new(std::ptr::null()) };
    /// How many sleepers this thread has woken, for handing the lead to where the traffic goes.
    pub(crate) static WOKEN: Cell<u32> = const { Cell::new(0) };
}

pub struct Waiter {
    pub(crate) state: AtomicU32,
    /// The eventfd that gets a leader out of `epoll_wait`.
    kick: std::os::fd::RawFd,
}

impl Waiter {
    pub(crate) fn new(kick: std::os::fd::RawFd) -> Self {
        Waiter { state: AtomicU32::new(IDLE), kick }
    }

    /// Its thread sleeps.
    pub fn is_asleep(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), SLEEPING | LEADING)
    }

    /// A notification comes within so long.
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

    /// Ends the wait, now or the next one that starts.
    pub fn notify(&self) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            SLEEPING => {
                sys::futex_wake(&self.state);
                WOKEN.set(WOKEN.get() + 1);
            }
            LEADING if !std::ptr::eq(LED_BY.get(), self) => sys::eventfd_signal(self.kick),
            _ => {}
        }
    }
}
