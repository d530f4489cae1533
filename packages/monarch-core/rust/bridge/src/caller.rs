//! The sending of messages: all adverbs use this module.
//!
//! The arguments are pickled once for all targets. A message to several targets on other hosts is sent as a cast; other messages are sent
//! one by one. A thread without credit waits, but not on an event loop and not while its actor has messages.

use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use runtime::caster::Group;
use runtime::mailboxes::mailbox::CHOSEN;
use runtime::peers::peer::{Head, Sent, View};
use runtime::{Mode, Node, Payload, Peer};
use wire::frame::{EXPLICIT_PORT, STOP};
use wire::{CallId, MailboxId, ProcUid, Trace};

use crate::bytes::Pickled;
use crate::fork;
use crate::gil;
use crate::pending_call::{PendingCall, mode};
use crate::process::Process;
use crate::provided;
use crate::sender;
use crate::trace;

/// The size from which a part needs the decision which bulk transport moves parts to other hosts.
pub const LARGE: usize = 1 << 20;

/// The actors that a handle addresses, by rank.
#[pyclass(frozen)]
pub struct Targets {
    pub node: Arc<Node>,
    pub peers: Arc<[Arc<Peer>]>,
    pub ids: Arc<[(ProcUid, MailboxId)]>,
    /// The targets on other hosts, if a message to all targets is sent as a cast.
    group: OnceLock<Option<Group>>,
}

#[pymethods]
impl Targets {
    #[new]
    fn new(process: &Process, procs: Vec<u64>, mailbox: u64) -> PyResult<Self> {
        fork::check_not_forked()?;
        let node = process.node.clone();
        let peers = procs.iter().map(|p| node.peers.peer(ProcUid(*p))).collect();
        let ids = procs.iter().map(|p| (ProcUid(*p), MailboxId(mailbox))).collect();
        Ok(Targets { node, peers, ids, group: OnceLock::new() })
    }

    fn __len__(&self) -> usize {
        self.peers.len()
    }

    /// Sends a stop to all targets, behind all earlier messages. Each target answers when it has stopped.
    fn stop(&self, body: &[u8]) -> PyResult<PendingCall> {
        fork::check_not_forked()?;
        let inner = self.node.calls.start(Mode::Gather, self.ids.len(), self.ids.clone());
        let payload = runtime::Payload::small(body);
        for (i, peer) in self.peers.iter().enumerate() {
            let head = Head {
                dest: self.ids[i].1,
                sender: MailboxId(sender::id()),
                call_id: inner.call_id,
                rank: i as u32,
                flags: STOP,
                ..Head::default()
            };
            let local = || vec![runtime::transfers::payload::OutPart { bytes: body, readonly: true }];
            self.node.messages.send(peer, &head, &payload, local, true);
            if peer.ended().is_some() {
                self.node.calls.fail_rank(&inner, i as u32, peer);
            }
        }
        Ok(PendingCall::new(&self.node, inner))
    }
}

/// The caller of one method of the addressed actors.
#[pyclass(frozen)]
pub struct Caller {
    node: Arc<Node>,
    targets: Py<Targets>,
    method: Box<[u8]>,
    extent: Box<[u8]>,
    /// 1 more than the first rank that is addressed, and the dimensions, as events have them; 0 and none for the whole mesh.
    view: (u64, Box<[u8]>),
    flags: u8,
}

/// The common properties of the messages of one call, and the pending call that receives the answers.
struct Sending<'a> {
    head: Head<'a>,
    payload: Payload<'a>,
    pickled: &'a Pickled,
    cell: Option<&'a runtime::PendingCall>,
}

