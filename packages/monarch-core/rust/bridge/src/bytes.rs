//! The conversion of Python objects to the parts of a message, and back. The first part is the pickle stream; the others are its
//! out-of-band buffers.

use net::{Mapping, RecvPart};
use pyo3::exceptions::PyOSError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyTuple};
use runtime::transfers::payload::OutPart;

use crate::provided::{dumps, loads};
use crate::view::{Memory, fill};

/// A contiguous view of a Python object's memory.
pub struct View {
    raw: Box<ffi::Py_buffer>,
}

impl View {
    fn new(obj: &Bound<'_, PyAny>) -> PyResult<View> {
        // SAFETY: PyObject_GetBuffer fills in a zeroed Py_buffer.
        let mut raw: Box<ffi::Py_buffer> = Box::new(unsafe { std::mem::zeroed() });
        if unsafe { ffi::PyObject_GetBuffer(obj.as_ptr(), &mut *raw, ffi::PyBUF_SIMPLE) } != 0 {
            return Err(PyErr::fetch(obj.py()));
        }
        Ok(View { raw })
    }

    /// The memory as a part of a message.
    fn part(&self) -> OutPart<'_> {
        let bytes = match self.raw.len {
            0 => &[][..],
            // SAFETY: the view keeps the memory alive and in place until it is released.
            n => unsafe { std::slice::from_raw_parts(self.raw.buf.cast(), n as usize) },
        };
        OutPart { bytes, readonly: self.raw.readonly != 0 }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view was acquired in `new`; views are dropped with the GIL held.
        unsafe { ffi::PyBuffer_Release(&mut *self.raw) };
    }
}

/// A pickled object: its pickle stream and its out-of-band buffers.
pub struct Pickled {
    stream: Py<PyBytes>,
    views: Vec<View>,
}

impl Pickled {
    pub fn new(obj: &Bound<'_, PyAny>) -> PyResult<Pickled> {
        let py = obj.py();
        Pickled::of(&dumps(py)?.call1((obj,))?.cast_into::<PyTuple>()?)
    }

    /// An object as the pickler of messages returns it: the stream, and the list of buffers.
    pub fn of(out: &Bound<'_, PyTuple>) -> PyResult<Pickled> {
        let stream = out.get_borrowed_item(0)?.to_owned().cast_into::<PyBytes>()?.unbind();
        let buffers = out.get_borrowed_item(1)?.to_owned().cast_into::<PyList>()?;
        let views = buffers.iter().map(|b| View::new(&b)).collect::<PyResult<_>>()?;
        Ok(Pickled { stream, views })
    }

    pub fn len(&self, py: Python<'_>) -> u64 {
        (self.stream.as_bytes(py).len() + self.views.iter().map(|v| v.raw.len as usize).sum::<usize>()) as u64
    }

    pub fn parts<'a>(&'a self, py: Python<'a>) -> Vec<OutPart<'a>> {
        let mut out = Vec::with_capacity(1 + self.views.len());
        out.push(OutPart { bytes: self.stream.as_bytes(py), readonly: true });
        out.extend(self.views.iter().map(View::part));
        out
    }
}

/// The writable memory of a received buffer. It is private to this process (copy on write).
#[pyclass(frozen)]
pub struct Mapped {
    mapping: Mapping,
}

#[pymethods]
impl Mapped {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: std::ffi::c_int) -> PyResult<()> {
        let m = &slf.get().mapping;
        let memory = Memory { address: m.as_ptr().cast_const().cast(), len: m.len(), is_readonly: false };
        // SAFETY: the mapping lives as long as the object, and is private to this process.
        unsafe { fill(&slf, &memory, view, flags) }
    }

    fn __len__(&self) -> usize {
        self.mapping.len()
    }
}

fn os_error(e: std::io::Error) -> PyErr {
    PyOSError::new_err(format!("cannot map a received buffer: {e}"))
}

/// The size from which huge pages are requested for fresh memory: page faults of 4 KiB each would cost more than the copy.
const HUGE: usize = 8 << 20;

/// Copies received bytes into a Python object.
fn bytes(py: Python<'_>, from: &[u8], writable: bool) -> PyResult<Py<PyAny>> {
    if from.len() < HUGE {
        return Ok(if writable { PyByteArray::new(py, from).into_any().unbind() } else { PyBytes::new(py, from).into_any().unbind() });
    }
    // SAFETY: the object is new and has no other reference; its memory is as long as `from`, and is written before it is read.
    unsafe {
        let (make, memory) = match writable {
            true => (
                ffi::PyByteArray_FromStringAndSize as unsafe extern "C" fn(_, _) -> _,
                ffi::PyByteArray_AsString as unsafe extern "C" fn(_) -> _,
            ),
            false => {
                (ffi::PyBytes_FromStringAndSize as unsafe extern "C" fn(_, _) -> _, ffi::PyBytes_AsString as unsafe extern "C" fn(_) -> _)
            }
        };
        let obj = Bound::from_owned_ptr_or_err(py, make(std::ptr::null(), from.len() as isize))?;
        let to = memory(obj.as_ptr()) as usize;
        let first = to.next_multiple_of(net::sys::page());
        py.detach(|| {
            net::sys::advise(first as *mut u8, from.len() - (first - to), libc::MADV_HUGEPAGE);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len());
        });
        Ok(obj.unbind())
    }
}

/// A Python object for a received buffer: read-only bytes, a mapping of shared memory, or a copy.
fn buffer(py: Python<'_>, part: &RecvPart) -> PyResult<Py<PyAny>> {
    if part.readonly() {
        return bytes(py, part.bytes().map_err(os_error)?, false);
    }
    match part.map().map_err(os_error)? {
        Some(mapping) => Ok(Py::new(py, Mapped { mapping })?.into_any()),
        None => bytes(py, part.bytes().map_err(os_error)?, true),
    }
}

/// Unpickles received parts.
pub fn load<'py>(py: Python<'py>, parts: &[RecvPart]) -> PyResult<Bound<'py, PyAny>> {
    let Some((stream, rest)) = parts.split_first() else {
        return Ok(py.None().into_bound(py));
    };
    let stream = PyBytes::new(py, stream.bytes().map_err(os_error)?);
    if rest.is_empty() {
        return loads(py)?.call1((stream,));
    }
    let buffers = PyList::new(py, rest.iter().map(|p| buffer(py, p)).collect::<PyResult<Vec<_>>>()?)?;
    loads(py)?.call1((stream, buffers))
}

/// The bytes of a one-part payload.
pub fn raw<'py>(py: Python<'py>, parts: &[RecvPart]) -> PyResult<Bound<'py, PyBytes>> {
    match parts.first() {
        Some(p) => Ok(PyBytes::new(py, p.bytes().map_err(os_error)?)),
        None => Ok(PyBytes::new(py, b"")),
    }
}
