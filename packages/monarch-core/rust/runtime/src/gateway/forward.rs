//! Forwarding of frames between procs, this process, and the sessions with other hosts.

use std::sync::{Arc, Weak};

use net::dial::NoStream;
use net::session::{Session, SessionHandler, StreamEnd};
use net::{Link, RecvPart};
use wire::cursor::Cursor;
use wire::exit::ProcEnd;
use wire::frame::{CARRIED, CAST, CONTROL, ROUTED, TREE};
use wire::greeting::Heartbeat;
use wire::{Control, Frame, ProcUid, Route, part_fragment};

use super::{Gateway, Host, Job};
use crate::peers::carrier::routed_head;
use crate::peers::ended::host_end;

/// The processes whose end this frame reports, if it is such a report of an agent.
fn reported_ends(head: &Route, body: &[&[u8]]) -> Vec<ProcUid> {
    let is_control = head.from == head.from_host && body.first().is_some_and(|first| first.get(4) == Some(&CONTROL));
    match is_control.then(|| Frame::decode(body.concat().get(4..).unwrap_or_default())) {
        Some(Ok(Frame::Control(Control::ProcsEnded { ends }))) => ends.into_iter().map(|(uid, _)| uid).collect(),
        _ => vec![],
    }
}

impl Gateway {
    /// Sends a frame of this process, or of a proc of this host, to another host.
    pub fn forward(&self, head: &Route, body: &[&[u8]]) {
        let Some(job) = self.job_by_own_id(head.from_host) else { return };
        if head.to_host == job.own_id {
            // The sender expects the process on another host, but it is on this one.
            return self.accept_frame(&job, head, &body.concat());
        }
        // A handle may name a host that has not joined yet. Frames for it wait in its session until the client sends the host's address, or
        // reports that the host does not join.
        let host = job.host_or_new(head.to_host, &self.me, &self.poller);
        let start = routed_head(head, body.iter().map(|p| p.len()).sum());
        let mut all: Vec<&[u8]> = Vec::with_capacity(body.len() + 1);
        all.push(&start);
        all.extend_from_slice(body);
        if host.session.send_behind(head, &reported_ends(head, body), &all).is_err() {
            return self.unreachable(head, host.end().unwrap_or_else(|| host_end(&host.name(), "agent exited")));
        }
        if !host.session.is_up() {
            self.open_soon(&job, &host);
        }
    }

    /// Forwards a frame, or a large part, of a proc of this host, if the route names this proc as its sender: no process can send in the
    /// name of another one.
    pub(crate) fn send_for(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        if !self.may_send(link.peer, head) {
            return;
        }
        match part_fragment::read_part(body) {
            Some(Ok((number, part))) => self.forward_part(head, number, RecvPart::accept(part, Some(link)).unwrap_or_else(RecvPart::lost)),
            Some(Err(_)) => {}
            None => self.forward(head, &[body]),
        }
    }

    /// True if the proc may send with this route: it is the sender, and it belongs to the job of the route. Notes the pair, so that each of
    /// the two processes is notified of the other one's end.
    pub(super) fn may_send(&self, proc: ProcUid, head: &Route) -> bool {
        let Some(node) = self.node() else { return false };
        let Some(agent) = node.roles.agent() else { return false };
        if head.from != proc || !agent.is_in_job(proc, head.from_host) {
            return false;
        }
        agent.note_exchange(proc, head.to);
        node.peers.route(head.to, head.to_host, head.from_host);
        true
    }

    /// Handles a frame for this process or for a proc of this host.
    fn accept_frame(&self, job: &Arc<Job>, head: &Route, body: &[u8]) {
        let Some(node) = self.node() else { return };
        node.peers.route(head.from, head.from_host, job.own_id);
        if head.seq == 0 { self.deliver_frame(job, head, &[body]) } else { self.arrived_directly(job, head, body) }
    }

