//! `monarch._core._native.files`: listings of directories, and digests of contents.

use std::ffi::OsString;
use std::io::Result as IoResult;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Mutex;

use ::files::digest::{Running, digest};
use net::lock::lock;
use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::gil;

/// The size from which a digest is computed without the GIL, so that other threads run.
const LONG: usize = 16 << 10;

/// The content of a file when it was read.
#[pyclass(frozen)]
pub struct FileDigest(::files::FileDigest);

#[pymethods]
impl FileDigest {
    /// The attributes of the file, as the record of an entry in a listing.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.record)
    }

    #[getter]
    fn digests<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.digests)
    }

    #[getter]
    fn settled(&self) -> bool {
        self.0.settled
    }

    #[getter]
    fn has_xattrs(&self) -> bool {
        self.0.has_xattrs
    }
}

/// The listing of each directory, or the error that prevented it.
#[pyfunction]
pub fn list_directories(py: Python<'_>, paths: Vec<Vec<u8>>) -> PyResult<Vec<Py<PyAny>>> {
    let paths = paths_of(paths);
    let found = gil::blocking(py, || ::files::list_directories(&paths));
    results(py, &paths, found, |listing| Ok(PyBytes::new(py, &listing).into_any().unbind()))
}

/// The digests of each file, or the error that prevented them.
#[pyfunction]
#[pyo3(signature = (paths, piece=0))]
pub fn digest_files(py: Python<'_>, paths: Vec<Vec<u8>>, piece: u64) -> PyResult<Vec<Py<PyAny>>> {
    let paths = paths_of(paths);
    let found = gil::blocking(py, || ::files::digest_files(&paths, piece));
    results(py, &paths, found, |digest| Ok(Py::new(py, FileDigest(digest))?.into_any()))
}

fn paths_of(paths: Vec<Vec<u8>>) -> Vec<PathBuf> {
    paths.into_iter().map(|path| OsString::from_vec(path).into()).collect()
}

/// Converts each result for Python. An error becomes the `OSError` that Python itself would raise, with the path as `bytes`.
fn results<T>(
    py: Python<'_>,
    paths: &[PathBuf],
    found: Vec<IoResult<T>>,
    wrap: impl Fn(T) -> PyResult<Py<PyAny>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let results = found.into_iter().zip(paths).map(|(result, path)| match result {
        Ok(value) => wrap(value),
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            let path = PyBytes::new(py, path.as_os_str().as_encoded_bytes());
            Ok(os_error(number, &path).into_value(py).into_any())
        }
    });
    results.collect()
}

/// The `OSError` with this number and path, with the text of the C library.
fn os_error(number: i32, path: &Bound<'_, PyBytes>) -> PyErr {
    let py = path.py();
    // SAFETY: the error number belongs to this thread, and the function takes the path by reference. It always sets an exception.
    unsafe {
        *libc::__errno_location() = number;
        ffi::PyErr_SetFromErrnoWithFilenameObject(ffi::PyExc_OSError, path.as_ptr());
    }
    PyErr::fetch(py)
}

/// The BLAKE3 digest of bytes.
#[pyfunction]
pub fn blake3<'py>(py: Python<'py>, data: PyBuffer<u8>) -> PyResult<Bound<'py, PyBytes>> {
    let found = with_bytes(py, &data, digest)?;
    Ok(PyBytes::new(py, &found))
}

/// A running BLAKE3 digest of bytes that are added one after another.
#[pyclass(frozen)]
#[derive(Default)]
pub struct Blake3(Mutex<Running>);

#[pymethods]
impl Blake3 {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn update(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        with_bytes(py, &data, |bytes| lock(&self.0).update(bytes))
    }

    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &lock(&self.0).digest())
    }
}

fn with_bytes<T: Send>(py: Python<'_>, data: &PyBuffer<u8>, work: impl FnOnce(&[u8]) -> T + Send) -> PyResult<T> {
    if !data.is_c_contiguous() {
        return Err(pyo3::exceptions::PyBufferError::new_err("the bytes of a digest lie one after another"));
    }
    // SAFETY: the buffer is held and has this many bytes. If another thread writes to it meanwhile, the digest is that of a mixture.
    let bytes = unsafe { std::slice::from_raw_parts(data.buf_ptr().cast::<u8>(), data.len_bytes()) };
    Ok(if bytes.len() < LONG { work(bytes) } else { gil::blocking(py, || work(bytes)) })
}
