//! How the event loop of an actor sleeps: as one that may read the sockets.
//!
//! The loop's own epoll set is one of the poller's sources while the loop sleeps, so its thread can lead like any other
//! that waits. A message for its actor then costs one wake-up instead of two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use net::{Source, Waiter};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use runtime::Node;

use crate::gil;
use crate::process::Process;

struct LoopReady {
    waiter: Arc<Waiter>,
    ready: AtomicBool,
}

impl Source for LoopReady {
    fn ready(&self, _events: u32) {
        self.ready.store(true, Ordering::Release);
        self.waiter.notify();
    }
}

/// Lets one loop sleep; dropped with it.
#[pyclass(frozen)]
pub struct LoopSleep {
    node: Arc<Node>,
    token: u64,
    fd: i32,
    state: Arc<LoopReady>,
}

#[pymethods]
impl LoopSleep {
    /// `fd` is the loop's epoll set.
    #[new]
    fn new(process: &Process, fd: i32) -> PyResult<Self> {
        let node = process.node.clone();
        let token = node.poller.token();
        let state = Arc::new(LoopReady { waiter: node.poller.waiter(), ready: AtomicBool::new(false) });
        node.poller.add_once(token, fd, state.clone()).map_err(|e| PyOSError::new_err(e.to_string()))?;
        Ok(LoopSleep { node, token, fd, state })
    }

    /// Sleeps until the loop has something to do, at most `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn sleep(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        gil::check_not_forked()?;
        self.state.ready.store(false, Ordering::Release);
        let deadline = timeout.map(|t| self.node.poller.now() + Duration::from_secs_f64(t));
        self.node.poller.arm(self.token, self.fd);
        gil::wait(py, &self.node.poller, &self.state.waiter, deadline, || self.state.ready.load(Ordering::Acquire)).map(drop)
    }

    fn close(&self) {
        self.node.poller.remove(self.token, self.fd);
    }
}
