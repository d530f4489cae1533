//! The frames that arrive on links: each goes to a mailbox, a pending call, the agent, the gateway, or housekeeping.

use std::sync::Arc;

use net::sys::Descriptors;
use net::{Link, LinkHandler};
use wire::{Control, Frame, Route, Status};

use crate::agent::console::{LINES, UNSHOWN};
use crate::node::Node;
use crate::node::caster::CAST_ANSWER;
use crate::node::external_process::{CLIENT_ENDED, other_version};
use crate::node::routes::Place;
use crate::node::system::SystemEvent;

impl Node {
    /// Handles a frame of a link. `fds` are the descriptors that arrived with it.
    pub(crate) fn on_frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors) {
        match frame {
            Frame::Message(m) => self.on_message(link, m),
            Frame::Reply(r) if r.call_id.0 & CAST_ANSWER != 0 => self.on_cast_reply(link, r),
            Frame::Reply(r) => self.on_reply(link, r),
            Frame::Credit { mailbox, bytes } => {
                if let Some(p) = self.known_peer(link.peer) {
                    p.refill(mailbox, bytes, drop);
                }
            }
            Frame::Control(c) => self.on_control(link, c, fds),
            raw @ Frame::Raw(_) => {
                if let Some(why) = other_version(&raw).filter(|_| self.is_other_client(link.peer)) {
                    self.other_client_lost(link.peer, &why);
                }
            }
            Frame::Cast(frame) => self.on_cast(link.peer, &frame),
            Frame::Routed(r) => self.on_carried(link, &r.head, &r.body),
        }
    }

    /// Handles a control frame.
    fn on_control(&self, link: &Arc<Link>, c: Control, fds: &mut Descriptors) {
        match c {
            Control::Connected { peer } => {
                if let Some(fd) = fds.pop_front() {
                    // Without the socket no message would ever reach that peer, and no call would fail: this process cannot continue. The
                    // kernel may lack descriptors or watches.
                    if fd.is_none_or(|fd| self.peer_unlinked(peer).0.link.attach(fd).is_err()) {
                        link.close();
                    }
                }
            }
            Control::SpawnActor { mailbox, spec } => {
                self.mailbox(mailbox);
                self.system.push(SystemEvent::SpawnActor { from: link.peer, mailbox, spec });
            }
            Control::System { kind: kind @ (LINES | UNSHOWN), body, .. } => {
                if let Some(agent) = self.agent() {
                    agent.printed(kind, &body);
                }
            }
            Control::System { kind, call_id, body } => self.system.push(SystemEvent::Request { from: link.peer, kind, call_id, body }),
            Control::ProcsEnded { ends } => {
                if let Some(agent) = self.agent() {
                    agent.owners_ended(&ends);
                }
                self.procs_ended(ends);
            }
            Control::Ping { seq } => self.pinged(link.peer, seq),
            Control::Inspect { id, what } if self.agent().is_none() => self.inspect(link.peer, id, what),
            Control::Inspected { id, body } => self.on_inspected(link.peer, id, body),
            Control::StopProc { uid, grace_ms, drain, reason } if uid == self.uid => {
                self.system.push(SystemEvent::StopProc { grace_ms, drain, reason })
            }
            Control::Record { events } if link.peer == self.agent_uid => self.record(events),
            Control::Recording => {
                if let (Some(agent), Some(fd)) = (self.agent(), fds.pop_front().flatten()) {
                    agent.recordings.add(link.peer, fd);
                }
            }
            Control::BulkStream { number, peer, host, here, serves, dialled, keys }
                if link.peer == self.agent_uid || self.is_other_client(link.peer) =>
            {
                self.on_bulk_stream(number, (peer, Place { host, here }), (serves, dialled), &keys, fds.pop_front().flatten())
            }
            Control::CutOff { hosts, call_id, rank } if link.peer == self.agent_uid => {
                self.bulk_streams.cut_off(&hosts.into_iter().collect());
                self.reply_bytes(link.peer, call_id, rank, Status::Ok, b"");
            }
            Control::BulkPipe { number, by_sender, what } => self.on_bulk_pipe(link.peer, number, by_sender, what),
            ref c if self.on_pull_report(link.peer, c) => {}
            Control::BulkRefused { number, why } => self.on_bulk_refused(number, why),
            c @ (Control::Hosts { .. } | Control::HostsLost { .. } | Control::JobEnded | Control::Shutdown { .. } | Control::Leaving) => {
                if let Some(gateway) = self.gateway() {
                    gateway.control(link.peer, c);
                }
            }
            other => {
                if let Some(agent) = self.agent() {
                    agent.control(link.peer, other);
                }
            }
        }
    }

    /// Takes the end of a link. It may be the end of a client, of a proc of this agent, or of the agent itself.
    fn on_down(&self, link: &Arc<Link>) {
        let (sent, received) = link.traffic();
        events::link_down(link.peer.0, sent, received);
        if self.is_other_client(link.peer) {
            // A loss that is being reported closes the link itself.
            if self.known_peer(link.peer).is_some_and(|p| p.ended().is_none()) {
                self.other_client_lost(link.peer, CLIENT_ENDED);
            }
        }
        if let Some(agent) = self.agent() {
            agent.link_down(link.peer);
        } else if link.peer == self.agent_uid {
            self.system.push(SystemEvent::RootLost);
        }
    }
}

/// The receiver of the frames of all links of a node.
pub(crate) struct NodeFrames(pub(crate) Arc<Node>);

impl LinkHandler for NodeFrames {
    fn frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors) {
        self.0.on_frame(link, frame, fds);
    }

    fn routed(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        self.0.on_carried(link, head, body);
    }

    fn down(&self, link: &Arc<Link>) {
        self.0.on_down(link);
    }
}
