//! Joins of many workers at once, by the join tree. `membership::join` decides, and this file carries out its effects, in the client and in
//! agents.
//!
//! An agent that receives a part of the list dials the workers in it, and proves to them that it knows the job's secret, as it is a worker
//! itself. Each worker makes its own key; the agent sends the public key up the tree, and the client signs it. Outcomes go up the tree too,
//! and the client answers the process that has requested the join. The client dials a worker itself if the agent could not reach the worker
//! in half of the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use net::address::Address;
use net::lock::lock;
use net::trust::Lifetime;
use wire::control::HostEntry;
use wire::greeting::{self, Greeting};
use wire::join_tree::{JoinFailure, JoinFailureKind, TreeMessage, Worker, WorkerInfo};
use wire::notice::{Joined, Joining};
use wire::{CallId, Control, ProcUid, Status};

use super::dial::{Attempts, Ticket};
use super::joins::WorkerList;
use super::{Gateway, Host, Job, RELEASE, Wanted, random_id};
use crate::membership::Event;
use crate::membership::join::{FAN_OUT, Join, JoinEffect, MAX_DIRECT, ROOT_FAN_OUT};

/// For tests: an environment variable with one number for `ROOT_FAN_OUT`, `FAN_OUT` and `MAX_DIRECT` of `membership::join`.
const FAN_OUT_VARIABLE: &str = "MONARCH_ATTACH_FAN_OUT";
/// The delay between the first join and the message that introduces new hosts to all hosts: one message covers all joins of that time.
const INTRODUCTION_DELAY: Duration = Duration::from_millis(250);

/// The number of workers that the client joins (`ROOT_FAN_OUT`), that each agent joins (`FAN_OUT`), and the size up to which no tree is
/// used (`MAX_DIRECT`).
fn fan_outs() -> (usize, usize, usize) {
    let given = std::env::var(FAN_OUT_VARIABLE).ok().and_then(|n| n.parse().ok());
    given.map_or((ROOT_FAN_OUT, FAN_OUT, MAX_DIRECT), |n: usize| (n.max(1), n.max(1), n.max(1)))
}

impl Gateway {
    // ---- in the client

