//! Joins of many workers at once, by the join tree. `cast::join` decides, and this file carries out its effects, in the client and in
//! agents.
//!
//! An agent that receives a part of the list dials the workers in it, and proves to them that it knows the job's secret, as it is a worker
//! itself. Each worker makes its own key; the agent sends the public key up the tree, and the client signs it. Outcomes go up the tree too,
//! and the client answers the process that has requested the join. The client dials a worker itself if the agent could not reach the worker
//! in half of the time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::address::Address;
use net::lock::lock;
use net::trust::Lifetime;
use wire::control::HostEntry;
use wire::greeting::{self, Greeting};
use wire::join_tree::{Said, Word, Worker};
use wire::notice::{Joined, Joining};
use wire::{ProcUid, SlotId, Status};

use super::join::{Attempts, ENDED, Ticket, random};
use super::{Gateway, Host, Job, RELEASE, Wanted, lock_state};
use crate::cast::join::{DIRECT, FAN_OUT, Join, JoinEffect, ROOT};

/// For tests: an environment variable with one number for `ROOT`, `FAN_OUT` and `DIRECT` of `cast::join`.
const FEW: &str = "MONARCH_ATTACH_FAN_OUT";
/// The delay between the first join and the message that introduces new hosts to all hosts: one message covers all joins of that time.
const TELL: Duration = Duration::from_millis(250);
/// The time limit of one worker in `cast::join`: unlimited, since each dial has a deadline of its own.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A list of workers that this process joins: the list of the client, or the part that an agent has received. `Tree::runs` owns it.
pub(super) struct Run {
    /// The id of the client's list, which all its parts share.
    id: u64,
    /// The id of the list in this process. An agent may receive the same list twice.
    number: u64,
    /// The decisions about the list, without I/O.
    join: Join,
    /// The host's id and the expected agent of each worker, by rank in the list.
    workers: HashMap<u32, (ProcUid, u64)>,
    /// The outcomes that are not reported yet, by rank.
    said: HashMap<u32, Result<Said, String>>,
    /// When the list was received. The times in `join` are relative to it.
    born: Instant,
    /// When the remaining workers of the list are given up.
    deadline: Instant,
    /// The number of workers that each agent joins, which is sent with each part.
    fan_out: u32,
    /// When `Join::on_time` is scheduled, as time since `born`.
    alarm: Option<Duration>,
    /// Client only: the call that the outcomes answer.
    slot: Option<SlotId>,
    /// Client only: the ranks whose outcome is not known.
    open: HashSet<u32>,
}

/// The number of workers that the client joins (`ROOT`), that each agent joins (`FAN_OUT`), and the size up to which no tree is used
/// (`DIRECT`).
fn fan_outs() -> (usize, usize, usize) {
    let given = std::env::var(FEW).ok().and_then(|n| n.parse().ok());
    given.map_or((ROOT, FAN_OUT, DIRECT), |n: usize| (n.max(1), n.max(1), n.max(1)))
}

impl Gateway {
    // ---- in the client

