//! The frames that arrive: each goes to a mailbox, a pending call, the agent, the gateway, or housekeeping.
//!
//! This is the one component that knows all others, and no other component knows it: links have it as their handler. Frames of one sender
//! are handled in their order. A frame from another host whose large parts are missing waits for them in its peer, and later frames of the
//! sender wait behind it.

use std::sync::Arc;

use net::sys::Descriptors;
use net::{Arena, Link, LinkHandler, RecvPart};
use wire::cursor::DecodeError;
use wire::frame::FRAME_FRAGMENT;
use wire::{Control, Frame, Part, ProcUid, Reply, Route, Status, part_fragment};

use crate::calls::pending_call::Outcome;
use crate::calls::{Calls, INCOMPLETE};
use crate::cast::CAST_ANSWER;
use crate::caster::Caster;
use crate::ends::Ends;
use crate::inspection::Inspections;
use crate::messages::Messages;
use crate::messages::replies::Replies;
use crate::peers::Peers;
use crate::peers::external_process::{CLIENT_ENDED, other_version};
use crate::peers::peer::Peer;
use crate::peers::routes::Place;
use crate::recording::Recording;
use crate::streams::Streams;
use crate::system::{LINES, SystemEvent, SystemQueue, UNSHOWN};
use crate::transfers::assembly::parts_of;
use crate::transfers::offers::{Offers, PullError, Pulled};

/// The handler of the frames of one process.
pub struct Frames {
    pub(crate) peers: Arc<Peers>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) replies: Arc<Replies>,
    pub(crate) messages: Arc<Messages>,
    pub(crate) caster: Arc<Caster>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) offers: Arc<Offers>,
    pub(crate) ends: Arc<Ends>,
    pub(crate) inspections: Arc<Inspections>,
    pub(crate) recording: Arc<Recording>,
    pub(crate) system: Arc<SystemQueue>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) me: std::sync::Weak<Frames>,
}

impl Frames {
    /// Completes a call with an answer that arrived on a link, or with an error if a part is missing.
    fn on_reply(&self, link: &Arc<Link>, r: Reply) {
        let outcome = match self.messages.resolve_parts(r.parts, link) {
            Some(parts) => Arc::new(Outcome { rank: r.rank, sender_rank: None, status: r.status, parts }),
            None => Outcome::new(r.rank, Status::Undelivered, INCOMPLETE),
        };
        self.calls.complete(r.call_id, outcome);
    }

