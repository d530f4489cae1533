//! The tombstones of actors. A message to an actor with a tombstone fails with the reason in the tombstone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use wire::MailboxId;

/// The tombstones of actors. The id of an ended actor is kept for ever, because a handle to it may appear at any time. The reason of its
/// end, which is a text, is kept for the last `KEPT_REASONS` actors only.
#[derive(Default)]
pub(crate) struct ActorTombstones {
    pub reasons: HashMap<MailboxId, Arc<[u8]>>,
    /// The actors whose reasons are kept, oldest first.
    recent: VecDeque<MailboxId>,
    /// The reason of all older actors: only that the actor has ended.
    old: Arc<[u8]>,
}

/// The number of reasons that are kept. A reason has some hundred bytes, so all take about 1 MiB.
const KEPT_REASONS: usize = 4096;

impl ActorTombstones {
    /// Inserts the tombstone of an actor.
    pub fn insert(&mut self, id: MailboxId, reason: Arc<[u8]>) {
        if self.reasons.insert(id, reason).is_none() {
            self.recent.push_back(id);
        }
        if self.recent.len() > KEPT_REASONS
            && let Some(id) = self.recent.pop_front()
        {
            self.reasons.insert(id, self.old.clone());
        }
    }
}