/// Sends one message. Waits for credit if this thread may wait.
pub fn send(
    py: Python<'_>,
    node: &Arc<Node>,
    peer: &Arc<Peer>,
    head: &Head<'_>,
    payload: &Payload<'_>,
    pickled: &Pickled,
) -> PyResult<Sent> {
    let local = || pickled.parts(py);
    let sent = node.messages.send(peer, head, payload, local, false);
    if sent != Sent::Full {
        return Ok(sent);
    }
    let sender = sender::current();
    let busy = || sender.as_ref().and_then(|s| s.mailbox.as_ref()).is_some_and(|m| !m.is_empty());
    let on_loop = sender.as_ref().is_some_and(|s| s.on_loop) || provided::loop_is_running(py)?;
    let (waiter, began) = (gil::waiter(&node.poller), events::now_if_on());
    let mut interval = std::time::Duration::from_millis(20);
    loop {
        // An actor with messages in its own mailbox does not wait for credit, so actors that flood each other make progress.
        if on_loop || busy() {
            return Ok(node.messages.send(peer, head, payload, local, true));
        }
        peer.wait_for_credit(&waiter);
        // The actor's own mailbox does not notify this waiter, so it is checked from time to time.
        let mut look = Some(node.poller.now() + interval);
        if node.poller.timeline().is_some() {
            // Simulated hours pass in few checks; a thread without a mailbox needs none.
            interval *= 2;
            look = look.filter(|_| sender.as_ref().is_some_and(|s| s.mailbox.is_some()));
        }
        gil::wait(py, &node.poller, &waiter, look, || peer.has_credit(head.dest))?;
        let sent = node.messages.send(peer, head, payload, local, false);
        if sent != Sent::Full {
            if began > 0 {
                events::credit_stall(head.dest.0, head.method, peer.uid.0, events::now() - began);
            }
            return Ok(sent);
        }
    }
}

impl Caller {
    /// The head of all messages of one call. The call is one span of the current trace.
    fn head(&self, around: Trace, call_id: CallId) -> Head<'_> {
        let trace = if around.is_none() { around } else { around.child() };
        let (sender, dest) = (MailboxId(sender::id()), MailboxId(0));
        let (flags, method, extent) = (self.flags, &*self.method, &*self.extent);
        let view = View { offset: self.view.0, dims: &self.view.1 };
        Head { dest, sender, call_id, rank: 0, flags, trace, parent: around.span, view, method, extent }
    }
}

#[pymethods]
impl Caller {
    /// With `explicit`, the method receives a port for its answer. `view` is the first rank and the dimensions of the addressed part, for
    /// events; none for the whole mesh.
    #[new]
    #[pyo3(signature = (targets, method, extent, explicit, view=None))]
    fn new(targets: &Bound<'_, Targets>, method: &str, extent: &[u8], explicit: bool, view: Option<(u64, Bound<'_, PyString>)>) -> Self {
        let flags = if explicit { EXPLICIT_PORT } else { 0 };
        let node = targets.get().node.clone();
        let view = view.map_or_else(Default::default, |(offset, dims)| (offset + 1, dims.to_string_lossy().as_bytes().into()));
        Caller { node, targets: targets.clone().unbind(), method: method.as_bytes().into(), extent: extent.into(), view, flags }
    }

    /// Pickles the arguments, and sends them to all ranks or to the rank `only`. Returns the pending call, or `None` if `how` is -1.
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
        let mode = mode(how)?;
        let called = PyTuple::new(py, [args.as_any(), kwargs.as_any()])?;
        let pickled = Pickled::new(called.as_any())?;
        let t = self.targets.get();
        let ranks = only.map_or(0..t.peers.len(), |i| i..i + 1);
        let payload = message(py, &self.node, &t.peers[ranks], &pickled)?;
        // From here on no Python code runs, except signal handlers while this thread waits for credit.
        let around = trace::current(py)?;
        let cell = match (mode, only) {
            (None, _) => None,
            (Some(m), None) => Some(self.node.calls.start(m, t.ids.len(), t.ids.clone())),
            (Some(m), Some(i)) => Some(self.node.calls.start(m, 1, Arc::from([t.ids[i]]))),
        };
        // The object owns the pending call from here on, so an interrupt while this thread waits for credit frees the call id.
        let cell = cell.map(|inner| PendingCall::new(&self.node, inner));
        let head = self.head(around, cell.as_ref().map_or(CallId::NONE, |c| c.inner.call_id));
        let sending = Sending { head, payload, pickled: &pickled, cell: cell.as_ref().map(|c| &*c.inner) };
        match only {
            // Only here does the receiver's rank within the addressed shape differ from the rank of its answer.
            Some(i) => self.one(py, t, i, 0, &sending)?,
            None => {
                let direct_ranks = self.cast(t, mode, &sending);
                for n in 0..direct_ranks.map_or(t.peers.len(), <[usize]>::len) {
                    let i = direct_ranks.map_or(n, |direct_ranks| direct_ranks[n]);
                    self.one(py, t, i, i as u32, &sending)?;
                }
            }
        }
        Ok(cell)
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
        let called = PyTuple::new(py, [args.as_any(), kwargs.as_any()])?;
        let pickled = Pickled::new(called.as_any())?;
        let t = self.targets.get();
        let ranks = only.map_or(0..t.peers.len(), |i| i..i + 1);
        let payload = message(py, &self.node, &t.peers[ranks.clone()], &pickled)?;
        let sending = Sending { head: self.head(trace::current(py)?, CallId(slot)), payload, pickled: &pickled, cell: None };
        for i in ranks {
            self.one(py, t, i, i as u32, &sending)?;
        }
        Ok(())
    }
}

