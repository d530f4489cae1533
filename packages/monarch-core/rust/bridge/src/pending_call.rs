//! A pending call as a Python object.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::RecvPart;
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::calls::pending_call::CallReport;
use runtime::operations::{port, wait};
use runtime::{Mailbox, Mode, Node, Outcome};
use wire::Status;
use wire::control::CallState;

use crate::bytes::{load, raw};
use crate::deadline;
use crate::fork;
use crate::gil::Gil;
use crate::protocol::protocol::{FIRST_ERROR, GATHER, NO_ANSWER, ONLY_ANSWER, STREAM};
use crate::watcher::LoopWatcher;

/// The condition under which a call is done, from its number; `None` for a call without an answer.
pub fn mode(n: i32) -> PyResult<Option<Mode>> {
    Ok(match n {
        NO_ANSWER => None,
        FIRST_ERROR | ONLY_ANSWER => Some(Mode::FirstError),
        GATHER => Some(Mode::Gather),
        STREAM => Some(Mode::Stream),
        _ => return Err(PyValueError::new_err("no such mode")),
    })
}

/// A call in flight. Dropping it discards the replies that have not arrived.
#[pyclass(frozen)]
pub struct PendingCall {
    pub node: Arc<Node>,
    pub inner: Arc<runtime::PendingCall>,
    /// For a receive: the mailbox of its port.
    port: Option<Arc<Mailbox>>,
}

impl PendingCall {
    pub fn new(node: &Arc<Node>, inner: Arc<runtime::PendingCall>) -> Self {
        PendingCall { node: node.clone(), inner, port: None }
    }

    pub fn of_port(node: &Arc<Node>, inner: Arc<runtime::PendingCall>, port: Arc<Mailbox>) -> Self {
        PendingCall { node: node.clone(), inner, port: Some(port) }
    }

    /// For the code of this process that answers the call.
    pub fn own_answer(&self) -> OwnAnswer {
        OwnAnswer { node: self.node.clone(), call: self.inner.clone() }
    }

    /// An outcome for the user, who reads an error with it.
    fn read(&self, outcome: Arc<Outcome>) -> Result {
        if outcome.status == Status::Error {
            self.inner.error_read.store(true, Ordering::Release);
        }
        Result(outcome)
    }

    /// Abandons a receive whose item was not read.
    fn leave_port(&self) {
        if let Some(mailbox) = &self.port {
            port::abandon(&self.node, mailbox, &self.inner);
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !fork::is_forked() {
            self.leave_port();
            self.node.calls.drop_call(&self.inner);
        }
    }
}

#[pymethods]
impl PendingCall {
    /// True if there is an answer to read. `index` counts the arrivals of a stream.
    #[pyo3(signature = (index=0))]
    fn done(&self, index: usize) -> bool {
        self.inner.is_done(index)
    }

    #[getter]
    fn slot(&self) -> u64 {
        self.inner.call_id.0
    }

    /// Blocks until there is an answer; false after `timeout` seconds. Signal handlers run meanwhile.
    #[pyo3(signature = (index=0, timeout=None))]
    fn wait(&self, py: Python<'_>, index: usize, timeout: Option<f64>) -> PyResult<bool> {
        if self.inner.is_done(index) {
            return Ok(true);
        }
        fork::check_not_forked()?;
        let poller = &self.node.poller;
        let deadline = timeout.map(|t| poller.now() + Duration::from_secs_f64(t));
        let waiter = wait::waiter(poller);
        self.inner.add_waiter(&waiter);
        let r = wait::wait_for_answer(&Gil(py), poller, &waiter, deadline, || self.inner.is_done(index));
        self.inner.remove_waiter(&waiter);
        r
    }

    /// Adds `token` to the watcher's list when there is an answer.
    fn watch(&self, index: usize, watcher: &LoopWatcher, token: u64) {
        self.inner.watch(index, watcher.inner.clone(), token);
        // The event loop is probably about to sleep, so pending writes are flushed now.
        self.node.poller.flush_pending();
    }

    /// The error that ended the call; `None` if no error did.
    fn error(&self) -> Option<Result> {
        self.inner.error().map(|o| self.read(o))
    }

    /// The answer of a rank.
    fn result(&self, rank: usize) -> Option<Result> {
        if self.port.is_some() {
            self.inner.retrieved.store(true, Ordering::Release);
        }
        self.inner.outcome(rank).map(|o| self.read(o))
    }

    /// Abandons a receive: an item that has arrived and was not read goes to the next receive.
    fn leave(&self) {
        self.leave_port();
    }

    /// The answers of all ranks.
    fn results(&self) -> Vec<Option<Result>> {
        self.inner.outcomes().into_iter().map(|o| o.map(|o| self.read(o))).collect()
    }

