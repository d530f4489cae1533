//! Connections that this process opens: a client's to its hosts, an agent's to other agents.

use std::sync::Arc;
use std::time::Duration;

use net::address::Address;
use net::channel::Disagree;
use net::connect;
use net::dial::{self, NoStream, Ready};
use net::lock::lock;
use net::session::{FRAMES, HEARTBEAT};
use net::trust::{DialTrust, JobId, Kind, Refused, Target};
use wire::greeting::{self, Greeting, JobSettings, RefusalReason, Welcome};
use wire::join_tree::{JoinFailure, JoinFailureKind, TreeMessage};
use wire::{CallId, ProcUid, Status};

use super::redial::backoff;
use super::refusals::refusal;
use super::{Gateway, Host, Job, RELEASE, random_id};
use crate::calls::pending_call::Outcome;
use crate::membership::{Event, LinkEnd};

/// Limit of one attempt to open a connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of one attempt while the host is suspected: shorter than the second after which the kernel repeats a lost SYN.
const SUSPECT_DIAL_TIMEOUT: Duration = Duration::from_millis(400);
/// Reason for losing a host whose agent was part of the job, and now does not know the job.
const FORGOTTEN: &str = "its agent does not know this job any more: it has ended since, or its lease (`mesh_orphan_timeout`) was over";
/// The same for an agent that does not know the session.
const NO_SESSION: &str = "its agent does not know this connection any more: the job has ended there since, or began anew";

/// The age at which a host's certificate is replaced: a third of its lifetime, so renewals may fail for 60 days.
const RENEW: Duration = Duration::from_secs(30 * 24 * 3600);
/// The pause after an attempt to replace a certificate that failed.
const RENEW_AGAIN: Duration = Duration::from_secs(3600);

/// A host that is asked to join the job.
pub struct Wanted {
    pub host: ProcUid,
    pub address: Address,
    /// The uid of the expected agent; 0 accepts any agent.
    pub agent: u64,
    /// The rank of the host in the list of hosts that join, and in the answers of the call.
    pub rank: u32,
    /// The secret or certificate with which the client authenticates to the host.
    pub trust: Arc<DialTrust>,
}

/// The receivers of the outcome of a join.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    /// The call that is answered, and the rank of the host in it.
    pub call: Option<(CallId, u32)>,
    /// The list of workers of which the host is a part (`WorkerList::number`), and its rank in the list.
    pub list: Option<(u64, u32)>,
}

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

/// The attempts of one join until now.
#[derive(Default)]
pub(super) struct Attempts {
    count: u32,
    /// The reason of the last attempt that failed with an answer or an error, not by a time limit.
    answered: Option<String>,
    /// The reason of the last attempt that failed after its connection was open.
    opened: Option<String>,
}

impl Attempts {
    fn and(self, why: &NoStream) -> Attempts {
        let answered = if why.is_timeout() { self.answered } else { Some(why.to_string()) };
        let opened = if why.was_open() { Some(why.to_string()) } else { self.opened };
        Attempts { count: self.count + 1, answered, opened }
    }
}

impl Gateway {
    /// Makes the job of this client, if it does not exist.
    pub fn start_job(&self, settings: JobSettings) -> std::io::Result<Arc<Job>> {
        let node = self.node().ok_or(std::io::ErrorKind::NotConnected)?;
        if let Some(job) = self.job(node.uid) {
            return Ok(job);
        }
        let job = Job::new(node.uid, node.uid, settings, self.poller.now());
        self.add_job(job.clone());
        Ok(job)
    }

    /// Makes hosts with these ids, which join later. Frames can be sent to them from now on: they wait for the join.
    pub fn announce(&self, job: &Arc<Job>, hosts: &[ProcUid]) {
        let Some(node) = self.node() else { return };
        for id in hosts {
            job.host_or_new(*id, &self.me, &self.poller);
            node.peers.route(*id, *id, job.own_id);
        }
    }

