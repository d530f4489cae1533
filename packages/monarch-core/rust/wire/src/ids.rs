//! Ids. All are 64-bit numbers, random or counted. Python has their text forms.

use serde::{Deserialize, Serialize};

/// A process of the job (client or proc); random.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ProcUid(pub u64);

/// A destination in a process: an actor (the uid of its mesh) or a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MailboxId(pub u64);

/// A call id: identifies a pending call in the calling process. 0: no pending call waits for replies.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct CallId(pub u64);

impl CallId {
    pub const NONE: CallId = CallId(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A block of a sender's shared-memory arena: segment number and byte offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct BlockId {
    pub segment: u32,
    pub offset: u64,
}
