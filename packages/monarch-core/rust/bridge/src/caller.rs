//! The actors that a handle addresses, and the caller of one of their methods, as Python objects: all adverbs use them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use runtime::operations::outgoing;
use runtime::operations::targets::{self, Outgoing, head};
use runtime::peers::peer::{Head, View};
use runtime::{Mode, Node, Payload, Peer};
use wire::frame::EXPLICIT_PORT;
use wire::{CallId, MailboxId, Trace};

use crate::bytes::Pickled;
use crate::deadline;
use crate::fork;
use crate::gil::Gil;
use crate::pending_call::{PendingCall, mode};
use crate::process::Process;
use crate::provided;
use crate::trace;

/// The actors that a handle addresses, by rank.
#[pyclass(frozen)]
pub struct Targets(targets::Targets);

#[pymethods]
impl Targets {
    #[new]
    fn new(process: &Process, procs: Vec<u64>, mailbox: u64) -> PyResult<Self> {
        fork::check_not_forked()?;
        Ok(Targets(targets::Targets::new(&process.node, &procs, MailboxId(mailbox))))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Sends a stop to all targets, behind all earlier messages. Each target answers when it has stopped, also after the deadline of this
    /// code.
    fn stop(&self, py: Python<'_>, body: &[u8]) -> PyResult<PendingCall> {
        fork::check_not_forked()?;
        let node = self.0.node();
        let at = deadline::of_call(py, &node.poller, None)?;
        let call = self.0.stop(body, deadline::left(&node.poller, at));
        if let Some(at) = at {
            node.calls.limit(&call, at, true);
        }
        Ok(PendingCall::new(node, call))
    }
}

/// The caller of one method of the addressed actors.
#[pyclass(frozen)]
pub struct Caller {
    targets: Py<Targets>,
    method: Box<[u8]>,
    extent: Box<[u8]>,
    /// 1 more than the first rank that is addressed, and the dimensions, as events have them; 0 and none for the whole mesh.
    view: (u64, Box<[u8]>),
    flags: u8,
    /// The seconds that a call may take, besides the deadline of the calling code.
    timeout: Option<f64>,
}

/// The begin of a call: its pending call if there are answers, and the head of its messages. A call whose deadline has passed sends none.
enum Begun<'a> {
    Sent(Option<PendingCall>, Head<'a>),
    Expired(PendingCall),
}

impl Caller {
    /// Begins a call of all ranks, or of the rank `only`.
    fn start(&self, py: Python<'_>, at: Option<Instant>, mode: Option<Mode>, only: Option<usize>) -> PyResult<Begun<'_>> {
        let targets = &self.targets.get().0;
        let node = targets.node();
        let around = trace::current(py)?;
        let left = deadline::left(&node.poller, at);
        if left == Some(Duration::ZERO) {
            let call = targets.start(mode.unwrap_or(Mode::Gather), only);
            node.calls.expire_unsent(&call);
            node.messages.count_expired();
            return Ok(Begun::Expired(PendingCall::new(node, call)));
        }
        // The object owns the pending call from here on, so an interrupt while this thread waits for credit frees the call id.
        let call = mode.map(|mode| PendingCall::new(node, targets.start(mode, only)));
        if let (Some(call), Some(at)) = (&call, at) {
            node.calls.limit(&call.inner, at, false);
        }
        let head = self.head(around, left, call.as_ref().map_or(CallId::NONE, |c| c.inner.call_id));
        Ok(Begun::Sent(call, head))
    }

    /// The head of all messages of one call.
    fn head(&self, around: Trace, left: Option<Duration>, call_id: CallId) -> Head<'_> {
        let view = View { offset: self.view.0, dims: &self.view.1 };
        Head { view, left, method: &self.method, extent: &self.extent, ..head(call_id, self.flags, around) }
    }
}

#[pymethods]
impl Caller {
    /// With `explicit`, the method receives a port for its answer. `view` is the first rank and the dimensions of the addressed part, for
    /// events; none for the whole mesh. A call takes at most `timeout` seconds.
    #[new]
    #[pyo3(signature = (targets, method, extent, explicit, view=None, timeout=None))]
    fn new(
        targets: &Bound<'_, Targets>,
        method: &str,
        extent: &[u8],
        explicit: bool,
        view: Option<(u64, Bound<'_, PyString>)>,
        timeout: Option<f64>,
    ) -> Self {
        let flags = if explicit { EXPLICIT_PORT } else { 0 };
        let view = view.map_or_else(Default::default, |(offset, dims)| (offset + 1, dims.to_string_lossy().as_bytes().into()));
        Caller { targets: targets.clone().unbind(), method: method.as_bytes().into(), extent: extent.into(), view, flags, timeout }
    }

    /// Pickles the arguments, and sends them to all ranks or to the rank `only`. Returns the pending call, or `None` if `how` is -1. A call
    /// whose deadline has passed is not sent, and returned as expired, whatever `how` is.
    #[pyo3(signature = (args, kwargs, how, only=None))]
    fn send(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        how: i32,
        only: Option<usize>,
    ) -> PyResult<Option<PendingCall>> {
        fork::check_not_forked()?;
        let (mode, targets) = (mode(how)?, &self.targets.get().0);
        provided::check_no_per_rank(args, kwargs)?;
        let at = deadline::of_call(py, &targets.node().poller, self.timeout)?;
        let pickled = arguments(args, kwargs)?;
        let payload = message(py, targets.node(), targets.peers(only), &pickled)?;
        // From here on no Python code runs, except signal handlers while this thread waits for credit.
        let (call, head) = match self.start(py, at, mode, only)? {
            Begun::Sent(call, head) => (call, head),
            Begun::Expired(call) => return Ok(Some(call)),
        };
        let message = Outgoing { head, payload, local: || pickled.parts(py) };
        targets.send(&Gil(py), &message, only, call.as_ref().map(|c| &*c.inner))?;
        Ok(call)
    }

    /// Sends pickled arguments to all ranks: to each rank its `pieces`, and behind them the `common` ones if there are any. `places` has
    /// the same number of places in `pieces` for each rank. The result is that of `send`.
    fn send_each(
        &self,
        py: Python<'_>,
        common: Option<&Bound<'_, PyTuple>>,
        pieces: Vec<Bound<'_, PyTuple>>,
        places: Vec<u32>,
        how: i32,
    ) -> PyResult<Option<PendingCall>> {
        fork::check_not_forked()?;
        let (mode, targets) = (mode(how)?, &self.targets.get().0);
        let at = deadline::of_call(py, &targets.node().poller, self.timeout)?;
        let common = common.map(Pickled::of).transpose()?;
        let pieces = pieces.iter().map(Pickled::of).collect::<PyResult<Vec<_>>>()?;
        let (node, peers) = (targets.node(), targets.peers(None));
        let common_parts = common.as_ref().map_or_else(Vec::new, |common| common.parts(py));
        let parts = pieces.iter().map(|p| p.parts(py)).collect();
        let mut payloads = outgoing::rank_payloads(&node.arena, peers, common_parts, parts, places.clone())
            .map_err(|why| provided::delivery_error(py, why))?;
        if outgoing::needs_transport(&node.offers, peers, payloads.largest()) {
            provided::choose_bulk_transport(py, &node.offers)?;
        }
        // As in `send`.
        let (call, head) = match self.start(py, at, mode, None)? {
            Begun::Sent(call, head) => (call, head),
            Begun::Expired(call) => return Ok(Some(call)),
        };
        let local = |rank| {
            let each = places.len() / targets.len().max(1);
            let own = places[rank * each..(rank + 1) * each].iter().map(|place| &pieces[*place as usize]);
            own.chain(&common).flat_map(|pickled| pickled.parts(py)).collect()
        };
        match targets.send_each(&Gil(py), head, &mut payloads, local, call.as_ref().map(|c| &*c.inner))? {
            None => Ok(call),
            Some(why) => Err(provided::delivery_error(py, why)),
        }
    }

    /// Sends to all ranks or one rank. The answers go to a pending call of another process.
    fn send_to_slot(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        slot: u64,
        only: Option<usize>,
    ) -> PyResult<()> {
        let targets = &self.targets.get().0;
        let pickled = arguments(args, kwargs)?;
        let payload = message(py, targets.node(), targets.peers(only), &pickled)?;
        let left = deadline::left(&targets.node().poller, deadline::of_call(py, &targets.node().poller, self.timeout)?);
        let head = self.head(trace::current(py)?, left, CallId(slot));
        targets.send_for_other(&Gil(py), &Outgoing { head, payload, local: || pickled.parts(py) }, only)
    }
}

fn arguments(args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<Pickled> {
    Pickled::new(PyTuple::new(args.py(), [args.as_any(), kwargs.as_any()])?.as_any())
}

/// The payload of a message to these processes. Raises `DeliveryError` before any send if one of them cannot receive it.
pub fn message<'a>(py: Python<'a>, node: &Node, peers: &[Arc<Peer>], pickled: &'a Pickled) -> PyResult<Payload<'a>> {
    let payload = outgoing::payload(&node.arena, peers, pickled.parts(py)).map_err(|why| provided::delivery_error(py, why))?;
    if outgoing::needs_transport(&node.offers, peers, payload.largest()) {
        provided::choose_bulk_transport(py, &node.offers)?;
    }
    Ok(payload)
}
