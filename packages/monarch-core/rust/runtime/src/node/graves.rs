//! Tombstones of actors that have ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use wire::MailboxId;

/// Actors that are gone, and why. That they are is remembered for ever, since a handle may turn up at any time; why, which takes a
/// text, only of the last ones.
#[derive(Default)]
pub(crate) struct Graves {
    pub reasons: HashMap<MailboxId, Arc<[u8]>>,
    recent: VecDeque<MailboxId>,
    /// Says only that it is gone.
    old: Arc<[u8]>,
}

/// So many texts are kept, each of some hundred bytes.
const RECENT_GRAVES: usize = 4096;

impl Graves {
    pub fn dig(&mut self, id: MailboxId, reason: Arc<[u8]>) {
        if self.reasons.insert(id, reason).is_none() {
            self.recent.push_back(id);
        }
        if self.recent.len() > RECENT_GRAVES
            && let Some(id) = self.recent.pop_front()
        {
            self.reasons.insert(id, self.old.clone());
        }
    }
}
