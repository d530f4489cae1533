//! Connections that other processes open to this one: joins, connections of sessions, tunnels, and streams for bulk data.
//!
//! What it needs: the credentials of this host, its jobs and the events of membership, and the components that serve the kinds of
//! connections.
//!
//! What always holds:
//! - A connection is admitted only for a host whose certificate permits it to act as that host.
//! - A host that has ended is not admitted again with the same id.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::address::Address;
use net::channel::Disagree;
use net::dial::{NoStream, greeting_frame};
use net::listener::Listener;
use net::lock::lock;
use net::session::HEARTBEAT;
use net::trust::{Kind, Opened, Policy, Refused};
use wire::ProcUid;
use wire::greeting::{self, Greeting, JobSettings, RefusalReason, Welcome};

use super::audit::AuditLog;
use super::bulk::BulkStreams;
use super::connections::ahead;
use super::dialler::Dialler;
use super::job::{Job, RELEASE};
use super::jobs::Jobs;
use super::membership_events::MembershipEvents;
use super::tunnel::Tunnels;
use crate::local::Local;
use crate::membership::Event;
use crate::peers::routes::Place;

/// Admits connections.
pub(super) struct Accept {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub events: Arc<MembershipEvents>,
    pub dialler: Arc<Dialler>,
    pub bulk: Arc<BulkStreams>,
    pub tunnels: Arc<Tunnels>,
    pub audit: Arc<AuditLog>,
    pub listener: Mutex<Option<Arc<Listener>>>,
}

impl Accept {
    /// Opens the listener to which clients and agents connect; returns its port.
    pub fn listen(self: &Arc<Self>, at: &Address, policy: Policy) -> io::Result<u16> {
        let trust = self.dialler.host_trust(policy)?;
        let me = Arc::downgrade(self);
        let on_accepted = move |peer: String, result| {
            if let Some(me) = me.upgrade() {
                me.on_accepted(&peer, result);
            }
        };
        let listener = Listener::open(&self.local.poller, at, trust, Arc::new(on_accepted))?;
        let port = listener.port;
        *lock(&self.listener) = Some(listener);
        Ok(port)
    }

    /// True in an agent: other hosts can connect to this process.
    pub fn is_listening(&self) -> bool {
        lock(&self.listener).is_some()
    }

    pub fn close(&self) {
        if let Some(listener) = lock(&self.listener).take() {
            listener.close();
        }
    }

    /// Handles the outcome of the handshake of an incoming connection.
    fn on_accepted(&self, peer: &str, result: Result<Opened, NoStream>) {
        match result {
            Ok(opened) => self.greeted(peer, opened),
            Err(NoStream::Refused(Refused::Job(job))) if self.jobs.has_ended(ProcUid(job.0)) => {}
            Err(NoStream::Refused(why)) if !why.is_transient() => self.audit.refused(peer, why.to_string()),
            // The peer has sent nothing, or the failure is transient.
            Err(_) => {}
        }
    }

    fn greeted(&self, peer: &str, mut opened: Opened) {
        let kind = opened.kind;
        match (kind, greeting::decode(&opened.hello)) {
            (Kind::Join, Some(Greeting::Join { host, agent, from, settings })) => {
                self.join_asked(peer, opened, host, agent, &from, settings)
            }
            (Kind::Channel, Some(Greeting::Channel { session, number, received, from, to })) => {
                self.channel_asked(opened, session, number, received, from, to)
            }
            (Kind::Channel, Some(Greeting::Tunnel { host, port, places, within_ms })) => {
                self.tunnels.asked(peer, opened, host, port, places, Duration::from_millis(within_ms))
            }
            (Kind::Channel, Some(bulk @ Greeting::Bulk { .. })) => self.bulk.asked(opened, bulk),
            _ => {
                self.audit.refused(peer, "its greeting is malformed".to_owned());
                opened.stream.close();
            }
        }
    }

