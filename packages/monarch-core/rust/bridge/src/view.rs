//! Views of memory that a Python object owns.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The memory of an object: address, number of bytes, and whether it is read-only.
pub struct Memory {
    pub address: *const u8,
    pub len: usize,
    pub is_readonly: bool,
}

/// Fills in a view of the object's memory.
///
/// # Safety
///
/// `view` is valid for writing, and the memory lives as long as `owner`, which the view holds. Memory that is not read-only can be written.
pub unsafe fn fill<T>(owner: &Bound<'_, T>, memory: &Memory, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    let (address, len) = (memory.address.cast_mut().cast(), memory.len as isize);
    // SAFETY: as of this function.
    let filled = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address, len, memory.is_readonly.into(), flags) };
    if filled == 0 { Ok(()) } else { Err(PyErr::take(owner.py()).unwrap_or_else(|| PyBufferError::new_err("no such view"))) }
}
