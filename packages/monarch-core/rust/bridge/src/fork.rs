//! The state of a forked child, which has none of the runtime's threads: calls raise an error in it.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use runtime::operations::exit;

/// The process that this one was forked from while that process had a runtime; 0 if there is none.
static FORKED_FROM: AtomicU32 = AtomicU32::new(0);

/// The function that ends a forked child whose user code has returned to the runtime. It does not return.
static LEAVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Marks this process as a fork of `parent`; `leave()` ends it when user code returns to the runtime.
pub fn become_child(py: Python<'_>, parent: u32, leave: Py<PyAny>) {
    FORKED_FROM.store(parent, Ordering::Release);
    net::forked_child::become_child();
    let _ = LEAVE.set(py, leave);
}

/// True in a fork of a process that had a runtime.
pub fn is_forked() -> bool {
    FORKED_FROM.load(Ordering::Acquire) != 0
}

/// Ends a forked child whose user code has returned to a loop of the runtime, or has raised an exception into it.
pub fn exit_forked_child(py: Python<'_>, raised: Option<&PyErr>) {
    if is_forked() {
        if let Some(leave) = LEAVE.get(py) {
            let _ = leave.call1(py, (raised.map(|e| e.value(py)),));
        }
        // SAFETY: no code of this process runs after this call.
        unsafe { libc::_exit(1) };
    }
}

/// The check at the beginning of every call from a user thread.
pub fn check_not_forked() -> PyResult<()> {
    exit::shield_thread();
    if exit::must_block() {
        Python::attach(crate::exit::block_if_exiting);
    }
    match FORKED_FROM.load(Ordering::Acquire) {
        0 => Ok(()),
        pid => Err(PyRuntimeError::new_err(format!(
            "process {} was forked from process {pid}, which was using Monarch: \
             use the multiprocessing start method `spawn` or `forkserver`",
            std::process::id()
        ))),
    }
}
