//! The sleep of an actor's event loop as a Python object.

use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use runtime::operations::loop_sleep;

use crate::fork;
use crate::gil::Gil;
use crate::process::Process;

/// The sleeper of one loop. It is dropped with the loop.
#[pyclass(frozen)]
pub struct LoopSleep(loop_sleep::LoopSleep);

#[pymethods]
impl LoopSleep {
    /// `fd` is the loop's epoll set.
    #[new]
    fn new(process: &Process, fd: i32) -> PyResult<Self> {
        loop_sleep::LoopSleep::new(&process.node.poller, fd).map(LoopSleep).map_err(failed)
    }

    /// Sleeps until the loop has work, for at most `timeout` seconds. Returns true if a lost wake-up was the reason to wake it.
    #[pyo3(signature = (timeout=None))]
    fn sleep(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        fork::check_not_forked()?;
        self.0.begin().map_err(failed)?;
        self.0.sleep(&Gil(py), timeout.map(Duration::from_secs_f64))
    }

    fn close(&self) {
        self.0.close();
    }
}

fn failed(e: std::io::Error) -> PyErr {
    PyOSError::new_err(e.to_string())
}
