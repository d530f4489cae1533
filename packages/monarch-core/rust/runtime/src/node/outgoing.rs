//! The sending of messages and answers, to this process or to another one. A message to this process is copied once and delivered directly;
//! it counts against the same credit as a message to another process.

use std::sync::Arc;

use wire::{CallId, ProcUid, Status};

use crate::node::Node;
use crate::node::caster::CAST_ANSWER;
use crate::node::mailbox::{CHOSEN, Incoming};
use crate::node::payload::{OutPart, Payload, keep};
use crate::node::peer::{Head, Peer, Sent, View};
use crate::node::pending_call::Outcome;

impl Node {
    /// Sends to an actor or a port of any process. Returns `Full` only if `queue` is false.
    pub fn send_message<'a>(
        &self,
        peer: &Peer,
        head: &Head<'_>,
        parts: &Payload<'_>,
        local: impl FnOnce() -> Vec<OutPart<'a>>,
        queue: bool,
    ) -> Sent {
        let sent = self.hand_over_message(peer, head, parts, local, queue);
        if sent == Sent::Yes {
            let Head { dest, sender, call_id, parent, view: View { offset, dims }, method, .. } = *head;
            let (rank, bytes) = (u64::from(head.rank & !CHOSEN), parts.len());
            let sent = || events::message_sent(dest.0, method, rank, peer.uid.0, sender.0, call_id.0, bytes, parent, offset, dims);
            events::in_trace(head.trace.words(), sent);
        }
        sent
    }

    /// Sends a message to a peer, or delivers it in this process.
    fn hand_over_message<'a>(
        &self,
        peer: &Peer,
        head: &Head<'_>,
        parts: &Payload<'_>,
        local: impl FnOnce() -> Vec<OutPart<'a>>,
        queue: bool,
    ) -> Sent {
        if peer.uid != self.uid {
            return peer.send_message(head, parts, queue);
        }
        let message = Incoming {
            from: self.uid,
            dest: head.dest,
            sender: head.sender,
            call_id: head.call_id,
            rank: head.rank,
            flags: head.flags,
            trace: head.trace.boxed(),
            method: head.method.into(),
            extent: head.extent.into(),
            parts: keep(local()),
        };
        match peer.admit_local(message, queue) {
            Ok(Some(m)) => self.deliver(m),
            Ok(None) => {}
            Err(_) => return Sent::Full,
        }
        Sent::Yes
    }

    /// Sends an answer to a call of any process, or to the agent if the call is a cast.
    pub fn send_reply<'a>(
        &self,
        to: ProcUid,
        call_id: CallId,
        rank: u32,
        status: Status,
        parts: &Payload<'_>,
        local: impl FnOnce() -> Vec<OutPart<'a>>,
    ) {
        if call_id.is_none() {
            return;
        }
        let to = if call_id.0 & CAST_ANSWER == 0 { to } else { self.agent_uid };
        if call_id.0 & CAST_ANSWER != 0 && self.answer_cast(call_id, status, parts) {
            return;
        }
        if to == self.uid {
            self.complete(call_id, Arc::new(Outcome { rank, sender_rank: None, status, parts: keep(local()) }));
        } else {
            self.peer(to).send_reply(call_id, rank, status, parts);
        }
    }

    /// Sends a short reply.
    pub fn reply_bytes(&self, to: ProcUid, call_id: CallId, rank: u32, status: Status, bytes: &[u8]) {
        self.send_reply(to, call_id, rank, status, &Payload::small(bytes), || vec![OutPart { bytes, readonly: true }]);
    }
}
