//! The registrations and transfers of this process.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use bulk::bulk::Identity;
use bulk::exports::Ended;
use bulk::{Range, Remote, sys};
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use runtime::Node;

use super::ending::{Message, Notice, Notify, failed};
use super::fabric::Streams;
use super::handle::Handle;
use super::memory::SharedMemory;
use crate::gil;
use crate::process::Process;

#[pyclass(frozen)]
pub struct Bulk {
    pub node: Arc<Node>,
    pub inner: Arc<bulk::Bulk>,
}

#[pymethods]
impl Bulk {
    /// `tracer`: the process that is named to Yama, an ancestor of the others; 0 if there is none. `opening`: bound
    /// for opening a connection, seconds. `streams`: to each process of another host; 1: as many as bring anything.
    #[new]
    fn new(process: &Process, job: u64, tracer: i32, opening: f64, streams: usize) -> PyResult<Self> {
        gil::check_not_forked()?;
        let node = process.node.clone();
        let me = Identity::new(node.uid.0, job, process.jobs.clone());
        let none = || PyOSError::new_err("cannot share memory: there is none");
        let answering = process.exchanging.answering().ok_or_else(none)?;
        let inner = bulk::Bulk::with(answering, me, tracer, Duration::try_from_secs_f64(opening).unwrap_or(Duration::MAX));
        inner.reach_by(Arc::new(Streams { node: Arc::downgrade(&node), by_messages: true }), streams);
        Ok(Bulk { node, inner })
    }

    /// Registers memory of this process, which `keep` keeps where it is. Ends by itself after `lease` seconds.
    ///
    /// What `keep` is let go of on the thread that finds out that nobody uses the memory any more; without the GIL, which means the next
    /// time that native code of ours takes it.
    fn register(&self, address: usize, nbytes: usize, readonly: bool, lease: Option<f64>, keep: Py<PyAny>) -> PyResult<Handle> {
        gil::check_not_forked()?;
        let range = Range { address, len: nbytes, readonly };
        let remote = self.inner.register(range, lease.map(sys::deadline), Box::new(keep)).map_err(|f| failed(&f))?;
        Ok(Handle::new(self.node.clone(), remote, true))
    }

    /// A handle that somebody was given. `is_far`: the owner is on another host.
    fn handle(&self, id: [u8; 16], epoch: u64, owner: u64, nbytes: u64, readonly: bool, is_far: bool) -> Handle {
        Handle::new(self.node.clone(), Remote::new(self.inner.clone(), id, epoch, owner, nbytes, readonly, is_far), false)
    }

    /// Memory that others can map. `huge`: with huge pages, without, or as the system likes.
    #[pyo3(signature = (nbytes, huge=None))]
    fn allocate(&self, py: Python<'_>, nbytes: usize, huge: Option<bool>) -> PyResult<SharedMemory> {
        gil::check_not_forked()?;
        let block = py.detach(|| self.inner.allocate(nbytes, huge));
        block.map(SharedMemory::of_block).map_err(|e| PyMemoryError::new_err(e.to_string()))
    }

    /// Is this range memory of `allocate`?
    fn is_shared(&self, address: usize, nbytes: usize) -> bool {
        self.inner.arena.find(address, nbytes).is_some()
    }

    /// Connections from now on copy through rings, as where the kernel refuses direct copies.
    fn refuse_direct(&self) {
        self.inner.refuse_direct();
    }

    /// Address, bytes and mode of a buffer of this process that devices are going to know. Its memory stays until `unexport`, which is to
    /// follow when `ended` names it.
    fn export(&self, id: [u8; 16], epoch: u64) -> PyResult<(usize, usize, bool)> {
        gil::check_not_forked()?;
        let range = self.inner.registry.export(&id, epoch).map_err(|f| failed(&f))?;
        Ok((range.address, range.len, range.readonly))
    }

    /// Devices do not know it any more.
    fn unexport(&self, py: Python<'_>, id: [u8; 16]) {
        py.detach(|| self.inner.registry.exports.let_go(&id));
    }

    /// Becomes readable when `ended` has something to tell.
    fn fileno(&self) -> i32 {
        self.inner.registry.exports.fd().as_raw_fd()
    }

    /// Exported buffers that have ended since the last time, and memory of `allocation` that was freed: address, bytes.
    fn ended(&self) -> Ended {
        self.inner.registry.exports.take()
    }

    /// The memory of `allocate` that this range is in: address, bytes, and a number that no other memory ever has; else none.
    fn allocation(&self, address: usize, nbytes: usize) -> Option<(usize, usize, u64)> {
        self.inner.allocation(address, nbytes)
    }

    /// A message to a port, pickled now and sent later.
    fn notice(&self, notify: Notify<'_>) -> PyResult<Message> {
        Ok(Message(Notice::new(&self.node, notify)?))
    }

    /// Buffers of this process, and those that have ended and are still in use.
    fn counts(&self) -> (usize, usize) {
        self.inner.registry.counts()
    }

    /// Ends all buffers of this process, and says goodbye.
    fn close(&self, py: Python<'_>) {
        if !gil::is_forked() {
            py.detach(|| self.inner.close());
        }
    }
}
