//! Python's handling of signals: the descriptor for their arrival, and Ctrl-C during the exit.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A Ctrl-C has arrived since `run_at_exit` installed its handler.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: std::ffi::c_int) {
    INTERRUPTED.store(true, Ordering::Release);
}

/// Runs an exit handler with Ctrl-C deferred from before its first instruction. A Ctrl-C that has arrived already counts.
#[pyfunction]
pub fn run_at_exit(handler: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = handler.py();
    if crate::fork::is_forked() {
        return Ok(());
    }
    // SAFETY: `note` only stores to an atomic.
    unsafe { libc::signal(libc::SIGINT, note as extern "C" fn(std::ffi::c_int) as libc::sighandler_t) };
    if let Err(e) = py.check_signals() {
        if !e.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(e);
        }
        INTERRUPTED.store(true, Ordering::Release);
    }
    handler.call0().map(drop)
}

/// True if a Ctrl-C has arrived during the exit.
#[pyfunction]
pub fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// `signal.set_wakeup_fd`. It is set when the module is loaded, before any thread of the runtime. Otherwise a fork could interrupt the
/// thread that sets it, and the child would wait for that thread for ever.
static SET_WAKEUP_FD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Sets what this module needs, when the extension module is loaded.
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    SET_WAKEUP_FD.get_or_try_init(py, || py.import("_signal")?.getattr("set_wakeup_fd").map(Bound::unbind)).map(drop)
}

/// Sets the descriptor to which Python's signal handler writes; returns the previous one.
pub fn set_wakeup_fd(py: Python<'_>, fd: i32) -> PyResult<i32> {
    let f = SET_WAKEUP_FD.get(py).ok_or_else(|| PyRuntimeError::new_err("the native module is not loaded"))?;
    f.bind(py).call1((fd,))?.extract()
}