    /// Joins several hosts that have the same trust, as `join` does for one.
    pub fn join_all(&self, job: &Arc<Job>, from: &str, wanted: Vec<Wanted>, call_id: CallId, bound: Duration) {
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
            if group.len() <= direct || self.gateway_of(job).is_some() {
                group.into_iter().for_each(|w| self.join(job, from, w, call_id, bound));
                continue;
            }
            let ready = group.into_iter().filter_map(|w| {
                let (rank, agent) = (w.rank, w.agent);
                Some((rank, self.invite(job, w, call_id)?.id, agent))
            });
            let ready = ready.collect();
            let deadline = self.poller.now() + bound;
            let list =
                WorkerList::new((next_number(), next_number()), ready, (root, fan_out), (self.poller.now(), deadline), Some(call_id));
            self.start_soon(job, list, bound);
        }
    }

    fn start_soon(&self, job: &Arc<Job>, list: WorkerList, bound: Duration) {
        let (me, job) = (self.me.clone(), job.clone());
        let task = move || {
            if let Some(g) = me.upgrade() {
                let number = list.number;
                g.start(&job, list);
                let (me, job2) = (g.me.clone(), job.clone());
                let late = move || {
                    if let Some(g) = me.upgrade() {
                        g.give_up_list(&job2, number);
                    }
                };
                g.poller.later(bound, Box::new(late));
            }
        };
        self.poller.spawn(Box::new(task));
    }

    /// Ends the joins of the list whose outcome is not known at the deadline.
    fn give_up_list(&self, job: &Arc<Job>, number: u64) {
        let open: Vec<(u32, ProcUid)> = {
            let joins = lock(&job.joins);
            let list = joins.lists.iter().find(|r| r.number == number);
            list.map_or(vec![], |r| r.open.iter().map(|rank| (*rank, r.workers[rank].0)).collect())
        };
        for (rank, id) in open {
            if let Some(host) = job.host(id) {
                self.not_joined(job, &host, self.ticket(job, number, rank), JoinFailure::other("no answer"));
            }
        }
    }

    fn ticket(&self, job: &Job, number: u64, rank: u32) -> Ticket {
        let call_id = lock(&job.joins).lists.iter().find(|r| r.number == number).and_then(|r| r.call_id);
        Ticket { call: call_id.map(|call_id| (call_id, rank)), list: Some((number, rank)) }
    }

    /// Notes that the outcome of a worker is known, and introduces new hosts to the others.
    fn on_outcome(&self, job: &Arc<Job>, number: u64, rank: u32) {
        let over = {
            let mut joins = lock(&job.joins);
            let Some(list) = joins.lists.iter_mut().find(|r| r.number == number) else { return };
            list.open.remove(&rank);
            list.open.is_empty()
        };
        if over {
            lock(&job.joins).lists.retain(|r| r.number != number);
            self.introduce_new(job);
        } else {
            self.introduce_new_later(job);
        }
    }

    /// The certificate for a worker's public key, signed by the client; none if the worker is not expected to join.
    pub(super) fn certify(&self, job: &Arc<Job>, host: ProcUid, key: &[u8]) -> Option<Vec<u8>> {
        let host = job.host(host)?;
        if host.membership().is_join_over() {
            return None;
        }
        let trust = lock(&host.state).trust.clone()?;
        trust.authority()?.host(host.id.0, key, Lifetime::usual()).ok().map(|c| c.to_vec())
    }

    /// Schedules `introduce_new`: one message introduces all hosts that join within `INTRODUCTION_DELAY`.
    fn introduce_new_later(&self, job: &Arc<Job>) {
        if std::mem::replace(&mut lock(&job.joins).introduction_scheduled, true) {
            return;
        }
        let (me, job) = (self.me.clone(), Arc::downgrade(job));
        let task = move || {
            if let (Some(g), Some(job)) = (me.upgrade(), job.upgrade()) {
                lock(&job.joins).introduction_scheduled = false;
                g.introduce_new(&job);
            }
        };
        self.poller.later(INTRODUCTION_DELAY, Box::new(task));
    }

    fn introduce_new(&self, job: &Arc<Job>) {
        let all = job.hosts();
        let is_in = |h: &&Arc<Host>| h.is_joined();
        let (new, old): (Vec<Arc<Host>>, Vec<Arc<Host>>) = {
            let mut joins = lock(&job.joins);
            let parts = all.iter().filter(is_in).cloned().partition(|h| !joins.introduced.contains(&h.id));
            joins.introduced.extend(all.iter().filter(is_in).map(|h| h.id));
            parts
        };
        if new.is_empty() {
            return;
        }
        let entries = |hosts: &[Arc<Host>]| -> Vec<HostEntry> { hosts.iter().filter_map(|h| h.entry()).collect() };
        let lost: Vec<(ProcUid, String)> = all.iter().filter_map(|h| Some((h.id, h.lost()?))).collect();
        self.spread(job, &TreeMessage::Hosts { hosts: entries(&new) });
        if old.is_empty() {
            return self.spread(job, &TreeMessage::HostsLost { hosts: lost });
        }
        let known = entries(&old);
        for host in new {
            self.introduce_to(&host, known.clone(), lost.clone());
        }
    }

    /// Notifies a host that has joined of all other hosts, and all other hosts of this one.
    pub(super) fn introduce(&self, job: &Arc<Job>, host: &Arc<Host>) {
        let Some(node) = self.node() else { return };
        let others: Vec<_> = job.hosts().into_iter().filter(|h| h.id != host.id && h.is_joined()).collect();
        let known = others.iter().filter_map(|h| h.entry()).collect();
        let lost: Vec<_> = job.hosts().into_iter().filter_map(|h| Some((h.id, h.lost()?))).collect();
        node.peers.route(host.id, host.id, job.own_id);
        self.introduce_to(host, known, lost);
        let Some(entry) = host.entry() else { return };
        for other in others {
            node.peers.peer(other.id).send_control(Control::Hosts { hosts: vec![entry.clone()] });
        }
    }

    fn introduce_to(&self, host: &Host, known: Vec<HostEntry>, lost: Vec<(ProcUid, String)>) {
        let Some(node) = self.node() else { return };
        node.peers.peer(host.id).send_control(Control::Hosts { hosts: known });
        if !lost.is_empty() {
            node.peers.peer(host.id).send_control(Control::HostsLost { hosts: lost });
        }
    }

    /// Handles an agent's report of outcomes.
    pub(super) fn on_report(&self, job: &Arc<Job>, via: ProcUid, id: u64, joined: Vec<(u32, WorkerInfo)>, failed: Vec<(u32, JoinFailure)>) {
        let numbers: Vec<u64> = lock(&job.joins).lists.iter().filter(|r| r.id == id).map(|r| r.number).collect();
        for number in numbers {
            let worker = {
                let mut joins = lock(&job.joins);
                let Some(at) = joins.lists.iter().position(|r| r.number == number) else { continue };
                let hosts: Vec<ProcUid> =
                    joined.iter().filter_map(|(rank, _)| joins.lists[at].workers.get(rank).map(|(host, _)| *host)).collect();
                lock(&job.relays).on_reported_joins(via, hosts);
                let list = &mut joins.lists[at];
                joined.iter().for_each(|(rank, outcome)| drop(list.outcomes.insert(*rank, Ok(outcome.clone()))));
                for (rank, why) in &failed {
                    list.outcomes.entry(*rank).or_insert_with(|| Err(why.clone()));
                }
                list.workers.iter().find(|(_, (host, _))| *host == via).map(|(rank, _)| *rank)
            };
            if job.is_clients() {
                joined.iter().for_each(|(rank, outcome)| self.on_relayed_join(job, via, number, *rank, outcome));
                failed.iter().for_each(|(rank, why)| self.on_relayed_failure(job, number, *rank, why));
            }
            let failed_ranks = failed.iter().map(|(rank, failure)| (*rank, failure.why.clone())).collect();
            let ranks = Joined { joined: joined.iter().map(|(r, _)| *r).collect(), failed: failed_ranks };
            // The reporting host may be outside of this list, and may still have joined workers of the list.
            self.update_list(job, number, |join, now| join.on_report(now, worker.unwrap_or(u32::MAX), ranks));
        }
    }

    fn host_in_list(&self, job: &Job, number: u64, rank: u32) -> Option<(Arc<Host>, u64, Instant)> {
        let joins = lock(&job.joins);
        let list = joins.lists.iter().find(|r| r.number == number && r.open.contains(&rank))?;
        let (id, agent) = *list.workers.get(&rank)?;
        Some((job.host(id)?, agent, list.deadline))
    }

    /// Handles the join of a worker that the host `via` has reported.
    fn on_relayed_join(&self, job: &Arc<Job>, via: ProcUid, number: u64, rank: u32, outcome: &WorkerInfo) {
        let Some((host, agent, _)) = self.host_in_list(job, number, rank) else { return };
        let id = random_id();
        if host.membership().is_join_over() {
            return;
        }
        if let Ok(session) = id {
            self.on_event(job, Event::Joined { host: host.id });
            let mut state = lock(&host.state);
            (state.dials, state.session_id, state.was_up) = (false, session, true);
        }
        let session = match id {
            Ok(session) => session,
            Err(e) => return self.not_joined(job, &host, self.ticket(job, number, rank), JoinFailure::other(e.to_string())),
        };
        {
            let mut info = lock(&host.info);
            (info.name, info.pid, info.release, info.agent) = (outcome.name.clone(), outcome.pid, outcome.release.clone(), outcome.agent);
        }
        if outcome.release != RELEASE {
            self.audit("release", &outcome.name, format!("{} there, {RELEASE} here", outcome.release));
        }
        lock(&job.relays).on_relayed_join(host.id, via, outcome.by);
        self.watch(job, host.id);
        self.send_along_tree(job, host.id, &TreeMessage::Begin { session });
        host.session.begin_route();
        let ticket = self.ticket(job, number, rank);
        self.answer_joined(&host, ticket);
        let hello = self.hello(job, &host, agent);
        self.renew_soon(job, &host, hello);
        self.on_outcome(job, number, rank);
    }

    /// Dials a worker that an agent could not join, unless the worker has refused or has ended.
    fn on_relayed_failure(&self, job: &Arc<Job>, number: u64, rank: u32, failure: &JoinFailure) {
        let Some((host, agent, deadline)) = self.host_in_list(job, number, rank) else { return };
        if host.membership().is_join_over() {
            return;
        }
        let ticket = self.ticket(job, number, rank);
        match failure.kind {
            JoinFailureKind::Authentication | JoinFailureKind::Version | JoinFailureKind::Ended => {
                self.not_joined(job, &host, ticket, failure.clone())
            }
            JoinFailureKind::Other => {
                let hello = self.hello(job, &host, agent);
                self.try_join(job, &host, hello, ticket, deadline, Attempts::default());
            }
        }
    }

    fn hello(&self, job: &Job, host: &Host, agent: u64) -> Vec<u8> {
        // The client's description of itself, which agents repeat to the hosts that they join.
        let from =
            if job.is_clients() { lock(&job.client_description).clone() } else { job.host(job.id).map_or(String::new(), |c| c.name()) };
        greeting::encode(&Greeting::Join { host: host.id, agent, from, settings: job.settings.clone() })
    }

    // ---- in an agent

    /// Handles a part of a list that a relay or the client has sent to this agent.
    pub(super) fn on_list_part(&self, job: &Arc<Job>, id: u64, within_ms: u64, fan_out: u32, workers: Vec<(u32, Worker)>) {
        let Some(node) = self.node() else { return };
        let now = self.poller.now();
        let mut list = Vec::with_capacity(workers.len());
        for (rank, Worker { entry, agent }) in workers.into_iter().filter(|(_, w)| w.entry.host != job.own_id) {
            let host = job.host_or_new(entry.host, &self.me, &self.poller);
            node.peers.route(host.id, host.id, job.own_id);
            list.push((rank, host.id, agent));
            host.learn_place(entry);
        }
        let deadline = now + Duration::from_millis(within_ms);
        let list = WorkerList::new((id, next_number()), list, (fan_out as usize, fan_out as usize), (now, deadline), None);
        self.start(job, list);
    }

    // ---- in both

    fn start(&self, job: &Arc<Job>, mut list: WorkerList) {
        let mut workers: Vec<(u32, String)> = list.workers.keys().map(|rank| (*rank, String::new())).collect();
        workers.sort_unstable();
        let effects = list.join.start(Duration::ZERO, Joining { workers });
        let number = list.number;
        lock(&job.joins).lists.push(list);
        self.update_list(job, number, |_, _| effects);
    }

    fn update_list(&self, job: &Arc<Job>, number: u64, update: impl FnOnce(&mut Join, Duration) -> Vec<JoinEffect>) {
        let now = self.poller.now();
        let (effects, wake_at) = {
            let mut joins = lock(&job.joins);
            let Some(list) = joins.lists.iter_mut().find(|r| r.number == number) else { return };
            let now = now.saturating_duration_since(list.started_at);
            let effects = update(&mut list.join, now);
            let at = list.join.deadline().filter(|at| list.wake_at.is_none_or(|wake_at| *at < wake_at));
            list.wake_at = at.or(list.wake_at);
            (effects, at.map(|at| at.saturating_sub(now)))
        };
        if let Some(delay) = wake_at {
            let (me, job) = (self.me.clone(), Arc::downgrade(job));
            let ring = move || {
                if let (Some(g), Some(job)) = (me.upgrade(), job.upgrade()) {
                    if let Some(list) = lock(&job.joins).lists.iter_mut().find(|r| r.number == number) {
                        list.wake_at = None;
                    }
                    g.update_list(&job, number, Join::on_time);
                }
            };
            self.poller.later(delay, Box::new(ring));
        }
        effects.into_iter().for_each(|effect| self.act_for_list(job, number, effect));
        if !job.is_clients() {
            lock(&job.joins).lists.retain(|r| r.number != number || !r.join.is_done());
        }
    }

    fn act_for_list(&self, job: &Arc<Job>, number: u64, effect: JoinEffect) {
        match effect {
            JoinEffect::Dial { worker, .. } => {
                let found = {
                    let joins = lock(&job.joins);
                    joins.lists.iter().find(|r| r.number == number).and_then(|r| Some((*r.workers.get(&worker)?, r.deadline)))
                };
                let Some(((id, agent), deadline)) = found else { return };
                let Some(host) = job.host(id) else { return };
                let hello = self.hello(job, &host, agent);
                self.try_join(job, &host, hello, self.ticket(job, number, worker), deadline, Attempts::default());
            }
            JoinEffect::GiveUp { .. } => {}
            JoinEffect::Send { worker, joining } => self.send_list_part(job, number, worker, joining),
            JoinEffect::Report(joined) if !job.is_clients() => {
                let message = {
                    let mut joins = lock(&job.joins);
                    let Some(list) = joins.lists.iter_mut().find(|r| r.number == number) else { return };
                    let mut outcome_of = |rank: u32| Some((rank, list.outcomes.remove(&rank)?));
                    let known = joined.joined.into_iter().filter_map(&mut outcome_of);
                    let known: Vec<(u32, WorkerInfo)> = known.filter_map(|(rank, outcome)| Some((rank, outcome.ok()?))).collect();
                    let failed = joined.failed.into_iter().filter_map(|(rank, why)| match outcome_of(rank) {
                        Some((_, Ok(_))) => None,
                        Some((_, Err(failure))) => Some((rank, failure)),
                        None => Some((rank, JoinFailure::other(why))),
                    });
                    let failed = failed.collect();
                    TreeMessage::Report { run: list.id, joined: known, failed }
                };
                self.send_to_next(job, job.relay(), &message);
            }
            // The client has already acted on each outcome when it arrived.
            JoinEffect::Report(_) => {}
        }
    }

    /// Sends a part of the list to a worker that has joined.
    fn send_list_part(&self, job: &Arc<Job>, number: u64, worker: u32, joining: Joining) {
        let now = self.poller.now();
        let (to, message) = {
            let joins = lock(&job.joins);
            let Some(list) = joins.lists.iter().find(|r| r.number == number) else { return };
            let Some((to, _)) = list.workers.get(&worker).copied() else { return };
            let left = list.deadline.saturating_duration_since(now);
            let workers = joining.workers.into_iter().filter_map(|(rank, _)| {
                let (id, agent) = *list.workers.get(&rank)?;
                Some((rank, Worker { entry: job.host(id)?.entry()?, agent }))
            });
            let workers = workers.collect();
            // Agents get half of the time that is left. The client tries the remaining workers in the other half.
            let within_ms = if job.is_clients() { left / 2 } else { left }.as_millis() as u64;
            (to, TreeMessage::Part { run: list.id, within_ms, fan_out: list.fan_out, workers })
        };
        self.send_to_next(job, to, &message);
    }

    /// Records that a worker of a list, which this process has dialled, has joined.
    pub(super) fn worker_joined(&self, job: &Arc<Job>, host: &Arc<Host>, (number, rank): (u64, u32)) {
        let info = host.info();
        let outcome = WorkerInfo { agent: info.agent, name: info.name, pid: info.pid, release: info.release, by: job.own_id };
        lock(&job.relays).on_joined(job.own_id, host.id);
        if let Some(list) = lock(&job.joins).lists.iter_mut().find(|r| r.number == number) {
            list.outcomes.insert(rank, Ok(outcome));
        }
        self.update_list(job, number, |join, now| join.on_joined(now, rank));
        if job.is_clients() {
            self.on_outcome(job, number, rank);
        }
    }

    /// Records that a worker of a list, which this process has dialled, has not joined.
    pub(super) fn worker_failed(&self, job: &Arc<Job>, (number, rank): (u64, u32), failure: JoinFailure) {
        let why = failure.why.clone();
        if let Some(list) = lock(&job.joins).lists.iter_mut().find(|r| r.number == number) {
            list.outcomes.insert(rank, Err(failure));
        }
        self.update_list(job, number, |join, now| join.on_failed(now, rank, &why));
        if job.is_clients() {
            self.on_outcome(job, number, rank);
        }
    }

    /// A host is lost: the workers of its part of each list are joined by others.
    pub(super) fn worker_lost(&self, job: &Arc<Job>, host: ProcUid) {
        let found: Vec<(u64, u32)> = {
            let joins = lock(&job.joins);
            let of = |r: &WorkerList| Some((r.number, *r.workers.iter().find(|(_, (id, _))| *id == host)?.0));
            joins.lists.iter().filter_map(of).collect()
        };
        for (number, rank) in found {
            self.update_list(job, number, |join, now| join.on_lost(now, rank));
        }
    }

    /// Answers the call of a join with the agent's description of itself.
    pub(super) fn answer_joined(&self, host: &Host, ticket: Ticket) {
        let Some((call_id, rank)) = ticket.call else { return };
        let info = host.info();
        let body = serde_json::json!({"agent": info.agent, "host": info.name, "pid": info.pid, "release": info.release});
        self.answer(call_id, rank, Status::Ok, body.to_string().as_bytes());
    }
}

/// The number of the next list of this process. The lists of a job have the numbers of its client.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
