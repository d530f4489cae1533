//! The outcome of an operation as a pending call, an exception, or a message to a port.

use std::sync::Arc;

use bulk::Failure;
use bulk::registry::Completion;
use pyo3::prelude::*;
use runtime::operations::port::{self, PortMessage};
use runtime::operations::sender;
use runtime::transfers::payload::{OutPart, Payload};
use runtime::{Mode, Node, Outcome};
use wire::{CallId, MailboxId, ProcUid, Status};

use crate::bytes::Pickled;
use crate::fork;
use crate::pending_call::PendingCall;

pyo3::create_exception!(_native, BulkFailed, pyo3::exceptions::PyException, "An operation failed; the only argument is a record of it.");

pub fn failed(f: &Failure) -> PyErr {
    BulkFailed::new_err((f.to_bytes(),))
}

/// A pending call for the outcome of an operation.
pub fn cell(node: &Arc<Node>) -> PendingCall {
    PendingCall::new(node, node.calls.start(Mode::FirstError, 1, Arc::from([])))
}

/// A completion that records the outcome in the pending call.
pub fn completion(cell: &PendingCall) -> Completion {
    let answer = cell.own_answer();
    Box::new(move |outcome| {
        let outcome = match outcome {
            Ok(()) => Outcome::new(0, Status::Ok, b""),
            Err(f) => Outcome::new(0, Status::Error, &f.to_bytes()),
        };
        answer.record(outcome);
    })
}

/// A message to a port, which is pickled at the request and sent when all bytes have arrived.
pub struct Notice {
    node: Arc<Node>,
    proc: ProcUid,
    to: u64,
    is_slot: bool,
    rank: Option<u32>,
    give_back: bool,
    sender: MailboxId,
    parts: Vec<(Vec<u8>, bool)>,
}

/// Process, port or call id, true for a call id, rank, whether an undeliverable message is returned, value.
pub type Notify<'py> = (u64, u64, bool, Option<u32>, bool, Bound<'py, PyAny>);

impl Notice {
    pub fn new(node: &Arc<Node>, (proc, to, is_slot, rank, give_back, value): Notify<'_>) -> PyResult<Notice> {
        let pickled = Pickled::new(&value)?;
        let parts = pickled.parts(value.py()).iter().map(|p| (p.bytes.to_vec(), p.readonly)).collect();
        let sender = MailboxId(sender::id());
        Ok(Notice { node: node.clone(), proc: ProcUid(proc), to, is_slot, rank, give_back, sender, parts })
    }

    fn parts(&self) -> Vec<OutPart<'_>> {
        self.parts.iter().map(|(bytes, readonly)| OutPart { bytes, readonly: *readonly }).collect()
    }

    fn send(&self) -> Result<(), Failure> {
        let payload = Payload::new(&self.node.arena, self.parts()).map_err(|e| Failure::system("no memory for the notification", &e))?;
        if self.is_slot {
            self.node.replies.send(self.proc, CallId(self.to), self.rank.unwrap_or(0), Status::Ok, &payload, || self.parts());
            return Ok(());
        }
        let message = PortMessage { port: MailboxId(self.to), rank: self.rank, is_exception: false, is_returnable: self.give_back };
        let peer = self.node.peers.peer(self.proc);
        port::send_or_queue(&self.node, &peer, self.sender, message, &payload, || self.parts());
        Ok(())
    }

    /// A completion that sends the message first, and then calls `then`.
    pub fn before(self, then: Completion) -> Completion {
        Box::new(move |outcome| then(outcome.and_then(|()| self.send())))
    }
}

/// The message to a port at the end of an operation, as a Python object.
#[pyclass(frozen)]
pub struct Message(pub Notice);

#[pymethods]
impl Message {
    fn send(&self) -> PyResult<()> {
        fork::check_not_forked()?;
        self.0.send().map_err(|f| failed(&f))
    }
}
