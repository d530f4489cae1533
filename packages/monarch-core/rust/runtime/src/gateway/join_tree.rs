//! The tree by which the hosts of a job have joined, and the frames that are forwarded along it.
//!
//! The client has sessions with connections to the hosts that it has joined itself. A *relayed* host is one that another host, its relay,
//! has joined on the client's behalf: the relay has the connection, and the frames between the relayed host and the client are forwarded
//! from host to host along the tree, in order. The session between the client and a relayed host counts and keeps frames as every session
//! does. The client can therefore open connections of its own at any time: when a host on the route is silent or lost, or when the traffic
//! is worth it. From this *direct connection* on, the host is like one that the client has joined itself. Two agents that have frames for
//! each other open a session of their own.
//!
//! What it needs: the routes of the job (`membership::relays`), and the connections.
//!
//! What always holds:
//! - A frame goes to the next host on its route, never back.
//! - A host that has left the tree does not return to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use net::Poller;
use net::lock::lock;
use net::session::Session;
use wire::ProcUid;
use wire::cursor::Cursor;
use wire::frame::{CARRIED, TREE};
use wire::greeting::{self, Heartbeat};
use wire::join_tree::{Along, TreeMessage};

use super::audit::AuditLog;
use super::connections::Connections;
use super::host::Host;
use super::job::Job;
use crate::tasks;

/// Forwarded bytes between the client and a relayed host from which on a direct connection is worth its handshakes.
const DIRECT_CONNECTION_BYTES: u64 = 1 << 20;

/// Forwards frames along the join trees of jobs, and opens direct connections.
pub(super) struct JoinTree {
    pub poller: Arc<Poller>,
    pub connections: Arc<Connections>,
    pub audit: Arc<AuditLog>,
}

impl JoinTree {
    /// Forwards bytes of a session that has no connection.
    pub fn carry(self: &Arc<Self>, job: &Arc<Job>, session: &Session, bytes: &[u8]) {
        // The bytes of a session for which a direct connection is being opened are sent again on that connection.
        if let Some(via) = job.next_hop(session.host).filter(|via| *via != session.host) {
            self.count_carried(job, session.host, bytes.len());
            job.send_by(via, session.host, CARRIED, bytes);
        }
    }

    /// Forwards a heartbeat message of a session that has no connection. Without a relay the message is dropped: in the queue of that
    /// session it would become old.
    pub fn forward_heartbeat(&self, job: &Job, to: ProcUid, beat: &Heartbeat) {
        let via = if to == job.id { Some(job.relay()) } else { job.next_hop(to) };
        if let Some(via) = via.filter(|via| *via != to) {
            job.send_by(via, to, TREE, &greeting::encode(&TreeMessage::Heartbeat(beat.clone())));
        }
    }

    /// Takes a frame that a neighbour has sent along the tree. Returns a message to this process, with its sender.
    pub fn take(self: &Arc<Self>, job: &Arc<Job>, via: ProcUid, frame: &[u8]) -> Option<(ProcUid, TreeMessage)> {
        let head = Along::read(&mut Cursor::new(&frame[1..])).ok()?;
        let body = &frame[1 + Along::LEN..];
        if head.to != job.own_id {
            if head.to == job.id {
                // The answers of a relayed host take this route before the report of its join arrives.
                lock(&job.relays).on_frame(head.from, via);
            }
            let next = job.next_hop(head.to).filter(|next| *next != via).and_then(|next| job.host(next))?;
            let _ = next.session.send(&[&(frame.len() as u32).to_le_bytes(), frame]);
            return None;
        }
        if frame[0] == CARRIED {
            let host = job.host(head.from)?;
            self.count_carried(job, head.from, body.len());
            host.session.receive_forwarded(body);
            return None;
        }
        Some((head.from, greeting::decode(body)?))
    }

    fn count_carried(self: &Arc<Self>, job: &Arc<Job>, host: ProcUid, bytes: usize) {
        let Some(host) = job.host(host).filter(|_| job.is_clients()) else { return };
        let before = host.carried.fetch_add(bytes as u64, Ordering::Relaxed);
        if before < DIRECT_CONNECTION_BYTES && before + bytes as u64 >= DIRECT_CONNECTION_BYTES {
            self.connect_directly_soon(job, vec![host.id]);
        }
    }

    /// Opens direct connections from the client to these relayed hosts.
    pub fn connect_directly_soon(self: &Arc<Self>, job: &Arc<Job>, hosts: Vec<ProcUid>) {
        if hosts.is_empty() {
            return;
        }
        let job = job.clone();
        // The caller may hold locks of a session.
        tasks::spawn(&self.poller, self, move |me| {
            for host in hosts.into_iter().filter_map(|id| job.host(id)) {
                if JoinTree::leave(&job, &host) && host.lost().is_none() {
                    me.audit.add("adopted", &host.name(), String::new());
                    me.connections.open(&job, &host);
                }
            }
        });
    }

    /// Removes a host from the client's table of relayed hosts: this side opens the connections of its session from now on. Returns true if
    /// the host was relayed.
    pub fn leave(job: &Job, host: &Host) -> bool {
        if !lock(&job.relays).on_direct_connection(host.id) {
            return false;
        }
        host.session.leave_route();
        lock(&host.state).dials = true;
        true
    }
}
