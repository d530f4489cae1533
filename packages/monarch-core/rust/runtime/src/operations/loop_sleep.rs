//! The sleep of an actor's event loop, in which the thread of the loop may read the sockets.
//!
//! While the loop sleeps, its own epoll set is one of the poller's sources, so its thread can be the leader like any other waiting thread.
//! A message for its actor then costs one wake-up instead of two.

use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use net::{Poller, Source, Waiter, sys};

use super::interpreter::Interpreter;
use super::{sender, wait};
use crate::mailboxes::mailbox::Sleeper;

thread_local! {
    /// The sleeper of the loop that this thread made last.
    static SLEEPER: RefCell<Option<Arc<LoopReady>>> = const { RefCell::new(None) };
}

/// The sleeper that wakes the event loop of this thread; `None` if the loop sleeps in its own way.
pub fn sleeper() -> Option<Arc<dyn Sleeper>> {
    SLEEPER.with_borrow(|s| s.clone().map(|s| s as Arc<dyn Sleeper>))
}

/// The value of `fd` after the loop was closed.
const CLOSED: RawFd = -1;

/// The readiness of a loop's epoll set, as a source of the poller.
struct LoopReady {
    waiter: Arc<Waiter>,
    is_ready: AtomicBool,
    sleeps: AtomicU64,
    /// The loop is woken because a wake-up was lost.
    is_forced: AtomicBool,
    fd: AtomicI32,
}

impl Source for LoopReady {
    fn ready(&self, _events: u32) {
        self.is_ready.store(true, Ordering::Release);
        self.waiter.notify();
    }
}

impl Sleeper for LoopReady {
    fn is_asleep(&self) -> bool {
        self.waiter.is_asleep()
    }

    fn has_work(&self) -> bool {
        let fd = self.fd.load(Ordering::Acquire);
        fd != CLOSED && sys::is_readable(fd)
    }

    fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        self.is_forced.store(true, Ordering::Release);
        self.ready(0);
    }
}

/// The sleep of one loop. The owner of the loop drops it with the loop.
pub struct LoopSleep {
    poller: Arc<Poller>,
    token: u64,
    state: Arc<LoopReady>,
}

impl LoopSleep {
    /// `fd` is the loop's epoll set. From now on it wakes the loop that this thread runs.
    pub fn new(poller: &Arc<Poller>, fd: RawFd) -> io::Result<Self> {
        let token = poller.token();
        let state = Arc::new(LoopReady {
            waiter: poller.waiter(),
            is_ready: AtomicBool::new(false),
            sleeps: AtomicU64::new(0),
            is_forced: AtomicBool::new(false),
            fd: AtomicI32::new(fd),
        });
        poller.add_once(token, fd, state.clone())?;
        SLEEPER.set(Some(state.clone()));
        Ok(LoopSleep { poller: poller.clone(), token, state })
    }

    /// Prepares the next sleep: from here on, work for the loop ends it.
    pub fn begin(&self) -> io::Result<()> {
        self.state.is_ready.store(false, Ordering::Release);
        // Only this thread writes the counter.
        self.state.sleeps.store(self.state.sleeps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        match self.poller.arm(self.token, self.state.fd.load(Ordering::Acquire)) {
            Ok(()) => Ok(()),
            Err(_) => self.add_again(),
        }
    }

    /// Sleeps after `begin` until the loop has work, for at most `timeout`. Returns true if a lost wake-up was the reason to wake it.
    pub fn sleep<I: Interpreter>(&self, interpreter: &I, timeout: Option<Duration>) -> Result<bool, I::Error> {
        let deadline = timeout.map(|t| self.poller.now() + t);
        wait::wait(interpreter, &self.poller, &self.state.waiter, deadline, || self.state.is_ready.load(Ordering::Acquire))?;
        Ok(self.state.is_forced.load(Ordering::Acquire) && self.state.is_forced.swap(false, Ordering::AcqRel))
    }

    pub fn close(&self) {
        let fd = self.state.fd.swap(CLOSED, Ordering::AcqRel);
        if fd != CLOSED {
            self.poller.remove(self.token, fd);
        }
    }

    /// Adds the loop's epoll set to the poller again. Without it no event would wake the loop.
    #[cold]
    fn add_again(&self) -> io::Result<()> {
        let fd = self.state.fd.load(Ordering::Acquire);
        self.poller.remove(self.token, fd);
        self.poller.add_once(self.token, fd, self.state.clone())?;
        self.poller.arm(self.token, fd)?;
        events::wakeup_lost(sender::id(), b"set", 0, 0);
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::operations::interpreter::model::Model;

    #[test]
    fn readable_descriptor_ends_the_sleep() {
        let poller = Poller::new().unwrap();
        let event = sys::eventfd().unwrap();
        let sleep = LoopSleep::new(&poller, event.as_raw_fd()).unwrap();
        sys::eventfd_signal(event.as_raw_fd());
        sleep.begin().unwrap();
        assert_eq!(sleep.sleep(&Model::default(), None), Ok(false));
        sleep.close();
    }

    #[test]
    fn forced_wake_up_is_reported_once() {
        let poller = Poller::new().unwrap();
        let event = sys::eventfd().unwrap();
        let sleep = LoopSleep::new(&poller, event.as_raw_fd()).unwrap();
        sleep.begin().unwrap();
        sleeper().unwrap().wake();
        assert_eq!(sleep.sleep(&Model::default(), None), Ok(true));
        sleep.begin().unwrap();
        assert_eq!(sleep.sleep(&Model::default(), Some(Duration::ZERO)), Ok(false));
        sleep.close();
    }

    #[test]
    fn removed_descriptor_is_added_again() {
        let poller = Poller::new().unwrap();
        let event = sys::eventfd().unwrap();
        let sleep = LoopSleep::new(&poller, event.as_raw_fd()).unwrap();
        poller.remove(sleep.token, event.as_raw_fd());
        sys::eventfd_signal(event.as_raw_fd());
        sleep.begin().unwrap();
        assert_eq!(sleep.sleep(&Model::default(), None), Ok(false));
        sleep.close();
    }
}
