//! Ports: the receiving end as an object of this process, and the sending end as an address.

use std::sync::Arc;

use pyo3::prelude::*;
use runtime::operations::port::{self, PortMessage};
use runtime::{Mailbox, Node};
use wire::{CallId, MailboxId, ProcUid, Status};

use crate::bytes::Pickled;
use crate::caller::message;
use crate::fork;
use crate::gil::Gil;
use crate::pending_call::PendingCall;
use crate::process::Process;

/// The receiving end of a port. Dropping it closes the port.
#[pyclass(frozen)]
pub struct PortMailbox {
    node: Arc<Node>,
    inner: Arc<Mailbox>,
}

impl Drop for PortMailbox {
    fn drop(&mut self) {
        if !fork::is_forked() {
            self.node.messages.close_port(self.inner.id);
        }
    }
}

#[pymethods]
impl PortMailbox {
    #[new]
    fn new(process: &Process, id: u64) -> PyResult<Self> {
        fork::check_not_forked()?;
        let node = process.node.clone();
        let inner = node.mailboxes.get(MailboxId(id)).ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("the port is closed"))?;
        Ok(PortMailbox { node, inner })
    }

    #[getter]
    fn id(&self) -> u64 {
        self.inner.id.0
    }

    /// A pending receive of the next message that no other receive takes.
    fn receive(&self) -> PendingCall {
        PendingCall::of_port(&self.node, port::receive(&self.node, &self.inner), self.inner.clone())
    }

    fn close(&self) {
        self.node.messages.close_port(self.inner.id);
    }
}

/// Sends an object to a port of any process.
#[pyfunction]
#[pyo3(signature = (process, proc, port, value, rank=None, exception=false, give_back=true))]
#[allow(clippy::too_many_arguments)]
pub fn send_to_port(
    process: &Process,
    proc: u64,
    port: u64,
    value: &Bound<'_, PyAny>,
    rank: Option<u32>,
    exception: bool,
    give_back: bool,
) -> PyResult<()> {
    fork::check_not_forked()?;
    let (py, node) = (value.py(), &process.node);
    let pickled = Pickled::new(value)?;
    let peer = node.peers.peer(ProcUid(proc));
    let payload = message(py, node, std::slice::from_ref(&peer), &pickled)?;
    let head = PortMessage { port: MailboxId(port), rank, is_exception: exception, is_returnable: give_back };
    port::send(&Gil(py), node, &peer, head, &payload, || pickled.parts(py))
}

/// Answers a pending call of any process with an object.
#[pyfunction]
#[pyo3(signature = (process, proc, slot, rank, value, status=0))]
pub fn send_to_slot(process: &Process, proc: u64, slot: u64, rank: u32, value: &Bound<'_, PyAny>, status: u8) -> PyResult<()> {
    fork::check_not_forked()?;
    let py = value.py();
    let pickled = Pickled::new(value)?;
    let payload = message(py, &process.node, &[process.node.peers.peer(ProcUid(proc))], &pickled)?;
    let status = if status == 0 { Status::Ok } else { Status::Error };
    process.node.replies.send(ProcUid(proc), CallId(slot), rank, status, &payload, || pickled.parts(py));
    Ok(())
}
