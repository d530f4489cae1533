//! Reading of modules without a buffer, by a hook of CPython for the opening of code (PEP 578).
//!
//! An `open` with a buffer checks whether the file is a terminal (`isatty`). On a mount this check is a request to the mount's server for
//! each module, and the only request of a warm import. A module is read as a whole, so a buffer would gain nothing.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};

use crate::provided::loaded;

/// A hook for the opening of code, and the function that installs it.
type OpenCode = unsafe extern "C" fn(*mut ffi::PyObject, *mut c_void) -> *mut ffi::PyObject;
type SetOpenCode = unsafe extern "C" fn(OpenCode, *mut c_void) -> c_int;

/// Installs the hook; false if it was not installed: an embedding program may have a hook of its own.
#[pyfunction]
pub fn read_modules_unbuffered(py: Python<'_>) -> PyResult<bool> {
    // The function is not in the stable interface, so an interpreter may lack it.
    // SAFETY: the name ends with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"PyFile_SetOpenCodeHook".as_ptr()) };
    if found.is_null() {
        return Ok(false);
    }
    // SAFETY: CPython has had the function with this signature since 3.8.
    let set: SetOpenCode = unsafe { std::mem::transmute(found) };
    let class =
        loaded(py, intern!(py, "_io"))?.ok_or_else(|| PyRuntimeError::new_err("the module _io is not loaded"))?.getattr("FileIO")?;
    // SAFETY: the hook gets the class, which the process keeps until its end.
    if unsafe { set(open_unbuffered, class.into_ptr().cast()) } < 0 {
        drop(PyErr::take(py));
        return Ok(false);
    }
    Ok(true)
}

/// Opens a file for reading: `FileIO(path)`.
unsafe extern "C" fn open_unbuffered(path: *mut ffi::PyObject, class: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this with the GIL and with a string; `class` is the argument that was set with the hook; NULL ends the
    // arguments.
    unsafe { ffi::PyObject_CallFunctionObjArgs(class.cast(), path, std::ptr::null_mut::<ffi::PyObject>()) }
}
