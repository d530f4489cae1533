//! The actors that a handle addresses, and the sending of one message to them.
//!
//! The payload of a message is made once for all targets. A message to several targets on other hosts is sent as a cast; other messages are
//! sent one by one. A rank whose process has ended gets its outcome here.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use wire::frame::{EXPLICIT_PORT, STOP};
use wire::{CallId, MailboxId, ProcUid, Status, Trace};

use super::interpreter::Interpreter;
use super::outgoing::no_memory;
use super::send::Sending;
use super::sender;
use crate::calls::pending_call::{Mode, Outcome, PendingCall};
use crate::caster::Group;
use crate::mailboxes::mailbox::CHOSEN;
use crate::node::Node;
use crate::peers::peer::{Head, Peer, Sent};
use crate::transfers::payload::{OutPart, Payload};
use crate::transfers::rank_payloads::RankPayloads;

/// The size of a part from which other threads of the interpreter run while it is copied.
const RELEASE_FROM: usize = 1 << 20;

/// The actors that a handle addresses, by rank.
pub struct Targets {
    node: Arc<Node>,
    peers: Arc<[Arc<Peer>]>,
    ids: Arc<[(ProcUid, MailboxId)]>,
    /// The targets on other hosts, if a message to all targets is sent as a cast.
    group: OnceLock<Option<Group>>,
}

/// A message to several targets. `local` copies its parts for the targets in this process.
pub struct Outgoing<'a, L> {
    pub head: Head<'a>,
    pub payload: Payload<'a>,
    pub local: L,
}

impl Targets {
    pub fn new(node: &Arc<Node>, procs: &[u64], mailbox: MailboxId) -> Self {
        let peers = procs.iter().map(|p| node.peers.peer(ProcUid(*p))).collect();
        let ids = procs.iter().map(|p| (ProcUid(*p), mailbox)).collect();
        Targets { node: node.clone(), peers, ids, group: OnceLock::new() }
    }

    pub fn len(&self) -> usize {
        self.peers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The processes of all targets, or of the target `only`.
    pub fn peers(&self, only: Option<usize>) -> &[Arc<Peer>] {
        &self.peers[only.map_or(0..self.peers.len(), |i| i..i + 1)]
    }

    /// Starts a call of all targets, or of the target `only`.
    pub fn start(&self, mode: Mode, only: Option<usize>) -> Arc<PendingCall> {
        match only {
            None => self.node.calls.start(mode, self.ids.len(), self.ids.clone()),
            Some(i) => self.node.calls.start(mode, 1, Arc::from([self.ids[i]])),
        }
    }

    /// Sends a message to all targets, or to the target `only`. `call` receives the answers; it has the mode of the message.
    pub fn send<'p, I: Interpreter, L: Fn() -> Vec<OutPart<'p>>>(
        &self,
        interpreter: &I,
        message: &Outgoing<'_, L>,
        only: Option<usize>,
        call: Option<&PendingCall>,
    ) -> Result<(), I::Error> {
        let Some(i) = only else {
            let direct_ranks = self.cast(&message.head, &message.payload, None, call);
            for n in 0..direct_ranks.map_or(self.len(), <[usize]>::len) {
                let i = direct_ranks.map_or(n, |direct_ranks| direct_ranks[n]);
                self.send_to(interpreter, message, i, i as u32, call)?;
            }
            return Ok(());
        };
        // Only here does the receiver's rank within the addressed shape differ from the rank of its answer.
        self.send_to(interpreter, message, i, 0, call)
    }

    /// Sends a message to all targets, with values of its own to each. `local` copies the parts for a target in this process, by rank. A
    /// target for whose value there is no memory gets no message: its rank in the call fails, and without a call the result is the reason.
    pub fn send_each<'p, I: Interpreter>(
        &self,
        interpreter: &I,
        head: Head<'_>,
        payloads: &mut RankPayloads<'_>,
        local: impl Fn(usize) -> Vec<OutPart<'p>>,
        call: Option<&PendingCall>,
    ) -> Result<Option<String>, I::Error> {
        let mut failed = None;
        let is_large = payloads.largest() >= RELEASE_FROM;
        let direct_ranks = self.cast(&head, payloads.common(), Some(payloads), call);
        for n in 0..direct_ranks.map_or(self.len(), <[usize]>::len) {
            let i = direct_ranks.map_or(n, |direct_ranks| direct_ranks[n]);
            let taken = if is_large { interpreter.release(|| payloads.take(i)) } else { payloads.take(i) };
            let payload = match (taken, call) {
                (Ok(payload), _) => payload,
                (Err(e), Some(call)) => {
                    let why = no_memory(&e);
                    self.node.calls.complete(call.call_id, Outcome::new(i as u32, Status::Undelivered, why.as_bytes()));
                    continue;
                }
                (Err(e), None) => {
                    failed.get_or_insert(no_memory(&e));
                    continue;
                }
            };
            let message = Outgoing { head, payload, local: || local(i) };
            self.send_to(interpreter, &message, i, i as u32, call)?;
        }
        Ok(failed)
    }

