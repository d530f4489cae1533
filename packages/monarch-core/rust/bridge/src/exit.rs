//! The exit of the process: functions of `runtime::operations::exit` for Python.

use std::ptr::dangling_mut;

use pyo3::ffi;
use pyo3::prelude::*;
use runtime::operations::exit;

/// The places for functions that Python calls at the end of its finalisation, by the documentation of `Py_AtExit`.
const LAST_FUNCTIONS: usize = 32;

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

/// Makes Python's finalisation end the process with code 0 as soon as it has ended all objects of the program: of modules, threads and
/// contexts. The rest is memory of the interpreter itself. A process in which an extension has a function for the end of Python
/// (`Py_AtExit`) ends as usual.
#[pyfunction]
pub fn exit_when_cleared(py: Python<'_>) -> PyResult<()> {
    // The dictionary of the interpreter outlives the objects of the program, and its last entry ends last.
    // SAFETY: the GIL is held. The pointer of the capsule is not null and never used; both calls raise if they fail.
    unsafe {
        let kept = ffi::PyInterpreterState_GetDict(ffi::PyInterpreterState_Get());
        let capsule = ffi::PyCapsule_New(dangling_mut(), c"monarch".as_ptr(), Some(exit_now));
        let capsule = Bound::from_owned_ptr_or_err(py, capsule)?;
        let kept = Bound::from_borrowed_ptr_or_err(py, kept)?;
        kept.set_item("monarch.exit", capsule)
    }
}

/// The destructor of the capsule.
unsafe extern "C" fn exit_now(_: *mut ffi::PyObject) {
    extern "C" fn nothing() {}
    // SAFETY: Python destroys the capsule with the GIL held, while objects and the collector still work. `exit` runs the exit handlers of
    // the process, as the end of Python would.
    unsafe {
        if ffi::Py_IsInitialized() == 0 {
            let free = (0..LAST_FUNCTIONS).take_while(|_| ffi::Py_AtExit(Some(nothing)) == 0).count();
            if free == LAST_FUNCTIONS {
                // Objects in circles that only threads and contexts referred to. Python would collect them next.
                ffi::PyGC_Enable();
                ffi::PyGC_Collect();
                libc::exit(0);
            }
        }
    }
}
