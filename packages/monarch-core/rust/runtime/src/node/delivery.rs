//! The delivery of messages to mailboxes, and the answers to messages whose mailbox is closed.
//!
//! The first message to an actor makes its mailbox. A message to an actor with a tombstone is refused with the reason in the tombstone. The
//! tombstone is inserted before the mailbox is removed, so no message is delivered to a new mailbox of an ended actor.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use wire::frame::{RETURN, STOP, TO_PORT};
use wire::{CallId, Frame, MailboxId, ProcUid, Status};

use crate::node::mailbox::{Incoming, Mailbox, Pushed, answer_rank};
use crate::node::peer::{Head, Peer, Returned};
use crate::node::{Node, UNDELIVERABLE};

impl Node {
    /// The mailboxes of actors.
    pub fn actor_mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.mailboxes.read().unwrap_or_else(PoisonError::into_inner).values().filter(|m| m.is_actors()).cloned().collect()
    }

    /// The mailbox, which is made if it does not exist; `None` if its actor has ended.
    pub fn mailbox(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        if let Some(m) = self.known_mailbox(id) {
            return Some(m);
        }
        let mut all = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner);
        // Checked under the lock: `close_mailbox` inserts the tombstone first, so it finds and closes every mailbox made before that.
        if self.tombstone(id).is_some() {
            return None;
        }
        Some(all.entry(id).or_insert_with(|| Mailbox::new(id)).clone())
    }

    /// The mailbox, if it exists.
    pub fn known_mailbox(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        self.mailboxes.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The reason of the actor's end, if the actor has a tombstone.
    fn tombstone(&self, id: MailboxId) -> Option<Arc<[u8]>> {
        self.actor_tombstones.read().unwrap_or_else(PoisonError::into_inner).reasons.get(&id).cloned()
    }

    /// Closes a mailbox: queued and later messages are answered with `reason`.
    pub fn close_mailbox(&self, id: MailboxId, reason: &[u8], tombstone: bool) {
        let reason: Arc<[u8]> = reason.into();
        if tombstone {
            self.actor_tombstones.write().unwrap_or_else(PoisonError::into_inner).insert(id, reason.clone());
        }
        let mailbox = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(m) = mailbox {
            for m in self.close(&m, &reason) {
                self.refuse(&m, &reason);
            }
        }
    }

    /// Closes the mailbox of an actor. Returns the queued requests to stop the actor, which are answered when it has ended.
    pub fn close_actor(&self, id: MailboxId, reason: &[u8]) -> Vec<Incoming> {
        let reason: Arc<[u8]> = reason.into();
        self.actor_tombstones.write().unwrap_or_else(PoisonError::into_inner).insert(id, reason.clone());
        let mailbox = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let left = mailbox.map_or(Vec::new(), |m| self.close(&m, &reason));
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
            self.reply_bytes(to, call_id, answer_rank(rank), Status::Failed, reason);
        }
    }

    /// Returns credit to a sender.
    pub fn give_credit(&self, to: ProcUid, mailbox: MailboxId, bytes: u64) {
        if to == self.uid {
            self.peer(to).refill(mailbox, bytes, |m| self.deliver(m));
        } else if let Some(peer) = self.known_peer(to) {
            peer.send_frame(&Frame::Credit { mailbox, bytes });
        }
    }

    /// Counts a message that its consumer has handled, and returns credit.
    pub fn handled(&self, mailbox: &Mailbox, from: ProcUid, cost: u64) {
        if let Some(bytes) = mailbox.consumed(from, cost) {
            self.give_credit(from, mailbox.id, bytes);
        }
    }

    /// Puts a message into its mailbox, or answers it if the mailbox is closed.
    pub(crate) fn deliver(&self, m: Incoming) {
        let id = m.dest;
        let mailbox = if m.flags & TO_PORT != 0 { self.known_mailbox(id) } else { self.mailbox(id) };
        let refused = match mailbox {
            Some(mailbox) => match mailbox.push(m) {
                Ok(Pushed::Taken(Some((from, bytes)))) => {
                    self.give_credit(from, id, bytes);
                    None
                }
                Ok(_) => None,
                Err(refused) => Some(refused),
            },
            None => Some((m, self.tombstone(id).unwrap_or_else(|| Arc::from(&b""[..])))),
        };
        if let Some((m, reason)) = refused {
            self.refuse(&m, &reason);
            self.give_credit(m.from, id, m.cost());
        }
    }

    /// Answers a message to a closed mailbox: with a failure, by returning it, or not at all.
    fn refuse(&self, m: &Incoming, reason: &[u8]) {
        if !m.call_id.is_none() {
            self.reply_bytes(m.from, m.call_id, answer_rank(m.rank), Status::Failed, reason);
        } else if m.flags & TO_PORT != 0 {
            // The receiver of the port was dropped, which is no failure: its senders continue.
            self.dropped_items.fetch_add(1, Ordering::Relaxed);
        } else if m.flags & RETURN != 0 {
            let mut body = m.sender.0.to_le_bytes().to_vec();
            body.extend_from_slice(&m.dest.0.to_le_bytes());
            body.extend_from_slice(reason);
            self.send_system(m.from, UNDELIVERABLE, CallId::NONE, body);
        }
    }

    /// Reports to the sender that the receiver of its message has ended.
    pub fn undelivered_to_ended(&self, head: &Head<'_>, peer: &Peer) {
        self.give_back(Returned { sender: head.sender, dest: head.dest }, peer);
    }

    /// Reports to a sender in this process that its message was not delivered because the peer has ended.
    pub(crate) fn give_back(&self, message: Returned, peer: &Peer) {
        let mut body = message.sender.0.to_le_bytes().to_vec();
        body.extend_from_slice(&message.dest.0.to_le_bytes());
        body.extend_from_slice(&peer.uid.0.to_le_bytes());
        self.send_system(self.uid, UNDELIVERABLE, CallId::NONE, body);
    }
}
