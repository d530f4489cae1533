//! The writing end of a promise for code without Python: functions in a table of C, which any thread may call without the GIL.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use runtime::{Cell, Outcome};
use wire::Status;

use crate::cell::CallCell;
use crate::gil;

/// What the functions give.
const SET: c_int = 0;
const SET_ALREADY: c_int = 1;
const MALFORMED: c_int = 2;

/// Changes with the table. Native code that takes the promise gives its capsule another name.
const NAME: &std::ffi::CStr = c"monarch.promise.1";

/// `struct monarch_promise` of docs/extending.md.
#[repr(C)]
pub struct NativePromise {
    set_result: unsafe extern "C" fn(*mut NativePromise, *const u8, usize) -> c_int,
    set_exception: unsafe extern "C" fn(*mut NativePromise, *const u8, usize) -> c_int,
    drop: unsafe extern "C" fn(*mut NativePromise),
    // The rest is not of the table.
    cell: Arc<Cell>,
    is_set: AtomicBool,
}

impl NativePromise {
    fn set(&self, status: Status, bytes: &[u8]) -> c_int {
        if self.is_set.swap(true, Ordering::AcqRel) {
            return SET_ALREADY;
        }
        // A forked child has none of the threads that wait.
        if !gil::is_forked() {
            self.cell.complete(Outcome::new(0, status, bytes));
        }
        SET
    }
}

/// SAFETY: `promise` is one that was taken and not dropped; there are `len` bytes.
unsafe fn set(promise: *mut NativePromise, status: Status, bytes: *const u8, len: usize) -> c_int {
    if promise.is_null() || (bytes.is_null() && len > 0) || isize::try_from(len).is_err() {
        return MALFORMED;
    }
    let bytes = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(bytes, len) } };
    unsafe { &*promise }.set(status, bytes)
}

unsafe extern "C" fn set_result(promise: *mut NativePromise, bytes: *const u8, len: usize) -> c_int {
    unsafe { set(promise, Status::Ok, bytes, len) }
}

unsafe extern "C" fn set_exception(promise: *mut NativePromise, text: *const u8, len: usize) -> c_int {
    unsafe { set(promise, Status::Undelivered, text, len) }
}

unsafe extern "C" fn drop_promise(promise: *mut NativePromise) {
    if !promise.is_null() {
        // SAFETY: made by `Box::into_raw`, and dropped once.
        let promise = unsafe { Box::from_raw(promise) };
        promise.set(Status::Closed, &[]);
    }
}

/// The promise of a capsule that nothing has taken.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that it frees.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            drop_promise(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// A capsule with the native writing end of a promise that waits for one answer.
#[pyfunction]
pub fn native_promise<'py>(py: Python<'py>, call: &CallCell) -> PyResult<Bound<'py, PyAny>> {
    let promise = NativePromise { set_result, set_exception, drop: drop_promise, cell: call.inner.clone(), is_set: AtomicBool::new(false) };
    let promise = Box::into_raw(Box::new(promise));
    // SAFETY: a pointer that is not null, a constant name, and a destructor for both.
    unsafe {
        let capsule = ffi::PyCapsule_New(promise.cast(), NAME.as_ptr(), Some(drop_capsule));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| drop_promise(promise))
    }
}
