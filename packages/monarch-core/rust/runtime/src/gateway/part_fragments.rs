//! Large parts of frames, beside the frames: by reference on one host, as fragments between hosts.
//!
//! A process passes the block of a part to its agent by reference. The agent writes fragments into the session from this block, and
//! releases the block when the other side has received all of it. The other agent puts the fragments together in its own arena, and passes
//! that block by reference to the receiving process. A byte is therefore copied into the arena of its sender, to and from the sockets
//! between the hosts, and into the arena of the receiving agent. The frame does not wait for its parts on the route; its receiver does. A
//! part that cannot be forwarded must therefore be reported as lost.

use std::sync::Arc;

use net::lock::lock;
use net::{Block, RecvPart};
use wire::cursor::DecodeError;
use wire::part_fragment::{PartFragment, put_part};
use wire::{Bytes, Part, ProcUid, Route};

use super::{Gateway, Job};
use crate::peers::carrier::send_parts;
use crate::transfers::MAX_REMOTE_MESSAGE;

/// A large part of which fragments are missing. `at` is the number of bytes that have arrived, out of `len`.
pub(super) struct PartialPart {
    number: u64,
    memory: Memory,
    at: usize,
    len: usize,
}

/// The memory in which the fragments are put together.
enum Memory {
    Shared(Block),
    /// Memory of this process, if the arena has no block, probably because of the limit of open files.
    Own(Vec<u8>),
    /// Without memory: the part is lost, and its bytes are dropped.
    None,
}

impl PartialPart {
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
    /// Sends a part to another host. A part for a lost host is dropped: its frame cannot be sent either.
    pub(super) fn forward_part(&self, head: &Route, number: u64, part: RecvPart) {
        let Some(job) = self.job_by_own_id(head.from_host) else { return };
        // If the memory of the part cannot be read, the part is forwarded as a lost one.
        let part = if part.bytes().is_ok() { part } else { RecvPart::lost() };
        let Ok(bytes) = part.bytes() else { return };
        if head.to_host == job.own_id {
            // A block of another process cannot be passed on by reference: it is copied.
            let Some(mut here) = self.partial_part(number, bytes.len()) else { return };
            here.take(bytes);
            return self.hand_part(&job, head, number, here.whole());
        }
        let host = job.host_or_new(head.to_host, &self.me, &self.poller);
        if host.end().is_none() {
            let _ = host.session.send_part(head, number, part);
        }
    }

    /// Handles a fragment of a part for this process, or for a proc of this host.
    pub(super) fn accept_fragment(&self, job: &Arc<Job>, from: ProcUid, head: &Route, fragment: Result<PartFragment<'_>, DecodeError>) {
        let (Some(host), Ok(PartFragment { number, left, bytes })) = (job.host(from), fragment) else { return };
        let pair = (head.from, head.to);
        let mut all = lock(&host.partial_parts);
        let fresh = || self.partial_part(number, bytes.len().checked_add(usize::try_from(left).ok()?)?);
        let Some(mut part) = all.remove(&pair).filter(|p| p.number == number).or_else(fresh) else { return };
        // A fragment that does not fit is dropped: its sender, a member of the job, is at fault.
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

    fn partial_part(&self, number: u64, len: usize) -> Option<PartialPart> {
        if len as u64 > MAX_REMOTE_MESSAGE {
            return None;
        }
        let memory = match self.node()?.arena.alloc(len) {
            // The sender has reported the part as lost: a lost part has no bytes.
            _ if len == 0 => Memory::None,
            Ok(block) => Memory::Shared(block),
            Err(_) => room(len).map_or(Memory::None, Memory::Own),
        };
        Some(PartialPart { number, memory, at: 0, len })
    }

    fn hand_part(&self, job: &Arc<Job>, head: &Route, number: u64, part: RecvPart) {
        let Some(node) = self.node() else { return };
        node.peers.route(head.from, head.from_host, job.own_id);
        if head.to == job.own_id {
            return node.frames.on_part(head.from, number, part);
        }
        let Some(agent) = node.roles.agent() else { return };
        // The frame that belongs to the part notifies the sender of the process's end.
        if agent.end_of(head.to).is_some() {
            return;
        }
        agent.note_exchange(head.from, head.to);
        let link = &node.peers.peer_unlinked(head.to).0.link;
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

/// Memory of this process; none if the allocation fails.
fn room(bytes: usize) -> Option<Vec<u8>> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes).ok()?;
    Some(own)
}
