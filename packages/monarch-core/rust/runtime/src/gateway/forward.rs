//! Frames of this process, and of the procs of this host, on their way to other hosts.
//!
//! What it needs: the jobs, the connections, which are opened when there is something to send, and the ways of frames and parts that turn
//! out to be for this host.
//!
//! What always holds:
//! - No process can send in the name of another one.
//! - The sender of a frame that cannot be delivered is notified of the end of its receiver.

use std::sync::Arc;

use net::{Link, RecvPart};
use wire::exit::ProcEnd;
use wire::frame::CONTROL;
use wire::{Control, Frame, ProcUid, Route, part_fragment};

use super::connections::Connections;
use super::deliveries::Deliveries;
use super::jobs::Jobs;
use super::parts::Parts;
use crate::local::{Local, len, routed};
use crate::peers::carrier::routed_head;
use crate::peers::ended::host_end;

/// Forwards frames to other hosts.
pub(super) struct Forward {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub connections: Arc<Connections>,
    pub deliveries: Arc<Deliveries>,
    pub parts: Arc<Parts>,
}

impl Forward {
    /// Sends a frame of this process, or of a proc of this host, to another host.
    pub fn send(&self, head: &Route, body: &[&[u8]]) {
        let Some(job) = self.jobs.by_own_id(head.from_host) else { return };
        if head.to_host == job.own_id {
            // The sender expects the process on another host, but it is on this one.
            return self.deliveries.arrived(&job, head, &body.concat());
        }
        // A handle may name a host that has not joined yet. Frames for it wait in its session until the client sends the host's address, or
        // reports that the host does not join.
        let host = job.host_or_new(head.to_host);
        if host.session.send_behind(head, &reported_ends(head, body), &routed(&routed_head(head, len(body)), body)).is_err() {
            return self.unreachable(head, host.end().unwrap_or_else(|| host_end(&host.name(), "agent exited")));
        }
        if !host.session.is_up() {
            self.connections.open_soon(&job, &host);
        }
    }

    /// Forwards a frame, or a large part, of a proc of this host, if the route names this proc as its sender.
    pub fn send_for(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        if !self.local.may_send(link.peer, head) {
            return;
        }
        match part_fragment::read_part(body) {
            Some(Ok((number, part))) => self.parts.forward(head, number, RecvPart::accept(part, Some(link)).unwrap_or_else(RecvPart::lost)),
            Some(Err(_)) => {}
            None => self.send(head, &[body]),
        }
    }

    /// Notifies the sender of a frame that the frame cannot be delivered.
    fn unreachable(&self, head: &Route, end: ProcEnd) {
        let Some(node) = self.local.node() else { return };
        let ends = vec![(head.to_host, end.clone()), (head.to, end)];
        if Some(head.from) == self.jobs.by_own_id(head.from_host).map(|j| j.own_id) {
            // Not on this thread: it may hold locks that the notification needs.
            self.local.poller.spawn(Box::new(move || node.ends.procs_ended(ends)));
        } else {
            let frame = Frame::Control(Control::ProcsEnded { ends });
            let _ = node.peers.peer_unlinked(head.from).0.link.send(&[&frame.encode()], Vec::new());
        }
    }
}

/// The processes whose end this frame reports, if it is such a report of an agent.
fn reported_ends(head: &Route, body: &[&[u8]]) -> Vec<ProcUid> {
    let is_control = head.from == head.from_host && body.first().is_some_and(|first| first.get(4) == Some(&CONTROL));
    match is_control.then(|| Frame::decode(body.concat().get(4..).unwrap_or_default())) {
        Some(Ok(Frame::Control(Control::ProcsEnded { ends }))) => ends.into_iter().map(|(uid, _)| uid).collect(),
        _ => vec![],
    }
}
