//! The mailboxes of the actors and ports of this process.
//!
//! | file | noun |
//! |---|---|
//! | `mailbox` | the queue of an actor or a port |
//! | `begun` | messages with a deadline: in progress, or removed because they have not begun in time |
//! | `credit` | flow control: the bytes that a sender may have in transit to one mailbox |
//!
//! The first message to an actor makes its mailbox. A message to an actor with a tombstone is refused with the reason in the tombstone. The
//! tombstone is inserted before the mailbox is removed, so no message is delivered to a new mailbox of an ended actor. A port has no
//! tombstone: messages to a port without a mailbox are refused without a reason.

pub mod begun;
pub mod credit;
pub mod mailbox;

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use wire::MailboxId;

use self::mailbox::Mailbox;
use crate::sync::{read, write};
use crate::tombstones::Tombstones;

/// The mailboxes of one process, and the tombstones of its actors with the reasons of their ends.
pub struct Mailboxes {
    open: RwLock<HashMap<MailboxId, Arc<Mailbox>>>,
    tombstones: RwLock<Tombstones<MailboxId, Arc<[u8]>>>,
}

impl Default for Mailboxes {
    fn default() -> Self {
        Mailboxes { open: RwLock::default(), tombstones: RwLock::new(Tombstones::new(Arc::default())) }
    }
}

impl Mailboxes {
    /// The mailboxes of actors.
    pub fn of_actors(&self) -> Vec<Arc<Mailbox>> {
        read(&self.open).values().filter(|m| m.is_actors()).cloned().collect()
    }

    /// The mailbox, if it exists.
    pub fn known(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        read(&self.open).get(&id).cloned()
    }

    /// The mailbox, which is made if it does not exist; `None` if its actor has ended.
    pub fn get(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        if let Some(m) = self.known(id) {
            return Some(m);
        }
        let mut open = write(&self.open);
        // Checked under the lock: `remove_actor` inserts the tombstone first, so it finds and closes every mailbox made before that.
        if self.tombstone(id).is_some() {
            return None;
        }
        Some(open.entry(id).or_insert_with(|| Mailbox::new(id)).clone())
    }

    /// The reason of the actor's end, if the actor has a tombstone.
    pub fn tombstone(&self, id: MailboxId) -> Option<Arc<[u8]>> {
        read(&self.tombstones).get(id)
    }

    /// Removes the mailbox of a port.
    pub(crate) fn remove_port(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        write(&self.open).remove(&id)
    }

    /// Inserts the tombstone of an actor, and removes the actor's mailbox.
    pub(crate) fn remove_actor(&self, id: MailboxId, reason: Arc<[u8]>) -> Option<Arc<Mailbox>> {
        write(&self.tombstones).insert(id, reason, false);
        write(&self.open).remove(&id)
    }

    /// Closes all mailboxes, without answers: the process ends.
    pub(crate) fn close_all(&self) {
        let all = std::mem::take(&mut *write(&self.open));
        all.values().for_each(|m| drop(m.close(Arc::default())));
    }
}
