//! Messages to actors and ports, of this process or another one: sending, delivery, credit, and the answers of closed mailboxes.
//!
//! | file | noun |
//! |---|---|
//! | `limits` | the deadlines of messages that have arrived |
//! | `replies` | the sending of answers, and of requests to the Python side of a process |
//!
//! A message to this process is copied once and delivered directly; it counts against the same credit as a message to another process. A
//! message with missing parts, or to a closed mailbox, is answered or returned to its sender; no actor fails. A part that a frame names and
//! that is missing was lost in transit, most likely because an agent had no memory for it. This component needs the mailboxes, the peers,
//! and `replies`.

pub mod limits;
pub mod replies;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use net::{Link, RecvPart};
use wire::frame::{RETURN, STOP, TO_PORT};
use wire::{Control, Frame, MailboxId, Message, Part, ProcUid, Status};

use self::limits::Limits;
use self::replies::Replies;
use crate::mailboxes::Mailboxes;
use crate::mailboxes::credit::OVERHEAD;
use crate::mailboxes::mailbox::{CHOSEN, Incoming, Mailbox, Pushed, answer_rank};
use crate::peers::Peers;
use crate::peers::peer::{Head, Peer, Sent, View};
use crate::system::{SystemEvent, SystemQueue};
use crate::transfers::payload::{OutPart, Payload, keep};

/// The reason for a sender whose message lost parts.
const INCOMPLETE: &[u8] = b"parts of it were lost on the way";

/// Sends and delivers the messages of one process.
pub struct Messages {
    peers: Arc<Peers>,
    mailboxes: Arc<Mailboxes>,
    replies: Arc<Replies>,
    system: Arc<SystemQueue>,
    /// The number of messages to ports whose receiver was dropped.
    pub dropped_items: AtomicU64,
    limits: Limits,
    me: Weak<Messages>,
}

impl Messages {
    pub(crate) fn new(peers: &Arc<Peers>, mailboxes: &Arc<Mailboxes>, replies: &Arc<Replies>, system: &Arc<SystemQueue>) -> Arc<Self> {
        Arc::new_cyclic(|me| Messages {
            peers: peers.clone(),
            mailboxes: mailboxes.clone(),
            replies: replies.clone(),
            system: system.clone(),
            dropped_items: AtomicU64::new(0),
            limits: Limits::new(me, peers),
            me: me.clone(),
        })
    }

