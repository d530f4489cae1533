//! Memory of this process: memory of a Python object, or an allocation of an arena.

use std::sync::Arc;

use bulk::arena::Block;
use bulk::buffer::Mapping;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::view::{Memory, fill};

/// The memory of an object with the buffer protocol, which can neither move nor be freed while this view is held.
#[pyclass(frozen)]
pub struct BufferMemory {
    raw: Box<ffi::Py_buffer>,
}

// SAFETY: the view only describes memory; the interpreter releases it with the GIL held.
unsafe impl Send for BufferMemory {}
unsafe impl Sync for BufferMemory {}

impl BufferMemory {
    /// The memory as words. Fails if it is not a contiguous sequence of aligned words.
    pub fn words(&self) -> PyResult<&[i64]> {
        let is_aligned = (self.raw.buf as usize).is_multiple_of(align_of::<i64>());
        if self.nbytes() == 0 {
            return Ok(&[]);
        }
        if !self.contiguous() || !is_aligned || !self.nbytes().is_multiple_of(size_of::<i64>()) {
            return Err(PyValueError::new_err("a table of words must be contiguous and aligned"));
        }
        // SAFETY: the view describes this memory, and keeps it. Any bytes are words.
        Ok(unsafe { std::slice::from_raw_parts(self.raw.buf as *const i64, self.nbytes() / size_of::<i64>()) })
    }
}

#[pymethods]
impl BufferMemory {
    #[new]
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // SAFETY: PyObject_GetBuffer fills in a zeroed Py_buffer.
        let mut raw: Box<ffi::Py_buffer> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: `raw` is boxed, so it does not move until it is released.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *raw, ffi::PyBUF_FULL_RO) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(BufferMemory { raw })
    }

    #[getter]
    fn address(&self) -> usize {
        self.raw.buf as usize
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.raw.len as usize
    }

    #[getter]
    fn readonly(&self) -> bool {
        self.raw.readonly != 0
    }

    #[getter]
    fn ndim(&self) -> i32 {
        self.raw.ndim
    }

    /// True if the items lie one after the other.
    #[getter]
    fn contiguous(&self) -> bool {
        // SAFETY: the view was filled in by `new`.
        unsafe { ffi::PyBuffer_IsContiguous(&*self.raw, b'C' as std::ffi::c_char) != 0 }
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        // SAFETY: the view was acquired in `new`; Python objects are dropped with the GIL held.
        unsafe { ffi::PyBuffer_Release(&mut *self.raw) };
    }
}

/// The owner of shared memory: an allocation of this process, or a mapping.
enum Source {
    Block(Arc<Block>),
    Mapping(Mapping),
}

/// Memory that several processes can see: an allocation of this process, or a mapped one of another process.
#[pyclass(frozen)]
pub struct SharedMemory {
    source: Source,
}

impl SharedMemory {
    pub fn of_block(block: Arc<Block>) -> Self {
        SharedMemory { source: Source::Block(block) }
    }

    pub fn of_mapping(mapping: Mapping) -> Self {
        SharedMemory { source: Source::Mapping(mapping) }
    }

    fn range(&self) -> (usize, usize, bool) {
        match &self.source {
            Source::Block(b) => (b.address(), b.len(), false),
            Source::Mapping(m) => (m.address, m.len, m.readonly),
        }
    }
}

#[pymethods]
impl SharedMemory {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: std::ffi::c_int) -> PyResult<()> {
        let (address, len, is_readonly) = slf.get().range();
        let memory = Memory { address: address as *const u8, len, is_readonly };
        // SAFETY: the object keeps the memory alive.
        unsafe { fill(&slf, &memory, view, flags) }
    }

    fn __len__(&self) -> usize {
        self.range().1
    }
}
