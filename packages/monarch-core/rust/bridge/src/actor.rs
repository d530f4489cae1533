//! The mailbox of an actor as a Python object, and the receive loop of sync actors.
//!
//! An async actor takes its deliveries by `watch` and `pop` on its event loop; a sync actor runs `run` on its thread. Before each delivery
//! the thread waits until all failures that have arrived are delivered.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use net::sys;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use runtime::mailboxes::mailbox::{CHOSEN, Consumer, Delivery, answer_rank};
use runtime::operations::{exit, loop_sleep, sender, wait};
use runtime::{Incoming, Mailbox, Node};
use wire::frame::{EXPLICIT_PORT, STOP};
use wire::{MailboxId, Status};

use crate::bytes::load;
use crate::call::{Call, reply};
use crate::deadline;
use crate::fork;
use crate::gil::{self, Gil};
use crate::process::Process;
use crate::trace;

/// The mailbox of an actor of this process.
#[pyclass(frozen)]
pub struct ActorMailbox {
    pub node: Arc<Node>,
    pub inner: Arc<Mailbox>,
}

#[pymethods]
impl ActorMailbox {
    #[new]
    fn new(process: &Process, id: u64) -> PyResult<Self> {
        let node = process.node.clone();
        let inner = node.mailboxes.get(MailboxId(id)).ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("the actor has ended"))?;
        Ok(ActorMailbox { node, inner })
    }

    #[getter]
    fn id(&self) -> u64 {
        self.inner.id.0
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Adds an event for the actor, which precedes messages; false if the actor has ended.
    fn push_event(&self, event: &[u8]) -> bool {
        self.inner.push_event(event.into())
    }

    /// Refuses queued and later messages with the encoded failure `reason`. Returns the queued requests to stop the actor instead of
    /// refusing them.
    fn close(&self, reason: &[u8]) -> Vec<Call> {
        self.node.messages.close_actor(self.inner.id, reason).into_iter().map(|m| Call::new(&self.node, &self.inner, m)).collect()
    }

    /// Fails the call whose message is in progress, because its endpoint may never return.
    fn fail_current(&self, reason: &[u8]) {
        self.node.messages.fail_current(&self.inner, reason);
    }

    /// Sets the name and the thread of the actor that takes from this mailbox. It is called on that thread.
    fn set_label(&self, display: String, thread: u64) {
        self.inner.set_label(display, thread);
    }

    /// Sets the work in progress that is no message; `None` if there is none.
    #[pyo3(signature = (name=None))]
    fn set_doing(&self, name: Option<&str>) {
        self.inner.set_doing(name);
    }

    /// The number of messages taken so far.
    #[getter]
    fn taken(&self) -> u64 {
        self.inner.taken()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.closed().is_some()
    }

    /// Makes the event loop of this thread the consumer. Returns the descriptor to watch.
    fn watch(&self) -> PyResult<i32> {
        let event = sys::eventfd()?;
        let fd = event.as_raw_fd();
        self.inner.set_consumer(Consumer::Loop(event, loop_sleep::sleeper()));
        Ok(fd)
    }

    /// The next delivery: a `Call`, the `bytes` of an event, or `None`. The thread leaves the trace of the previous message.
    fn pop(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        fork::exit_forked_child(py, None);
        trace::begin(py, None)?;
        if self.node.system.failures_in_flight() > 0 {
            gil::blocking(py, || self.node.system.settle());
        }
        let delivery = self.next();
        let at = if let Some(Delivery::Message(m)) = &delivery { m.due.map(|due| due.at) } else { None };
        deadline::begin(py, &self.node.poller, at)?;
        Ok(match delivery {
            None => {
                self.node.poller.flush_pending();
                None
            }
            Some(Delivery::Event(e)) => Some(PyBytes::new(py, &e).into_any().unbind()),
            Some(Delivery::Message(m)) => Some(Py::new(py, Call::new(&self.node, &self.inner, m))?.into_any()),
        })
    }

    /// The next delivery, for which the thread waits; `None` if the mailbox is closed.
    fn wait_pop(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let waiter = wait::waiter(&self.node.poller);
        self.inner.set_consumer(Consumer::Thread(waiter.clone()));
        loop {
            let found = self.pop(py)?;
            if found.is_some() || self.inner.closed().is_some() {
                return Ok(found);
            }
            wait::wait(&Gil(py), &self.node.poller, &waiter, None, || !self.inner.is_empty() || self.inner.closed().is_some())?;
        }
    }

    /// The next event; `None` if only messages wait.
    fn pop_event<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.inner.pop_event().map(|e| PyBytes::new(py, &e))
    }

    /// The receive loop of a sync actor. It returns when the mailbox is closed, or when a callback returns true.
    ///
    /// `resolve(name)` returns the bound method of a plain endpoint, or `None` if the message must go through `slow(call) -> bool`.
    /// `failed(call, stage, exception) -> bool` handles an error, and `event(bytes) -> bool` an event; true ends the loop. `enter(rank,
    /// extent)` sets the context of a message to a slice; `leave()` restores the usual context.
    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        py: Python<'_>,
        resolve: &Bound<'_, PyAny>,
        slow: &Bound<'_, PyAny>,
        failed: &Bound<'_, PyAny>,
        event: &Bound<'_, PyAny>,
        enter: &Bound<'_, PyAny>,
        leave: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let waiter = self.node.poller.waiter();
        self.inner.set_consumer(Consumer::Thread(waiter.clone()));
        let mut methods: HashMap<Box<[u8]>, Option<Py<PyAny>>> = HashMap::new();
        let mut sliced = false;
        loop {
            fork::exit_forked_child(py, None);
            if self.node.system.failures_in_flight() > 0 {
                gil::blocking(py, || self.node.system.settle());
            }
            match self.next() {
                None => {
                    if self.inner.closed().is_some() {
                        return Ok(());
                    }
                    wait::wait(&Gil(py), &self.node.poller, &waiter, None, || !self.inner.is_empty() || self.inner.closed().is_some())?;
                }
                Some(Delivery::Event(e)) => {
                    trace::begin(py, None)?;
                    deadline::begin(py, &self.node.poller, None)?;
                    if event.call1((PyBytes::new(py, &e),))?.is_truthy()? {
                        return Ok(());
                    }
                }
                Some(Delivery::Message(m)) => {
                    let target = if m.flags & (STOP | EXPLICIT_PORT) != 0 { None } else { self.method(py, &mut methods, resolve, &m)? };
                    if sliced || !m.extent.is_empty() {
                        sliced = !m.extent.is_empty();
                        if sliced {
                            if let Err(e) = enter.call1((m.rank & !CHOSEN, PyBytes::new(py, &m.extent))) {
                                // The extent is malformed, which is the fault of the sender.
                                self.node.messages.handled(&self.inner, m.from, m.cost());
                                if let Some(due) = m.due {
                                    self.node.messages.finish(&self.inner, due, false);
                                }
                                let call = Call::new(&self.node, &self.inner, m);
                                if failed.call1((call, "arguments", e.into_value(py)))?.is_truthy()? {
                                    return Ok(());
                                }
                                continue;
                            }
                        } else {
                            leave.call0()?;
                        }
                    }
                    trace::begin(py, m.trace.as_deref())?;
                    deadline::begin(py, &self.node.poller, m.due.map(|due| due.at))?;
                    let events_before = m.trace.as_deref().map(|t| events::set_trace(t.words()));
                    let end = match target {
                        Some(f) => self.handle(py, f.bind(py), m, failed)?,
                        None => slow.call1((Call::new(&self.node, &self.inner, m),))?.is_truthy()?,
                    };
                    if let Some(before) = events_before {
                        events::set_trace(before);
                    }
                    if end {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Sets the actor that this thread belongs to.
#[pyfunction]
pub fn set_thread_sender(mailbox: &ActorMailbox, on_loop: bool) {
    exit::set_runtime_thread();
    sender::set(&mailbox.inner, on_loop);
}

impl ActorMailbox {
    /// The next event or message. Messages whose deadline has passed are dropped.
    fn next(&self) -> Option<Delivery> {
        loop {
            match self.inner.pop()? {
                Delivery::Message(m) => {
                    if let Some(m) = self.node.messages.begin(&self.inner, m) {
                        return Some(Delivery::Message(m));
                    }
                }
                event => return Some(event),
            }
        }
    }

    /// The bound method of an endpoint, from the cache of the loop or by `resolve`.
    fn method(
        &self,
        py: Python<'_>,
        methods: &mut HashMap<Box<[u8]>, Option<Py<PyAny>>>,
        resolve: &Bound<'_, PyAny>,
        m: &Incoming,
    ) -> PyResult<Option<Py<PyAny>>> {
        if let Some(known) = methods.get(&m.method) {
            return Ok(known.as_ref().map(|f| f.clone_ref(py)));
        }
        let name = std::str::from_utf8(&m.method).unwrap_or("");
        let found = resolve.call1((name,))?;
        let found = if found.is_none() { None } else { Some(found.unbind()) };
        methods.insert(m.method.clone(), found.as_ref().map(|f| f.clone_ref(py)));
        Ok(found)
    }

    /// Runs a plain sync endpoint.
    fn handle(&self, py: Python<'_>, f: &Bound<'_, PyAny>, mut m: Incoming, failed: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (cost, began) = (m.cost(), events::now_if_on());
        let arguments = load(py, &m.parts);
        // The arguments that were made of large parts keep these parts alive.
        m.parts = Vec::new();
        let outcome = arguments.map_err(|e| ("arguments", e)).and_then(|message| {
            let call = || {
                let message = message.cast::<PyTuple>()?;
                let (args, kwargs) = (message.get_borrowed_item(0)?, message.get_borrowed_item(1)?);
                f.call(args.cast::<PyTuple>()?.to_owned(), Some(&*kwargs.cast::<PyDict>()?))
            };
            let value = call();
            // This check comes first: code that allocates or frees may need a lock that a thread of the parent held at the fork.
            fork::exit_forked_child(py, value.as_ref().err());
            let value = value.map_err(|e| ("call", e))?;
            drop(message);
            if m.call_id.is_none() {
                return Ok(());
            }
            if let Some(reason) = self.inner.closed() {
                // The actor failed while its endpoint ran.
                self.node.replies.send_bytes(m.from, m.call_id, answer_rank(m.rank), Status::Failed, &reason);
                return Ok(());
            }
            reply(&value, &self.node, m.from, m.call_id, m.rank).map_err(|e| ("result", e))
        });
        if !fork::is_forked() {
            if let Some(due) = m.due {
                self.node.messages.finish(&self.inner, due, false);
            }
            self.node.messages.handled(&self.inner, m.from, cost);
            if began > 0 {
                let (rank, failed) = (u64::from(m.rank & !CHOSEN), u64::from(outcome.is_err()));
                // The event is recorded in the trace of this thread.
                events::message_handled(self.inner.id.0, &m.method, rank, m.from.0, m.call_id.0, events::now() - began, failed);
            }
        }
        match outcome {
            Ok(()) => Ok(false),
            Err((stage, e)) => {
                let call = Call::new(&self.node, &self.inner, m);
                failed.call1((call, stage, e.into_value(py)))?.is_truthy()
            }
        }
    }
}