    fn join_asked(&self, peer: &str, mut opened: Opened, host: ProcUid, agent: u64, from: &str, settings: JobSettings) {
        let Some(node) = self.local.node() else { return };
        let id = ProcUid(opened.job.0);
        let was_here = node.peers.routes.lost(Place { host: id, here: host }).is_some();
        let answer = if self.jobs.is_closing() {
            Welcome::Refused(RefusalReason::Closing)
        } else if agent != 0 && agent != node.uid.0 {
            Welcome::Refused(RefusalReason::OtherAgent)
        } else if self.jobs.get(id).is_some_and(|j| j.own_id != host) {
            // Probably the client has dialled this host by a second address.
            Welcome::Refused(RefusalReason::Twice)
        } else if was_here {
            // The end of the job here is final for this id of the host; the client asks again with a new id.
            Welcome::Refused(RefusalReason::Lost)
        } else {
            if let (None, Ok(job)) = (self.jobs.get(id), self.jobs.start(id, host, settings)) {
                let client = job.host_or_new(id);
                lock(&client.info).name = from.to_owned();
                self.events.report(&job, Event::Joined { host: id });
                node.peers.route(id, id, host);
                self.events.watch(&job, id);
            }
            let name = node.roles.agent().map_or_else(String::new, |a| a.host());
            Welcome::Joined { agent: node.uid.0, host: name, pid: std::process::id(), release: RELEASE.to_owned() }
        };
        if matches!(answer, Welcome::Joined { .. }) {
            self.audit.add("joined", peer, from.to_owned());
        } else {
            self.audit.refused(peer, from.to_owned());
        }
        // The socket's buffer takes so small an answer at once. The other side closes the connection.
        let _ = opened.stream.write(&[&greeting_frame(&greeting::encode(&answer))]);
        let _ = opened.stream.flush();
    }

    fn channel_asked(&self, mut opened: Opened, session: u64, number: u8, received: u64, from: ProcUid, to: ProcUid) {
        let job = self.jobs.of_connection(&opened, from, to);
        let admitted = match &job {
            Some(job) => self.admit(job, session, number, received, from),
            None => Err(RefusalReason::NoSession),
        };
        let answer = |w: &Welcome| greeting_frame(&greeting::encode(w));
        let (Ok(()), Some(job)) = (admitted, &job) else {
            let no = admitted.err().unwrap_or(RefusalReason::NoSession);
            let _ = opened.stream.write(&[&answer(&Welcome::Refused(no))]);
            let _ = opened.stream.flush();
            return;
        };
        let host = job.host_or_new(from);
        if host.session.is_paused() {
            return;
        }
        self.events.watch(job, from);
        self.events.heartbeat(job, from);
        lock(&host.state).closed_by_exit = false;
        if number == HEARTBEAT {
            return host.session.attach_heartbeat(opened.stream, &answer(&Welcome::Channel { received: 0 }), Vec::new());
        }
        // The other side may have given up this attempt long ago, and use another connection. A stale count ends only the connection that
        // it came on.
        let mut attached = host.session.can_resume(received);
        if attached.is_ok() {
            host.session.detach();
            let own = host.session.received();
            let welcome = answer(&Welcome::Channel { received: own });
            attached = host.session.attach(opened.stream, own, received, &welcome, Vec::new());
            if attached.is_ok() {
                host.resumed(received);
            }
        }
        if attached == Err(Disagree::Ahead) {
            self.events.ended(job, &host, &ahead(received, &host));
        }
    }

    fn admit(&self, job: &Arc<Job>, session: u64, number: u8, received: u64, from: ProcUid) -> Result<(), RefusalReason> {
        let host = job.host_or_new(from);
        if host.membership().is_ended() {
            return Err(RefusalReason::Lost);
        }
        let mut state = lock(&host.state);
        // The frames of a session that exists are delivered while this agent closes.
        if state.session_id == session {
            state.was_up = true;
            return Ok(());
        }
        if self.jobs.is_closing() {
            return Err(RefusalReason::Closing);
        }
        if state.session_id != 0 && state.dials && !state.was_up {
            // Both sides dial at the same time: the side with the lower id wins.
            if job.own_id.0 < from.0 {
                return Err(RefusalReason::Glare);
            }
            state.dials = false;
        } else if state.session_id != 0 || (number != HEARTBEAT && received > 0) {
            return Err(RefusalReason::NoSession);
        }
        state.session_id = session;
        state.was_up = true;
        drop(state);
        self.events.report(job, Event::Joined { host: from });
        Ok(())
    }
}
