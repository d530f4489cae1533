//! The join of one host: the handshakes with its agent until it has joined, or its time is over, and the answer to the process that has
//! requested the join.
//!
//! The host may be one of a list (`join_list`), which is notified of the outcome.
//!
//! What it needs: the dialler, the connections of hosts that have joined, introductions and renewals, and the receiver of the outcomes of
//! lists (`ListOutcomes`), which is set once.
//!
//! What always holds: each join has one outcome. It is answered once, and a client loses a host that has not joined.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use net::address::Address;
use net::dial::{NoStream, Ready};
use net::lock::lock;
use net::trust::{DialTrust, Kind};
use wire::greeting::{self, RefusalReason, Welcome};
use wire::join_tree::{JoinFailure, JoinFailureKind};
use wire::{CallId, ProcUid, Status};

use super::audit::AuditLog;
use super::connections::Connections;
use super::dialler::{DIAL_TIMEOUT, Dialler};
use super::host::Host;
use super::introductions::Introductions;
use super::job::{Job, RELEASE};
use super::jobs::Jobs;
use super::membership_events::MembershipEvents;
use super::redial::backoff;
use super::refusals::refusal;
use super::renewals::{Renewals, join_greeting};
use super::route_gateway::{ClientGateway, ONLY_TCP, RouteGateway};
use crate::local::Local;
use crate::membership::Event;
use crate::tasks;

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

/// The attempts of one join until now.
#[derive(Default)]
struct Attempts {
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

/// Receives the outcomes of workers that belong to a list. `rank` is that of the worker in the list with this number.
pub(super) trait ListOutcomes: Send + Sync {
    fn joined(self: Arc<Self>, job: &Arc<Job>, host: &Host, list: (u64, u32));
    fn failed(self: Arc<Self>, job: &Arc<Job>, list: (u64, u32), failure: JoinFailure);
}

/// Joins hosts.
pub(super) struct Joins {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub events: Arc<MembershipEvents>,
    pub route_gateway: Arc<RouteGateway>,
    pub dialler: Arc<Dialler>,
    pub connections: Arc<Connections>,
    pub introductions: Arc<Introductions>,
    pub renewals: Arc<Renewals>,
    pub audit: Arc<AuditLog>,
    pub lists: OnceLock<Weak<dyn ListOutcomes>>,
}

impl Joins {
    /// Makes hosts with these ids, which join later. Frames can be sent to them from now on: they wait for the join.
    pub fn announce(&self, job: &Job, hosts: &[ProcUid]) {
        for id in hosts {
            job.host_or_new(*id);
            self.local.route(*id, *id, job.own_id);
        }
    }

    /// Joins a host to the job. The outcome answers the call `call_id` at the host's rank. The calling thread resolves the host's name.
    pub fn join(self: &Arc<Self>, job: &Arc<Job>, from: &str, wanted: Wanted, call_id: CallId, bound: Duration) {
        let deadline = self.local.poller.now() + bound;
        from.clone_into(&mut lock(&job.client_description));
        let (agent, ticket) = (wanted.agent, Ticket { call: Some((call_id, wanted.rank)), list: None });
        let Some(host) = self.invite(job, wanted, call_id) else { return };
        let job = job.clone();
        // The state of a host is changed on the I/O thread only.
        tasks::spawn(&self.local.poller, self, move |me| me.start(&job, &host, agent, ticket, deadline));
    }

    /// Joins the agent at this address as the gateway, as `join` does. Hosts are reached through the gateway from now on.
    pub fn use_gateway(self: &Arc<Self>, job: &Arc<Job>, text: &str, from: &str, wanted: Wanted, call_id: CallId, bound: Duration) {
        self.announce(job, &[wanted.host]);
        let gateway = ClientGateway { job: job.clone(), host: job.host_or_new(wanted.host), address: text.to_owned() };
        *lock(&self.route_gateway.gateway) = Some(Arc::new(gateway));
        self.join(job, from, wanted, call_id, bound);
    }

    /// Removes a gateway that has not joined: hosts are dialled directly again.
    pub fn forget_gateway(&self) {
        if let Some(gateway) = lock(&self.route_gateway.gateway).take() {
            self.jobs.remove(&gateway.job);
            gateway.host.session.close();
        }
    }

