//! The tree by which the hosts of a job have joined, and the frames that are forwarded along it.
//!
//! The client has sessions with connections to the hosts that it has joined itself. A *relayed* host is one that another host, its relay,
//! has joined on the client's behalf: the relay has the connection, and the frames between the relayed host and the client are forwarded
//! from host to host along the tree, in order. The session between the client and a relayed host counts and keeps frames as every session
//! does. The client can therefore open connections of its own at any time: when a host on the route is silent or lost, or when the traffic
//! is worth it. From this *direct connection* on, the host is like one that the client has joined itself. Two agents that have frames for
//! each other open a session of their own.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use net::lock::lock;
use net::session::Session;
use wire::cursor::Cursor;
use wire::frame::{CARRIED, TREE};
use wire::greeting::{self, Heartbeat};
use wire::join_tree::{Along, HostEnd, TreeMessage};
use wire::{Control, ProcUid};

use super::{Gateway, Host, Job};
use crate::membership::{Event, LinkEnd};

/// Forwarded bytes between the client and a relayed host from which on a direct connection is worth its handshakes.
const DIRECT_CONNECTION_BYTES: u64 = 1 << 20;

impl Job {
    /// True if a host has joined in a tree.
    pub(super) fn has_tree(&self) -> bool {
        lock(&self.relays).has_tree()
    }

    /// The relayed hosts; none in an agent.
    pub fn relayed_hosts(&self) -> HashSet<ProcUid> {
        lock(&self.relays).relayed_hosts()
    }

    /// True in the client, if this host is relayed.
    pub(super) fn is_relayed(&self, host: ProcUid) -> bool {
        lock(&self.relays).is_relayed(host)
    }

    /// True if this process has a heartbeat connection of its own with the client.
    pub(super) fn has_client_heartbeat(&self) -> bool {
        self.host(self.id).is_some_and(|c| c.session.has_heartbeat())
    }

    /// The destination of reports to the client: the relay of this host, or the client where it has a direct connection.
    pub(super) fn relay(&self) -> ProcUid {
        let direct = self.host(self.id).is_some_and(|c| c.session.is_up() && !c.session.is_routed());
        let parent = lock(&self.relays).parent();
        parent.filter(|p| !direct && self.host(*p).is_some_and(|h| h.lost().is_none())).unwrap_or(self.id)
    }

    fn next_hop(&self, to: ProcUid) -> Option<ProcUid> {
        lock(&self.relays).next_hop(to)
    }

    fn send_along(&self, via: ProcUid, frame: &[u8]) {
        if let Some(host) = self.host(via) {
            // If the host is lost, the client opens direct connections to the hosts that it relayed, and their sessions send
            // unacknowledged frames again.
            let _ = host.session.send(&[frame]);
        }
    }
}

impl Gateway {
    // ---- forwarding

    /// Forwards bytes of a session that has no connection.
    pub(super) fn carry(&self, job: &Arc<Job>, session: &Session, bytes: &[u8]) {
        // The bytes of a session for which a direct connection is being opened are sent again on that connection.
        if let Some(via) = job.next_hop(session.host).filter(|via| *via != session.host) {
            self.count_carried(job, session.host, bytes.len());
            job.send_along(via, &Along { to: session.host, from: job.own_id }.frame(CARRIED, bytes));
        }
    }

    /// Sends a message to a host, through the next host on the route.
    pub(super) fn send_along_tree(&self, job: &Job, to: ProcUid, message: &TreeMessage) {
        let via = if to == job.id { Some(job.relay()) } else { job.next_hop(to) };
        if let Some(via) = via {
            job.send_along(via, &Along { to, from: job.own_id }.frame(TREE, &greeting::encode(message)));
        }
    }

    /// Sends a message to the next host.
    pub(super) fn send_to_next(&self, job: &Job, to: ProcUid, message: &TreeMessage) {
        job.send_along(to, &Along { to, from: job.own_id }.frame(TREE, &greeting::encode(message)));
    }

