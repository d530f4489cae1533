//! The sending of answers to calls, and of requests to the Python side of a process.
//!
//! It needs the peers, the pending calls for answers that stay in this process, and the gateway for answers to casts. An answer to a cast
//! goes to the agent of this host, an answer to a call to the caller.

use std::sync::Arc;

use wire::control::{CallState, ExpiredCall};
use wire::{CallId, Control, MailboxId, ProcUid, Status};

use crate::calls::Calls;
use crate::calls::pending_call::Outcome;
use crate::cast::CAST_ANSWER;
use crate::peers::Peers;
use crate::peers::peer::{Peer, Returned};
use crate::supervision::Member;
use crate::system::{FAILURE, SystemEvent, SystemQueue, UNDELIVERABLE, encode_failure};
use crate::transfers::payload::{OutPart, Payload, keep};

/// Sends the answers and requests of one process.
pub struct Replies {
    peers: Arc<Peers>,
    calls: Arc<Calls>,
    system: Arc<SystemQueue>,
}

impl Replies {
    pub(crate) fn new(peers: &Arc<Peers>, calls: &Arc<Calls>, system: &Arc<SystemQueue>) -> Arc<Self> {
        Arc::new(Replies { peers: peers.clone(), calls: calls.clone(), system: system.clone() })
    }

    /// Sends an answer to a call of any process, or to the agent if the call is a cast.
    pub fn send<'a>(
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
        let is_cast = call_id.0 & CAST_ANSWER != 0;
        if is_cast && let Some(gateway) = self.peers.roles.gateway() {
            return gateway.cast_answer(call_id, status, parts.encode());
        }
        let to = if is_cast { self.peers.agent_uid } else { to };
        if to == self.peers.uid {
            self.calls.complete(call_id, Arc::new(Outcome { rank, sender_rank: None, status, parts: keep(local()) }));
        } else {
            self.peers.peer(to).send_reply(call_id, rank, status, parts);
        }
    }

    /// Sends a short answer.
    pub fn send_bytes(&self, to: ProcUid, call_id: CallId, rank: u32, status: Status, bytes: &[u8]) {
        self.send(to, call_id, rank, status, &Payload::small(bytes), || vec![OutPart { bytes, readonly: true }]);
    }

    /// Takes the report about calls of this process to itself whose deadline has passed.
    pub(crate) fn report_expired(&self, calls: Vec<ExpiredCall>, state: &CallState) {
        self.calls.on_reports(self.peers.uid, calls, state);
    }

    /// Sends a request to the Python side of a process.
    pub fn send_system(&self, to: ProcUid, kind: u16, call_id: CallId, body: Vec<u8>) {
        if to == self.peers.uid {
            SystemEvent::of_request(to, kind, call_id, body).into_iter().for_each(|e| self.system.push(e));
        } else {
            self.peers.peer(to).send_control(Control::System { kind, call_id, body });
        }
    }

    /// Reports to the process `to`, the owner of its mesh, that an actor of this process has failed.
    pub fn report_failure(&self, to: ProcUid, member: Member, failure: &[u8]) {
        self.send_system(to, FAILURE, CallId::NONE, encode_failure(member, failure));
    }

    /// Reports to the process `to` that a message of its mailbox `sender` was not delivered.
    pub(crate) fn report_undelivered(&self, to: ProcUid, sender: MailboxId, dest: MailboxId, reason: &[u8]) {
        let body = [&sender.0.to_le_bytes(), &dest.0.to_le_bytes(), reason].concat();
        self.send_system(to, UNDELIVERABLE, CallId::NONE, body);
    }

    /// Reports to a sender in this process that its message was not delivered because the peer has ended.
    pub fn report_ended(&self, message: Returned, peer: &Peer) {
        self.report_undelivered(self.peers.uid, message.sender, message.dest, &peer.uid.0.to_le_bytes());
    }
}