    /// Joins a host to the job. The outcome answers the call `call_id` at the host's rank. The calling thread resolves the host's name.
    pub fn join(&self, job: &Arc<Job>, from: &str, wanted: Wanted, call_id: CallId, bound: Duration) {
        let deadline = self.poller.now() + bound;
        let (agent, id, ticket) = (wanted.agent, wanted.host, Ticket { call: Some((call_id, wanted.rank)), list: None });
        let Some(host) = self.invite(job, wanted, call_id) else { return };
        let greeting = Greeting::Join { host: id, agent, from: from.to_owned(), settings: job.settings.clone() };
        let (me, job, hello) = (self.me.clone(), job.clone(), greeting::encode(&greeting));
        // The state of a host is changed on the I/O thread only.
        let task = move || {
            if let Some(g) = me.upgrade() {
                g.try_join(&job, &host, hello, ticket, deadline, Attempts::default());
            }
        };
        self.poller.spawn(Box::new(task));
    }

    /// Resolves the address of a host that is asked to join. Returns none, and answers the call, if the join has failed by that.
    pub(super) fn invite(&self, job: &Arc<Job>, wanted: Wanted, call_id: CallId) -> Option<Arc<Host>> {
        let ticket = Ticket { call: Some((call_id, wanted.rank)), list: None };
        let host = job.host_or_new(wanted.host, &self.me, &self.poller);
        lock(&host.state).trust = Some(wanted.trust);
        let behind = self.gateway_of(job).is_some();
        if behind && !matches!(wanted.address, Address::Tcp { .. }) {
            self.not_joined(job, &host, ticket, JoinFailure::other("only tcp addresses are reached through a gateway"));
            return None;
        }
        // The gateway resolves the names of hosts behind it.
        match if behind { Ok(vec![]) } else { wanted.address.resolve() } {
            Ok(resolved) => {
                let mut info = lock(&host.info);
                info.resolved = resolved;
                info.address = Some(wanted.address);
            }
            Err(e) => {
                self.not_joined(job, &host, ticket, JoinFailure::other(format!("name not found: {e}")));
                return None;
            }
        }
        Some(host)
    }

    pub fn give_up(&self, job: &Arc<Job>, host: ProcUid, call_id: CallId, rank: u32, why: &str) {
        if let Some(host) = job.host(host) {
            self.not_joined(job, &host, Ticket { call: Some((call_id, rank)), list: None }, JoinFailure::other(why));
        }
    }

    pub(super) fn try_join(
        &self,
        job: &Arc<Job>,
        host: &Arc<Host>,
        hello: Vec<u8>,
        ticket: Ticket,
        deadline: std::time::Instant,
        before: Attempts,
    ) {
        // `send_notices` runs after `closing` is set and reads the host's state, which is therefore set before `closing` is read.
        self.on_event(job, Event::JoinStarted { host: host.id });
        if !self.is_in(job) {
            self.on_event(job, Event::JoinEnded { host: host.id });
            return self.not_joined(job, host, ticket, JoinFailure::other("the job is over"));
        }
        let (me, job2, host2) = (self.me.clone(), job.clone(), host.clone());
        let again = hello.clone();
        let left = deadline.saturating_duration_since(self.poller.now());
        let done = move |result: Result<Ready, NoStream>| {
            let Some(g) = me.upgrade() else { return };
            g.on_event(&job2, Event::JoinEnded { host: host2.id });
            let may_try = g.poller.now() + backoff(before.count) < deadline && g.is_in(&job2);
            let later = |so_far: Attempts| {
                let (me, poller, pause) = (g.me.clone(), g.poller.clone(), backoff(so_far.count - 1));
                let (job, host, hello) = (job2.clone(), host2.clone(), again.clone());
                let next = move || {
                    if let Some(g) = me.upgrade() {
                        g.try_join(&job, &host, hello, ticket, deadline, so_far);
                    }
                };
                poller.later(pause, Box::new(next));
            };
            match result {
                Ok(mut ready) if may_try && may_join_later(&job2, &host2, &ready) => {
                    ready.opened.stream.close();
                    later(Attempts { count: before.count + 1, ..before })
                }
                Ok(ready) => g.joined(&job2, &host2, ready, ticket, again),
                // Another relay has joined the host meanwhile.
                Err(_) if !job2.is_clients() && host2.membership().is_join_over() => {
                    g.not_joined(&job2, &host2, ticket, JoinFailure::other("it has joined"))
                }
                // A worker has accepted a connection before, and now no process listens: the worker has ended.
                Err(why) if why.is_refusal() && before.opened.is_some() => {
                    let first = before.opened.unwrap_or_default();
                    let why = format!("the worker ended while it joined: {first}, then {why}");
                    g.not_joined(&job2, &host2, ticket, JoinFailure { kind: JoinFailureKind::Ended, why })
                }
                // The worker may have been started a moment ago, and may not listen yet.
                Err(why) if why.is_transient() && may_try => later(before.and(&why)),
                Err(why) => {
                    // If the last attempt was cut short by the deadline, an earlier answer is the better reason.
                    let text = before.answered.filter(|_| why.is_timeout()).unwrap_or_else(|| why.to_string());
                    g.not_joined(&job2, &host2, ticket, JoinFailure { kind: why.kind(), why: text })
                }
            }
        };
        self.dial(job, host, Kind::Join, hello, left.min(DIAL_TIMEOUT), Box::new(done));
    }

