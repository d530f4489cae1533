//! The lock of the interpreter (GIL), as operations of the runtime release it, and what else they need from Python.

use std::os::fd::RawFd;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PySystemExit};
use pyo3::prelude::*;
use runtime::operations::interpreter::Hopeless;
use runtime::operations::{Interpreter, exit, wait};

use crate::provided;
use crate::signal;

/// The lock, which the calling thread holds.
pub struct Gil<'py>(pub Python<'py>);

impl Interpreter for Gil<'_> {
    type Error = PyErr;

    fn release<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.0.detach(f)
    }

    fn check_signals(&self) -> PyResult<()> {
        self.0.check_signals()
    }

    fn set_wakeup_fd(&self, fd: RawFd) -> PyResult<RawFd> {
        signal::set_wakeup_fd(self.0, fd)
    }

    fn runs_loop(&self) -> PyResult<bool> {
        provided::loop_is_running(self.0)
    }

    fn hopeless(&self, why: Hopeless) -> PyErr {
        match why {
            Hopeless::Deadlock => PyRuntimeError::new_err(
                "this would wait for ever: every thread of the universe waits, no message is in flight and no time-out is due",
            ),
            Hopeless::Killed => PySystemExit::new_err("the simulated process of this thread has been killed"),
        }
    }
}

/// Runs `f` without the GIL.
pub fn blocking<T: Send>(py: Python<'_>, f: impl FnOnce() -> T + Send) -> T {
    wait::blocking(&Gil(py), f)
}

/// After `delay_secs`, a native thread takes the GIL of this process and keeps it for `hold_secs`.
#[pyfunction]
pub fn hold_gil(delay_secs: f64, hold_secs: f64) {
    let (delay, hold) = (Duration::from_secs_f64(delay_secs.max(0.0)), Duration::from_secs_f64(hold_secs.max(0.0)));
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        exit::park_if_exiting();
        Python::attach(|_| std::thread::sleep(hold));
    });
}
