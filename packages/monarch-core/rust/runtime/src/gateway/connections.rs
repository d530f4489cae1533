//! The connections of the sessions that this process opens: a client's to its hosts, an agent's to other agents.
//!
//! A session has a connection for frames and one for heartbeats. A client dials its hosts; an agent dials another agent when it has frames
//! for it, and the connections of the other side are used if both dial at once. `redial` decides when an attempt begins.
//!
//! What it needs: the dialler, the events of membership, and the audit log.
//!
//! What always holds:
//! - A client is never dialled.
//! - Connections are opened on the I/O thread only, and only to hosts that have joined and have not ended.

use std::sync::Arc;
use std::time::Duration;

use net::Poller;
use net::channel::Disagree;
use net::connect;
use net::dial::{self, NoStream, Ready};
use net::lock::lock;
use net::session::{FRAMES, HEARTBEAT};
use net::trust::{Kind, Refused};
use wire::greeting::{self, Greeting, RefusalReason, Welcome};

use super::audit::AuditLog;
use super::dialler::{DIAL_TIMEOUT, Dialler};
use super::host::Host;
use super::job::Job;
use super::jobs::Jobs;
use super::membership_events::MembershipEvents;
use super::random_id::random_id;
use super::refusals::refusal;
use super::route_gateway::RouteGateway;
use crate::membership::{Event, LinkEnd};
use crate::tasks;

/// Limit of one attempt while the host is suspected: shorter than the second after which the kernel repeats a lost SYN.
const SUSPECT_DIAL_TIMEOUT: Duration = Duration::from_millis(400);
/// Reason for losing a host whose agent was part of the job, and now does not know the job.
const FORGOTTEN: &str = "its agent does not know this job any more: it has ended since, or its lease (`mesh_orphan_timeout`) was over";
/// The same for an agent that does not know the session.
const NO_SESSION: &str = "its agent does not know this connection any more: the job has ended there since, or began anew";

/// The values that this side has sent in the greeting of a connection that it opens.
struct SentGreeting {
    number: u8,
    session: u64,
    /// The number of frames received in this session.
    received: u64,
}

/// The next step after an attempt to open a connection.
enum NextStep {
    Done,
    /// Open the connections that are missing.
    Open,
    /// The same, after a pause.
    Later,
}

/// Opens the connections of sessions.
pub(super) struct Connections {
    pub poller: Arc<Poller>,
    pub jobs: Arc<Jobs>,
    pub events: Arc<MembershipEvents>,
    pub dialler: Arc<Dialler>,
    pub route_gateway: Arc<RouteGateway>,
    pub audit: Arc<AuditLog>,
}

impl Connections {
    /// Calls `open` on the I/O thread, unless the connection for frames is being opened or will be.
    pub fn open_soon(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>) {
        if lock(&host.state).redial.is_expected(FRAMES) {
            return;
        }
        let (job, host) = (job.clone(), host.clone());
        tasks::spawn(&self.poller, self, move |me| me.open(&job, &host));
    }

    /// Opens the connections of the session that are missing, if this side opens them.
    pub fn open(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>) {
        let missing: Vec<u8> = {
            let is_joined = host.is_joined();
            let mut state = lock(&host.state);
            // An agent dials another agent when it has frames for it. A client is never dialled.
            if !state.dials && state.session_id == 0 && is_joined && host.id != job.id {
                state.dials = true;
            }
            if !is_joined || !state.dials || self.jobs.is_closing() && !state.notice_pending {
                return;
            }
            if state.session_id == 0 {
                match random_id() {
                    Ok(id) => state.session_id = id,
                    Err(e) => {
                        drop(state);
                        return self.events.lost(job, host, &e.to_string());
                    }
                }
            }
            let all = [(FRAMES, host.session.is_up()), (HEARTBEAT, host.session.has_heartbeat())];
            state.redial.begin(all.into_iter().filter(|(_, is_there)| !is_there).map(|(number, _)| number))
        };
        if !missing.is_empty() {
            self.events.watch(job, host.id);
        }
        missing.into_iter().for_each(|number| self.open_stream(job, host, number));
    }