    pub(super) fn dial(&self, job: &Arc<Job>, host: &Arc<Host>, kind: Kind, hello: Vec<u8>, bound: Duration, done: dial::Done) {
        if host.session.is_paused() {
            return done(Err(NoStream::Network("a test has cut it off".to_owned())));
        }
        let info = host.info();
        let Some(address) = info.address else { return done(Err(NoStream::Network("its address is not known".to_owned()))) };
        let name = match &address {
            Address::Tcp { host, .. } => host.clone(),
            _ => String::new(),
        };
        let target = Target { name, host: host.id.0, kind };
        let given = lock(&host.state).trust.clone();
        // An agent dials other agents with the credentials from its own join. It joins other hosts with the job's secret.
        let id = JobId(job.id.0);
        let relay = || self.trust.get().and_then(|t| t.relay(id).filter(|_| kind == Kind::Join).or_else(|| t.dial(id)));
        let Some(trust) = given.or_else(relay) else {
            return done(Err(NoStream::Network("there is nothing to show to it".to_owned())));
        };
        if let Some(route_gateway) = self.gateway_of(job) {
            return self.dial_through_gateway(&route_gateway, host, trust, target, hello, bound, done);
        }
        let (me, job, id) = (self.me.clone(), job.clone(), host.id);
        let certify: dial::Certify = Box::new(move |key, handshake| {
            if let Some(g) = me.upgrade() {
                lock(&job.joins).signing.insert(id, handshake);
                g.send_along_tree(&job, job.id, &TreeMessage::Certify { host: id, key });
            }
        });
        dial::dial(&self.poller, &address, &info.resolved, &trust, target, hello, bound, Some(certify), done);
    }

    fn joined(&self, job: &Arc<Job>, host: &Arc<Host>, mut ready: Ready, ticket: Ticket, hello: Vec<u8>) {
        ready.opened.stream.close();
        match greeting::decode(&ready.answer) {
            Some(Welcome::Joined { agent, host: name, pid, release }) => {
                if release != RELEASE {
                    // Another patch release: a larger difference is refused in the handshake.
                    self.audit("release", &name, format!("{release} there, {RELEASE} here"));
                }
                {
                    let mut info = lock(&host.info);
                    (info.name, info.pid, info.release, info.agent) = (name, pid, release, agent);
                    if host.lost().is_some() && ticket.list.is_some() {
                        return;
                    }
                    lock(&host.state).dials = true;
                }
                self.on_event(job, Event::Joined { host: host.id });
                self.watch(job, host.id);
                self.open(job, host);
                if ticket.list.is_none() {
                    self.introduce(job, host);
                }
                self.answer_joined(host, ticket);
                self.renew_later(job, host, hello, RENEW);
                if let Some(list) = ticket.list {
                    self.worker_joined(job, host, list);
                }
            }
            Some(Welcome::Refused(no)) => self.not_joined(job, host, ticket, JoinFailure::other(refusal(no))),
            _ => self.not_joined(job, host, ticket, JoinFailure::other("its answer is malformed")),
        }
    }