    /// Resolves the address of a host that is asked to join. Returns none, and answers the call, if the join has failed by that.
    pub fn invite(&self, job: &Arc<Job>, wanted: Wanted, call_id: CallId) -> Option<Arc<Host>> {
        let ticket = Ticket { call: Some((call_id, wanted.rank)), list: None };
        let host = job.host_or_new(wanted.host);
        lock(&host.state).trust = Some(wanted.trust);
        let behind = self.route_gateway.before(job).is_some();
        if behind && !matches!(wanted.address, Address::Tcp { .. }) {
            self.not_joined(job, &host, ticket, JoinFailure::other(ONLY_TCP));
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

    /// Ends the join of a host that the caller does not wait for any more.
    pub fn give_up(&self, job: &Arc<Job>, host: ProcUid, call_id: CallId, rank: u32, why: &str) {
        if let Some(host) = job.host(host) {
            self.not_joined(job, &host, Ticket { call: Some((call_id, rank)), list: None }, JoinFailure::other(why));
        }
    }

    /// Begins the handshakes with a host, which has to be the agent with the uid `agent`; 0: any agent.
    pub fn start(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>, agent: u64, ticket: Ticket, deadline: Instant) {
        self.attempt(job, host, join_greeting(job, host, agent), ticket, deadline, Attempts::default());
    }

    fn attempt(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>, hello: Vec<u8>, ticket: Ticket, deadline: Instant, before: Attempts) {
        // A client that closes reads the host's state afterwards (`Closing::send_notices`), so the state is set before `is_active` is read.
        self.events.report(job, Event::JoinStarted { host: host.id });
        if !self.jobs.is_active(job) {
            self.events.report(job, Event::JoinEnded { host: host.id });
            return self.not_joined(job, host, ticket, JoinFailure::other("the job is over"));
        }
        let (job2, host2, again) = (job.clone(), host.clone(), hello.clone());
        let left = deadline.saturating_duration_since(self.local.poller.now());
        let done = tasks::callback(self, move |me, result: Result<Ready, NoStream>| {
            let (job, host) = (job2, host2);
            me.events.report(&job, Event::JoinEnded { host: host.id });
            let may_try = me.local.poller.now() + backoff(before.count) < deadline && me.jobs.is_active(&job);
            let later = |so_far: Attempts| {
                let (job, host, hello, pause) = (job.clone(), host.clone(), again, backoff(so_far.count - 1));
                tasks::later(&me.local.poller, pause, me, move |me| me.attempt(&job, &host, hello, ticket, deadline, so_far));
            };
            match result {
                Ok(mut ready) if may_try && may_join_later(&job, &host, &ready) => {
                    ready.opened.stream.close();
                    later(Attempts { count: before.count + 1, ..before })
                }
                Ok(ready) => me.joined(&job, &host, ready, ticket),
                // Another relay has joined the host meanwhile.
                Err(_) if !job.is_clients() && host.membership().is_join_over() => {
                    me.not_joined(&job, &host, ticket, JoinFailure::other("it has joined"))
                }
                // A worker has accepted a connection before, and now no process listens: the worker has ended.
                Err(why) if why.is_refusal() && before.opened.is_some() => {
                    let first = before.opened.unwrap_or_default();
                    let why = format!("the worker ended while it joined: {first}, then {why}");
                    me.not_joined(&job, &host, ticket, JoinFailure { kind: JoinFailureKind::Ended, why })
                }
                // The worker may have been started a moment ago, and may not listen yet.
                Err(why) if why.is_transient() && may_try => later(before.and(&why)),
                Err(why) => {
                    // If the last attempt was cut short by the deadline, an earlier answer is the better reason.
                    let text = before.answered.filter(|_| why.is_timeout()).unwrap_or_else(|| why.to_string());
                    me.not_joined(&job, &host, ticket, JoinFailure { kind: why.kind(), why: text })
                }
            }
        });
        self.dialler.dial(job, host, Kind::Join, hello, left.min(DIAL_TIMEOUT), Box::new(done));
    }

    fn joined(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>, mut ready: Ready, ticket: Ticket) {
        ready.opened.stream.close();
        match greeting::decode(&ready.answer) {
            Some(Welcome::Joined { agent, host: name, pid, release }) => {
                self.described(host, agent, name, pid, release);
                if host.lost().is_some() && ticket.list.is_some() {
                    return;
                }
                lock(&host.state).dials = true;
                self.events.report(job, Event::Joined { host: host.id });
                self.events.watch(job, host.id);
                self.connections.open(job, host);
                if ticket.list.is_none() {
                    self.introductions.introduce(job, host);
                }
                self.succeed(job, host, ticket);
                if let Some((to, list)) = self.list(ticket) {
                    to.joined(job, host, list);
                }
            }
            Some(Welcome::Refused(no)) => self.not_joined(job, host, ticket, JoinFailure::other(refusal(no))),
            _ => self.not_joined(job, host, ticket, JoinFailure::other("its answer is malformed")),
        }
    }

    /// Takes the description of a host's agent. Another patch release is noted: a larger difference is refused in the handshake.
    pub fn described(&self, host: &Host, agent: u64, name: String, pid: u32, release: String) {
        if release != RELEASE {
            self.audit.add("release", &name, format!("{release} there, {RELEASE} here"));
        }
        host.introduce_itself(agent, name, pid, release);
    }

    /// Answers the call of a join with the agent's description of itself, and schedules renewals.
    pub fn succeed(&self, job: &Arc<Job>, host: &Arc<Host>, ticket: Ticket) {
        if let Some((call_id, rank)) = ticket.call {
            let info = host.info();
            let body = serde_json::json!({"agent": info.agent, "host": info.name, "pid": info.pid, "release": info.release});
            self.local.answer(call_id, rank, Status::Ok, body.to_string().as_bytes());
        }
        self.renewals.begin(job, host);
    }

    /// Answers that the host did not join.
    pub fn not_joined(&self, job: &Arc<Job>, host: &Host, ticket: Ticket, failure: JoinFailure) {
        if job.is_clients() {
            let why = format!("it did not join: {}", failure.why);
            match failure.kind {
                JoinFailureKind::Ended => self.events.ended(job, host, &why),
                _ => self.events.lost(job, host, &why),
            }
        }
        if let Some((call_id, rank)) = ticket.call {
            self.local.answer(call_id, rank, Status::Error, &greeting::encode(&failure));
        }
        if let Some((to, list)) = self.list(ticket) {
            to.failed(job, list, failure);
        }
    }

    fn list(&self, ticket: Ticket) -> Option<(Arc<dyn ListOutcomes>, (u64, u32))> {
        Some((self.lists.get()?.upgrade()?, ticket.list?))
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
