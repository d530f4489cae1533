//! Messages and answers whose large parts are missing.
//!
//! A frame names its large parts: blocks of its sender's shared memory, or parts that arrive beside the frame from another host. A part
//! that is named and missing was lost in transit, most likely because an agent had no memory for it. The sender or the caller is notified;
//! no actor fails.

use std::sync::Arc;

use net::{Link, RecvPart};
use wire::frame::RETURN;
use wire::{CallId, MailboxId, Message, Part, ProcUid, Reply, Status};

use crate::node::credit::OVERHEAD;
use crate::node::mailbox::{Incoming, answer_rank};
use crate::node::pending_call::Outcome;
use crate::node::{Node, UNDELIVERABLE};

/// The reason for a sender whose message lost parts.
const MESSAGE: &str = "parts of it were lost on the way";
/// The reason for a caller whose answer lost parts.
const ANSWER: &str = "parts of the answer were lost on the way";

impl Node {
    /// Takes the parts of a frame; `None` if a part is malformed or missing.
    fn resolve_parts(&self, parts: Vec<Part>, link: &Arc<Link>) -> Option<Vec<RecvPart>> {
        if parts.iter().any(|p| matches!(p, Part::OutOfBand { .. } | Part::Offered { .. })) {
            return self.known_peer(link.peer)?.resolve_parts(parts);
        }
        let mut resolved = Some(Vec::with_capacity(parts.len()));
        for part in parts {
            let shared = if let Part::Shared { block, len, .. } = &part { Some((*block, *len as usize)) } else { None };
            match (RecvPart::accept(part, Some(link)), &mut resolved) {
                (Some(part), Some(all)) => all.push(part),
                // Dropping a part returns its block to the sender.
                (Some(_), None) => {}
                (None, _) => {
                    shared.into_iter().for_each(|(block, len)| link.release(block, len));
                    resolved = None;
                }
            }
        }
        resolved
    }

    /// Delivers a message that arrived on a link, or returns it if a part is missing.
    pub(crate) fn on_message(&self, link: &Arc<Link>, m: Message) {
        let cost = m.parts.iter().map(Part::len).fold(OVERHEAD, u64::saturating_add);
        match self.resolve_parts(m.parts, link) {
            Some(parts) => self.deliver(Incoming {
                from: link.peer,
                dest: m.dest,
                sender: m.sender,
                call_id: m.call_id,
                rank: m.rank,
                flags: m.flags,
                trace: m.trace.boxed(),
                method: m.method,
                extent: m.extent,
                parts,
            }),
            None => {
                self.return_incomplete(link.peer, m.dest, if m.flags & RETURN == 0 { MailboxId(0) } else { m.sender }, m.call_id, m.rank);
                self.give_credit(link.peer, m.dest, cost);
            }
        }
    }

    /// Returns an incomplete message to its sender. If the message has no call to answer, the sender's process is notified.
    fn return_incomplete(&self, from: ProcUid, dest: MailboxId, sender: MailboxId, call_id: CallId, rank: u32) {
        if !call_id.is_none() {
            return self.reply_bytes(from, call_id, answer_rank(rank), Status::Undelivered, MESSAGE.as_bytes());
        }
        let mut body = sender.0.to_le_bytes().to_vec();
        body.extend_from_slice(&dest.0.to_le_bytes());
        body.extend_from_slice(MESSAGE.as_bytes());
        self.send_system(from, UNDELIVERABLE, CallId::NONE, body);
    }

    /// Completes a call with an answer that arrived on a link, or with an error if a part is missing.
    pub(crate) fn on_reply(&self, link: &Arc<Link>, r: Reply) {
        let outcome = match self.resolve_parts(r.parts, link) {
            Some(parts) => Arc::new(Outcome { rank: r.rank, sender_rank: None, status: r.status, parts }),
            None => Outcome::new(r.rank, Status::Undelivered, ANSWER.as_bytes()),
        };
        self.complete(r.call_id, outcome);
    }
}
