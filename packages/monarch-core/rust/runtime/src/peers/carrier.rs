//! The carrier of frames to the processes of one other host: it adds the route, and sends the frames to the process that forwards them.
//!
//! It needs the peers of this process for the link to an agent, the gateway if this process forwards frames itself, and the offers, which
//! may hold frames back. Frames of this process have sequence numbers, one counter for each host; large parts are numbered separately and
//! go before the frame that names them.

use std::sync::{Arc, Weak};

use net::{Block, Forwarder, Link, LinkDown, RecvPart};
use wire::frame::{ROUTED, begin, finish};
use wire::part_fragment::put_part;
use wire::{Part, ProcUid, Route, frame_fragment};

use super::Peers;
use crate::transfers::offers::Carrier;

/// The carrier of links to the processes of one other host.
#[derive(Clone)]
pub struct HostCarrier {
    pub(super) peers: Weak<Peers>,
    pub(super) host: ProcUid,
    /// The id of this process's host in the job, and the uid of this process.
    pub(super) here: ProcUid,
    pub(super) from: ProcUid,
    /// The agent that forwards the frames: that of this host, or the client of another job; none if this process forwards them itself.
    pub(super) agent: Option<ProcUid>,
}

impl Forwarder for HostCarrier {
    fn host(&self) -> ProcUid {
        self.host
    }

    fn forward(&self, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
        if to == self.host
            && let Some(peers) = self.peers.upgrade()
            && peers.offers.hold(self.host, || Arc::new(self.clone()), to, pieces, blocks, first)
        {
            return Ok(());
        }
        self.send_now(to, pieces, blocks, first)
    }
}

impl Carrier for HostCarrier {
    /// Without frames this sends the parts alone; without frames and parts, a frame that has only the route.
    fn send_now(&self, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
        let peers = self.peers.upgrade().ok_or(LinkDown)?;
        // An agent sends no casts, so its frames need no numbers. Each fragment of a long frame has a number of its own.
        let number = || if self.from == peers.uid { peers.next_frame_number(self.host) } else { 0 };
        let parts = Route { from: self.from, from_host: self.here, to, to_host: self.host, seq: 0 };
        let head = || Route { seq: number(), ..parts };
        let mut sent = Ok(());
        let cut = |each: &mut dyn FnMut(&[&[u8]])| {
            // Parts alone need no frame. An empty frame without parts is sent, however: the agent of a process that has ended answers it
            // with the end.
            if !pieces.is_empty() || blocks.is_empty() {
                frame_fragment::cut(pieces, each)
            }
        };
        match (self.agent, peers.roles.gateway()) {
            (None, None) => return Err(LinkDown),
            (None, Some(gateway)) => {
                for (number, block) in (first..).zip(blocks) {
                    gateway.forward_part(&parts, number, RecvPart::Own { block: block.clone(), readonly: true });
                }
                cut(&mut |p| gateway.forward(&head(), p));
            }
            (Some(agent), _) => {
                let agent = peers.peer_unlinked(agent).0;
                sent = send_parts(&agent.link, &parts, blocks, first);
                cut(&mut |pieces| {
                    let start = routed_head(&head(), pieces.iter().map(|p| p.len()).sum());
                    let mut all: Vec<&[u8]> = Vec::with_capacity(pieces.len() + 1);
                    all.push(&start);
                    all.extend_from_slice(pieces);
                    sent = sent.and(agent.link.send_soon(&all));
                });
            }
        }
        sent
    }
}

/// The frame header and the route of a routed frame whose body has `body` bytes.
pub(crate) fn routed_head(head: &Route, body: usize) -> Vec<u8> {
    let mut start = Vec::with_capacity(5 + Route::LEN);
    let at = begin(&mut start, ROUTED);
    head.put(&mut start);
    finish(&mut start, at, body);
    start
}

/// Passes the blocks by reference to the process at the other end of the link, as consecutive parts from number `first` on.
pub(crate) fn send_parts(link: &Link, route: &Route, blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
    if blocks.is_empty() {
        return Ok(());
    }
    let mut frames = Vec::with_capacity(blocks.len() * (48 + Route::LEN));
    for (number, block) in (first..).zip(blocks) {
        put_part(&mut frames, route, number, &Part::Shared { block: block.id(), len: block.len() as u64, readonly: true });
    }
    link.send_with_blocks(&[&frames], blocks)
}
