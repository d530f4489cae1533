//! The opening of bulk streams to processes of other hosts, through the agent of this process.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bulk::remote::{Fabric, NoStream, Opened};
use runtime::Node;
use runtime::streams::{BulkError, BulkStream};
use wire::ProcUid;

/// The opening of streams, as the bulk transport uses it.
pub struct Streams {
    pub node: Weak<Node>,
    /// Where no stream can be opened, a pipe of messages replaces it.
    pub by_messages: bool,
}

impl Fabric for Streams {
    fn open(&self, owner: u64, until: Instant) -> Result<Opened, NoStream> {
        let Some(node) = self.node.upgrade() else { return Err(NoStream::Ended) };
        match node.streams.open(ProcUid(owner), until, self.by_messages) {
            Ok(stream) => Ok(opened(stream)),
            Err(BulkError::Ended) => Err(NoStream::Ended),
            Err(BulkError::TimedOut) => Err(NoStream::TimedOut),
            Err(BulkError::Unreachable(why)) if !self.by_messages => Err(NoStream::Unsupported(why)),
            Err(BulkError::Unreachable(why)) => Err(NoStream::Unreachable(why)),
        }
    }

    fn has_ended(&self, owner: u64) -> bool {
        self.node.upgrade().is_none_or(|node| node.peers.has_ended(ProcUid(owner)))
    }

    fn paused(&self, owner: u64) -> Arc<AtomicBool> {
        self.node.upgrade().map(|node| node.streams.paused(ProcUid(owner))).unwrap_or_default()
    }
}

/// A stream of the runtime, in the type of the bulk transport.
pub fn opened(BulkStream { fd, keys, dialled, is_routed, paused }: BulkStream) -> Opened {
    Opened { fd, keys, dialled, is_routed, paused }
}
