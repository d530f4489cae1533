//! The registrations and transfers of this process.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use bulk::bulk::Identity;
use bulk::exports::Ended;
use bulk::{Buffer, Range, sys};
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use runtime::Node;

use super::ending::{Message, Notice, Notify, failed};
use super::fabric::Streams;
use super::handle::Handle;
use super::memory::SharedMemory;
use crate::fork;
use crate::process::Process;

/// The buffers and transfers of this process.
#[pyclass(frozen)]
pub struct Bulk {
    pub node: Arc<Node>,
    pub inner: Arc<bulk::Bulk>,
}

#[pymethods]
impl Bulk {
    /// `tracer` is the process that Yama is given as the tracer, an ancestor of the other processes; 0 if there is none. `opening` bounds
    /// the seconds for opening a connection. `streams` is the number of streams to each process of another host; 1 chooses it by the cores.
    #[new]
    fn new(process: &Process, job: u64, tracer: i32, opening: f64, streams: usize) -> PyResult<Self> {
        fork::check_not_forked()?;
        let node = process.node.clone();
        let me = Identity::new(node.uid.0, job, process.jobs.clone());
        let none = || PyOSError::new_err("cannot share memory: there is none");
        let server = process.exchanging.server().ok_or_else(none)?;
        let inner = bulk::Bulk::with(server, me, tracer, Duration::try_from_secs_f64(opening).unwrap_or(Duration::MAX));
        inner.reach_by(Arc::new(Streams { node: Arc::downgrade(&node), by_messages: true }), streams);
        Ok(Bulk { node, inner })
    }

    /// Registers memory of this process; `keep` keeps it alive and in place. The registration ends by itself after `lease` seconds.
    ///
    /// The thread that finds the memory unused drops `keep`. If this thread does not hold the GIL, the object is freed when native code of
    /// this module next takes the GIL.
    fn register(&self, address: usize, nbytes: usize, readonly: bool, lease: Option<f64>, keep: Py<PyAny>) -> PyResult<Handle> {
        fork::check_not_forked()?;
        let range = Range { address, len: nbytes, readonly };
        let buffer = self.inner.register(range, lease.map(sys::deadline), Box::new(keep)).map_err(|f| failed(&f))?;
        Ok(Handle::new(self.node.clone(), buffer, true))
    }

    /// Makes a handle from the fields that another process has sent. `is_remote` is true if the owner is on another host.
    fn handle(&self, id: [u8; 16], epoch: u64, owner: u64, nbytes: u64, readonly: bool, is_remote: bool) -> Handle {
        Handle::new(self.node.clone(), Buffer::new(self.inner.clone(), id, epoch, owner, nbytes, readonly, is_remote), false)
    }

    /// Allocates memory that other processes can map. `huge`: with huge pages, without them, or (`None`) by the default of the system.
    #[pyo3(signature = (nbytes, huge=None))]
    fn allocate(&self, py: Python<'_>, nbytes: usize, huge: Option<bool>) -> PyResult<SharedMemory> {
        fork::check_not_forked()?;
        let block = py.detach(|| self.inner.allocate(nbytes, huge));
        block.map(SharedMemory::of_block).map_err(|e| PyMemoryError::new_err(e.to_string()))
    }

    /// True if this range was allocated by `allocate`.
    fn is_shared(&self, address: usize, nbytes: usize) -> bool {
        self.inner.arena.find(address, nbytes).is_some()
    }

    /// Makes later connections copy through rings, as they do where the kernel refuses direct copies.
    fn refuse_direct(&self) {
        self.inner.refuse_direct();
    }

    /// Exports a buffer of this process to devices: address, size in bytes and read-only flag. Its memory stays until `unexport`, which the
    /// caller calls when `ended` reports the buffer.
    fn export(&self, id: [u8; 16], epoch: u64) -> PyResult<(usize, usize, bool)> {
        fork::check_not_forked()?;
        let range = self.inner.registry.export(&id, epoch).map_err(|f| failed(&f))?;
        Ok((range.address, range.len, range.readonly))
    }

    /// Notes that devices no longer know the buffer.
    fn unexport(&self, py: Python<'_>, id: [u8; 16]) {
        py.detach(|| self.inner.registry.exports.let_go(&id));
    }

    /// The descriptor that becomes readable when `ended` has results.
    fn fileno(&self) -> i32 {
        self.inner.registry.exports.fd().as_raw_fd()
    }

    /// Exported buffers that have ended since the last call, and memory of `allocation` that was freed: address, bytes.
    fn ended(&self) -> Ended {
        self.inner.registry.exports.take()
    }

    /// The allocation that contains this range: address, bytes, and a number that no other allocation ever has; `None` if there is none.
    fn allocation(&self, address: usize, nbytes: usize) -> Option<(usize, usize, u64)> {
        self.inner.allocation(address, nbytes)
    }

    /// Pickles a message to a port now, for a later send.
    fn notice(&self, notify: Notify<'_>) -> PyResult<Message> {
        Ok(Message(Notice::new(&self.node, notify)?))
    }

    /// The number of buffers of this process, and of buffers that have ended and are still in use.
    fn counts(&self) -> (usize, usize) {
        self.inner.registry.counts()
    }

    /// Ends all buffers of this process, and sends goodbyes to connected processes.
    fn close(&self, py: Python<'_>) {
        if !fork::is_forked() {
            py.detach(|| self.inner.close());
        }
    }
}
