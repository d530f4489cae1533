//! A message to user code as a Python object; the fast path of plain sync endpoints does not use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::mailboxes::begun::Due;
use runtime::mailboxes::mailbox::{CHOSEN, answer_rank};
use runtime::operations::outgoing;
use runtime::{Incoming, Mailbox, Node};
use wire::frame::{EXPLICIT_PORT, STOP, TRACED};
use wire::{CallId, ProcUid, Status, Trace};

use crate::bytes::{Pickled, load};
use crate::caller::message;
use crate::deadline;
use crate::fork;
use crate::trace::TraceContext;

/// A message that user code handles.
#[pyclass(frozen)]
pub struct Call {
    pub node: Arc<Node>,
    pub mailbox: Arc<Mailbox>,
    pub to: ProcUid,
    pub call_id: CallId,
    pub rank: u32,
    pub flags: u8,
    pub trace: Option<Box<Trace>>,
    due: Option<Due>,
    pub method: Box<[u8]>,
    pub extent: Box<[u8]>,
    message: Mutex<Option<Incoming>>,
    cost: u64,
    /// For the recording of events: when the message was taken, and whether its answer is an error.
    began: u64,
    failed: AtomicBool,
}

impl Call {
    pub fn new(node: &Arc<Node>, mailbox: &Arc<Mailbox>, m: Incoming) -> Self {
        Call {
            node: node.clone(),
            mailbox: mailbox.clone(),
            to: m.from,
            call_id: m.call_id,
            rank: m.rank,
            flags: m.flags | if m.trace.is_none() { 0 } else { TRACED },
            trace: m.trace.clone(),
            due: m.due,
            method: m.method.clone(),
            extent: m.extent.clone(),
            cost: m.cost(),
            began: events::now_if_on(),
            failed: AtomicBool::new(false),
            message: Mutex::new(Some(m)),
        }
    }
}

#[pymethods]
impl Call {
    #[getter]
    fn method(&self) -> &str {
        std::str::from_utf8(&self.method).unwrap_or("")
    }

    #[getter]
    fn extent<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.extent)
    }

    /// The rank of the receiver within the addressed shape.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank & !CHOSEN
    }

    /// The rank under which the answer is recorded.
    #[getter]
    fn answer(&self) -> u32 {
        answer_rank(self.rank)
    }

    #[getter]
    fn flags(&self) -> u8 {
        self.flags
    }

    /// The trace of the message; `None` if its flags do not mark it as traced.
    #[getter]
    fn trace(&self) -> Option<TraceContext> {
        self.trace.as_deref().copied().map(TraceContext)
    }

    #[getter]
    fn slot(&self) -> u64 {
        self.call_id.0
    }

    #[getter]
    fn caller(&self) -> u64 {
        self.to.0
    }

    /// True if the caller waits for an answer.
    #[getter]
    fn wants_reply(&self) -> bool {
        !self.call_id.is_none()
    }

    /// Unpickles the arguments. They can be taken once.
    fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let m = self.message.lock().unwrap_or_else(PoisonError::into_inner).take();
        match m {
            Some(m) => load(py, &m.parts),
            None => Err(pyo3::exceptions::PyRuntimeError::new_err("arguments were taken already")),
        }
    }

    /// The bytes of a message with one part, without unpickling.
    fn raw<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let m = self.message.lock().unwrap_or_else(PoisonError::into_inner).take();
        crate::bytes::raw(py, m.as_ref().map_or(&[], |m| &m.parts))
    }

    /// Sends the result. If pickling the result raises an exception, nothing is sent.
    fn reply(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        fork::exit_forked_child(value.py(), None);
        if self.call_id.is_none() {
            return Ok(());
        }
        reply(value, &self.node, self.to, self.call_id, self.rank)
    }

    /// Sends an error: status 1 for a packed exception, 2 for a failure.
    fn reply_error(&self, py: Python<'_>, status: u8, body: &[u8]) {
        fork::exit_forked_child(py, None);
        let status = if status == Status::Failed as u8 { Status::Failed } else { Status::Error };
        self.failed.store(true, Ordering::Relaxed);
        self.node.replies.send_bytes(self.to, self.call_id, answer_rank(self.rank), status, body);
    }

    /// The number of the message among those with a deadline; 0 for a message without one.
    #[getter]
    fn number(&self) -> u64 {
        self.due.map_or(0, |due| due.number)
    }

    /// Begins a message that its actor has set aside: this code has its deadline from now on. False if the deadline has passed; then the
    /// message is over.
    fn begins(&self, py: Python<'_>) -> PyResult<bool> {
        deadline::begin(py, &self.node.poller, self.due.map(|due| due.at))?;
        if self.flags & STOP != 0 || self.due.is_none_or(|due| due.at > self.node.poller.now()) {
            return Ok(true);
        }
        self.node.messages.count_expired();
        self.handled(py, false);
        Ok(false)
    }

    /// Ends the deadline of a message that `handled` has left in progress.
    fn finished(&self) {
        if let Some(due) = self.due {
            self.node.messages.finish(&self.mailbox, due, self.flags & EXPLICIT_PORT != 0);
        }
    }

    /// Returns the credit of the message to its sender. With `continues`, the endpoint runs beside the next messages.
    #[pyo3(signature = (continues=false))]
    fn handled(&self, py: Python<'_>, continues: bool) {
        fork::exit_forked_child(py, None);
        if !continues {
            self.finished();
        }
        self.node.messages.handled(&self.mailbox, self.to, self.cost);
        if self.began > 0 {
            let (rank, failed) = (u64::from(self.rank & !CHOSEN), u64::from(self.failed.load(Ordering::Relaxed)));
            let (mesh, took) = (self.mailbox.id.0, events::now() - self.began);
            let handled = || events::message_handled(mesh, &self.method, rank, self.to.0, self.call_id.0, took, failed);
            events::in_trace(self.trace.as_deref().copied().unwrap_or_default().words(), handled);
        }
    }
}

/// Sends the result of a call.
pub fn reply(value: &Bound<'_, PyAny>, node: &Node, to: ProcUid, call_id: CallId, rank: u32) -> PyResult<()> {
    let py = value.py();
    let pickled = Pickled::new(value)?;
    let peer = outgoing::receiver(&node.peers, to, pickled.len(py));
    let payload = message(py, node, peer.as_slice(), &pickled)?;
    node.replies.send(to, call_id, answer_rank(rank), Status::Ok, &payload, || pickled.parts(py));
    Ok(())
}
