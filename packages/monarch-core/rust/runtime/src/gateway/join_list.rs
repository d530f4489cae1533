//! Joins of many workers at once, by the join tree. `membership::join` decides, and this file carries out its effects, in the client and in
//! agents.
//!
//! An agent that receives a part of the list dials the workers in it, and proves to them that it knows the job's secret, as it is a worker
//! itself. Each worker makes its own key; the agent sends the public key up the tree, and the client signs it. Outcomes go up the tree too,
//! and the client answers the process that has requested the join. The client dials a worker itself if the agent could not reach the worker
//! in half of the time.
//!
//! What it needs: the joins of single hosts, of which it takes the outcomes, introductions, and the messages of the job along its tree.
//!
//! What always holds:
//! - The client answers for each worker of a list once, at the latest at the deadline.
//! - An agent certifies no host: it has no authority.

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::address::Address;
use net::lock::lock;
use net::trust::Lifetime;
use wire::join_tree::{JoinFailure, JoinFailureKind, TreeMessage, Worker, WorkerInfo};
use wire::{CallId, ProcUid};

use super::host::Host;
use super::introductions::Introductions;
use super::job::Job;
use super::join::{Joins, ListOutcomes, Ticket, Wanted};
use super::membership_events::MembershipEvents;
use super::random_id::random_id;
use super::route_gateway::RouteGateway;
use super::worker_list::{Outcomes, WorkerList};
use crate::local::Local;
use crate::membership::Event;
use crate::membership::join::{FAN_OUT, Join, JoinEffect, Joined, MAX_DIRECT, ROOT_FAN_OUT};
use crate::tasks;

/// For tests: an environment variable with one number for `ROOT_FAN_OUT`, `FAN_OUT` and `MAX_DIRECT` of `membership::join`.
const FAN_OUT_VARIABLE: &str = "MONARCH_ATTACH_FAN_OUT";

/// The number of workers that the client joins (`ROOT_FAN_OUT`), that each agent joins (`FAN_OUT`), and the size up to which no tree is
/// used (`MAX_DIRECT`).
fn fan_outs() -> (usize, usize, usize) {
    let given = std::env::var(FAN_OUT_VARIABLE).ok().and_then(|n| n.parse().ok());
    given.map_or((ROOT_FAN_OUT, FAN_OUT, MAX_DIRECT), |n: usize| (n.max(1), n.max(1), n.max(1)))
}

/// Joins lists of workers.
pub(super) struct JoinLists {
    pub local: Arc<Local>,
    pub events: Arc<MembershipEvents>,
    pub route_gateway: Arc<RouteGateway>,
    pub joins: Arc<Joins>,
    pub introductions: Arc<Introductions>,
}

impl JoinLists {
    // ---- in the client