    /// Sends a message to all hosts of the client, or, in an agent, to its children. Each agent passes the message on.
    pub(super) fn spread(&self, job: &Job, message: &TreeMessage) {
        let next: Vec<ProcUid> = if job.is_clients() {
            let relayed = job.relayed_hosts();
            let direct = job.hosts().into_iter().filter(|h| !relayed.contains(&h.id) && h.is_joined());
            direct.map(|h| h.id).collect()
        } else {
            lock(&job.relays).children()
        };
        next.into_iter().for_each(|host| self.send_to_next(job, host, message));
    }

    /// Handles a frame that a neighbour has sent along the tree.
    pub(super) fn on_tree_frame(&self, job: &Arc<Job>, via: ProcUid, frame: &[u8]) {
        let Ok(head) = Along::read(&mut Cursor::new(&frame[1..])) else { return };
        let body = &frame[1 + Along::LEN..];
        if head.to != job.own_id {
            if head.to == job.id {
                // The answers of a relayed host take this route before the report of its join arrives.
                lock(&job.relays).on_frame(head.from, via);
            }
            if let Some(next) = job.next_hop(head.to).filter(|next| *next != via)
                && let Some(host) = job.host(next)
            {
                let _ = host.session.send(&[&(frame.len() as u32).to_le_bytes(), frame]);
            }
            return;
        }
        if frame[0] == CARRIED {
            let Some(host) = job.host(head.from) else { return };
            self.count_carried(job, head.from, body.len());
            return host.session.receive_forwarded(body);
        }
        if let Some(message) = greeting::decode(body) {
            self.on_message(job, via, head.from, message);
        }
    }

    fn count_carried(&self, job: &Arc<Job>, host: ProcUid, bytes: usize) {
        if !job.is_clients() {
            return;
        }
        let Some(host) = job.host(host) else { return };
        let before = host.carried.fetch_add(bytes as u64, Ordering::Relaxed);
        if before < DIRECT_CONNECTION_BYTES && before + bytes as u64 >= DIRECT_CONNECTION_BYTES {
            self.connect_directly_soon(job, vec![host.id]);
        }
    }

