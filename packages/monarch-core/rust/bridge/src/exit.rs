//! The exit of the process: functions of `runtime::operations::exit` for Python.

use pyo3::prelude::*;
use runtime::operations::exit;

/// Marks this thread as one of the runtime: it continues while the process exits.
#[pyfunction]
pub fn set_runtime_thread() {
    exit::set_runtime_thread();
}

/// Blocks this thread for ever if the process exits. The GIL is released.
#[pyfunction]
pub fn block_if_exiting(py: Python<'_>) {
    if exit::must_block() {
        py.detach(exit::park_if_exiting);
    }
}

/// Marks the process as leaving: user threads that call into the runtime are blocked from now on.
#[pyfunction]
pub fn begin_leaving() {
    exit::begin_leaving();
}

/// Marks the process as exiting: threads that return from a wait are blocked from now on.
#[pyfunction]
pub fn begin_exit() {
    exit::begin_exit();
}

/// Sets the exit code of the process, whatever code it requests, when the interpreter has ended; 130 ends it by SIGINT.
#[pyfunction]
pub fn set_exit_code(code: i32) {
    exit::set_exit_code(code);
}

/// Makes the kernel kill this process when its parent ends; false if the parent has ended already.
#[pyfunction]
pub fn set_parent_death_signal(parent: i32) -> bool {
    exit::set_parent_death_signal(parent)
}