    /// Handles a control frame.
    fn on_control(&self, link: &Arc<Link>, c: Control, fds: &mut Descriptors) {
        let (from, Peers { uid, agent_uid, roles, .. }) = (link.peer, &*self.peers);
        match c {
            Control::Connected { peer } => {
                if let Some(fd) = fds.pop_front() {
                    // Without the socket no message would ever reach that peer, and no call would fail: this process cannot continue. The
                    // kernel may lack descriptors or watches.
                    if fd.is_none_or(|fd| self.peers.peer_unlinked(peer).0.link.attach(fd).is_err()) {
                        link.close();
                    }
                }
            }
            Control::SpawnActor { mailbox, spec } => self.messages.on_spawn(from, mailbox, spec),
            Control::System { kind: kind @ (LINES | UNSHOWN), body, .. } => {
                if let Some(agent) = roles.agent() {
                    agent.printed(kind, &body);
                }
            }
            Control::System { kind, call_id, body } => {
                SystemEvent::of_request(from, kind, call_id, body).into_iter().for_each(|e| self.system.push(e));
            }
            Control::ProcsEnded { ends } => {
                if let Some(agent) = roles.agent() {
                    agent.owners_ended(&ends);
                }
                self.ends.procs_ended(ends);
            }
            Control::CallsExpired { calls, state } => self.calls.on_reports(from, calls, &state),
            Control::Ping { seq } => self.inspections.pinged(from, seq),
            Control::Inspect { id, what } if roles.agent().is_none() => self.inspections.inspect(from, id, what),
            Control::Inspected { id, body } => self.inspections.on_inspected(from, id, body),
            Control::StopProc { uid: stopped, grace_ms, drain, reason } if stopped == *uid => {
                self.system.push(SystemEvent::StopProc { grace_ms, drain, reason })
            }
            Control::Record { events } if from == *agent_uid => self.recording.record(events),
            Control::Recording => {
                if let (Some(agent), Some(fd)) = (roles.agent(), fds.pop_front().flatten()) {
                    agent.keep_ring(from, fd);
                }
            }
            Control::BulkStream { number, peer, host, here, serves, dialled, keys }
                if from == *agent_uid || self.peers.is_other_client(from) =>
            {
                self.streams.on_stream(number, (peer, Place { host, here }), (serves, dialled), &keys, fds.pop_front().flatten())
            }
            Control::CutOff { hosts, call_id, rank } if from == *agent_uid => {
                self.streams.cut_off(&hosts.into_iter().collect());
                self.replies.send_bytes(from, call_id, rank, Status::Ok, b"");
            }
            Control::BulkPipe { number, by_sender, what } => self.streams.on_pipe(from, number, by_sender, what),
            Control::BulkRefused { number, why } => self.streams.on_refused(number, why),
            Control::PartPulled { number } => self.offers.on_pulled(from, number),
            Control::PartRefused { number, unavailable } => {
                self.offers.on_refused(from, self.peers.known_peer(from).as_deref().map(|p| &*p.link), number, unavailable)
            }
            c @ (Control::Hosts { .. } | Control::HostsLost { .. } | Control::JobEnded | Control::Shutdown { .. } | Control::Leaving) => {
                if let Some(gateway) = roles.gateway() {
                    gateway.control(from, c);
                }
            }
            other => {
                if let Some(agent) = roles.agent() {
                    agent.control(from, other);
                }
            }
        }
    }

    // ---- frames from other hosts

    /// Takes a routed frame that arrived on a link, to or from another host.
    fn on_routed_here(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        let Peers { roles, .. } = &*self.peers;
        if roles.agent().is_some() && !(head.to_host == link.peer && self.peers.is_other_client(link.peer)) {
            if let Some(gateway) = roles.gateway() {
                gateway.forward_of_proc(link, head, body);
            }
            return;
        }
        self.peers.route(head.from, head.from_host, head.to_host);
        match part_fragment::read_part(body) {
            Some(Ok((number, part))) => {
                self.on_part(head.from, number, RecvPart::accept(part, Some(link)).unwrap_or_else(RecvPart::lost));
            }
            Some(Err(_)) => events::frame_refused(head.from.0, b"part", body.len() as u64),
            None => self.on_routed(head, body),
        }
    }

    /// Takes frames from a process on another host.
    pub(crate) fn on_routed(&self, head: &Route, body: &[u8]) {
        let peer = self.peers.peer_unlinked(head.from).0;
        for frame in wire::routed::Frames::of(body) {
            // A malformed frame is the fault of its sender, which belongs to the job.
            if frame.first() == Some(&FRAME_FRAGMENT) {
                if let Some(run) = peer.add_fragment(&frame[1..]) {
                    self.on_run(&peer, &Arc::new(run));
                }
            } else {
                self.on_decoded(&peer, Frame::decode(frame), frame.len());
            }
        }
    }

    /// Takes a run of frames that arrived in fragments.
    fn on_run(&self, peer: &Arc<Peer>, run: &Arc<Vec<u8>>) {
        let mut at = 0;
        for frame in wire::routed::Frames::of(run) {
            at += 4 + frame.len();
            self.on_decoded(peer, Frame::decode_within(run, at - frame.len()..at), frame.len());
        }
    }