    /// Joins several hosts that have the same trust, as `join` does for one.
    pub fn join_all(&self, job: &Arc<Job>, from: &str, wanted: Vec<Wanted>, slot: SlotId, bound: Duration) {
        let (root, fan_out, direct) = fan_outs();
        from.clone_into(&mut lock(&job.from));
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
            if group.len() <= direct || self.way_of(job).is_some() {
                group.into_iter().for_each(|w| self.join(job, from, w, slot, bound));
                continue;
            }
            let ready = group.into_iter().filter_map(|w| {
                let (rank, agent) = (w.rank, w.agent);
                Some((rank, self.invite(job, w, slot)?.id, agent))
            });
            let ready = ready.collect();
            let deadline = self.poller.now() + bound;
            let run = Run::new(random(), ready, (root, fan_out), (self.poller.now(), deadline), Some(slot));
            self.start_soon(job, run, bound);
        }
    }

    fn start_soon(&self, job: &Arc<Job>, run: Run, bound: Duration) {
        let (me, job) = (self.me.clone(), job.clone());
        let task = move || {
            if let Some(g) = me.upgrade() {
                let number = run.number;
                g.start(&job, run);
                let (me, job2) = (g.me.clone(), job.clone());
                let late = move || {
                    if let Some(g) = me.upgrade() {
                        g.give_up_run(&job2, number);
                    }
                };
                g.poller.later(bound, Box::new(late));
            }
        };
        self.poller.spawn(Box::new(task));
    }

    /// Ends the joins of the list whose outcome is not known at the deadline.
    fn give_up_run(&self, job: &Arc<Job>, number: u64) {
        let open: Vec<(u32, ProcUid)> = {
            let tree = lock(&job.tree);
            let run = tree.runs.iter().find(|r| r.number == number);
            run.map_or(vec![], |r| r.open.iter().map(|rank| (*rank, r.workers[rank].0)).collect())
        };
        for (rank, id) in open {
            if let Some(host) = job.host(id) {
                self.not_joined(job, &host, self.ticket(job, number, rank), "other", "no answer");
            }
        }
    }

    fn ticket(&self, job: &Job, number: u64, rank: u32) -> Ticket {
        let slot = lock(&job.tree).runs.iter().find(|r| r.number == number).and_then(|r| r.slot);
        Ticket { cell: slot.map(|slot| (slot, rank)), run: Some((number, rank)) }
    }

    /// Notes that the outcome of a worker is known, and introduces new hosts to the others.
    fn resolved(&self, job: &Arc<Job>, number: u64, rank: u32) {
        let over = {
            let mut tree = lock(&job.tree);
            let Some(run) = tree.runs.iter_mut().find(|r| r.number == number) else { return };
            run.open.remove(&rank);
            run.open.is_empty()
        };
        if over {
            lock(&job.tree).runs.retain(|r| r.number != number);
            self.tell_of_new(job);
        } else {
            self.tell_of_new_later(job);
        }
    }

    /// The certificate for a worker's public key, signed by the client; none if the worker is not expected to join.
    pub(super) fn certify(&self, job: &Arc<Job>, host: ProcUid, key: &[u8]) -> Option<Vec<u8>> {
        let host = job.host(host)?;
        let trust = {
            let state = lock(&host.state);
            if state.joined || state.lost.is_some() {
                return None;
            }
            state.trust.clone()?
        };
        trust.authority()?.host(host.id.0, key, Lifetime::usual()).ok().map(|c| c.to_vec())
    }

    /// Schedules `tell_of_new`: one message introduces all hosts that join within `TELL`.
    fn tell_of_new_later(&self, job: &Arc<Job>) {
        if std::mem::replace(&mut lock(&job.tree).telling, true) {
            return;
        }
        let (me, job) = (self.me.clone(), Arc::downgrade(job));
        let task = move || {
            if let (Some(g), Some(job)) = (me.upgrade(), job.upgrade()) {
                lock(&job.tree).telling = false;
                g.tell_of_new(&job);
            }
        };
        self.poller.later(TELL, Box::new(task));
    }

    fn tell_of_new(&self, job: &Arc<Job>) {
        let all = job.hosts();
        let is_in = |h: &&Arc<Host>| lock_state(h).joined && h.lost().is_none();
        let (new, old): (Vec<Arc<Host>>, Vec<Arc<Host>>) = {
            let mut tree = lock(&job.tree);
            let parts = all.iter().filter(is_in).cloned().partition(|h| !tree.told.contains(&h.id));
            tree.told.extend(all.iter().filter(is_in).map(|h| h.id));
            parts
        };
        if new.is_empty() {
            return;
        }
        let entries = |hosts: &[Arc<Host>]| -> Vec<HostEntry> { hosts.iter().filter_map(|h| h.entry()).collect() };
        let lost: Vec<(ProcUid, String)> = all.iter().filter_map(|h| Some((h.id, h.lost()?))).collect();
        self.spread(job, &Word::Hosts { hosts: entries(&new) });
        if old.is_empty() {
            return self.spread(job, &Word::HostsLost { hosts: lost });
        }
        let known = entries(&old);
        for host in new {
            self.introduce_to(&host, known.clone(), lost.clone());
        }
    }

    /// Handles an agent's report of outcomes.
    pub(super) fn reported(&self, job: &Arc<Job>, via: ProcUid, id: u64, joined: Vec<(u32, Said)>, failed: Vec<(u32, String)>) {
        let numbers: Vec<u64> = lock(&job.tree).runs.iter().filter(|r| r.id == id).map(|r| r.number).collect();
        for number in numbers {
            let worker = {
                let mut tree = lock(&job.tree);
                let Some(at) = tree.runs.iter().position(|r| r.number == number) else { continue };
                let hosts: Vec<ProcUid> =
                    joined.iter().filter_map(|(rank, _)| tree.runs[at].workers.get(rank).map(|(host, _)| *host)).collect();
                if !job.is_clients() {
                    tree.below.extend(hosts.into_iter().map(|host| (host, via)));
                }
                let run = &mut tree.runs[at];
                joined.iter().for_each(|(rank, said)| drop(run.said.insert(*rank, Ok(said.clone()))));
                for (rank, why) in &failed {
                    run.said.entry(*rank).or_insert_with(|| Err(why.clone()));
                }
                run.workers.iter().find(|(_, (host, _))| *host == via).map(|(rank, _)| *rank)
            };
            if job.is_clients() {
                joined.iter().for_each(|(rank, said)| self.joined_below(job, via, number, *rank, said));
                failed.iter().for_each(|(rank, why)| self.failed_below(job, number, *rank, why));
            }
            let ranks = Joined { joined: joined.iter().map(|(r, _)| *r).collect(), failed: failed.clone() };
            // The reporting host may be outside of this list, and may still have joined workers of the list.
            self.tell_run(job, number, |join, now| join.on_report(now, worker.unwrap_or(u32::MAX), ranks));
        }
    }

    fn host_of_run(&self, job: &Job, number: u64, rank: u32) -> Option<(Arc<Host>, u64, Instant)> {
        let tree = lock(&job.tree);
        let run = tree.runs.iter().find(|r| r.number == number && r.open.contains(&rank))?;
        let (id, agent) = *run.workers.get(&rank)?;
        Some((job.host(id)?, agent, run.deadline))
    }

    /// Handles the join of a worker that the host `via` has reported.
    fn joined_below(&self, job: &Arc<Job>, via: ProcUid, number: u64, rank: u32, said: &Said) {
        let Some((host, agent, _)) = self.host_of_run(job, number, rank) else { return };
        let session = random();
        {
            let mut state = lock(&host.state);
            if state.joined || state.lost.is_some() {
                return;
            }
            (state.joined, state.dials, state.session, state.was_up) = (true, false, session, true);
        }
        {
            let mut place = lock(&host.place);
            (place.name, place.pid, place.release, place.agent) = (said.name.clone(), said.pid, said.release.clone(), said.agent);
        }
        if said.release != RELEASE {
            self.audit("release", &said.name, format!("{} there, {RELEASE} here", said.release));
        }
        {
            let mut tree = lock(&job.tree);
            // The route leads through a host that the client has a connection to.
            let way = tree.below.get(&via).copied().unwrap_or(via);
            tree.below.insert(host.id, way);
            tree.parents.insert(host.id, said.by);
        }
        self.watch(job, host.id);
        self.say(job, host.id, &Word::Begin { session });
        host.trunk.begin_route();
        let ticket = self.ticket(job, number, rank);
        self.answer_joined(&host, ticket);
        let hello = self.hello(job, &host, agent);
        self.renew_soon(job, &host, hello);
        self.resolved(job, number, rank);
    }

    /// Dials a worker that an agent could not join, unless the worker has refused or has ended.
    fn failed_below(&self, job: &Arc<Job>, number: u64, rank: u32, why: &str) {
        let Some((host, agent, deadline)) = self.host_of_run(job, number, rank) else { return };
        if lock_state(&host).joined || host.lost().is_some() {
            return;
        }
        let ticket = self.ticket(job, number, rank);
        match why.split_once(':') {
            Some((kind @ ("auth" | "version" | ENDED), why)) => self.not_joined(job, &host, ticket, kind, why),
            _ => {
                let hello = self.hello(job, &host, agent);
                self.try_join(job, &host, hello, ticket, deadline, Attempts::default());
            }
        }
    }

    fn hello(&self, job: &Job, host: &Host, agent: u64) -> Vec<u8> {
        // The client's description of itself, which agents repeat to the hosts that they join.
        let from = if job.is_clients() { lock(&job.from).clone() } else { job.host(job.id).map_or(String::new(), |c| c.name()) };
        greeting::encode(&Greeting::Join { host: host.id, agent, from, settings: job.settings.clone() })
    }

    // ---- in an agent

    /// Handles a part of a list that a relay or the client has sent to this agent.
    pub(super) fn part_given(&self, job: &Arc<Job>, id: u64, within_ms: u64, fan_out: u32, workers: Vec<(u32, Worker)>) {
        let Some(node) = self.node() else { return };
        let now = self.poller.now();
        let mut list = Vec::with_capacity(workers.len());
        for (rank, Worker { entry, agent }) in workers.into_iter().filter(|(_, w)| w.entry.host != job.here) {
            let host = job.host_or_new(entry.host, &self.me, &self.poller);
            node.route(host.id, host.id, job.here);
            list.push((rank, host.id, agent));
            host.learn_place(entry);
        }
        let deadline = now + Duration::from_millis(within_ms);
        let run = Run::new(id, list, (fan_out as usize, fan_out as usize), (now, deadline), None);
        self.start(job, run);
    }

    // ---- in both

    fn start(&self, job: &Arc<Job>, mut run: Run) {
        let mut workers: Vec<(u32, String)> = run.workers.keys().map(|rank| (*rank, String::new())).collect();
        workers.sort_unstable();
        let effects = run.join.start(Duration::ZERO, Joining { workers });
        let number = run.number;
        lock(&job.tree).runs.push(run);
        self.tell_run(job, number, |_, _| effects);
    }

    fn tell_run(&self, job: &Arc<Job>, number: u64, tell: impl FnOnce(&mut Join, Duration) -> Vec<JoinEffect>) {
        let now = self.poller.now();
        let (effects, alarm) = {
            let mut tree = lock(&job.tree);
            let Some(run) = tree.runs.iter_mut().find(|r| r.number == number) else { return };
            let now = now.saturating_duration_since(run.born);
            let effects = tell(&mut run.join, now);
            let at = run.join.deadline().filter(|at| run.alarm.is_none_or(|alarm| *at < alarm));
            run.alarm = at.or(run.alarm);
            (effects, at.map(|at| at.saturating_sub(now)))
        };
        if let Some(delay) = alarm {
            let (me, job) = (self.me.clone(), Arc::downgrade(job));
            let ring = move || {
                if let (Some(g), Some(job)) = (me.upgrade(), job.upgrade()) {
                    if let Some(run) = lock(&job.tree).runs.iter_mut().find(|r| r.number == number) {
                        run.alarm = None;
                    }
                    g.tell_run(&job, number, Join::on_time);
                }
            };
            self.poller.later(delay, Box::new(ring));
        }
        effects.into_iter().for_each(|effect| self.act_for_run(job, number, effect));
        if !job.is_clients() {
            lock(&job.tree).runs.retain(|r| r.number != number || !r.join.is_done());
        }
    }

    fn act_for_run(&self, job: &Arc<Job>, number: u64, effect: JoinEffect) {
        match effect {
            JoinEffect::Dial { worker, .. } => {
                let found = {
                    let tree = lock(&job.tree);
                    tree.runs.iter().find(|r| r.number == number).and_then(|r| Some((*r.workers.get(&worker)?, r.deadline)))
                };
                let Some(((id, agent), deadline)) = found else { return };
                let Some(host) = job.host(id) else { return };
                let hello = self.hello(job, &host, agent);
                self.try_join(job, &host, hello, self.ticket(job, number, worker), deadline, Attempts::default());
            }
            JoinEffect::GiveUp { .. } => {}
            JoinEffect::Send { worker, joining } => self.hand_out(job, number, worker, joining),
            JoinEffect::Report(joined) if !job.is_clients() => {
                let word = {
                    let mut tree = lock(&job.tree);
                    let Some(run) = tree.runs.iter_mut().find(|r| r.number == number) else { return };
                    let mut said = |rank: u32| Some((rank, run.said.remove(&rank)?));
                    let known = joined.joined.into_iter().filter_map(&mut said);
                    let known: Vec<(u32, Said)> = known.filter_map(|(rank, said)| Some((rank, said.ok()?))).collect();
                    let failed = joined.failed.into_iter().filter_map(|(rank, why)| match said(rank) {
                        Some((_, Ok(_))) => None,
                        Some((_, Err(why))) => Some((rank, why)),
                        None => Some((rank, why)),
                    });
                    let failed = failed.collect();
                    Word::Report { run: run.id, joined: known, failed }
                };
                self.say_next(job, job.above(), &word);
            }
            // The client has already acted on each outcome when it arrived.
            JoinEffect::Report(_) => {}
        }
    }

    /// Sends a part of the list to a worker that has joined.
    fn hand_out(&self, job: &Arc<Job>, number: u64, worker: u32, joining: Joining) {
        let now = self.poller.now();
        let (to, word) = {
            let tree = lock(&job.tree);
            let Some(run) = tree.runs.iter().find(|r| r.number == number) else { return };
            let Some((to, _)) = run.workers.get(&worker).copied() else { return };
            let left = run.deadline.saturating_duration_since(now);
            let workers = joining.workers.into_iter().filter_map(|(rank, _)| {
                let (id, agent) = *run.workers.get(&rank)?;
                Some((rank, Worker { entry: job.host(id)?.entry()?, agent }))
            });
            let workers = workers.collect();
            // Agents get half of the time that is left. The client tries the remaining workers in the other half.
            let within_ms = if job.is_clients() { left / 2 } else { left }.as_millis() as u64;
            (to, Word::Part { run: run.id, within_ms, fan_out: run.fan_out, workers })
        };
        self.say_next(job, to, &word);
    }

    /// Records that a worker of a list, which this process has dialled, has joined.
    pub(super) fn run_joined(&self, job: &Arc<Job>, host: &Arc<Host>, (number, rank): (u64, u32)) {
        let place = host.place();
        let said = Said { agent: place.agent, name: place.name, pid: place.pid, release: place.release, by: job.here };
        {
            let mut tree = lock(&job.tree);
            if job.is_clients() {
                tree.parents.insert(host.id, job.here);
            } else {
                tree.children.insert(host.id);
                tree.below.remove(&host.id);
            }
            if let Some(run) = tree.runs.iter_mut().find(|r| r.number == number) {
                run.said.insert(rank, Ok(said));
            }
        }
        self.tell_run(job, number, |join, now| join.on_joined(now, rank));
        if job.is_clients() {
            self.resolved(job, number, rank);
        }
    }

    /// Records that a worker of a list, which this process has dialled, has not joined.
    pub(super) fn run_failed(&self, job: &Arc<Job>, (number, rank): (u64, u32), why: &str) {
        if let Some(run) = lock(&job.tree).runs.iter_mut().find(|r| r.number == number) {
            run.said.insert(rank, Err(why.to_owned()));
        }
        self.tell_run(job, number, |join, now| join.on_failed(now, rank, why));
        if job.is_clients() {
            self.resolved(job, number, rank);
        }
    }

    /// A host is lost: the workers of its part of each list are joined by others.
    pub(super) fn run_lost(&self, job: &Arc<Job>, host: ProcUid) {
        let found: Vec<(u64, u32)> = {
            let tree = lock(&job.tree);
            let of = |r: &Run| Some((r.number, *r.workers.iter().find(|(_, (id, _))| *id == host)?.0));
            tree.runs.iter().filter_map(of).collect()
        };
        for (number, rank) in found {
            self.tell_run(job, number, |join, now| join.on_lost(now, rank));
        }
    }

    /// Answers the call of a join with the agent's description of itself.
    pub(super) fn answer_joined(&self, host: &Host, ticket: Ticket) {
        let Some((slot, rank)) = ticket.cell else { return };
        let place = host.place();
        let body = serde_json::json!({"agent": place.agent, "host": place.name, "pid": place.pid, "release": place.release});
        self.answer(slot, rank, Status::Ok, body.to_string().as_bytes());
    }
}

impl Run {
    fn new(
        id: u64,
        workers: Vec<(u32, ProcUid, u64)>,
        (fan_out, below): (usize, usize),
        (born, deadline): (Instant, Instant),
        slot: Option<SlotId>,
    ) -> Run {
        let open = if slot.is_some() { workers.iter().map(|(rank, ..)| *rank).collect() } else { HashSet::new() };
        let workers = workers.into_iter().map(|(rank, host, agent)| (rank, (host, agent))).collect();
        let join = Join::with_fan_out(NEVER, fan_out);
        Run { id, number: random(), join, workers, said: HashMap::new(), born, deadline, fan_out: below as u32, alarm: None, slot, open }
    }
}
