//! Ports: the receiving end as an object of this process, and the sending end as an address.

use std::sync::Arc;

use pyo3::prelude::*;
use runtime::peers::peer::{Head, Returned, Sent};
use runtime::{Mailbox, Mode, Node};
use wire::frame::{EXCEPTION, RANKED, RETURN, TO_PORT};
use wire::{CallId, MailboxId, ProcUid, Status};

use crate::bytes::Pickled;
use crate::caller::{message, send};
use crate::fork;
use crate::pending_call::PendingCall;
use crate::process::Process;
use crate::sender;

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
        let inner = self.node.calls.start(Mode::FirstError, 1, Arc::from([]));
        self.node.calls.forget(inner.call_id);
        if let Some((from, bytes)) = self.inner.take_into(&inner) {
            self.node.messages.give_credit(from, self.inner.id, bytes);
        }
        PendingCall::of_port(&self.node, inner, self.inner.clone())
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
    let py = value.py();
    let pickled = Pickled::new(value)?;
    let peer = process.node.peers.peer(ProcUid(proc));
    let payload = message(py, &process.node, std::slice::from_ref(&peer), &pickled)?;
    let flags =
        TO_PORT | if rank.is_some() { RANKED } else { 0 } | if exception { EXCEPTION } else { 0 } | if give_back { RETURN } else { 0 };
    let head = Head {
        dest: MailboxId(port),
        sender: MailboxId(sender::id()),
        call_id: CallId::NONE,
        rank: rank.unwrap_or(0),
        flags,
        ..Head::default()
    };
    if send(py, &process.node, &peer, &head, &payload, &pickled)? == Sent::Ended && give_back {
        process.node.replies.report_ended(Returned { sender: head.sender, dest: head.dest }, &peer);
    }
    Ok(())
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