    /// Sends a message to all targets, or to the target `only`. The answers go to a call of another process, each with its rank here.
    pub fn send_for_other<'p, I: Interpreter, L: Fn() -> Vec<OutPart<'p>>>(
        &self,
        interpreter: &I,
        message: &Outgoing<'_, L>,
        only: Option<usize>,
    ) -> Result<(), I::Error> {
        let mut ranks = only.map_or(0..self.len(), |i| i..i + 1);
        ranks.try_for_each(|i| self.send_to(interpreter, message, i, i as u32, None))
    }

    /// Sends a stop to all targets, behind all earlier messages. Each target answers the returned call when it has stopped.
    pub fn stop(&self, body: &[u8], left: Option<Duration>) -> Arc<PendingCall> {
        let call = self.start(Mode::Gather, None);
        let payload = Payload::small(body);
        for (rank, (peer, (_, dest))) in (0..).zip(self.peers.iter().zip(self.ids.iter())) {
            let head = Head { dest: *dest, rank, left, ..head(call.call_id, STOP, Trace::NONE) };
            let local = || vec![OutPart { bytes: body, readonly: true }];
            self.node.messages.send(peer, &head, &payload, local, true);
            self.node.calls.fail_rank(&call, rank, peer);
        }
        call
    }

    /// Sends to the targets on other hosts by a cast, if that is worth it. Returns the remaining ranks.
    fn cast(
        &self,
        head: &Head<'_>,
        payload: &Payload<'_>,
        values: Option<&RankPayloads<'_>>,
        call: Option<&PendingCall>,
    ) -> Option<&[usize]> {
        if self.peers.len() < 2 || head.flags & EXPLICIT_PORT != 0 {
            return None;
        }
        let group = self.group.get_or_init(|| self.node.caster.group(&self.ids)).as_ref()?;
        let head = Head { dest: self.ids[0].1, ..*head };
        if !self.node.caster.cast(group, &self.peers, &head, call.map(|c| c.mode), payload, values) {
            return None;
        }
        if let Some(call) = call {
            (0..).zip(self.peers.iter()).for_each(|(rank, peer)| self.node.calls.fail_rank(call, rank, peer));
        }
        Some(&group.direct_ranks)
    }

    /// Sends to the target `i`. `answer` is the rank of its answer.
    fn send_to<'p, I: Interpreter, L: Fn() -> Vec<OutPart<'p>>>(
        &self,
        interpreter: &I,
        message: &Outgoing<'_, L>,
        i: usize,
        answer: u32,
        call: Option<&PendingCall>,
    ) -> Result<(), I::Error> {
        let peer = &self.peers[i];
        let rank = if answer == i as u32 { answer } else { i as u32 | CHOSEN };
        let head = Head { dest: self.ids[i].1, rank, ..message.head };
        let sending = Sending { messages: &self.node.messages, poller: &self.node.poller };
        let sent = sending.send(interpreter, peer, &head, &message.payload, &message.local)?;
        debug_assert!(sent != Sent::Full, "a send waits for credit, or queues its message");
        if let Some(call) = call {
            if sent == Sent::Expired {
                self.node.calls.report_unsent(call, answer);
            }
            self.node.calls.fail_rank(call, answer, peer);
        }
        Ok(())
    }
}