    /// Joins several hosts that have the same trust, as `Joins::join` does for one.
    pub fn join_all(self: &Arc<Self>, job: &Arc<Job>, from: &str, wanted: Vec<Wanted>, call_id: CallId, bound: Duration) {
        let (root, fan_out, direct) = fan_outs();
        from.clone_into(&mut lock(&job.client_description));
        // Workers at a loopback address or a unix socket cannot be dialled from another machine: the client joins them directly.
        let is_local = |w: &Wanted| match &w.address {
            Address::Tcp { host, .. } => {
                let name = host.trim_matches(['[', ']']);
                name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            _ => true,
        };
        let (near, far): (Vec<Wanted>, Vec<Wanted>) = wanted.into_iter().partition(is_local);
        for group in [near, far] {
            if group.len() <= direct || self.route_gateway.before(job).is_some() {
                group.into_iter().for_each(|w| self.joins.join(job, from, w, call_id, bound));
                continue;
            }
            let ready = group.into_iter().filter_map(|w| {
                let (rank, agent) = (w.rank, w.agent);
                Some((rank, self.joins.invite(job, w, call_id)?.id, agent))
            });
            let ready = ready.collect();
            let now = self.local.poller.now();
            let list = WorkerList::new(None, ready, (root, fan_out), (now, now + bound), Some(call_id));
            let (job, number) = (job.clone(), list.number);
            tasks::spawn(&self.local.poller, self, move |me| {
                me.start(&job, list);
                tasks::later(&me.local.poller, bound, me, move |me| me.give_up(&job, number));
            });
        }
    }

    /// Ends the joins of the list whose outcome is not known at the deadline.
    fn give_up(&self, job: &Arc<Job>, number: u64) {
        for (rank, id) in in_list(job, number, |list| list.open_hosts()).unwrap_or_default() {
            if let Some(host) = job.host(id) {
                self.joins.not_joined(job, &host, ticket(job, number, rank), JoinFailure::other("no answer"));
            }
        }
    }

    /// Notes that the outcome of a worker is known, and introduces new hosts to the others.
    fn on_outcome(&self, job: &Arc<Job>, number: u64, rank: u32) {
        let is_over = in_list(job, number, |list| {
            list.open.remove(&rank);
            list.open.is_empty()
        });
        match is_over {
            Some(true) => {
                lock(&job.lists).retain(|list| list.number != number);
                self.introductions.introduce_new(job);
            }
            Some(false) => self.introductions.introduce_new_later(job),
            None => {}
        }
    }

    /// The certificate for a worker's public key, signed by the client; none if the worker is not expected to join.
    pub fn certify(job: &Job, host: ProcUid, key: &[u8]) -> Option<Vec<u8>> {
        let host = job.host(host).filter(|host| !host.membership().is_join_over())?;
        let trust = lock(&host.state).trust.clone()?;
        trust.authority()?.host(host.id.0, key, Lifetime::usual()).ok().map(|c| c.to_vec())
    }

    /// Handles an agent's report of outcomes.
    pub fn on_report(self: &Arc<Self>, job: &Arc<Job>, via: ProcUid, id: u64, outcomes: &Outcomes) {
        let numbers: Vec<u64> = lock(&job.lists).iter().filter(|list| list.id == id).map(|list| list.number).collect();
        let (joined, failed) = outcomes;
        for number in numbers {
            let reported = in_list(job, number, |list| {
                let host_of = |(rank, _): &(u32, WorkerInfo)| list.workers.get(rank).map(|(host, _)| *host);
                let hosts: Vec<ProcUid> = joined.iter().filter_map(host_of).collect();
                lock(&job.relays).on_reported_joins(via, hosts);
                list.report(via, outcomes)
            });
            let Some(worker) = reported else { continue };
            if job.is_clients() {
                joined.iter().for_each(|(rank, info)| self.on_relayed_join(job, via, number, *rank, info));
                failed.iter().for_each(|(rank, why)| self.on_relayed_failure(job, number, *rank, why));
            }
            let failed_ranks = failed.iter().map(|(rank, failure)| (*rank, failure.why.clone())).collect();
            let ranks = Joined { joined: joined.iter().map(|(r, _)| *r).collect(), failed: failed_ranks };
            // The reporting host may be outside of this list, and may still have joined workers of the list.
            self.update(job, number, |join, now| join.on_report(now, worker.unwrap_or(u32::MAX), ranks));
        }
    }

    /// The host of an open worker that has not joined, its expected agent, and the deadline of the list.
    fn open_host(job: &Job, number: u64, rank: u32) -> Option<(Arc<Host>, u64, Instant)> {
        let found = in_list(job, number, |list| list.open.contains(&rank).then(|| Some((*list.workers.get(&rank)?, list.deadline))));
        let ((id, agent), deadline) = found???;
        Some((job.host(id).filter(|host| !host.membership().is_join_over())?, agent, deadline))
    }

    /// Handles the join of a worker that the host `via` has reported.
    fn on_relayed_join(&self, job: &Arc<Job>, via: ProcUid, number: u64, rank: u32, info: &WorkerInfo) {
        let Some((host, ..)) = JoinLists::open_host(job, number, rank) else { return };
        let session = match random_id() {
            Ok(id) => id,
            Err(e) => return self.joins.not_joined(job, &host, ticket(job, number, rank), JoinFailure::other(e.to_string())),
        };
        self.events.report(job, Event::Joined { host: host.id });
        {
            let mut state = lock(&host.state);
            (state.dials, state.session_id, state.was_up) = (false, session, true);
        }
        self.joins.described(&host, info.agent, info.name.clone(), info.pid, info.release.clone());
        lock(&job.relays).on_relayed_join(host.id, via, info.by);
        self.events.watch(job, host.id);
        job.send_along_tree(host.id, &TreeMessage::Begin { session });
        host.session.begin_route();
        self.joins.succeed(job, &host, ticket(job, number, rank));
        self.on_outcome(job, number, rank);
    }

    /// Dials a worker that an agent could not join, unless the worker has refused or has ended.
    fn on_relayed_failure(&self, job: &Arc<Job>, number: u64, rank: u32, failure: &JoinFailure) {
        let Some((host, agent, deadline)) = JoinLists::open_host(job, number, rank) else { return };
        let ticket = ticket(job, number, rank);
        match failure.kind {
            JoinFailureKind::Authentication | JoinFailureKind::Version | JoinFailureKind::Ended => {
                self.joins.not_joined(job, &host, ticket, failure.clone())
            }
            JoinFailureKind::Other => self.joins.start(job, &host, agent, ticket, deadline),
        }
    }

    // ---- in an agent

    /// Handles a part of a list that a relay or the client has sent to this agent.
    pub fn on_part(self: &Arc<Self>, job: &Arc<Job>, id: u64, within_ms: u64, fan_out: u32, workers: Vec<(u32, Worker)>) {
        let now = self.local.poller.now();
        let mut list = Vec::with_capacity(workers.len());
        for (rank, Worker { entry, agent }) in workers.into_iter().filter(|(_, w)| w.entry.host != job.own_id) {
            let host = job.host_or_new(entry.host);
            self.local.route(host.id, host.id, job.own_id);
            list.push((rank, host.id, agent));
            host.learn_place(entry);
        }
        let deadline = now + Duration::from_millis(within_ms);
        self.start(job, WorkerList::new(Some(id), list, (fan_out as usize, fan_out as usize), (now, deadline), None));
    }

    // ---- in both

    fn start(self: &Arc<Self>, job: &Arc<Job>, mut list: WorkerList) {
        let mut ranks: Vec<u32> = list.workers.keys().copied().collect();
        ranks.sort_unstable();
        let effects = list.join.start(Duration::ZERO, ranks);
        let number = list.number;
        lock(&job.lists).push(list);
        self.update(job, number, |_, _| effects);
    }

    /// Lets the decisions about a list take an event, and carries out the effects.
    fn update(self: &Arc<Self>, job: &Arc<Job>, number: u64, event: impl FnOnce(&mut Join, Duration) -> Vec<JoinEffect>) {
        let now = self.local.poller.now();
        let updated = in_list(job, number, |list| {
            let now = now.saturating_duration_since(list.started_at);
            let effects = event(&mut list.join, now);
            let at = list.join.deadline().filter(|at| list.wake_at.is_none_or(|wake_at| *at < wake_at));
            list.wake_at = at.or(list.wake_at);
            (effects, at.map(|at| at.saturating_sub(now)))
        });
        let Some((effects, wake_in)) = updated else { return };
        if let Some(delay) = wake_in {
            tasks::later_for(&self.local.poller, delay, self, job, move |me, job| {
                in_list(job, number, |list| list.wake_at = None);
                me.update(job, number, Join::on_time);
            });
        }
        effects.into_iter().for_each(|effect| self.act(job, number, effect));
        if !job.is_clients() {
            lock(&job.lists).retain(|list| list.number != number || !list.join.is_done());
        }
    }

    fn act(&self, job: &Arc<Job>, number: u64, effect: JoinEffect) {
        match effect {
            JoinEffect::Dial { worker } => {
                let found = in_list(job, number, |list| Some((*list.workers.get(&worker)?, list.deadline))).flatten();
                let Some(((id, agent), deadline)) = found else { return };
                let Some(host) = job.host(id) else { return };
                self.joins.start(job, &host, agent, ticket(job, number, worker), deadline);
            }
            JoinEffect::Send { worker, rest } => self.send_part(job, number, worker, rest),
            JoinEffect::Report(ranks) if !job.is_clients() => {
                if let Some((run, (joined, failed))) = in_list(job, number, |list| (list.id, list.take(ranks))) {
                    job.send_to_next(job.relay(), &TreeMessage::Report { run, joined, failed });
                }
            }
            // The client has already acted on each outcome when it arrived.
            JoinEffect::Report(_) => {}
        }
    }

    /// Sends a part of the list to a worker that has joined.
    fn send_part(&self, job: &Arc<Job>, number: u64, worker: u32, rest: Vec<u32>) {
        let now = self.local.poller.now();
        let part = in_list(job, number, |list| {
            let (to, _) = list.workers.get(&worker).copied()?;
            let left = list.deadline.saturating_duration_since(now);
            let workers = rest.into_iter().filter_map(|rank| {
                let (id, agent) = *list.workers.get(&rank)?;
                Some((rank, Worker { entry: job.host(id)?.entry()?, agent }))
            });
            let workers = workers.collect();
            // Agents get half of the time that is left. The client tries the remaining workers in the other half.
            let within_ms = if job.is_clients() { left / 2 } else { left }.as_millis() as u64;
            Some((to, TreeMessage::Part { run: list.id, within_ms, fan_out: list.fan_out, workers }))
        });
        if let Some((to, message)) = part.flatten() {
            job.send_to_next(to, &message);
        }
    }

    /// A host is lost: the workers of its part of each list are joined by others.
    pub fn worker_lost(self: &Arc<Self>, job: &Arc<Job>, host: ProcUid) {
        let found: Vec<(u64, u32)> = lock(&job.lists).iter().filter_map(|list| Some((list.number, list.rank_of(host)?))).collect();
        for (number, rank) in found {
            self.update(job, number, |join, now| join.on_lost(now, rank));
        }
    }

    /// Records the outcome of a worker that this process has dialled.
    fn on_dialled(
        self: &Arc<Self>,
        job: &Arc<Job>,
        (number, rank): (u64, u32),
        outcome: Result<WorkerInfo, JoinFailure>,
        event: impl FnOnce(&mut Join, Duration) -> Vec<JoinEffect>,
    ) {
        in_list(job, number, |list| drop(list.outcomes.insert(rank, outcome)));
        self.update(job, number, event);
        if job.is_clients() {
            self.on_outcome(job, number, rank);
        }
    }
}

impl ListOutcomes for JoinLists {
    fn joined(self: Arc<Self>, job: &Arc<Job>, host: &Host, list: (u64, u32)) {
        let info = host.info();
        let outcome = WorkerInfo { agent: info.agent, name: info.name, pid: info.pid, release: info.release, by: job.own_id };
        lock(&job.relays).on_joined(job.own_id, host.id);
        self.on_dialled(job, list, Ok(outcome), |join, now| join.on_joined(now, list.1));
    }

    fn failed(self: Arc<Self>, job: &Arc<Job>, list: (u64, u32), failure: JoinFailure) {
        let why = failure.why.clone();
        self.on_dialled(job, list, Err(failure), |join, now| join.on_failed(now, list.1, &why));
    }
}

/// Reads or changes a list of the job, under the lock of the lists; none if there is no such list.
fn in_list<T>(job: &Job, number: u64, f: impl FnOnce(&mut WorkerList) -> T) -> Option<T> {
    lock(&job.lists).iter_mut().find(|list| list.number == number).map(f)
}

/// The receivers of the outcome of a worker.
fn ticket(job: &Job, number: u64, rank: u32) -> Ticket {
    let call_id = in_list(job, number, |list| list.call_id).flatten();
    Ticket { call: call_id.map(|call_id| (call_id, rank)), list: Some((number, rank)) }
}