    fn on_message(&self, job: &Arc<Job>, via: ProcUid, from: ProcUid, message: TreeMessage) {
        match message {
            TreeMessage::Part { run, within_ms, fan_out, workers } if !job.is_clients() => {
                lock(&job.relays).on_relay(via);
                self.on_list_part(job, run, within_ms, fan_out, workers);
            }
            TreeMessage::Report { run, joined, failed } => self.on_report(job, via, run, joined, failed),
            TreeMessage::Certify { host, key } if job.is_clients() => {
                let certificate = self.certify(job, host, &key);
                let message = TreeMessage::Certified { host, certificate };
                job.send_along(via, &Along { to: from, from: job.own_id }.frame(TREE, &greeting::encode(&message)));
            }
            TreeMessage::Certified { host, certificate } => {
                let waiting = lock(&job.joins).signing.remove(&host).and_then(|h| h.upgrade());
                if let Some(waiting) = waiting {
                    let go_on = move || match certificate {
                        Some(certificate) => waiting.certified(certificate),
                        None => waiting.give_up(),
                    };
                    self.poller.spawn(Box::new(go_on));
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
                let end = match how {
                    HostEnd::Exited => LinkEnd::Exited,
                    HostEnd::Killed => LinkEnd::Killed,
                    HostEnd::Reset => LinkEnd::Reset,
                    HostEnd::Cut => LinkEnd::Cut,
                };
                self.on_event(job, Event::LinkDown { host, cause: end });
            }
            // The session that brings this frame is locked. Its own heartbeats have a connection.
            TreeMessage::Heartbeat(beat) if from != via => {
                if let Some(host) = job.host(from) {
                    self.on_beat(job, &host, beat);
                }
            }
            spread @ (TreeMessage::Hosts { .. } | TreeMessage::HostsLost { .. } | TreeMessage::JobEnded) if !job.is_clients() => {
                if spread != TreeMessage::JobEnded {
                    self.spread(job, &spread);
                }
                match spread {
                    TreeMessage::Hosts { hosts } => self.control(job.id, Control::Hosts { hosts }),
                    TreeMessage::HostsLost { hosts } => self.control(job.id, Control::HostsLost { hosts }),
                    _ => self.control(job.id, Control::JobEnded),
                }
            }
            _ => {}
        }
    }

    /// Forwards a heartbeat message of a session that has no connection. Without a relay the message is dropped: in the queue of that
    /// session it would become old.
    pub(super) fn forward_heartbeat(&self, job: &Job, to: ProcUid, beat: &Heartbeat) {
        let via = if to == job.id { Some(job.relay()) } else { job.next_hop(to) };
        if let Some(via) = via.filter(|via| *via != to) {
            job.send_along(via, &Along { to, from: job.own_id }.frame(TREE, &greeting::encode(&TreeMessage::Heartbeat(beat.clone()))));
        }
    }

    // ---- relays and relayed hosts

    /// Notifies the client that the connections to a child have ended, as the client may have none of its own.
    pub(super) fn child_ended(&self, job: &Job, host: ProcUid, how: HostEnd) {
        if lock(&job.relays).is_child(host) {
            self.send_along_tree(job, job.id, &TreeMessage::Ended { host, how });
        }
    }

    /// Opens direct connections from the client to these relayed hosts.
    pub(super) fn connect_directly_soon(&self, job: &Arc<Job>, hosts: Vec<ProcUid>) {
        if hosts.is_empty() {
            return;
        }
        let (me, job) = (self.me.clone(), job.clone());
        // The caller may hold locks of a session.
        let task = move || {
            if let Some(g) = me.upgrade() {
                hosts.into_iter().filter_map(|id| job.host(id)).for_each(|host| g.connect_directly(&job, &host));
            }
        };
        self.poller.spawn(Box::new(task));
    }

    fn connect_directly(&self, job: &Arc<Job>, host: &Arc<Host>) {
        if self.leave_tree(job, host) && host.lost().is_none() {
            self.audit("adopted", &host.name(), String::new());
            self.open(job, host);
        }
    }

    /// Removes a host from the client's table of relayed hosts: this side opens the connections of its session from now on. Returns true if
    /// the host was relayed.
    pub(super) fn leave_tree(&self, job: &Job, host: &Arc<Host>) -> bool {
        if !lock(&job.relays).on_direct_connection(host.id) {
            return false;
        }
        host.session.leave_route();
        lock(&host.state).dials = true;
        true
    }

    /// Handles the loss of a host in the tree: the client opens direct connections to the hosts that have joined through it.
    pub(super) fn lost_in_tree(&self, job: &Arc<Job>, host: ProcUid) {
        let orphans = lock(&job.relays).on_end(host);
        self.connect_directly_soon(job, orphans.relayed);
        // The lost host may not have passed on the last messages.
        if !orphans.joined.is_empty() {
            let (me, job) = (self.me.clone(), job.clone());
            let task = move || {
                if let Some(g) = me.upgrade() {
                    g.send_all_hosts(&job, &orphans.joined);
                }
            };
            self.poller.spawn(Box::new(task));
        }
        self.worker_lost(job, host);
    }

    /// Sends all that is known of the hosts to the hosts that a lost host has joined. They pass it on to
    /// their own relayed hosts.
    fn send_all_hosts(&self, job: &Arc<Job>, to: &[ProcUid]) {
        let all = job.hosts();
        let known = all.iter().filter(|h| h.is_joined()).filter_map(|h| h.entry()).collect();
        let lost = all.iter().filter_map(|h| Some((h.id, h.lost()?))).collect();
        let (known, lost) = (TreeMessage::Hosts { hosts: known }, TreeMessage::HostsLost { hosts: lost });
        for host in to {
            self.send_to_next(job, *host, &known);
            self.send_to_next(job, *host, &lost);
        }
    }
}