    pub(super) fn renew_soon(&self, job: &Arc<Job>, host: &Arc<Host>, hello: Vec<u8>) {
        self.renew_later(job, host, hello, RENEW);
    }

    /// Renews the host's certificate after `delay`: a session can outlive it, and later connections need a valid one.
    fn renew_later(&self, job: &Arc<Job>, host: &Arc<Host>, hello: Vec<u8>, delay: Duration) {
        if lock(&host.state).trust.as_ref().is_none_or(|t| t.authority().is_none()) {
            return;
        }
        let (me, job, host) = (self.me.clone(), Arc::downgrade(job), Arc::downgrade(host));
        let task = move || {
            if let (Some(g), Some(job), Some(host)) = (me.upgrade(), job.upgrade(), host.upgrade()) {
                g.renew(&job, &host, hello);
            }
        };
        self.poller.later(delay, Box::new(task));
    }

    /// Joins the host again, with the id of the same agent: the host gets a new certificate, and nothing else changes.
    fn renew(&self, job: &Arc<Job>, host: &Arc<Host>, hello: Vec<u8>) {
        let Some(Greeting::Join { from, settings, .. }) = greeting::decode(&hello) else { return };
        if self.is_closing() || host.lost().is_some() {
            return;
        }
        let hello = greeting::encode(&Greeting::Join { host: host.id, agent: host.info().agent, from, settings });
        let (me, job2, host2, again) = (self.me.clone(), job.clone(), host.clone(), hello.clone());
        let done = move |result: Result<Ready, NoStream>| {
            let Some(g) = me.upgrade() else { return };
            let joined = |ready: &Ready| matches!(greeting::decode(&ready.answer), Some(Welcome::Joined { .. }));
            let renewed = result.is_ok_and(|mut ready| {
                ready.opened.stream.close();
                joined(&ready)
            });
            g.renew_later(&job2, &host2, again, if renewed { RENEW } else { RENEW_AGAIN });
        };
        self.dial(job, host, Kind::Join, hello, DIAL_TIMEOUT, Box::new(done));
    }

    /// For tests: renews the certificates of all hosts of a client's job now.
    pub fn renew_all(&self, job: &Arc<Job>, from: &str) {
        for host in job.hosts() {
            let settings = job.settings.clone();
            self.renew(job, &host, greeting::encode(&Greeting::Join { host: host.id, agent: 0, from: from.to_owned(), settings }));
        }
    }

    pub(super) fn answer(&self, call_id: CallId, rank: u32, status: Status, body: &[u8]) {
        if let Some(node) = self.node() {
            node.calls.complete(call_id, Outcome::new(rank, status, body));
        }
    }

    /// Answers that the host did not join.
    pub(super) fn not_joined(&self, job: &Arc<Job>, host: &Arc<Host>, ticket: Ticket, failure: JoinFailure) {
        if job.is_clients() {
            let why = format!("it did not join: {}", failure.why);
            match failure.kind {
                JoinFailureKind::Ended => self.host_ended(job, host, &why),
                _ => self.host_lost(job, host, &why),
            }
        }
        if let Some((call_id, rank)) = ticket.call {
            self.answer(call_id, rank, Status::Error, &greeting::encode(&failure));
        }
        if let Some(list) = ticket.list {
            self.worker_failed(job, list, failure);
        }
    }

    fn is_in(&self, job: &Job) -> bool {
        !self.is_closing() && self.job(job.id).is_some()
    }

    /// Calls `open` on the I/O thread, unless the connection for frames is being opened or will be.
    pub(super) fn open_soon(&self, job: &Arc<Job>, host: &Arc<Host>) {
        if lock(&host.state).redial.is_expected(FRAMES) {
            return;
        }
        let (me, job, host) = (self.me.clone(), job.clone(), host.clone());
        let task = move || {
            if let Some(g) = me.upgrade() {
                g.open(&job, &host);
            }
        };
        self.poller.spawn(Box::new(task));
    }