    /// Opens another heartbeat connection to a suspected host: on the old one the kernel may retry only after a long pause.
    pub fn open_anew(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>) {
        {
            let is_suspected = host.membership().is_suspected();
            let mut state = lock(&host.state);
            if !is_suspected || !state.dials || !state.redial.begin_probe(HEARTBEAT) {
                return;
            }
        }
        self.open_stream(job, host, HEARTBEAT);
    }

    fn open_stream(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>, number: u8) {
        let (session, bound) = {
            let state = lock(&host.state);
            // Through a gateway, an attempt opens two connections, one after the other.
            let anew = if self.route_gateway.before(job).is_some() { 2 * SUSPECT_DIAL_TIMEOUT } else { SUSPECT_DIAL_TIMEOUT };
            (state.session_id, if host.membership().is_suspected() { anew } else { DIAL_TIMEOUT })
        };
        let received = if number == FRAMES { host.session.received() } else { 0 };
        let hello = greeting::encode(&Greeting::Channel { session, number, received, from: job.own_id, to: host.id });
        let (job2, host2) = (job.clone(), host.clone());
        let done = tasks::callback(self, move |me, result| {
            let next = me.opened(&job2, &host2, &SentGreeting { number, session, received }, result);
            // Only after the connection is attached: a second attempt would otherwise send the same count of received frames.
            lock(&host2.state).redial.end(number);
            match next {
                NextStep::Done => {}
                NextStep::Open => me.open(&job2, &host2),
                NextStep::Later => me.try_later(&job2, &host2),
            }
        });
        self.dialler.dial(job, host, Kind::Channel, hello, bound, Box::new(done));
    }

    fn opened(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>, sent: &SentGreeting, result: Result<Ready, NoStream>) -> NextStep {
        let session_id = lock(&host.state).session_id;
        if session_id != sent.session || host.membership().is_ended() {
            return NextStep::Done;
        }
        match result {
            Ok(ready) => self.answered(job, host, sent, ready),
            Err(NoStream::Refused(why)) if !why.is_transient() => {
                // An agent that does not know the job is another agent than the one that joined, or has ended the job.
                if matches!(why, Refused::Denied(_)) {
                    self.events.lost(job, host, &format!("{FORGOTTEN} ({why})"));
                } else {
                    self.events.ended(job, host, &format!("agent exited: {why}"));
                }
                NextStep::Done
            }
            Err(why @ NoStream::Unwatched(_)) => {
                self.unwatched(job, host, &why);
                NextStep::Done
            }
            Err(why) => {
                let refused = why.is_refusal();
                // The notice of the host may have been lost with its relays. A firewall refuses connections too, so a refusal is a proof
                // only on this machine, after the host has received the request to exit, or after its kernel has closed its
                // connections.
                let is_unix = host.info().address.is_some_and(|address| address.is_unix());
                let proves = is_unix || lock(&host.state).closed_by_exit || host.session.is_settled();
                if refused && proves && host.membership().is_leaving() {
                    self.events.ended(job, host, "agent exited");
                    return NextStep::Done;
                }
                let alone = !host.session.is_up() && !host.session.has_heartbeat();
                if alone {
                    let end = match refused {
                        true if is_unix => LinkEnd::Killed,
                        true => LinkEnd::Refused,
                        false => LinkEnd::Cut,
                    };
                    self.events.link_down(job, host, end);
                }
                NextStep::Later
            }
        }
    }

