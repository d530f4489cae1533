//! The handle of a buffer of any process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bulk::transfer::{Job, Op, Operation, at_once};
use bulk::{Buffer, Failure, Path, sys};
use pyo3::prelude::*;
use runtime::Node;

use super::ending::{cell, completion, failed};
use super::memory::SharedMemory;
use crate::fork;
use crate::gil;
use crate::pending_call::PendingCall;

/// A handle of a buffer, which any process may own.
#[pyclass(frozen)]
pub struct Handle {
    pub node: Arc<Node>,
    pub buffer: Arc<Buffer>,
    /// The handle was made here and is the only one: the buffer ends with it.
    is_only_handle: AtomicBool,
}

impl Handle {
    pub fn new(node: Arc<Node>, buffer: Arc<Buffer>, is_only_handle: bool) -> Handle {
        Handle { node, buffer, is_only_handle: AtomicBool::new(is_only_handle) }
    }

    fn with_place<T: Send>(&self, py: Python<'_>, f: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
        fork::check_not_forked()?;
        gil::blocking(py, f).map_err(|mut f| {
            (f.owner, f.pid, f.path) = (self.buffer.owner, self.buffer.pid(), self.buffer.path());
            f.asked = self.buffer.size;
            failed(&f)
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_only_handle.load(Ordering::Acquire) && !fork::is_forked() && self.buffer.mark_dropped() {
            self.buffer.forget();
        }
    }
}

#[pymethods]
impl Handle {
    /// The fields from which another process makes a handle: id, epoch, owner, size in bytes, read-only.
    fn parts(&self) -> ([u8; 16], u64, u64, u64, bool) {
        let r = &self.buffer;
        (r.id, r.epoch, r.owner, r.size, r.readonly)
    }

    /// Prepares the handle for being sent to other processes.
    fn give(&self) -> PyResult<()> {
        fork::check_not_forked()?;
        if self.buffer.is_local() {
            self.buffer.bulk.serve().map_err(|f| failed(&f))?;
        }
        self.is_only_handle.store(false, Ordering::Release);
        Ok(())
    }

    /// The transport by which this process reaches the buffer.
    fn path(&self, py: Python<'_>, timeout: f64) -> PyResult<&'static str> {
        if self.buffer.path() == Path::None {
            self.with_place(py, || self.buffer.resolve(sys::deadline(timeout)).map(drop))?;
        }
        Ok(self.buffer.path().name())
    }

    /// Starts a copy between local memory and the buffer; `keep` keeps the local memory alive. Returns `None` if the copy is done, else the
    /// pending call.
    #[allow(clippy::too_many_arguments)]
    fn transfer(
        &self,
        py: Python<'_>,
        write: bool,
        address: usize,
        nbytes: u64,
        keep: Py<PyAny>,
        offset: u64,
        timeout: f64,
        most: u64,
    ) -> PyResult<Option<PendingCall>> {
        fork::check_not_forked()?;
        let what = if write { Operation::Write } else { Operation::Read };
        let op = Op::contiguous(self.buffer.clone(), what, address, offset, nbytes);
        if timeout > 0.0 {
            // SAFETY: `keep` keeps the local memory alive, and the caller has checked that it is writable.
            match py.detach(|| unsafe { at_once(&op) }) {
                Some(Ok(())) => return Ok(None),
                Some(Err(f)) => return Err(failed(&f)),
                None => {}
            }
        }
        let cell = cell(&self.node);
        let job = Job::new(Arc::new(vec![op]), sys::deadline(timeout), most, Box::new(keep), completion(&cell));
        job.start(&self.buffer.bulk);
        Ok(Some(cell))
    }

    /// The handle of a part of the buffer.
    fn restrict(&self, py: Python<'_>, offset: u64, nbytes: u64, readonly: bool, timeout: f64) -> PyResult<Handle> {
        let part = self.with_place(py, || self.buffer.restrict(offset, nbytes, readonly, sys::deadline(timeout)))?;
        Ok(Handle::new(self.node.clone(), part, true))
    }

    /// The memory of the buffer, mapped into this process.
    fn map(&self, py: Python<'_>, timeout: f64) -> PyResult<SharedMemory> {
        self.with_place(py, || self.buffer.map(sys::deadline(timeout))).map(SharedMemory::of_mapping)
    }

    /// True if this process has dropped the buffer.
    fn is_dropped(&self) -> bool {
        self.buffer.is_dropped()
    }

    /// Ends the buffer for all processes; `None` if this process has already done so.
    fn drop(&self, timeout: f64) -> PyResult<Option<PendingCall>> {
        fork::check_not_forked()?;
        self.is_only_handle.store(false, Ordering::Release);
        if !self.buffer.mark_dropped() {
            return Ok(None);
        }
        let cell = cell(&self.node);
        let (buffer, done) = (self.buffer.clone(), completion(&cell));
        if buffer.is_local() {
            buffer.bulk.registry.end(&buffer.id, &format!("dropped by its owner, process {}", std::process::id()), Some(done));
        } else {
            let until = sys::deadline(timeout);
            let pool = buffer.bulk.pool.clone();
            pool.clone().run(Box::new(move || {
                done(pool.wait(|| buffer.end(until)).map_err(|mut f| {
                    (f.owner, f.pid, f.path, f.asked) = (buffer.owner, buffer.pid(), buffer.path(), buffer.size);
                    f
                }));
            }));
        }
        Ok(Some(cell))
    }
}