    /// Opens the connections of the session that are missing, if this side opens them.
    pub(super) fn open(&self, job: &Arc<Job>, host: &Arc<Host>) {
        let missing: Vec<u8> = {
            let is_joined = host.is_joined();
            let mut state = lock(&host.state);
            // An agent dials another agent when it has frames for it. A client is never dialled.
            if !state.dials && state.session_id == 0 && is_joined && host.id != job.id {
                state.dials = true;
            }
            if !is_joined || !state.dials || self.is_closing() && !state.notice_pending {
                return;
            }
            if state.session_id == 0 {
                match random_id() {
                    Ok(id) => state.session_id = id,
                    Err(e) => {
                        drop(state);
                        return self.host_lost(job, host, &e.to_string());
                    }
                }
            }
            let all = [(FRAMES, host.session.is_up()), (HEARTBEAT, host.session.has_heartbeat())];
            state.redial.begin(all.into_iter().filter(|(_, is_there)| !is_there).map(|(number, _)| number))
        };
        if !missing.is_empty() {
            self.watch(job, host.id);
        }
        missing.into_iter().for_each(|number| self.open_stream(job, host, number));
    }

    /// Opens another heartbeat connection to a suspected host: on the old one the kernel may retry only after a long pause.
    pub(super) fn open_anew(&self, job: &Arc<Job>, host: &Arc<Host>) {
        {
            let is_suspected = host.membership().is_suspected();
            let mut state = lock(&host.state);
            if !is_suspected || !state.dials || !state.redial.begin_probe(HEARTBEAT) {
                return;
            }
        }
        self.open_stream(job, host, HEARTBEAT);
    }

    fn open_stream(&self, job: &Arc<Job>, host: &Arc<Host>, number: u8) {
        let (session, bound) = {
            let state = lock(&host.state);
            // Through a gateway, an attempt opens two connections, one after the other.
            let anew = if self.gateway_of(job).is_some() { 2 * SUSPECT_DIAL_TIMEOUT } else { SUSPECT_DIAL_TIMEOUT };
            (state.session_id, if host.membership().is_suspected() { anew } else { DIAL_TIMEOUT })
        };
        let received = if number == FRAMES { host.session.received() } else { 0 };
        let hello = greeting::encode(&Greeting::Channel { session, number, received, from: job.own_id, to: host.id });
        let (me, job2, host2) = (self.me.clone(), job.clone(), host.clone());
        let done = move |result: Result<Ready, NoStream>| {
            if let Some(g) = me.upgrade() {
                let sent = SentGreeting { number, session, received };
                let next = g.opened(&job2, &host2, &sent, result);
                // Only after the connection is attached: a second attempt would otherwise send the same count of received frames.
                lock(&host2.state).redial.end(number);
                match next {
                    NextStep::Done => {}
                    NextStep::Open => g.open(&job2, &host2),
                    NextStep::Later => g.try_later(&job2, &host2),
                }
            }
        };
        self.dial(job, host, Kind::Channel, hello, bound, Box::new(done));
    }

    fn opened(&self, job: &Arc<Job>, host: &Arc<Host>, sent: &SentGreeting, result: Result<Ready, NoStream>) -> NextStep {
        let session_id = lock(&host.state).session_id;
        if session_id != sent.session || host.membership().is_ended() {
            return NextStep::Done;
        }
        match result {
            Ok(ready) => self.answered(job, host, sent, ready),
            Err(NoStream::Refused(why)) if !why.is_transient() => {
                // An agent that does not know the job is another agent than the one that joined, or has ended the job.
                if matches!(why, Refused::Denied(_)) {
                    self.host_lost(job, host, &format!("{FORGOTTEN} ({why})"));
                } else {
                    self.host_ended(job, host, &format!("agent exited: {why}"));
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
                    self.host_ended(job, host, "agent exited");
                    return NextStep::Done;
                }
                let alone = !host.session.is_up() && !host.session.has_heartbeat();
                if alone {
                    let end = match refused {
                        true if is_unix => LinkEnd::Killed,
                        true => LinkEnd::Refused,
                        false => LinkEnd::Cut,
                    };
                    self.link_down(job, host, end);
                }
                NextStep::Later
            }
        }
    }

