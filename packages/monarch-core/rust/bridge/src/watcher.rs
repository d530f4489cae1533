//! The notification of event loops about answers: a descriptor becomes readable, without the GIL.
//!
//! The thread that completes a call adds the token of the call to a list. The loop watches the descriptor, and takes all tokens at once.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use net::sys;
use pyo3::prelude::*;
use runtime::calls::pending_call::Watcher;

/// The tokens of calls that are done, and the descriptor that notifies the loop.
pub struct Ready {
    tokens: Mutex<Vec<u64>>,
    event: OwnedFd,
}

impl Watcher for Ready {
    fn done(&self, token: u64) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.push(token);
        // One wake-up is enough for a batch.
        if tokens.len() == 1 {
            sys::eventfd_signal(self.event.as_raw_fd());
        }
    }
}

/// The notification of one event loop.
#[pyclass(frozen)]
pub struct LoopWatcher {
    pub inner: Arc<Ready>,
}

#[pymethods]
impl LoopWatcher {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(LoopWatcher { inner: Arc::new(Ready { tokens: Mutex::default(), event: sys::eventfd()? }) })
    }

    fn fileno(&self) -> i32 {
        self.inner.event.as_raw_fd()
    }

    /// The tokens of the calls that are done since the last call of `drain`.
    fn drain(&self, py: Python<'_>) -> Vec<u64> {
        crate::exit::block_if_exiting(py);
        sys::eventfd_drain(self.inner.event.as_raw_fd());
        std::mem::take(&mut *self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