    /// Sends to an actor or a port of any process. Returns `Full` only if `queue` is false.
    pub fn send<'a>(
        &self,
        peer: &Peer,
        head: &Head<'_>,
        parts: &Payload<'_>,
        local: impl FnOnce() -> Vec<OutPart<'a>>,
        queue: bool,
    ) -> Sent {
        let sent =
            if peer.uid == self.peers.uid { self.send_here(peer, head, local, queue) } else { peer.send_message(head, parts, queue) };
        if sent == Sent::Yes {
            let Head { dest, sender, call_id, parent, view: View { offset, dims }, method, .. } = *head;
            let (rank, bytes) = (u64::from(head.rank & !CHOSEN), parts.len());
            let sent = || events::message_sent(dest.0, method, rank, peer.uid.0, sender.0, call_id.0, bytes, parent, offset, dims);
            events::in_trace(head.trace.words(), sent);
        }
        sent
    }

    /// Sends a message to this process, whose own peer has the credit.
    fn send_here<'a>(&self, own: &Peer, head: &Head<'_>, local: impl FnOnce() -> Vec<OutPart<'a>>, queue: bool) -> Sent {
        let message = Incoming {
            from: own.uid,
            dest: head.dest,
            sender: head.sender,
            call_id: head.call_id,
            rank: head.rank,
            flags: head.flags,
            trace: head.trace.boxed(),
            due: self.limits.due(head.left),
            method: head.method.into(),
            extent: head.extent.into(),
            parts: keep(local()),
        };
        match own.admit_local(message, queue) {
            Ok(Some(m)) => self.deliver(m),
            Ok(None) => {}
            Err(_) => return Sent::Full,
        }
        Sent::Yes
    }

    /// Starts an actor in this process or in another one.
    pub fn spawn_actor(&self, to: ProcUid, mailbox: MailboxId, spec: Vec<u8>) {
        if to == self.peers.uid {
            self.on_spawn(to, mailbox, spec);
        } else {
            self.peers.peer(to).send_control(Control::SpawnActor { mailbox, spec });
        }
    }

    /// Takes a request to start an actor here.
    pub(crate) fn on_spawn(&self, from: ProcUid, mailbox: MailboxId, spec: Vec<u8>) {
        self.mailboxes.get(mailbox);
        self.system.push(SystemEvent::SpawnActor { from, mailbox, spec });
    }

    // ---- delivery

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
                due: self.limits.due(m.left),
                method: m.method,
                extent: m.extent,
                parts,
            }),
            None => {
                if m.call_id.is_none() {
                    let sender = if m.flags & RETURN == 0 { MailboxId(0) } else { m.sender };
                    self.replies.report_undelivered(link.peer, sender, m.dest, INCOMPLETE);
                } else {
                    self.replies.send_bytes(link.peer, m.call_id, answer_rank(m.rank), Status::Undelivered, INCOMPLETE);
                }
                self.give_credit(link.peer, m.dest, cost);
            }
        }
    }

    /// Takes the parts of a frame; `None` if a part is malformed or missing.
    pub(crate) fn resolve_parts(&self, parts: Vec<Part>, link: &Arc<Link>) -> Option<Vec<RecvPart>> {
        if parts.iter().any(|p| matches!(p, Part::OutOfBand { .. } | Part::Offered { .. })) {
            return self.peers.known_peer(link.peer)?.resolve_parts(parts);
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

    /// Puts a message into its mailbox, or answers it if the mailbox is closed.
    fn deliver(&self, m: Incoming) {
        let id = m.dest;
        let mailbox = if m.flags & TO_PORT != 0 { self.mailboxes.known(id) } else { self.mailboxes.get(id) };
        let refused = match mailbox {
            Some(mailbox) => match mailbox.push(self.limits.entered(&mailbox, m)) {
                Ok(Pushed::Taken(Some((from, bytes)))) => {
                    self.give_credit(from, id, bytes);
                    None
                }
                Ok(_) => None,
                Err(refused) => Some(refused),
            },
            None => Some((m, self.mailboxes.tombstone(id).unwrap_or_default())),
        };
        if let Some((m, reason)) = refused {
            self.refuse(&m, &reason);
            self.give_credit(m.from, id, m.cost());
        }
    }

    /// Answers a message to a closed mailbox: with a failure, by returning it, or not at all.
    fn refuse(&self, m: &Incoming, reason: &[u8]) {
        if !m.call_id.is_none() {
            self.replies.send_bytes(m.from, m.call_id, answer_rank(m.rank), Status::Failed, reason);
        } else if m.flags & TO_PORT != 0 {
            // The receiver of the port was dropped, which is no failure: its senders continue.
            self.dropped_items.fetch_add(1, Ordering::Relaxed);
        } else if m.flags & RETURN != 0 {
            self.replies.report_undelivered(m.from, m.sender, m.dest, reason);
        }
    }

    // ---- credit

    /// Returns credit to a sender.
    pub fn give_credit(&self, to: ProcUid, mailbox: MailboxId, bytes: u64) {
        if to == self.peers.uid {
            self.peers.peer(to).refill(mailbox, bytes, |m| self.deliver(m));
        } else if let Some(peer) = self.peers.known_peer(to) {
            peer.send_frame(&Frame::Credit { mailbox, bytes });
        }
    }

    /// Counts a message that its consumer has handled, and returns credit.
    pub fn handled(&self, mailbox: &Mailbox, from: ProcUid, cost: u64) {
        if let Some(bytes) = mailbox.consumed(from, cost) {
            self.give_credit(from, mailbox.id, bytes);
        }
    }

    // ---- closing

    /// Closes the mailbox of a port: queued and later messages are answered without a reason.
    pub fn close_port(&self, id: MailboxId) {
        if let Some(mailbox) = self.mailboxes.remove_port(id) {
            self.close(&mailbox, &Arc::default()).iter().for_each(|m| self.refuse(m, b""));
        }
    }

    /// Closes the mailbox of an actor. Returns the queued requests to stop the actor, which are answered when it has ended.
    pub fn close_actor(&self, id: MailboxId, reason: &[u8]) -> Vec<Incoming> {
        let reason: Arc<[u8]> = reason.into();
        let left = self.mailboxes.remove_actor(id, reason.clone()).map_or(vec![], |m| self.close(&m, &reason));
        let (stops, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|m| m.flags & STOP != 0);
        left.iter().for_each(|m| self.refuse(m, &reason));
        stops
    }

    /// Closes a mailbox, and returns credit to its senders. Returns the unhandled messages.
    fn close(&self, mailbox: &Mailbox, reason: &Arc<[u8]>) -> Vec<Incoming> {
        let (left, credit) = mailbox.close(reason.clone());
        for (from, bytes) in credit {
            self.give_credit(from, mailbox.id, bytes);
        }
        left
    }

    /// Fails the call whose message an actor is handling, and may be handling for ever.
    pub fn fail_current(&self, mailbox: &Mailbox, reason: &[u8]) {
        if let Some((to, call_id, rank)) = mailbox.current() {
            self.replies.send_bytes(to, call_id, answer_rank(rank), Status::Failed, reason);
        }
    }
}
