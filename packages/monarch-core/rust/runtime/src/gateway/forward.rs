//! Frames from one place to the next.

use std::sync::{Arc, Weak};

use net::trunk::{StreamEnd, Trunk, TrunkHandler};
use net::{Block, LinkDown, RecvPart};
use wire::cursor::Cursor;
use wire::exit::{ExitReason, ProcEnd};
use wire::frame::{CARRIED, CAST, CONTROL, ROUTED, TREE, begin, finish};
use wire::greeting::Beat;
use wire::{Control, Frame, ProcUid, Route, frame_fragment, part_fragment};

use super::part_fragments::send_parts;
use super::{Gateway, Host, Job};
use crate::node::Node;

/// To the processes of one host, from this one.
#[derive(Clone)]
pub struct Via {
    pub node: Weak<Node>,
    pub host: ProcUid,
    /// What the host of this process is called there, and what this process is.
    pub here: ProcUid,
    pub from: ProcUid,
    /// The agent that forwards, where this process does not: that of this host, or the client of another job.
    pub agent: Option<ProcUid>,
}

impl Via {
    /// Whole frames, in order, with parts of them that go first; or parts alone; or nothing but the address, as a frame of its own.
    pub(crate) fn carry_now(&self, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
        let node = self.node.upgrade().ok_or(LinkDown)?;
        // An agent casts nothing, and keeps no order with casts. Each piece of a long frame is numbered by
        // itself; parts have numbers of their own.
        let number = || if self.from == node.uid { node.caster.number(self.host) } else { 0 };
        let parts = Route { from: self.from, from_host: self.here, to, to_host: self.host, seq: 0 };
        let head = || Route { seq: number(), ..parts };
        let mut sent = Ok(());
        let cut = |each: &mut dyn FnMut(&[&[u8]])| {
            // Parts alone have no frame. An empty frame without parts goes: the agent of an ended process answers it with the end.
            if !pieces.is_empty() || blocks.is_empty() {
                frame_fragment::cut(pieces, each)
            }
        };
        match (self.agent, node.gateway()) {
            (None, None) => return Err(LinkDown),
            (None, Some(gateway)) => {
                for (number, block) in (first..).zip(blocks) {
                    gateway.forward_part(&parts, number, RecvPart::Own { block: block.clone(), readonly: true });
                }
                cut(&mut |p| gateway.forward(&head(), p));
            }
            (Some(agent), _) => {
                let agent = node.peer_unlinked(agent).0;
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

/// The processes whose end an agent tells with this.
fn ended(head: &Route, body: &[&[u8]]) -> Vec<ProcUid> {
    let is_control = head.from == head.from_host && body.first().is_some_and(|first| first.get(4) == Some(&CONTROL));
    match is_control.then(|| Frame::decode(body.concat().get(4..).unwrap_or_default())) {
        Some(Ok(Frame::Control(Control::ProcsEnded { ends }))) => ends.into_iter().map(|(uid, _)| uid).collect(),
        _ => vec![],
    }
}

/// Everything of a routed frame but its body, which has so many bytes.
pub(super) fn routed_head(head: &Route, body: usize) -> Vec<u8> {
    let mut start = Vec::with_capacity(5 + Route::LEN);
    let at = begin(&mut start, ROUTED);
    head.put(&mut start);
    finish(&mut start, at, body);
    start
}

impl Gateway {
    /// Sends a frame on its way, from here or from a proc of this host.
    pub fn forward(&self, head: &Route, body: &[&[u8]]) {
        let Some(job) = self.job_here(head.from_host) else { return };
        if head.to_host == job.here {
            // A process of this host that was taken for one of another; its agent knows better.
            return self.hand_in(&job, head, &body.concat());
        }
        // One that has not joined yet may be named by a handle already: what is sent to it waits here until the client tells where it is,
        // or that it is not going to join.
        let host = job.host_or_new(head.to_host, &self.me, &self.poller);
        if let Some(end) = host.end() {
            return self.unreachable(head, end);
        }
        let start = routed_head(head, body.iter().map(|p| p.len()).sum());
        let mut all: Vec<&[u8]> = Vec::with_capacity(body.len() + 1);
        all.push(&start);
        all.extend_from_slice(body);
        if host.trunk.send_behind(head, &ended(head, body), &all).is_err() {
            return self.unreachable(head, host.end().unwrap_or_else(|| host_end(&host.name(), "agent exited")));
        }
        if !host.trunk.is_up() {
            self.open_soon(&job, &host);
        }
    }

    /// A frame of a proc of this host. What it says of itself is checked: nobody speaks for others.
    pub(crate) fn send_for(&self, proc: ProcUid, head: &Route, body: &[u8]) {
        if self.may_send(proc, head) {
            self.forward(head, &[body]);
        }
    }

    pub(super) fn may_send(&self, proc: ProcUid, head: &Route) -> bool {
        let Some(node) = self.node() else { return false };
        let Some(agent) = node.agent() else { return false };
        if head.from != proc || !agent.is_in_job(proc, head.from_host) {
            return false;
        }
        agent.talked(proc, head.to);
        node.route(head.to, head.to_host, head.from_host);
        true
    }

    /// A frame for this process or for a proc of this host.
    fn hand_in(&self, job: &Arc<Job>, head: &Route, body: &[u8]) {
        let Some(node) = self.node() else { return };
        node.route(head.from, head.from_host, job.here);
        if head.seq == 0 { self.hand_on(job, head, &[body]) } else { self.arrived_directly(job, head, body) }
    }

    /// The same, when it is its turn.
    pub(super) fn hand_on(&self, job: &Arc<Job>, head: &Route, body: &[&[u8]]) {
        let Some(node) = self.node() else { return };
        if head.to == job.here {
            return match body {
                [whole] => node.on_routed(head, whole),
                pieces => node.on_routed(head, &pieces.concat()),
            };
        }
        let Some(agent) = node.agent() else { return };
        if let Some(end) = agent.end_of(head.to) {
            return node.peer(head.from).send_control(Control::ProcsEnded { ends: vec![(head.to, end)] });
        }
        agent.talked(head.from, head.to);
        // Of a proc that is still to be started the link keeps what comes.
        let start = routed_head(head, body.iter().map(|p| p.len()).sum());
        let mut all: Vec<&[u8]> = Vec::with_capacity(body.len() + 1);
        all.push(&start);
        all.extend_from_slice(body);
        let _ = node.peer_unlinked(head.to).0.link.send_soon(&all);
    }

    /// The sender must hear that it cannot be.
    fn unreachable(&self, head: &Route, end: ProcEnd) {
        let Some(node) = self.node() else { return };
        let ends = vec![(head.to_host, end.clone()), (head.to, end)];
        if Some(head.from) == self.job_here(head.from_host).map(|j| j.here) {
            // Not on this thread, which may hold what is needed to tell.
            self.poller.spawn(Box::new(move || node.procs_ended(ends)));
        } else {
            let frame = Frame::Control(Control::ProcsEnded { ends });
            let _ = node.peer_unlinked(head.from).0.link.send(&[&frame.encode()], Vec::new());
        }
    }
}

/// The end of all processes of a host.
pub(crate) fn host_end(host: &str, why: &str) -> ProcEnd {
    ProcEnd {
        pid: 0,
        started: true,
        host: host.to_owned(),
        reason: ExitReason::HostLost(why.to_owned()),
        cleaning: vec![],
        output: vec![],
        recent: vec![],
    }
}

/// What comes over the trunks of a job.
pub(super) struct Hands {
    pub gateway: Weak<Gateway>,
    pub job: Weak<Job>,
}

impl Hands {
    fn with(&self, f: impl FnOnce(&Gateway, &Arc<Job>)) {
        if let (Some(g), Some(j)) = (self.gateway.upgrade(), self.job.upgrade()) {
            f(&g, &j);
        }
    }

    fn with_host(&self, trunk: &Trunk, f: impl FnOnce(&Gateway, &Arc<Job>, &Arc<Host>)) {
        self.with(|g, j| {
            if let Some(h) = j.host(trunk.host) {
                f(g, j, &h);
            }
        });
    }
}

impl TrunkHandler for Hands {
    fn frame(&self, trunk: &Arc<Trunk>, frame: &[u8]) {
        if matches!(frame[0], TREE | CARRIED) {
            return self.with(|g, j| g.came_along(j, trunk.host, frame));
        }
        if frame[0] == CAST {
            return self.with(|g, j| g.cast_frame(j, trunk.host, &frame[1..]));
        }
        if frame[0] != ROUTED {
            return;
        }
        let mut c = Cursor::new(&frame[1..]);
        let Ok(head) = Route::read(&mut c) else { return };
        let body = &frame[1 + Route::LEN..];
        self.with(|g, j| {
            // Agents have trunks to each other: nothing is for a third host.
            if head.to_host != j.here {
                return;
            }
            // Parts come in stretches: to lend them is for neighbours.
            if part_fragment::read_part(body).is_some() {
                return;
            }
            match part_fragment::read(body) {
                Some(stretch) => g.take_stretch(j, trunk.host, &head, stretch),
                None => g.hand_in(j, &head, body),
            }
        });
    }

    fn beat(&self, trunk: &Arc<Trunk>, beat: Beat) {
        self.with_host(trunk, |g, j, h| g.on_beat(j, h, beat));
    }

    fn heard(&self, trunk: &Arc<Trunk>) {
        // What others carry may have been under way for long.
        if !trunk.is_routed() {
            self.with(|g, j| g.heard(j, trunk.host));
        }
    }

    fn broken(&self, trunk: &Arc<Trunk>, number: u8, end: StreamEnd) {
        self.with_host(trunk, |g, j, h| g.stream_broken(j, h, number, end));
    }

    fn carry(&self, trunk: &Trunk, bytes: Vec<u8>) {
        self.with(|g, j| g.carry(j, trunk, &bytes));
    }

    fn carry_beat(&self, trunk: &Trunk, beat: &Beat) {
        self.with(|g, j| g.carry_beat(j, trunk.host, beat));
    }
}
