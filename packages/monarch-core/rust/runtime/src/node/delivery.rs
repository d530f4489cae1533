//! Messages into mailboxes, and what becomes of those whose mailbox is closed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use wire::frame::{RETURN, STOP, TO_PORT};
use wire::{Frame, MailboxId, ProcUid, SlotId, Status};

use crate::node::mailbox::{Incoming, Mailbox, Pushed, answer_rank};
use crate::node::peer::{Head, Peer, Returned};
use crate::node::{Node, UNDELIVERABLE};

impl Node {
    /// Those that actors take from.
    pub fn actor_mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.mailboxes.read().unwrap_or_else(PoisonError::into_inner).values().filter(|m| m.is_actors()).cloned().collect()
    }

    /// The mailbox, made now if it is new; none if its actor is gone.
    pub fn mailbox(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        if let Some(m) = self.known_mailbox(id) {
            return Some(m);
        }
        let mut all = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: `close_mailbox` digs the grave first, so a mailbox made before it is found and closed.
        if self.grave(id).is_some() {
            return None;
        }
        Some(all.entry(id).or_insert_with(|| Mailbox::new(id)).clone())
    }

    pub fn known_mailbox(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        self.mailboxes.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn grave(&self, id: MailboxId) -> Option<Arc<[u8]>> {
        self.graves.read().unwrap_or_else(PoisonError::into_inner).reasons.get(&id).cloned()
    }

    /// Ends a mailbox: what is in it, and what still comes, is answered with `reason`.
    pub fn close_mailbox(&self, id: MailboxId, reason: &[u8], bury: bool) {
        let reason: Arc<[u8]> = reason.into();
        if bury {
            self.graves.write().unwrap_or_else(PoisonError::into_inner).dig(id, reason.clone());
        }
        let mailbox = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(m) = mailbox {
            for m in self.close(&m, &reason) {
                self.refuse(&m, &reason);
            }
        }
    }

    /// The same for an actor: its stoppers are not refused but given back, to be answered when it has ended.
    pub fn close_actor(&self, id: MailboxId, reason: &[u8]) -> Vec<Incoming> {
        let reason: Arc<[u8]> = reason.into();
        self.graves.write().unwrap_or_else(PoisonError::into_inner).dig(id, reason.clone());
        let mailbox = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let left = mailbox.map_or(Vec::new(), |m| self.close(&m, &reason));
        let (stops, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|m| m.flags & STOP != 0);
        left.iter().for_each(|m| self.refuse(m, &reason));
        stops
    }

    fn close(&self, mailbox: &Mailbox, reason: &Arc<[u8]>) -> Vec<Incoming> {
        let (left, credit) = mailbox.close(reason.clone());
        for (from, bytes) in credit {
            self.give_credit(from, mailbox.id, bytes);
        }
        left
    }

    /// Tells whoever waits for the message that an actor has in hand, and may have for ever.
    pub fn fail_current(&self, mailbox: &Mailbox, reason: &[u8]) {
        if let Some((to, slot, rank)) = mailbox.current() {
            self.reply_bytes(to, slot, answer_rank(rank), Status::Failed, reason);
        }
    }

    pub fn give_credit(&self, to: ProcUid, mailbox: MailboxId, bytes: u64) {
        if to == self.uid {
            self.peer(to).refill(mailbox, bytes, |m| self.deliver(m));
        } else if let Some(peer) = self.known_peer(to) {
            peer.send_frame(&Frame::Credit { mailbox, bytes });
        }
    }

    /// The consumer has taken a message and is done with it.
    pub fn handled(&self, mailbox: &Mailbox, from: ProcUid, cost: u64) {
        if let Some(bytes) = mailbox.consumed(from, cost) {
            self.give_credit(from, mailbox.id, bytes);
        }
    }

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
            None => Some((m, self.grave(id).unwrap_or_else(|| Arc::from(&b""[..])))),
        };
        if let Some((m, reason)) = refused {
            self.refuse(&m, &reason);
            self.give_credit(m.from, id, m.cost());
        }
    }

    fn refuse(&self, m: &Incoming, reason: &[u8]) {
        if !m.slot.is_none() {
            self.reply_bytes(m.from, m.slot, answer_rank(m.rank), Status::Failed, reason);
        } else if m.flags & TO_PORT != 0 {
            // Its receiver was dropped, which is no failure: its senders go on.
            self.dropped_items.fetch_add(1, Ordering::Relaxed);
        } else if m.flags & RETURN != 0 {
            let mut body = m.sender.0.to_le_bytes().to_vec();
            body.extend_from_slice(&m.dest.0.to_le_bytes());
            body.extend_from_slice(reason);
            self.send_system(m.from, UNDELIVERABLE, SlotId::NONE, body);
        }
    }

    /// A message to a process that is gone comes back to its sender.
    pub fn undelivered_to_ended(&self, head: &Head<'_>, peer: &Peer) {
        self.give_back(Returned { sender: head.sender, dest: head.dest }, peer);
    }

    pub(crate) fn give_back(&self, message: Returned, peer: &Peer) {
        let mut body = message.sender.0.to_le_bytes().to_vec();
        body.extend_from_slice(&message.dest.0.to_le_bytes());
        body.extend_from_slice(&peer.uid.0.to_le_bytes());
        self.send_system(self.uid, UNDELIVERABLE, SlotId::NONE, body);
    }

    // ---- what arrives
}
