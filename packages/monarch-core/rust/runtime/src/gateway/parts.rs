//! Large parts of frames, beside the frames: by reference on one host, as fragments between hosts.
//!
//! A process passes the block of a part to its agent by reference. The agent writes fragments into the session from this block, and
//! releases the block when the other side has received all of it. The other agent puts the fragments together in its own arena, and passes
//! that block by reference to the receiving process. A byte is therefore copied into the arena of its sender, to and from the sockets
//! between the hosts, and into the arena of the receiving agent. The frame does not wait for its parts on the route; its receiver does. A
//! part that cannot be forwarded must therefore be reported as lost.
//!
//! What it needs: this process, its jobs, and its arena.
//!
//! What always holds: a part that is known to be lost is forwarded as a lost one, unless its receiver is on a lost host.

use std::sync::Arc;

use net::lock::lock;
use net::{Arena, RecvPart};
use wire::cursor::DecodeError;
use wire::part_fragment::PartFragment;
use wire::{ProcUid, Route};

use super::job::Job;
use super::jobs::Jobs;
use super::part_fragments::copied;
use crate::local::Local;

/// Forwards large parts.
pub(super) struct Parts {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub arena: Arc<Arena>,
}

impl Parts {
    /// Sends a part to another host. A part for a lost host is dropped: its frame cannot be sent either.
    pub fn forward(&self, head: &Route, number: u64, part: RecvPart) {
        let Some(job) = self.jobs.by_own_id(head.from_host) else { return };
        // If the memory of the part cannot be read, the part is forwarded as a lost one.
        let part = if part.bytes().is_ok() { part } else { RecvPart::lost() };
        let Ok(bytes) = part.bytes() else { return };
        if head.to_host == job.own_id {
            // A block of another process cannot be passed on by reference: it is copied.
            if let Some(part) = copied(bytes, &self.arena) {
                self.local.deliver_part(job.own_id, head, number, part);
            }
            return;
        }
        let host = job.host_or_new(head.to_host);
        if host.end().is_none() {
            let _ = host.session.send_part(head, number, part);
        }
    }

    /// Handles a fragment of a part for this process, or for a proc of this host.
    pub fn accept(&self, job: &Job, from: ProcUid, head: &Route, fragment: Result<PartFragment<'_>, DecodeError>) {
        let (Some(host), Ok(fragment)) = (job.host(from), fragment) else { return };
        let whole = lock(&host.partial_parts).take((head.from, head.to), &fragment, &self.arena);
        if let Some(part) = whole {
            self.local.deliver_part(job.own_id, head, fragment.number, part);
        }
    }
}