/// The head of the messages of one call from this thread, without the receiver. The call is one span of the trace `around` it.
pub fn head<'a>(call_id: CallId, flags: u8, around: Trace) -> Head<'a> {
    let trace = if around.is_none() { around } else { around.child() };
    Head { sender: MailboxId(sender::id()), call_id, flags, trace, parent: around.span, ..Head::default() }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::mailboxes::mailbox::{Delivery, Incoming};
    use crate::operations::interpreter::model::Model;
    use crate::peers::ended::host_end;

    const BOX: MailboxId = MailboxId(10);
    const HERE: u64 = 1;
    const GONE: u64 = 7;

    /// A process in whose job another one has ended.
    fn node() -> Arc<Node> {
        let node = Node::start(ProcUid(HERE), ProcUid(HERE)).unwrap();
        node.ends.procs_ended(vec![(ProcUid(GONE), host_end("", "a test"))]);
        node
    }

    fn send(targets: &Targets, only: Option<usize>) -> Arc<PendingCall> {
        let call = targets.start(Mode::Gather, only);
        let local = || vec![OutPart { bytes: b"x", readonly: true }];
        let message = Outgoing { head: head(call.call_id, 0, Trace::NONE), payload: Payload::small(b"x"), local };
        targets.send(&Model::default(), &message, only, Some(&call)).unwrap();
        call
    }

    fn received(node: &Node) -> Incoming {
        match node.mailboxes.get(BOX).unwrap().pop() {
            Some(Delivery::Message(m)) => m,
            _ => panic!("no message"),
        }
    }

    #[test]
    fn rank_of_an_ended_process_fails() {
        let node = node();
        let call = send(&Targets::new(&node, &[HERE, GONE], BOX), None);
        assert_eq!(call.waiting_for(|_, _| true), [0]);
        assert_eq!(received(&node).rank, 0);
        node.poller.stop();
    }

    #[test]
    fn chosen_target_answers_as_the_first_rank() {
        let node = node();
        let call = send(&Targets::new(&node, &[GONE, HERE], BOX), Some(1));
        assert_eq!((call.size(), call.waiting_for(|_, _| true)), (1, vec![0]));
        assert_eq!(received(&node).rank, 1 | CHOSEN);
        node.poller.stop();
    }

    #[test]
    fn message_for_another_call_has_the_rank_here() {
        let node = node();
        let targets = Targets::new(&node, &[GONE, HERE], BOX);
        let local = || vec![OutPart { bytes: b"x", readonly: true }];
        let message = Outgoing { head: head(CallId(5), 0, Trace::NONE), payload: Payload::small(b"x"), local };
        targets.send_for_other(&Model::default(), &message, Some(1)).unwrap();
        let m = received(&node);
        assert_eq!((m.rank, m.call_id), (1, CallId(5)));
        node.poller.stop();
    }

    #[test]
    fn stop_reaches_every_target_that_lives() {
        let node = node();
        let call = Targets::new(&node, &[GONE, HERE], BOX).stop(b"why", None);
        assert_eq!(call.waiting_for(|_, _| true), [1]);
        let m = received(&node);
        assert_eq!((m.flags & STOP, m.rank), (STOP, 1));
        node.poller.stop();
    }

    #[test]
    fn call_is_a_span_of_its_trace() {
        let around = Trace { id: 1, span: 2 };
        let head = head(CallId::NONE, 0, around);
        assert_eq!((head.trace.id, head.parent), (1, 2));
        assert_ne!(head.trace.span, around.span);
    }
}
