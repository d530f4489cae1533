//! The sleep of an actor's event loop, in which the thread of the loop may read the sockets.
//!
//! While the loop sleeps, its own epoll set is one of the poller's sources, so its thread can be the leader like any other waiting thread.
//! A message for its actor then costs one wake-up instead of two.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use net::{Source, Waiter, sys};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use runtime::Node;
use runtime::mailboxes::mailbox::Sleeper;

use crate::fork;
use crate::gil;
use crate::process::Process;
use crate::sender;

thread_local! {
    /// The sleeper of the loop that this thread made last.
    static SLEEPER: RefCell<Option<Arc<LoopReady>>> = const { RefCell::new(None) };
}

/// The sleeper that wakes the event loop of this thread; `None` if the loop sleeps in its own way.
pub fn sleeper() -> Option<Arc<dyn Sleeper>> {
    SLEEPER.with_borrow(|s| s.clone().map(|s| s as Arc<dyn Sleeper>))
}

/// The value of `fd` after the loop was closed.
const CLOSED: i32 = -1;

/// The readiness of a loop's epoll set, as a source of the poller.
struct LoopReady {
    waiter: Arc<Waiter>,
    ready: AtomicBool,
    sleeps: AtomicU64,
    /// The loop is woken because a wake-up was lost.
    forced: AtomicBool,
    fd: AtomicI32,
}

impl Source for LoopReady {
    fn ready(&self, _events: u32) {
        self.ready.store(true, Ordering::Release);
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
        self.forced.store(true, Ordering::Release);
        self.ready(0);
    }
}

/// The sleeper of one loop. It is dropped with the loop.
#[pyclass(frozen)]
pub struct LoopSleep {
    node: Arc<Node>,
    token: u64,
    state: Arc<LoopReady>,
}

#[pymethods]
impl LoopSleep {
    /// `fd` is the loop's epoll set.
    #[new]
    fn new(process: &Process, fd: i32) -> PyResult<Self> {
        let node = process.node.clone();
        let token = node.poller.token();
        let state = Arc::new(LoopReady {
            waiter: node.poller.waiter(),
            ready: AtomicBool::new(false),
            sleeps: AtomicU64::new(0),
            forced: AtomicBool::new(false),
            fd: AtomicI32::new(fd),
        });
        node.poller.add_once(token, fd, state.clone()).map_err(failed)?;
        SLEEPER.set(Some(state.clone()));
        Ok(LoopSleep { node, token, state })
    }

    /// Sleeps until the loop has work, for at most `timeout` seconds. Returns true if a lost wake-up was the reason to wake it.
    #[pyo3(signature = (timeout=None))]
    fn sleep(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        fork::check_not_forked()?;
        self.state.ready.store(false, Ordering::Release);
        // Only this thread writes the counter.
        self.state.sleeps.store(self.state.sleeps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let deadline = timeout.map(|t| self.node.poller.now() + Duration::from_secs_f64(t));
        if self.node.poller.arm(self.token, self.state.fd.load(Ordering::Acquire)).is_err() {
            self.re_add()?;
        }
        gil::wait(py, &self.node.poller, &self.state.waiter, deadline, || self.state.ready.load(Ordering::Acquire))?;
        Ok(self.state.forced.load(Ordering::Acquire) && self.state.forced.swap(false, Ordering::AcqRel))
    }

    fn close(&self) {
        let fd = self.state.fd.swap(CLOSED, Ordering::AcqRel);
        if fd != CLOSED {
            self.node.poller.remove(self.token, fd);
        }
    }
}

impl LoopSleep {
    /// Adds the loop's epoll set to the poller again. Without it no event would wake the loop.
    #[cold]
    fn re_add(&self) -> PyResult<()> {
        let fd = self.state.fd.load(Ordering::Acquire);
        self.node.poller.remove(self.token, fd);
        let entered = self.node.poller.add_once(self.token, fd, self.state.clone());
        entered.and_then(|()| self.node.poller.arm(self.token, fd)).map_err(failed)?;
        events::wakeup_lost(sender::id(), b"set", 0, 0);
        Ok(())
    }
}

fn failed(e: std::io::Error) -> PyErr {
    PyOSError::new_err(e.to_string())
}
