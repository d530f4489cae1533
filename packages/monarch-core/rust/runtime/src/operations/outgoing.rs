//! The checks of a message before it is sent: its size, the memory for its parts, and the choice of a bulk transport.

use std::io;
use std::sync::Arc;

use net::Arena;
use wire::ProcUid;

use crate::peers::Peers;
use crate::peers::peer::Peer;
use crate::transfers::MAX_REMOTE_MESSAGE;
use crate::transfers::offers::Offers;
use crate::transfers::payload::{OutPart, Payload};
use crate::transfers::rank_payloads::RankPayloads;

/// The size from which a part needs the decision which bulk transport moves parts to other hosts.
const LARGE: usize = 1 << 20;

/// The payload of a message to these processes, or the reason why one of them cannot receive it. No part has been sent yet.
pub fn payload<'a>(arena: &Arc<Arena>, peers: &[Arc<Peer>], parts: Vec<OutPart<'a>>) -> Result<Payload<'a>, String> {
    let len = parts.iter().map(|part| part.bytes.len() as u64).sum();
    peers.iter().try_for_each(|peer| check_length(peer, len))?;
    prepared(arena, parts)
}

/// The payloads of a message to these processes with other values for each: each process gets the pieces at its places, and the common
/// parts. Fails as `payload` does; the memory for the pieces is taken when they are sent.
pub fn rank_payloads<'a>(
    arena: &Arc<Arena>,
    peers: &[Arc<Peer>],
    common: Vec<OutPart<'a>>,
    pieces: Vec<Vec<OutPart<'a>>>,
    places: Vec<u32>,
) -> Result<RankPayloads<'a>, String> {
    let each = places.len() / peers.len().max(1);
    if places.len() != each * peers.len() || places.iter().any(|place| *place as usize >= pieces.len()) {
        return Err("it has no value for some of its receivers".to_owned());
    }
    let len = |parts: &Vec<OutPart<'_>>| parts.iter().map(|part| part.bytes.len() as u64).sum::<u64>();
    let lens: Vec<u64> = pieces.iter().map(len).collect();
    for (peer, own) in peers.iter().zip(places.chunks(each.max(1))) {
        check_length(peer, own.iter().map(|place| lens[*place as usize]).sum::<u64>() + len(&common))?;
    }
    let common = prepared(arena, common)?;
    Ok(RankPayloads::new(arena, common, pieces, places, each))
}

fn check_length(peer: &Peer, len: u64) -> Result<(), String> {
    if peer.takes(len) {
        return Ok(());
    }
    Err(format!("a message of {len} bytes is too large for another host: at most {MAX_REMOTE_MESSAGE}, send it in parts"))
}

fn prepared<'a>(arena: &Arc<Arena>, parts: Vec<OutPart<'a>>) -> Result<Payload<'a>, String> {
    Payload::new(arena, parts).map_err(|e| no_memory(&e))
}

/// The reason why a message whose parts have no shared memory is not delivered.
pub(super) fn no_memory(e: &io::Error) -> String {
    format!("no shared memory for it: {e}")
}

/// The process that an answer of `len` bytes goes to, for the checks of its payload; `None` if they pass in any case.
pub fn receiver(peers: &Peers, to: ProcUid, len: u64) -> Option<Arc<Peer>> {
    (len >= LARGE as u64 && to != peers.uid).then(|| peers.peer(to))
}

/// True if the bulk transport of the process must be chosen before a message whose largest shared part has this length is sent.
pub fn needs_transport(offers: &Offers, peers: &[Arc<Peer>], largest: usize) -> bool {
    largest >= LARGE && offers.is_undecided() && peers.iter().any(|p| p.link.is_forwarded())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::node::Node;
    use crate::transfers::offers::NEVER;

    /// A process, and a process on another host of its job.
    fn two() -> (Arc<Node>, Arc<Peer>) {
        let node = Node::start(ProcUid(1), ProcUid(1)).unwrap();
        let (other, host) = (ProcUid(7), ProcUid(8));
        node.peers.route(other, host, node.uid);
        let peer = node.peers.peer(other);
        (node, peer)
    }

    fn parts(bytes: &[u8]) -> Vec<OutPart<'_>> {
        vec![OutPart { bytes, readonly: true }]
    }

    #[test]
    fn first_large_remote_part_needs_a_transport() {
        let (node, remote) = two();
        let own = node.peers.peer(node.uid);
        let (small, large) = (vec![0; 1], vec![0; LARGE]);
        let needs = |peer: &Arc<Peer>, bytes| {
            let peers = std::slice::from_ref(peer);
            needs_transport(&node.offers, peers, payload(&node.arena, peers, parts(bytes)).unwrap().largest())
        };
        assert_eq!([needs(&remote, &small), needs(&own, &large), needs(&remote, &large)], [false, false, true]);
        node.offers.set_min_size(NEVER);
        assert!(!needs(&remote, &large));
        node.poller.stop();
    }

    #[test]
    fn only_large_answers_to_others_have_a_receiver() {
        let (node, remote) = two();
        let len = LARGE as u64;
        assert!(receiver(&node.peers, node.uid, len).is_none() && receiver(&node.peers, remote.uid, len - 1).is_none());
        assert!(receiver(&node.peers, remote.uid, len).is_some_and(|peer| Arc::ptr_eq(&peer, &remote)));
        node.poller.stop();
    }
}