    /// The i-th answer of a stream.
    fn arrival(&self, index: usize) -> Option<Result> {
        self.inner.arrival(index).map(|o| self.read(o))
    }

    /// The value of a call to one rank, in one step; `None` if it is an error or has not arrived.
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        match self.inner.outcome(0) {
            Some(o) if o.status == Status::Ok => Ok(Some((load(py, &o.parts)?,))),
            _ => Ok(None),
        }
    }

    /// Gives the call the deadline of this code, if the code has one. With `goes_on`, an operation continues after the deadline: the next
    /// observer may set another one.
    #[pyo3(signature = (goes_on=false))]
    fn limit(&self, py: Python<'_>, goes_on: bool) -> PyResult<()> {
        if let Some(at) = deadline::of_call(py, &self.node.poller, None)? {
            self.node.calls.limit(&self.inner, at, goes_on);
        } else if goes_on {
            self.node.calls.unlimit(&self.inner);
        }
        Ok(())
    }

    /// After the end of a call by its deadline: rank, state, name and place, and seconds in the state, of each rank without an answer.
    /// `None` if the deadline has not ended the call.
    fn unanswered(&self) -> Option<Vec<Unanswered>> {
        let row = |(rank, report): (u32, Option<CallReport>)| {
            let Some(CallReport { state, time }) = report else {
                return Unanswered { rank, state: "silent", name: String::new(), place: String::new(), seconds: 0.0 };
            };
            let (state, name, place) = match state {
                CallState::Queued { behind } => ("queued", behind, String::new()),
                CallState::Running { endpoint, place } => ("running", endpoint, place),
                CallState::Owed => ("owed", String::new(), String::new()),
                CallState::Unsent => ("unsent", String::new(), String::new()),
                CallState::Ended => ("ended", String::new(), String::new()),
            };
            Unanswered { rank, state, name, place, seconds: time.as_secs_f64() }
        };
        Some(self.inner.unanswered()?.into_iter().map(row).collect())
    }

    /// Notes that the user has seen the error.
    fn set_retrieved(&self) {
        self.inner.retrieved.store(true, Ordering::Release);
    }

    /// Answers a rank from this process.
    fn complete(&self, rank: u32, status: u8, body: &[u8]) -> PyResult<()> {
        let status = Status::from_u8(status).map_err(|e| PyValueError::new_err(e.to_string()))?;
        self.own_answer().record(Outcome::new(rank, status, body));
        Ok(())
    }
}

/// The answer to a call by this process itself. No message brings it.
pub struct OwnAnswer {
    node: Arc<Node>,
    call: Arc<runtime::PendingCall>,
}

impl OwnAnswer {
    /// Records an outcome. A call that is done is not in flight any more.
    pub fn record(&self, outcome: Arc<Outcome>) {
        if self.call.complete(outcome) {
            self.node.calls.forget(self.call.call_id);
        }
    }
}

/// A rank without an answer at the deadline of its call. `state` is `queued` behind the work `name`, `running` the endpoint `name` at
/// `place`, `owed` by a port, `unsent`, `ended` for an ended process, or `silent` for a process that has not reported.
#[pyclass(frozen, get_all)]
pub struct Unanswered {
    rank: u32,
    state: &'static str,
    name: String,
    place: String,
    seconds: f64,
}

/// The outcome of one rank, which is not unpickled yet. Two results are equal if their bytes are equal.
#[pyclass(frozen)]
pub struct Result(pub Arc<Outcome>);

#[pymethods]
impl Result {
    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank
    }

    #[getter]
    fn sender_rank(&self) -> Option<u32> {
        self.0.sender_rank
    }

    #[getter]
    fn status(&self) -> u8 {
        self.0.status as u8
    }

    fn load<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        load(py, &self.0.parts)
    }

    fn raw<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        raw(py, &self.0.parts)
    }

    fn __richcmp__(&self, other: &Self, op: CompareOp) -> bool {
        let same = Arc::ptr_eq(&self.0, &other.0) || (self.0.status == other.0.status && equal(&self.0.parts, &other.0.parts));
        match op {
            CompareOp::Eq => same,
            CompareOp::Ne => !same,
            _ => false,
        }
    }

    fn __hash__(&self) -> isize {
        self.0.parts.first().map_or(0, |p| p.len() as isize)
    }
}

/// Compares inline parts. Shared parts count as different: comparing large buffers costs more than it saves to keep equal ones once.
fn equal(a: &[RecvPart], b: &[RecvPart]) -> bool {
    let same = |(x, y): (&RecvPart, &RecvPart)| match (x, y) {
        (RecvPart::Inline { data: x, readonly: true }, RecvPart::Inline { data: y, readonly: true }) => x == y,
        _ => false,
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}
