//! Streams to processes of other hosts, from this process's agent.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bulk::far::{Fabric, NoStream, Opened};
use runtime::Node;
use runtime::bulk_streams::{Handed, NoBulk};
use wire::ProcUid;

struct Streams(Weak<Node>);

impl Fabric for Streams {
    fn open(&self, owner: u64, until: Instant) -> Result<Opened, NoStream> {
        let Some(node) = self.0.upgrade() else { return Err(NoStream::Ended) };
        match node.open_bulk(ProcUid(owner), until) {
            Ok(handed) => Ok(opened(handed)),
            Err(NoBulk::Ended) => Err(NoStream::Ended),
            Err(NoBulk::TimedOut) => Err(NoStream::TimedOut),
            Err(NoBulk::Unreachable(why)) => Err(NoStream::Unreachable(why)),
        }
    }

    fn has_ended(&self, owner: u64) -> bool {
        self.0.upgrade().is_none_or(|node| node.has_ended(ProcUid(owner)))
    }

    fn still(&self, owner: u64) -> Arc<AtomicBool> {
        self.0.upgrade().map(|node| node.still(ProcUid(owner))).unwrap_or_default()
    }
}

fn opened(Handed { fd, keys, dialled, is_routed, still }: Handed) -> Opened {
    Opened { fd, keys, dialled, is_routed, still }
}

/// Memory of other hosts can be reached, and that of this process from there.
pub fn connect(bulk: &Arc<bulk::Bulk>, node: &Arc<Node>, streams: usize) {
    bulk.reach_by(Arc::new(Streams(Arc::downgrade(node))), streams);
    let answers = Arc::downgrade(bulk);
    node.bulk_streams.take_by(Box::new(move |peer, handed| {
        if let Some(bulk) = answers.upgrade() {
            bulk.answer(peer.0, opened(handed));
        }
    }));
}