impl Caller {
    /// Sends to the targets on other hosts by a cast, if that is worth it. Returns the remaining ranks.
    fn cast<'t>(&self, t: &'t Targets, mode: Option<Mode>, sending: &Sending<'_>) -> Option<&'t [usize]> {
        if t.peers.len() < 2 || self.flags != 0 {
            return None;
        }
        let group = t.group.get_or_init(|| self.node.caster.group(&t.ids)).as_ref()?;
        let head = Head { dest: t.ids[0].1, ..sending.head };
        if !self.node.caster.cast(group, &t.peers, &head, mode, &sending.payload) {
            return None;
        }
        if let Some(cell) = sending.cell {
            for (i, peer) in t.peers.iter().enumerate().filter(|(_, p)| p.ended().is_some()) {
                self.node.calls.fail_rank(cell, i as u32, peer);
            }
        }
        Some(&group.direct_ranks)
    }

    /// Sends to the rank `i`. `answer` is the rank of the answer in the pending call.
    fn one(&self, py: Python<'_>, t: &Targets, i: usize, answer: u32, sending: &Sending<'_>) -> PyResult<()> {
        let Sending { head, payload, pickled, cell } = sending;
        let peer = &t.peers[i];
        let rank = if answer == i as u32 { answer } else { i as u32 | CHOSEN };
        let head = Head { dest: t.ids[i].1, rank, ..*head };
        if send(py, &self.node, peer, &head, payload, pickled)? == Sent::Ended
            && let Some(cell) = cell
        {
            self.node.calls.fail_rank(cell, answer, peer);
        } else if let Some(cell) = cell
            && peer.ended().is_some()
        {
            self.node.calls.fail_rank(cell, answer, peer);
        }
        Ok(())
    }
}

/// The payload of a message to these processes. Raises `DeliveryError` before any send if one of them cannot receive it.
pub fn message<'a>(py: Python<'a>, node: &Node, peers: &[Arc<Peer>], pickled: &'a Pickled) -> PyResult<Payload<'a>> {
    let len = pickled.len(py);
    if !peers.iter().all(|peer| peer.takes(len)) {
        let most = runtime::transfers::MAX_REMOTE_MESSAGE;
        let why = format!("a message of {len} bytes is too large for another host: at most {most}, send it in parts");
        return Err(provided::delivery_error(py, why));
    }
    let payload =
        Payload::new(&node.arena, pickled.parts(py)).map_err(|e| provided::delivery_error(py, format!("no shared memory for it: {e}")))?;
    if payload.largest() >= LARGE && node.offers.is_undecided() && peers.iter().any(|p| p.link.is_forwarded()) {
        provided::choose_bulk_transport(py, &node.offers)?;
    }
    Ok(payload)
}
