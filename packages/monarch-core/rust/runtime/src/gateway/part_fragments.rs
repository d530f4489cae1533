//! Large parts of frames, beside the frames: by reference on a host, in fragments between hosts.
//!
//! A process lends its agent the block of a part. The agent writes fragments into the session from there, and gives the block back when the
//! other side has all of it. The other agent puts the fragments together in its own arena, and lends that block to the receiving process.
//! So a byte is copied into the arena of its sender, to and from the sockets between the hosts, and into the arena of the receiving agent.
//! The frame does not wait for its parts on the way; its receiver does. So a part that cannot be forwarded must be reported as lost.

use std::sync::Arc;

use net::lock::lock;
use net::{Block, Link, LinkDown, RecvPart};
use wire::cursor::DecodeError;
use wire::part_fragment::{Stretch, put_part};
use wire::{Bytes, Part, ProcUid, Route};

use super::{Gateway, Job};
use crate::node::peer::MOST_BETWEEN_HOSTS;

/// Lends the blocks to the process at the other end of the link, as parts of one frame.
pub(super) fn send_parts(link: &Link, route: &Route, blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
    if blocks.is_empty() {
        return Ok(());
    }
    let mut frames = Vec::with_capacity(blocks.len() * (48 + Route::LEN));
    for (number, block) in (first..).zip(blocks) {
        put_part(&mut frames, route, number, &Part::Shared { block: block.id(), len: block.len() as u64, readonly: true });
    }
    link.send_with_blocks(&[&frames], blocks)
}

/// A part that has not come whole.
pub(super) struct Arriving {
    number: u64,
    memory: Memory,
    at: usize,
    len: usize,
}

enum Memory {
    Shared(Block),
    /// There is no shared memory: the limit of open files, most likely.
    Own(Vec<u8>),
    /// There is none: it is lost.
    None,
}

impl Arriving {
    fn take(&mut self, bytes: &[u8]) {
        match &mut self.memory {
            Memory::Shared(block) => block.fill_at(self.at, bytes),
            Memory::Own(own) => own.extend_from_slice(bytes),
            Memory::None => {}
        }
        self.at += bytes.len();
    }

    fn whole(self) -> RecvPart {
        match self.memory {
            Memory::Shared(block) => RecvPart::Own { block: Arc::new(block), readonly: true },
            Memory::Own(bytes) => RecvPart::Inline { data: bytes.into(), readonly: true },
            Memory::None => RecvPart::lost(),
        }
    }
}

impl Gateway {
    /// A part that a proc of this host lends.
    pub(crate) fn send_part_for(&self, link: &Arc<Link>, head: &Route, part: Result<(u64, Part), DecodeError>) {
        if let Ok((number, part)) = part
            && self.may_send(link.peer, head)
        {
            self.forward_part(head, number, RecvPart::adopt(part, Some(link)).unwrap_or_else(RecvPart::lost));
        }
    }

    /// Sends a part on its way; to a host that is lost its frame cannot be sent either.
    pub(super) fn forward_part(&self, head: &Route, number: u64, part: RecvPart) {
        let Some(job) = self.job_here(head.from_host) else { return };
        // From here on they are there.
        let part = if part.bytes().is_ok() { part } else { RecvPart::lost() };
        let Ok(bytes) = part.bytes() else { return };
        if head.to_host == job.here {
            // What another process has lent cannot be lent on.
            let Some(mut here) = self.arriving(number, bytes.len()) else { return };
            here.take(bytes);
            return self.hand_part(&job, head, number, here.whole());
        }
        let host = job.host_or_new(head.to_host, &self.me, &self.poller);
        if host.end().is_none() {
            let _ = host.trunk.send_part(head, number, part);
        }
    }

    /// A stretch of a part for this process, or for a proc of this host.
    pub(super) fn take_stretch(&self, job: &Arc<Job>, from: ProcUid, head: &Route, stretch: Result<Stretch<'_>, DecodeError>) {
        let (Some(host), Ok(Stretch { number, left, bytes })) = (job.host(from), stretch) else { return };
        let pair = (head.from, head.to);
        let mut all = lock(&host.arriving);
        let fresh = || self.arriving(number, bytes.len().checked_add(usize::try_from(left).ok()?)?);
        let Some(mut part) = all.remove(&pair).filter(|p| p.number == number).or_else(fresh) else { return };
        // Others are the fault of their sender, who is of the job.
        if part.len - part.at != bytes.len().saturating_add(left as usize) {
            return;
        }
        part.take(bytes);
        if left > 0 {
            all.insert(pair, part);
            return;
        }
        drop(all);
        self.hand_part(job, head, number, part.whole());
    }

    fn arriving(&self, number: u64, len: usize) -> Option<Arriving> {
        if len as u64 > MOST_BETWEEN_HOSTS {
            return None;
        }
        let memory = match self.node()?.arena.alloc(len) {
            // Lost before it came here.
            _ if len == 0 => Memory::None,
            Ok(block) => Memory::Shared(block),
            Err(_) => room(len).map_or(Memory::None, Memory::Own),
        };
        Some(Arriving { number, memory, at: 0, len })
    }

    fn hand_part(&self, job: &Arc<Job>, head: &Route, number: u64, part: RecvPart) {
        let Some(node) = self.node() else { return };
        node.route(head.from, head.from_host, job.here);
        if head.to == job.here {
            return node.on_part(head.from, number, part);
        }
        let Some(agent) = node.agent() else { return };
        // The frame that follows notifies the sender of its end.
        if agent.end_of(head.to).is_some() {
            return;
        }
        agent.talked(head.from, head.to);
        let link = &node.peer_unlinked(head.to).0.link;
        let _ = match part {
            RecvPart::Own { block, .. } => send_parts(link, head, &[block], number),
            RecvPart::Inline { data, readonly } => {
                let frame = room(data.len() + 32 + Route::LEN);
                let data = if frame.is_some() { data } else { Bytes::Own(Box::default()) };
                let mut frame = frame.unwrap_or_default();
                put_part(&mut frame, head, number, &Part::Inline { data, readonly });
                link.send(&[&frame], Vec::new())
            }
            RecvPart::Shared { .. } => Ok(()),
        };
    }
}

/// Memory of this process, if there is so much.
fn room(bytes: usize) -> Option<Vec<u8>> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes).ok()?;
    Some(own)
}
