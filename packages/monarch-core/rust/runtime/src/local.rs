//! This process and the procs of its host, as the components of the agent and of the gateway see them.
//!
//! What it needs: the node. These components know the node by this one only. Once the node has been dropped, nothing is delivered
//! or sent any more.
//!
//! What always holds:
//! - A frame is delivered to this process, or to a proc of this host that has not ended, and to no other process.
//! - A proc sends in its own name only, and only in the job that it belongs to.

use std::sync::{Arc, Weak};

use net::{Poller, RecvPart};
use wire::exit::ProcEnd;
use wire::part_fragment::put_part;
use wire::{Bytes, CallId, Control, Part, ProcUid, Route, Status};

use crate::SystemEvent;
use crate::calls::pending_call::Outcome;
use crate::node::Node;
use crate::peers::carrier::{routed_head, send_parts};
use crate::peers::routes::Place;
use crate::roles::LocalAgent;

/// This process and its agent. The components share it.
pub(crate) struct Local {
    pub uid: ProcUid,
    pub poller: Arc<Poller>,
    node: Weak<Node>,
}

impl Local {
    pub fn new(node: &Arc<Node>) -> Arc<Local> {
        Arc::new(Local { uid: node.uid, poller: node.poller.clone(), node: Arc::downgrade(node) })
    }

    pub fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade()
    }

    /// Calls `f` with the agent, if this process has this role.
    pub fn agent<T>(&self, f: impl FnOnce(&dyn LocalAgent) -> T) -> Option<T> {
        self.node()?.roles.agent().map(f)
    }

    /// Sends to the agent of a host.
    pub fn send(&self, host: ProcUid, control: Control) {
        if let Some(node) = self.node() {
            node.peers.peer(host).send_control(control);
        }
    }

    /// Notes on which host a process is. `here` is the id of this host in the same job.
    pub fn route(&self, proc: ProcUid, host: ProcUid, here: ProcUid) {
        if let Some(node) = self.node() {
            node.peers.route(proc, host, here);
        }
    }

    /// Notes the end of a host: no frame can be sent there any more.
    pub fn lose(&self, host: ProcUid, here: ProcUid, end: ProcEnd) {
        if let Some(node) = self.node() {
            node.peers.routes.lose(Place { host, here }, end);
        }
    }

    /// Reports the ends of processes.
    pub fn procs_ended(&self, ends: Vec<(ProcUid, ProcEnd)>) {
        if let Some(node) = self.node() {
            node.ends.procs_ended(ends);
        }
    }

    /// Passes an event to the housekeeping thread.
    pub fn push(&self, event: SystemEvent) {
        if let Some(node) = self.node() {
            node.system.push(event);
        }
    }

    /// Completes a call of this process.
    pub fn answer(&self, call_id: CallId, rank: u32, status: Status, body: &[u8]) {
        if let Some(node) = self.node() {
            node.calls.complete(call_id, Outcome::new(rank, status, body));
        }
    }

    /// True if the proc may send with this route: it is the sender, and it belongs to the job of the route. Notes the pair, so that each of
    /// the two processes is notified of the other one's end.
    pub fn may_send(&self, proc: ProcUid, head: &Route) -> bool {
        let Some(node) = self.node() else { return false };
        let Some(agent) = node.roles.agent() else { return false };
        if head.from != proc || !agent.is_in_job(proc, head.from_host) {
            return false;
        }
        agent.note_exchange(proc, head.to);
        node.peers.route(head.to, head.to_host, head.from_host);
        true
    }

    /// Delivers a frame. `here` is the id of this host in the job of the frame.
    pub fn deliver(&self, here: ProcUid, head: &Route, body: &[&[u8]]) {
        let Some(node) = self.node() else { return };
        if head.to == here {
            return match body {
                [whole] => node.frames.on_routed(head, whole),
                pieces => node.frames.on_routed(head, &pieces.concat()),
            };
        }
        let Some(agent) = node.roles.agent() else { return };
        if let Some(end) = agent.end_of(head.to) {
            return node.peers.peer(head.from).send_control(Control::ProcsEnded { ends: vec![(head.to, end)] });
        }
        agent.note_exchange(head.from, head.to);
        // The link of a proc that has not started yet keeps frames until the proc has connected.
        let _ = node.peers.peer_unlinked(head.to).0.link.send_soon(&routed(&routed_head(head, len(body)), body));
    }

    /// Delivers a large part of a frame.
    pub fn deliver_part(&self, here: ProcUid, head: &Route, number: u64, part: RecvPart) {
        let Some(node) = self.node() else { return };
        node.peers.route(head.from, head.from_host, here);
        if head.to == here {
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

/// The bytes of all pieces.
pub(crate) fn len(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// The pieces of a routed frame.
pub(crate) fn routed<'a>(head: &'a [u8], body: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut all = Vec::with_capacity(body.len() + 1);
    all.push(head);
    all.extend_from_slice(body);
    all
}

/// Memory of this process; none if the allocation fails.
pub(crate) fn room(bytes: usize) -> Option<Vec<u8>> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes).ok()?;
    Some(own)
}