    /// Delivers a frame when its turn has come.
    pub(super) fn deliver_frame(&self, job: &Arc<Job>, head: &Route, body: &[&[u8]]) {
        let Some(node) = self.node() else { return };
        if head.to == job.own_id {
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
        let start = routed_head(head, body.iter().map(|p| p.len()).sum());
        let mut all: Vec<&[u8]> = Vec::with_capacity(body.len() + 1);
        all.push(&start);
        all.extend_from_slice(body);
        let _ = node.peers.peer_unlinked(head.to).0.link.send_soon(&all);
    }

    /// Notifies the sender of a frame that the frame cannot be delivered.
    fn unreachable(&self, head: &Route, end: ProcEnd) {
        let Some(node) = self.node() else { return };
        let ends = vec![(head.to_host, end.clone()), (head.to, end)];
        if Some(head.from) == self.job_by_own_id(head.from_host).map(|j| j.own_id) {
            // Not on this thread: it may hold locks that the notification needs.
            self.poller.spawn(Box::new(move || node.ends.procs_ended(ends)));
        } else {
            let frame = Frame::Control(Control::ProcsEnded { ends });
            let _ = node.peers.peer_unlinked(head.from).0.link.send(&[&frame.encode()], Vec::new());
        }
    }
}

/// Handler of the events of a job's sessions.
pub(super) struct SessionEvents {
    pub gateway: Weak<Gateway>,
    pub job: Weak<Job>,
}

impl SessionEvents {
    fn with(&self, f: impl FnOnce(&Gateway, &Arc<Job>)) {
        if let (Some(g), Some(j)) = (self.gateway.upgrade(), self.job.upgrade()) {
            f(&g, &j);
        }
    }

    fn with_host(&self, session: &Session, f: impl FnOnce(&Gateway, &Arc<Job>, &Arc<Host>)) {
        self.with(|g, j| {
            if let Some(h) = j.host(session.host) {
                f(g, j, &h);
            }
        });
    }
}

impl SessionHandler for SessionEvents {
    fn frame(&self, session: &Arc<Session>, frame: &[u8]) {
        if matches!(frame[0], TREE | CARRIED) {
            return self.with(|g, j| g.on_tree_frame(j, session.host, frame));
        }
        if frame[0] == CAST {
            return self.with(|g, j| g.cast_frame(j, session.host, &frame[1..]));
        }
        if frame[0] != ROUTED {
            return;
        }
        let mut c = Cursor::new(&frame[1..]);
        let Ok(head) = Route::read(&mut c) else { return };
        let body = &frame[1 + Route::LEN..];
        self.with(|g, j| {
            // Agents have sessions with each other: a session brings no frames for a third host.
            if head.to_host != j.own_id {
                return;
            }
            // Between hosts, large parts come as fragments. References to shared memory are valid on one host only.
            if part_fragment::read_part(body).is_some() {
                return;
            }
            match part_fragment::read(body) {
                Some(fragment) => g.accept_fragment(j, session.host, &head, fragment),
                None => g.accept_frame(j, &head, body),
            }
        });
    }

    fn heartbeat(&self, session: &Arc<Session>, beat: Heartbeat) {
        self.with_host(session, |g, j, h| g.on_beat(j, h, beat));
    }

    fn bytes_received(&self, session: &Arc<Session>) {
        // A frame that relays have forwarded may be old: it is no heartbeat.
        if !session.is_routed() {
            self.with(|g, j| g.heartbeat_received(j, session.host));
        }
    }

    fn broken(&self, session: &Arc<Session>, number: u8, end: StreamEnd) {
        self.with_host(session, |g, j, h| g.stream_broken(j, h, number, end));
    }

    fn unwatched(&self, session: &Arc<Session>, why: std::io::Error) {
        self.with_host(session, |g, j, h| g.unwatched(j, h, &NoStream::unwatched(&why)));
    }

    fn forward_bytes(&self, session: &Session, bytes: Vec<u8>) {
        self.with(|g, j| g.carry(j, session, &bytes));
    }

    fn forward_heartbeat(&self, session: &Session, beat: &Heartbeat) {
        self.with(|g, j| g.forward_heartbeat(j, session.host, beat));
    }
}