    /// Handles the answer to the greeting of a new connection.
    fn answered(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>, sent: &SentGreeting, ready: Ready) -> NextStep {
        match greeting::decode(&ready.answer) {
            Some(Welcome::Channel { received }) => {
                let was_silent = {
                    let mut state = lock(&host.state);
                    state.redial.answered();
                    state.was_up = true;
                    state.closed_by_exit = false;
                    host.membership().is_suspected()
                };
                self.events.report(job, Event::Reconnected { host: host.id });
                self.events.heartbeat(job, host.id);
                if sent.number == HEARTBEAT {
                    host.session.attach_heartbeat(ready.opened.stream, &[], ready.early);
                    if was_silent {
                        // The other connection may be stuck in the same way as the old heartbeat connection: it is opened again too.
                        host.session.detach();
                    }
                    return NextStep::Open;
                }
                match host.session.attach(ready.opened.stream, sent.received, received, &[], ready.early) {
                    Ok(()) => {
                        host.resumed(received);
                        return NextStep::Open;
                    }
                    Err(Disagree::Stale) => return NextStep::Later,
                    Err(Disagree::Ahead) => self.events.ended(job, host, &ahead(received, host)),
                }
            }
            // Both sides have dialled at once, and the connection of the other side is used.
            Some(Welcome::Refused(RefusalReason::Glare)) => {
                let mut state = lock(&host.state);
                state.dials = false;
                // The other side's connection brings another session number, which must not be compared with the number of this attempt.
                state.session_id = 0;
            }
            Some(Welcome::Refused(RefusalReason::OtherAgent)) => self.events.ended(job, host, "agent exited"),
            Some(Welcome::Refused(RefusalReason::NoSession)) => self.events.lost(job, host, NO_SESSION),
            // Only the client decides that a host is lost: an agent that is refused loses its link to the host, not the host.
            Some(Welcome::Refused(RefusalReason::Lost)) if !job.is_clients() => {
                self.events.link_lost(job, host, refusal(RefusalReason::Lost))
            }
            Some(Welcome::Refused(no)) => self.events.lost(job, host, refusal(no)),
            _ => return NextStep::Later,
        }
        NextStep::Done
    }

    /// Dials a host whose connections have ended and which opens them itself: a refused connection shows that its agent has ended.
    pub fn probe_port(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>) {
        let info = host.info();
        let Some(address) = info.address.filter(|_| !lock(&host.state).dials && host.id != job.id) else { return };
        let (job, host) = (job.clone(), host.clone());
        let done = tasks::callback(self, move |me, result: std::io::Result<()>| {
            let refused = result.is_err_and(|e| dial::is_refusal(&e));
            if refused && !host.session.is_up() && !host.session.has_heartbeat() {
                me.events.link_down(&job, &host, LinkEnd::Refused);
            }
        });
        if address.is_unix() {
            return done(address.connect_unix().map(drop));
        }
        connect::connect(&self.poller, info.resolved.into(), DIAL_TIMEOUT, Box::new(move |result| done(result.map(drop))));
    }

    /// Plans the next attempt to open the missing connections, unless one is planned.
    fn try_later(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>) {
        let Some((pause, number)) = lock(&host.state).redial.plan_retry() else { return };
        let (job, host) = (job.clone(), host.clone());
        tasks::later(&self.poller, pause, self, move |me| {
            if lock(&host.state).redial.retry_due(number) {
                me.open(&job, &host);
            }
        });
    }

    /// Handles a connection that the kernel of this host does not watch: the other host is lost. A client is not: it opens another
    /// connection, and its lease decides.
    pub fn unwatched(&self, job: &Arc<Job>, host: &Host, why: &NoStream) {
        if host.id == job.id {
            self.audit.refused(&host.name(), why.to_string());
        } else if job.is_clients() {
            self.events.lost(job, host, &why.to_string());
        } else {
            self.events.link_lost(job, host, &why.to_string());
        }
    }
}

/// The reason for losing a host that has received more frames than were sent: its agent is another one than the one that joined.
pub(super) fn ahead(received: u64, host: &Host) -> String {
    format!("agent exited: another one in its place has received {received} frames, where {} were sent", host.session.count())
}
