//! Connections that other processes open to this one: joins, connections of sessions, tunnels, and streams for bulk data.

use std::sync::Arc;
use std::time::Duration;

use net::channel::Disagree;
use net::dial::{NoStream, greeting_frame};
use net::lock::lock;
use net::session::HEARTBEAT;
use net::trust::{Kind, Opened, Refused, Subject};
use wire::ProcUid;
use wire::greeting::{self, Greeting, JobSettings, RefusalReason, Welcome};

use super::dial::ahead;
use super::{Gateway, Host, Job, RELEASE};
use crate::membership::Event;
use crate::peers::routes::Place;

impl Gateway {
    /// Handles the outcome of the handshake of an incoming connection.
    pub(super) fn on_accepted(&self, peer: &str, result: Result<Opened, NoStream>) {
        match result {
            Ok(opened) => self.greeted(peer, opened),
            Err(NoStream::Refused(Refused::Job(job))) if lock(&self.ended_jobs).contains(&ProcUid(job.0)) => {}
            Err(NoStream::Refused(why)) if !why.is_transient() => self.refused(peer, why.to_string()),
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
                self.tunnel_asked(peer, opened, host, port, places, Duration::from_millis(within_ms))
            }
            (Kind::Channel, Some(bulk @ Greeting::Bulk { .. })) => self.bulk_asked(opened, bulk),
            _ => {
                self.refused(peer, "its greeting is malformed".to_owned());
                opened.stream.close();
            }
        }
    }

    fn join_asked(&self, peer: &str, mut opened: Opened, host: ProcUid, agent: u64, from: &str, settings: JobSettings) {
        let Some(node) = self.node() else { return };
        let id = ProcUid(opened.job.0);
        let was_here = node.peers.routes.lost(Place { host: id, here: host }).is_some();
        let answer = if self.is_closing() {
            Welcome::Refused(RefusalReason::Closing)
        } else if agent != 0 && agent != node.uid.0 {
            Welcome::Refused(RefusalReason::OtherAgent)
        } else if self.job(id).is_some_and(|j| j.own_id != host) {
            // Probably the client has dialled this host by a second address.
            Welcome::Refused(RefusalReason::Twice)
        } else if was_here {
            // The end of the job here is final for this id of the host; the client asks again with a new id.
            Welcome::Refused(RefusalReason::Lost)
        } else {
            if self.job(id).is_none() {
                let job = Job::new(id, host, settings, self.poller.now());
                let client = job.host_or_new(id, &self.me, &self.poller);
                self.on_event(&job, Event::Joined { host: id });
                lock(&client.info).name = from.to_owned();
                self.add_job(job.clone());
                node.peers.route(id, id, host);
                self.watch(&job, id);
            }
            let name = node.roles.agent().map_or_else(String::new, |a| a.host());
            Welcome::Joined { agent: node.uid.0, host: name, pid: std::process::id(), release: RELEASE.to_owned() }
        };
        if matches!(answer, Welcome::Joined { .. }) {
            self.audit("joined", peer, from.to_owned());
        } else {
            self.refused(peer, from.to_owned());
        }
        // The socket's buffer takes so small an answer at once. The other side closes the connection.
        let _ = opened.stream.write(&[&greeting_frame(&greeting::encode(&answer))]);
        let _ = opened.stream.flush();
    }

    /// True if the certificate of the other end permits it to act as the host `from`.
    pub(super) fn may_act_as(opened: &Opened, from: ProcUid) -> bool {
        match opened.subject {
            Subject::Host(host) => host == from.0,
            Subject::Client => from.0 == opened.job.0,
            // Certificates of the site name machines, and all members of a job use sockets of the same user: every member may act as any
            // host of the job.
            Subject::Site(_) | Subject::Unnamed => true,
        }
    }

    fn channel_asked(&self, mut opened: Opened, session: u64, number: u8, received: u64, from: ProcUid, to: ProcUid) {
        let may_act_as = Gateway::may_act_as(&opened, from);
        let job = self.job(ProcUid(opened.job.0)).filter(|j| j.own_id == to && from != to && may_act_as);
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
        let host = job.host_or_new(from, &self.me, &self.poller);
        if host.session.is_paused() {
            return;
        }
        self.watch(job, from);
        self.heartbeat_received(job, from);
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
            self.host_ended(job, &host, &ahead(received, &host));
        }
    }

    /// Handles a connection that the kernel of this host does not watch: the other host is lost. A client is not: it opens another
    /// connection, and its lease decides.
    pub(super) fn unwatched(&self, job: &Arc<Job>, host: &Arc<Host>, why: &NoStream) {
        if host.id == job.id {
            self.refused(&host.name(), why.to_string());
        } else if job.is_clients() {
            self.host_lost(job, host, &why.to_string());
        } else {
            self.link_lost(job, host, &why.to_string());
        }
    }

    fn admit(&self, job: &Arc<Job>, session: u64, number: u8, received: u64, from: ProcUid) -> Result<(), RefusalReason> {
        let host = job.host_or_new(from, &self.me, &self.poller);
        if host.membership().is_ended() {
            return Err(RefusalReason::Lost);
        }
        let mut state = lock(&host.state);
        // The frames of a session that exists are delivered while this agent closes.
        if state.session_id == session {
            state.was_up = true;
            return Ok(());
        }
        if self.is_closing() {
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
        self.on_event(job, Event::Joined { host: from });
        Ok(())
    }
}