    /// Takes a frame from another host, or drops it if it is malformed.
    fn on_decoded(&self, peer: &Peer, frame: Result<Frame, DecodeError>, len: usize) {
        match frame {
            Ok(frame) => self.on_remote_frame(peer, frame),
            Err(_) => events::frame_refused(peer.uid.0, b"frame", len as u64),
        }
    }

    /// Takes a frame from another host: pulls its offered parts, and handles it when it is complete.
    fn on_remote_frame(&self, peer: &Peer, frame: Frame) {
        for part in parts_of(&frame) {
            if let Part::Offered { number, len, record, .. } = part {
                self.pull_part(peer.uid, *number, *len, record);
            }
        }
        if let Some(frame) = peer.on_frame(frame) {
            self.frame(&peer.link, frame, &mut Descriptors::new());
        }
    }

    /// Takes a large part from a process on another host.
    pub(crate) fn on_part(&self, from: ProcUid, number: u64, part: RecvPart) {
        let peer = self.peers.peer_unlinked(from).0;
        if peer.on_part(number, part) {
            while let Some(frame) = peer.next_whole() {
                self.frame(&peer.link, frame, &mut Descriptors::new());
            }
        }
    }

    /// Pulls one part, and reports the outcome to its sender.
    fn pull_part(&self, from: ProcUid, number: u64, len: u64, record: &[u8]) {
        let me = self.me.clone();
        let done = move |pulled: Pulled| {
            let Some(me) = me.upgrade() else { return };
            let poller = me.peers.poller.clone();
            // Data of other processes is handled on the thread that reads the sockets.
            poller.spawn(Box::new(move || {
                let report = match pulled {
                    Ok(block) => {
                        // In this order: a thread that learns that the sender's offer is done finds the part here.
                        me.on_part(from, number, RecvPart::Own { block, readonly: true });
                        Control::PartPulled { number }
                    }
                    Err(why) => Control::PartRefused { number, unavailable: why == PullError::Unreachable },
                };
                me.peers.peer(from).send_control(report);
            }));
        };
        self.offers.pull(&self.arena, from, record, len, done);
    }
}

impl LinkHandler for Frames {
    fn frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors) {
        match frame {
            Frame::Message(m) => self.messages.on_message(link, m),
            Frame::Reply(r) if r.call_id.0 & CAST_ANSWER != 0 => {
                if let Some(gateway) = self.peers.roles.gateway() {
                    gateway.cast_reply(link.peer, r, link);
                }
            }
            Frame::Reply(r) => self.on_reply(link, r),
            Frame::Credit { mailbox, bytes } => {
                if let Some(p) = self.peers.known_peer(link.peer) {
                    p.refill(mailbox, bytes, drop);
                }
            }
            Frame::Control(c) => self.on_control(link, c, fds),
            raw @ Frame::Raw(_) => {
                if let Some(why) = other_version(&raw).filter(|_| self.peers.is_other_client(link.peer)) {
                    self.ends.client_lost(link.peer, &why);
                }
            }
            Frame::Cast(frame) => self.caster.on_frame(link.peer, &frame),
            Frame::Routed(r) => self.on_routed_here(link, &r.head, &r.body),
        }
    }

    fn routed(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        self.on_routed_here(link, head, body);
    }

    /// Takes the end of a link. It may be the end of a client, of a proc of this agent, or of the agent itself.
    fn down(&self, link: &Arc<Link>) {
        let (sent, received) = link.traffic();
        events::link_down(link.peer.0, sent, received);
        // A loss that is being reported closes the link itself.
        if self.peers.is_other_client(link.peer) && self.peers.known_peer(link.peer).is_some_and(|p| p.ended().is_none()) {
            self.ends.client_lost(link.peer, CLIENT_ENDED);
        }
        if let Some(agent) = self.peers.roles.agent() {
            agent.link_down(link.peer);
        } else if link.peer == self.peers.agent_uid {
            self.system.push(SystemEvent::RootLost);
        }
    }
}
