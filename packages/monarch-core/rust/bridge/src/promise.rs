//! The writing end of a promise for native code: a C table of functions that any thread may call without the GIL.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use runtime::Outcome;
use wire::Status;

use crate::fork;
use crate::pending_call::{OwnAnswer, PendingCall};

/// The return values of the functions.
const SET: c_int = 0;
const SET_ALREADY: c_int = 1;
const MALFORMED: c_int = 2;

/// The name of the capsule, which changes with the table. Native code that takes the promise renames the capsule.
const NAME: &std::ffi::CStr = c"monarch.promise.1";

/// `struct monarch_promise` of docs/extending-calls.md.
#[repr(C)]
pub struct NativePromise {
    set_result: unsafe extern "C" fn(*mut NativePromise, *const u8, usize) -> c_int,
    set_exception: unsafe extern "C" fn(*mut NativePromise, *const u8, usize) -> c_int,
    drop: unsafe extern "C" fn(*mut NativePromise),
    // The remaining fields do not belong to the table.
    answer: OwnAnswer,
    is_set: AtomicBool,
}

impl NativePromise {
    fn set(&self, status: Status, bytes: &[u8]) -> c_int {
        if self.is_set.swap(true, Ordering::AcqRel) {
            return SET_ALREADY;
        }
        // A forked child has none of the waiting threads.
        if !fork::is_forked() {
            self.answer.record(Outcome::new(0, status, bytes));
        }
        SET
    }
}

/// SAFETY: `promise` was taken and not dropped, and `bytes` is valid for `len` bytes.
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
        // SAFETY: the pointer comes from `Box::into_raw`, and is dropped once.
        let promise = unsafe { Box::from_raw(promise) };
        promise.set(Status::Closed, &[]);
    }
}

/// Drops the promise of a capsule that no code has taken.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that it frees.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            drop_promise(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// A capsule with the native writing end of a promise, which completes a pending call.
#[pyfunction]
pub fn native_promise<'py>(py: Python<'py>, call: &PendingCall) -> PyResult<Bound<'py, PyAny>> {
    let promise =
        NativePromise { set_result, set_exception, drop: drop_promise, answer: call.own_answer(), is_set: AtomicBool::new(false) };
    let promise = Box::into_raw(Box::new(promise));
    // SAFETY: the pointer is not null, the name is constant, and the destructor fits both.
    unsafe {
        let capsule = ffi::PyCapsule_New(promise.cast(), NAME.as_ptr(), Some(drop_capsule));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| drop_promise(promise))
    }
}
