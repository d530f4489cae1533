//! The events of the sessions of a job: frames, heartbeats, and the ends of connections. Each is passed to the component that it concerns.
//!
//! What it needs: these components. Sessions keep neither them nor the job alive.
//!
//! What always holds:
//! - A session brings no frames for a third host, other than along the join tree: agents have sessions with each other.
//! - References to shared memory are valid on one host only, so frames with such references are dropped.

use std::sync::{Arc, Weak};

use net::Poller;
use net::dial::NoStream;
use net::lock::lock;
use net::session::{FRAMES, HEARTBEAT, Session, SessionHandler, StreamEnd};
use wire::cursor::Cursor;
use wire::frame::{CARRIED, CAST, ROUTED, TREE};
use wire::greeting::Heartbeat;
use wire::join_tree::{HostEnd, TreeMessage};
use wire::{Control, ProcUid, Route, part_fragment};

use super::casts::Casts;
use super::connections::Connections;
use super::control::Controls;
use super::deliveries::Deliveries;
use super::heartbeats::Heartbeats;
use super::host::Host;
use super::job::Job;
use super::jobs::Jobs;
use super::join_list::JoinLists;
use super::join_tree::JoinTree;
use super::membership_events::MembershipEvents;
use super::parts::Parts;
use super::route_gateway::RouteGateway;
use crate::membership::{Event, LinkEnd};

/// The components to which events of sessions are passed.
pub(super) struct Receivers {
    pub poller: Arc<Poller>,
    pub jobs: Arc<Jobs>,
    pub events: Arc<MembershipEvents>,
    pub route_gateway: Arc<RouteGateway>,
    pub connections: Arc<Connections>,
    pub deliveries: Arc<Deliveries>,
    pub parts: Arc<Parts>,
    pub casts: Arc<Casts>,
    pub tree: Arc<JoinTree>,
    pub lists: Arc<JoinLists>,
    pub heartbeats: Arc<Heartbeats>,
    pub controls: Arc<Controls>,
}

/// Handler of the events of a job's sessions.
pub(super) struct SessionEvents {
    pub receivers: Weak<Receivers>,
    pub job: Weak<Job>,
}

impl SessionEvents {
    fn with(&self, f: impl FnOnce(&Receivers, &Arc<Job>)) {
        if let (Some(to), Some(job)) = (self.receivers.upgrade(), self.job.upgrade()) {
            f(&to, &job);
        }
    }

    fn with_host(&self, session: &Session, f: impl FnOnce(&Receivers, &Arc<Job>, &Arc<Host>)) {
        self.with(|to, job| {
            if let Some(host) = job.host(session.host) {
                f(to, job, &host);
            }
        });
    }
}

impl SessionHandler for SessionEvents {
    fn frame(&self, session: &Arc<Session>, frame: &[u8]) {
        self.with(|to, job| match frame[0] {
            TREE | CARRIED => {
                if let Some((from, message)) = to.tree.take(job, session.host, frame) {
                    to.on_tree_message(job, session.host, from, message);
                }
            }
            CAST => to.casts.on_frame(job, session.host, &frame[1..]),
            ROUTED => to.on_routed(job, session.host, &frame[1..]),
            _ => {}
        });
    }

    fn heartbeat(&self, session: &Arc<Session>, beat: Heartbeat) {
        self.with_host(session, |to, job, host| to.heartbeats.take(job, host, beat));
    }

    fn bytes_received(&self, session: &Arc<Session>) {
        // A frame that relays have forwarded may be old: it is no heartbeat.
        if !session.is_routed() {
            self.with(|to, job| to.events.heartbeat(job, session.host));
        }
    }

    fn broken(&self, session: &Arc<Session>, number: u8, end: StreamEnd) {
        self.with_host(session, |to, job, host| to.on_broken(job, host, number, end));
    }

    fn unwatched(&self, session: &Arc<Session>, why: std::io::Error) {
        self.with_host(session, |to, job, host| to.connections.unwatched(job, host, &NoStream::unwatched(&why)));
    }

    fn forward_bytes(&self, session: &Session, bytes: Vec<u8>) {
        self.with(|to, job| to.tree.carry(job, session, &bytes));
    }

    fn forward_heartbeat(&self, session: &Session, beat: &Heartbeat) {
        self.with(|to, job| to.tree.forward_heartbeat(job, session.host, beat));
    }
}