    /// Handles the answer to the greeting of a new connection.
    fn answered(&self, job: &Arc<Job>, host: &Arc<Host>, sent: &SentGreeting, ready: Ready) -> NextStep {
        match greeting::decode(&ready.answer) {
            Some(Welcome::Channel { received }) => {
                let was_silent = {
                    let mut state = lock(&host.state);
                    state.redial.answered();
                    state.was_up = true;
                    state.closed_by_exit = false;
                    host.membership().is_suspected()
                };
                self.on_event(job, Event::Reconnected { host: host.id });
                self.heartbeat_received(job, host.id);
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
                    Err(Disagree::Ahead) => self.host_ended(job, host, &ahead(received, host)),
                }
            }
            // Both sides have dialled at once, and the connection of the other side is used.
            Some(Welcome::Refused(RefusalReason::Glare)) => {
                let mut state = lock(&host.state);
                state.dials = false;
                // The other side's connection brings another session number, which must not be compared with the number of this attempt.
                state.session_id = 0;
            }
            Some(Welcome::Refused(RefusalReason::OtherAgent)) => self.host_ended(job, host, "agent exited"),
            Some(Welcome::Refused(RefusalReason::NoSession)) => self.host_lost(job, host, NO_SESSION),
            // Only the client decides that a host is lost: an agent that is refused loses its link to the host, not the host.
            Some(Welcome::Refused(RefusalReason::Lost)) if !job.is_clients() => self.link_lost(job, host, refusal(RefusalReason::Lost)),
            Some(Welcome::Refused(no)) => self.host_lost(job, host, refusal(no)),
            _ => return NextStep::Later,
        }
        NextStep::Done
    }

    /// Dials a host whose connections have ended and which opens them itself: a refused connection shows that its agent has ended.
    pub(super) fn probe_port(&self, job: &Arc<Job>, host: &Arc<Host>) {
        let info = host.info();
        let Some(address) = info.address.filter(|_| !lock(&host.state).dials && host.id != job.id) else { return };
        let (me, job, host) = (self.me.clone(), job.clone(), host.clone());
        let done = move |result: std::io::Result<()>| {
            let refused = result.is_err_and(|e| dial::is_refusal(&e));
            if let Some(g) = me.upgrade().filter(|_| refused && !host.session.is_up() && !host.session.has_heartbeat()) {
                g.link_down(&job, &host, LinkEnd::Refused);
            }
        };
        if address.is_unix() {
            return done(address.connect_unix().map(drop));
        }
        connect::connect(&self.poller, info.resolved.into(), DIAL_TIMEOUT, Box::new(move |result| done(result.map(drop))));
    }

    /// Plans the next attempt to open the missing connections, unless one is planned.
    fn try_later(&self, job: &Arc<Job>, host: &Arc<Host>) {
        let Some((pause, number)) = lock(&host.state).redial.plan_retry() else { return };
        let (me, job, host) = (self.me.clone(), job.clone(), host.clone());
        let task = move || {
            if let Some(g) = me.upgrade().filter(|_| lock(&host.state).redial.retry_due(number)) {
                g.open(&job, &host);
            }
        };
        self.poller.later(pause, Box::new(task));
    }
}

/// True if the worker ends, as another one may replace it, or if it is still in the job as a host that the client has lost: it can join
/// once that host's lease has ended.
fn may_join_later(job: &Job, host: &Host, ready: &Ready) -> bool {
    let address = host.info().address;
    match greeting::decode(&ready.answer) {
        Some(Welcome::Refused(RefusalReason::Closing)) => true,
        Some(Welcome::Refused(RefusalReason::Twice)) => {
            job.hosts().iter().any(|other| other.id != host.id && other.lost().is_some() && other.info().address == address)
        }
        _ => false,
    }
}

/// The reason for losing a host that has received more frames than were sent: its agent is another one than the one that joined.
pub(super) fn ahead(received: u64, host: &Host) -> String {
    format!("agent exited: another one in its place has received {received} frames, where {} were sent", host.session.count())
}
