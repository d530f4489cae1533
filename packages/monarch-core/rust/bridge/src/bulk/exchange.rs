//! The exchange of large message parts: it offers blocks of this process, and pulls blocks of other processes.

use std::sync::{Arc, OnceLock, Weak};

use bulk::Kind;
use bulk::registry::{Memory, Range};
use bulk::remote::{Offer, Pulls, RemoteServer};
use net::Block;
use runtime::Node;
use runtime::transfers::offers::{Exchange, PullDone, PullError};
use wire::ProcUid;

use super::fabric::{Streams, opened};

/// The state of the exchange in this process. Each part is made at its first use.
pub struct PartExchange {
    server: OnceLock<Option<Arc<RemoteServer>>>,
    pulls: Pulls,
}

impl PartExchange {
    /// Starts the exchange: this process can offer and pull from now on, and answers pulls of other processes.
    pub fn start(node: &Arc<Node>) -> Arc<PartExchange> {
        let streams = Streams { node: Arc::downgrade(node), by_messages: false };
        let pulls = Pulls::new(Arc::new(streams), bulk::bulk::width());
        let this = Arc::new(PartExchange { server: OnceLock::new(), pulls });
        let (answers, ends) = (Arc::downgrade(&this), Arc::downgrade(node));
        node.streams.set_receiver(Box::new(move |peer, stream| {
            if let Some(server) = answers.upgrade().and_then(|a| a.server()) {
                let node = ends.clone();
                server.answer(peer.0, opened(stream), move || node.upgrade().is_none_or(|node| node.peers.has_ended(peer)));
            }
        }));
        node.offers.set_exchange(Box::new(BlockExchange(Arc::downgrade(&this))));
        this
    }

    /// The component that answers pulls; `None` if there is no memory for it.
    pub fn server(&self) -> Option<Arc<RemoteServer>> {
        self.server.get_or_init(|| RemoteServer::new().ok()).clone()
    }
}

/// The exchange, as the runtime uses it.
struct BlockExchange(Weak<PartExchange>);

impl Exchange for BlockExchange {
    fn offer(&self, block: &Arc<Block>) -> Option<Vec<u8>> {
        let server = self.0.upgrade()?.server()?;
        let range = Range { address: block.address() as usize, len: block.len(), readonly: true };
        let memory = Memory::new(Box::new(block.clone()), None);
        let (id, epoch) = server.registry.register(range, memory, None).ok()?;
        Some(Offer { id, epoch }.to_bytes())
    }

    fn withdraw(&self, record: &[u8]) {
        if let (Some(server), Some(offer)) = (self.0.upgrade().and_then(|e| e.server()), Offer::from_bytes(record)) {
            server.registry.end(&offer.id, "the receiver has pulled it", None);
        }
    }

    fn sent(&self, to: ProcUid) -> u64 {
        self.0.upgrade().and_then(|e| e.server()).map_or(0, |a| a.sent(to.0))
    }

    fn pull(&self, from: ProcUid, record: &[u8], block: Arc<Block>, done: PullDone) {
        let (Some(all), Some(offer)) = (self.0.upgrade(), Offer::from_bytes(record)) else { return done(Err(PullError::Unreachable)) };
        let done = move |outcome: Result<(), bulk::Failure>| {
            done(outcome.map_err(|f| if f.kind == Kind::Unsupported { PullError::Unreachable } else { PullError::Failed }));
        };
        all.pulls.pull(from.0, offer, block, Box::new(done));
    }
}