impl Receivers {
    /// Handles a frame with a route.
    fn on_routed(&self, job: &Arc<Job>, from: ProcUid, frame: &[u8]) {
        let Ok(head) = Route::read(&mut Cursor::new(frame)) else { return };
        let body = &frame[Route::LEN..];
        if head.to_host != job.own_id || part_fragment::read_part(body).is_some() {
            return;
        }
        match part_fragment::read(body) {
            Some(fragment) => self.parts.accept(job, from, &head, fragment),
            None => self.deliveries.arrived(job, &head, body),
        }
    }

    /// Handles the end of one connection of a session. The detector is notified when the session has no connection left.
    fn on_broken(&self, job: &Arc<Job>, host: &Arc<Host>, number: u8, end: StreamEnd) {
        // The kernel may reset one of the two connections of an exited process, where unread bytes were in its buffer.
        let closed = {
            let mut state = lock(&host.state);
            state.closed_by_exit |= end == StreamEnd::Closed;
            state.closed_by_exit
        };
        if self.jobs.is_closing() {
            // The other sides close their connections in answer to the notice of this process.
            if host.has_pending_notice() {
                self.connections.open(job, host);
            }
            return;
        }
        let alone = match number {
            FRAMES => !host.session.has_heartbeat(),
            HEARTBEAT => !host.session.is_up(),
            _ => false,
        };
        if alone {
            let end = match if closed { StreamEnd::Closed } else { end } {
                // A connection to a gateway may be forwarded by a program that has ended, and that refuses connections until it runs again.
                StreamEnd::Closed if self.route_gateway.is_own_job(job) => LinkEnd::Cut,
                StreamEnd::Closed => LinkEnd::Ended,
                StreamEnd::Reset => LinkEnd::Reset,
                StreamEnd::Garbage | StreamEnd::Failed => LinkEnd::Cut,
            };
            job.child_ended(host.id, if end == LinkEnd::Cut { HostEnd::Cut } else { HostEnd::Reset });
            self.events.link_down(job, host, end);
            if end == LinkEnd::Ended {
                self.connections.probe_port(job, host);
            }
        }
        self.connections.open(job, host);
    }

    /// Handles a message that has come along the join tree, from `from` by way of `via`.
    fn on_tree_message(&self, job: &Arc<Job>, via: ProcUid, from: ProcUid, message: TreeMessage) {
        match message {
            TreeMessage::Part { run, within_ms, fan_out, workers } if !job.is_clients() => {
                lock(&job.relays).on_relay(via);
                self.lists.on_part(job, run, within_ms, fan_out, workers);
            }
            TreeMessage::Report { run, joined, failed } => self.lists.on_report(job, via, run, &(joined, failed)),
            TreeMessage::Certify { host, key } if job.is_clients() => {
                let message = TreeMessage::Certified { host, certificate: JoinLists::certify(job, host, &key) };
                job.send_by(via, from, TREE, &wire::greeting::encode(&message));
            }
            TreeMessage::Certified { host, certificate } => {
                let waiting = lock(&job.signing).remove(&host);
                if let Some(waiting) = waiting.and_then(|handshake| handshake.upgrade()) {
                    self.poller.spawn(Box::new(move || match certificate {
                        Some(certificate) => waiting.certified(certificate),
                        None => waiting.give_up(),
                    }));
                }
            }
            TreeMessage::Begin { session } if !job.is_clients() => {
                lock(&job.relays).on_relay(via);
                let Some(client) = job.host(job.id) else { return };
                {
                    let mut state = lock(&client.state);
                    if state.session_id != 0 {
                        return;
                    }
                    (state.session_id, state.was_up) = (session, true);
                }
                client.session.begin_route();
            }
            TreeMessage::Ended { host, how } if job.is_relayed(host) => {
                let cause = match how {
                    HostEnd::Exited => LinkEnd::Exited,
                    HostEnd::Killed => LinkEnd::Killed,
                    HostEnd::Reset => LinkEnd::Reset,
                    HostEnd::Cut => LinkEnd::Cut,
                };
                self.events.report(job, Event::LinkDown { host, cause });
            }
            // The session that brings this frame is locked. Its own heartbeats have a connection.
            TreeMessage::Heartbeat(beat) if from != via => {
                if let Some(host) = job.host(from) {
                    self.heartbeats.take(job, &host, beat);
                }
            }
            TreeMessage::JobEnded if !job.is_clients() => self.controls.take(job.id, Control::JobEnded),
            TreeMessage::Hosts { .. } | TreeMessage::HostsLost { .. } if !job.is_clients() => {
                job.spread(&message);
                match message {
                    TreeMessage::Hosts { hosts } => self.controls.take(job.id, Control::Hosts { hosts }),
                    TreeMessage::HostsLost { hosts } => self.controls.take(job.id, Control::HostsLost { hosts }),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}
