//! Silent hosts, hosts that leave, lost hosts, and the end of a client's work.
//!
//! The detector of each job decides from heartbeats which hosts are suspected or lost, and this file carries out its actions. Only the
//! client declares hosts of its job lost; an agent loses links. An agent ends the work of a client that stays silent for its lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::lock::lock;
use net::trunk::{FRAMES, HEART, StreamEnd};
use wire::greeting::Beat;
use wire::join_tree::{Ending, Word};
use wire::{Control, ProcUid};

use super::forward::host_end;
use super::{Gateway, Host, Job};
use crate::membership::detector::{Action, LinkEnd};
use crate::node::routes::Place;

/// An agent ends the work of a silent client this long before the lease is over, so the clean-up is finished at the end of the lease.
const CLEAN_UP: Duration = Duration::from_secs(2);
/// Reason for the end of a job whose client has announced its end.
const CLIENT_ENDED: &str = "its client has ended";

impl Gateway {
    /// Lets the detector watch this host from now on.
    pub(super) fn watch(&self, job: &Arc<Job>, host: ProcUid) {
        lock(&job.detector).watch(host, self.poller.now());
        self.tick_later(job);
    }

    /// Handles the arrival of bytes from a host: they count as a heartbeat.
    pub(super) fn heard(&self, job: &Arc<Job>, host: ProcUid) {
        let now = self.poller.now();
        let mut detector = lock(&job.detector);
        if host == job.id && !job.is_clients() {
            *lock(&job.last_client_heartbeat) = now;
            // The detector may have stopped to watch a client that was silent for long.
            detector.watch(host, now);
        }
        detector.on_heartbeat(host, now);
    }

    fn tick_later(&self, job: &Arc<Job>) {
        let now = self.poller.now();
        let next = lock(&job.detector).next(now);
        // The detector stops to watch a silent client, but the client's lease still has to end.
        let lease = self.lease_end(job).map(|end| end.saturating_duration_since(now));
        let Some(delay) = [next, lease].into_iter().flatten().min() else { return };
        if std::mem::replace(&mut *lock(&job.ticking), true) {
            return;
        }
        let (me, job) = (self.me.clone(), Arc::downgrade(job));
        let task = move || {
            if let (Some(g), Some(job)) = (me.upgrade(), job.upgrade()) {
                *lock(&job.ticking) = false;
                g.tick(&job);
            }
        };
        self.poller.later(delay, Box::new(task));
    }

    fn tick(&self, job: &Arc<Job>) {
        let now = self.poller.now();
        let actions = lock(&job.detector).tick(now);
        for action in actions {
            match action {
                Action::Ping(host) => {
                    // A relayed host gets no pings: its relay reports on it.
                    if let Some(h) = job.host(host).filter(|h| !h.session.is_routed()) {
                        h.session.beat(&Beat::Ping { received: vec![h.session.received()] });
                        self.open_anew(job, &h);
                    }
                }
                Action::Probe { via, about } => {
                    if let Some(h) = job.host(via) {
                        h.session.beat(&Beat::Probe { about });
                    }
                }
                Action::Suspect(host) => {
                    self.suspect(job, host, true);
                    if job.is_relayed(host) {
                        self.connect_directly_soon(job, vec![host]);
                    }
                }
                Action::Recovered(host) => self.suspect(job, host, false),
                // The client's loss is decided by its lease.
                Action::Lost { host, .. } | Action::LinkLost { host, .. } if host == job.id => {}
                Action::Lost { host, why } => {
                    if let Some(h) = job.host(host) {
                        self.host_lost(job, &h, &why, true);
                    }
                }
                Action::LinkLost { host, why } => {
                    if let Some(h) = job.host(host) {
                        self.link_lost(job, &h, &why);
                    }
                }
            }
        }
        if self.lease_end(job).is_some_and(|end| end <= now) {
            return self.end_job(job, "its client is silent");
        }
        self.report_liveness(job, now);
        self.tick_later(job);
    }

    fn suspect(&self, job: &Arc<Job>, host: ProcUid, yes: bool) {
        if let Some(h) = job.host(host) {
            lock(&h.state).is_suspected = yes;
        }
    }

    /// When the work of a client that stays silent ends; none in the client itself, and for a lease without an end.
    fn lease_end(&self, job: &Job) -> Option<Instant> {
        let lease = Duration::from_millis(job.settings.lease_ms);
        let heard = *lock(&job.last_client_heartbeat);
        (!job.is_clients() && !lease.is_zero()).then(|| heard + lease - CLEAN_UP.min(lease / 5))
    }

    /// Handles a message of the heartbeat connection, or one that relays have forwarded.
    pub(super) fn on_beat(&self, job: &Arc<Job>, host: &Arc<Host>, beat: Beat) {
        match beat {
            Beat::Ping { received } => {
                self.beat_acks(host, &received);
                host.session.beat(&Beat::Pong { received: vec![host.session.received()] });
            }
            Beat::Pong { received } => self.beat_acks(host, &received),
            Beat::Probe { about } => {
                let ago = lock(&job.detector).on_probe(about, self.poller.now());
                host.session.beat(&Beat::Probed { about, heard_ms: ago.map(|d| d.as_millis() as u64) });
            }
            Beat::Probed { about, heard_ms } => {
                lock(&job.detector).on_probe_answer(about, host.id, heard_ms.map(Duration::from_millis), self.poller.now());
            }
            Beat::Heard { hosts } => self.on_liveness_report(job, host, hosts),
            Beat::Client { heard_ms } => self.on_client_age(job, Duration::from_millis(heard_ms)),
        }
    }

    fn beat_acks(&self, host: &Host, received: &[u64]) {
        if let Some(n) = received.first() {
            let _ = host.session.acked(*n);
        }
    }

    /// Handles the end of one connection of a session. The detector is notified when the session has no connection left.
    pub(super) fn stream_broken(&self, job: &Arc<Job>, host: &Arc<Host>, number: u8, end: StreamEnd) {
        if self.is_closing() {
            // The other sides close their connections in answer to the notice of this process.
            return;
        }
        let alone = match number {
            FRAMES => !host.session.has_heart(),
            HEART => !host.session.is_up(),
            _ => false,
        };
        // The kernel may reset one of the two connections of an exited process, where unread bytes were in its buffer.
        let closed = {
            let mut state = lock(&host.state);
            state.closed_by_exit |= end == StreamEnd::Closed;
            state.closed_by_exit
        };
        if alone {
            let end = match if closed { StreamEnd::Closed } else { end } {
                // A connection to a gateway may be forwarded by a program that has ended, and that refuses connections until it runs again.
                StreamEnd::Closed if self.is_gateway_job(job) => LinkEnd::Cut,
                StreamEnd::Closed => LinkEnd::Ended,
                StreamEnd::Reset => LinkEnd::Reset,
                StreamEnd::Garbage | StreamEnd::Failed => LinkEnd::Cut,
            };
            self.child_ended(job, host.id, if end == LinkEnd::Cut { Ending::Cut } else { Ending::Reset });
            self.link_down(job, host, end);
            if end == LinkEnd::Ended {
                self.probe_port(job, host);
            }
        }
        self.open(job, host);
    }

    /// Reports to the detector that all connections to a host have ended, or that it cannot be dialled.
    pub(super) fn link_down(&self, job: &Arc<Job>, host: &Host, end: LinkEnd) {
        if lock(&job.detector).link_down(host.id, end, self.poller.now()) {
            self.child_ended(job, host.id, Ending::Killed);
        }
    }

    /// Handles a host that is alive but that no route leads to. In this process it counts as lost; a client does not use it any more.
    pub(super) fn link_lost(&self, job: &Arc<Job>, host: &Arc<Host>, why: &str) {
        {
            let mut state = lock(&host.state);
            state.no_route |= state.lost.is_none();
        }
        self.host_lost(job, host, why, true);
    }

    /// Ends a host in this process: its processes have ended, and it is not admitted again with this id. With `tell`, the client notifies
    /// the other hosts.
    pub(super) fn host_lost(&self, job: &Arc<Job>, host: &Arc<Host>, why: &str, tell: bool) {
        if host.lost().is_some() {
            return;
        }
        let why = &self.with_gateway_loss(job, why);
        if tell && job.is_clients() && host.session.is_up() && !lock(&host.state).leaving {
            // A frozen host or one that is cut off receives this when it is back, unless the kernel has given up the connection by then. In
            // that case its lease ends its work.
            let Some(node) = self.node() else { return };
            node.peer(host.id).send_control(Control::HostsLost { hosts: vec![(host.id, why.to_owned())] });
        }
        lock(&host.state).lost = Some(why.to_owned());
        lock(&host.partial_parts).clear();
        // An agent closes its session in another way: an agent that is alive would take the normal end of all connections for an exit of
        // this one.
        if job.is_clients() {
            host.session.close()
        } else {
            host.session.give_up()
        }
        lock(&job.detector).forget(host.id);
        let Some(node) = self.node() else { return };
        if !self.is_closing() {
            self.audit(if lock(&host.state).leaving { "left" } else { "lost" }, &host.name(), why.to_owned());
        }
        if host.id == job.id {
            // The client's procs end with its lease.
            return self.end_job(job, why);
        }
        let end = host.end().unwrap_or_else(|| host_end(&host.name(), why));
        if let Some(agent) = node.agent() {
            agent.host_ended(host.id, &end);
        }
        node.routes.lose(Place { host: host.id, here: job.own_id }, end.clone());
        node.procs_ended(vec![(host.id, end)]);
        self.gateway_lost(job, why);
        self.cast_host_ended(job, host.id);
        self.lost_in_tree(job, host.id);
        if tell && job.is_clients() && job.has_tree() {
            self.spread(job, &Word::HostsLost { hosts: vec![(host.id, why.to_owned())] });
        } else if tell && job.is_clients() {
            for other in job.hosts().into_iter().filter(|h| h.id != host.id && h.lost().is_none() && lock(&h.state).joined) {
                node.peer(other.id).send_control(Control::HostsLost { hosts: vec![(host.id, why.to_owned())] });
            }
        }
    }

    /// Handles a control message of a member of a job.
    pub(crate) fn control(&self, from: ProcUid, c: Control) {
        let Some(node) = self.node() else { return };
        match c {
            Control::Hosts { hosts } => {
                let Some(job) = self.job(from) else { return };
                for entry in hosts.into_iter().filter(|e| e.host != job.own_id) {
                    let host = job.host_or_new(entry.host, &self.me, &self.poller);
                    node.route(entry.host, entry.host, job.own_id);
                    host.learn(entry);
                    if host.session.waiting().0 > 0 {
                        self.open(&job, &host);
                    }
                }
            }
            Control::HostsLost { hosts } => {
                let Some(job) = self.job(from) else { return };
                for (id, why) in hosts {
                    if id == job.own_id {
                        return self.end_job(&job, &format!("declared lost: {why}"));
                    }
                    let host = job.host_or_new(id, &self.me, &self.poller);
                    self.host_lost(&job, &host, &why, false);
                }
            }
            Control::JobOver => match self.job(from) {
                Some(job) => {
                    self.spread(&job, &Word::JobOver);
                    // An agent that has not been notified yet would take the end of the connections for an exit of this agent.
                    for other in job.hosts().into_iter().filter(|h| h.id != job.id && h.lost().is_none() && h.session.is_up()) {
                        node.peer(other.id).send_control(Control::JobOver);
                    }
                    self.end_job(&job, CLIENT_ENDED);
                }
                None => {
                    let found = self.jobs().into_iter().filter(|j| !j.is_clients()).find_map(|j| j.host(from).map(|h| (j, h)));
                    if let Some((job, host)) = found {
                        lock(&host.state).leaving = true;
                        self.host_lost(&job, &host, CLIENT_ENDED, false);
                    }
                }
            },
            Control::Shutdown { slot } if self.job(from).is_some() => {
                node.system.push(crate::SystemEvent::Shutdown { from, slot });
            }
            Control::Leaving => {
                let found = self.jobs().into_iter().find_map(|j| j.host(from).map(|h| (j, h)));
                if let Some((job, host)) = found {
                    lock(&host.state).leaving = true;
                    self.child_ended(&job, host.id, Ending::Exited);
                    self.host_lost(&job, &host, "agent exited", true);
                }
            }
            _ => {}
        }
    }

    /// Ends all work of a client here: its job, its tunnels, its procs.
    pub(super) fn end_job(&self, job: &Arc<Job>, why: &str) {
        self.drop_job(job);
        self.end_tunnels(job.id);
        self.audit("ended", &job.host(job.id).map_or(String::new(), |h| h.name()), why.to_owned());
        if let Some(trust) = self.trust.get() {
            trust.forget(net::trust::JobId(job.id.0));
        }
        for host in job.hosts() {
            lock(&host.state).lost = Some(why.to_owned());
            lock(&host.partial_parts).clear();
            host.session.close();
        }
        if let Some(node) = self.node() {
            // This host and these hosts may meet again in the same job, where this host then has another id.
            for host in job.hosts() {
                node.routes.lose(Place { host: host.id, here: job.own_id }, host_end(&host.name(), why));
            }
            if let Some(agent) = node.agent() {
                agent.host_ended(job.id, &host_end("", why));
                // Services of other hosts were reached through this job. Services of this host that wait for them would otherwise wait for
                // ever.
                for host in job.hosts().into_iter().filter(|h| h.id != job.id) {
                    agent.host_left(host.id, job.own_id, &host_end(&host.name(), "the job through which it was reached has ended"));
                }
                agent.job_ended(job.own_id, why);
            }
            node.procs_ended(vec![(job.id, host_end("", why))]);
            node.system.push(crate::SystemEvent::JobEnded { here: job.own_id });
        }
    }

    /// Closes all sessions: a client notifies its hosts that the job is over, an agent notifies its peers that it leaves. Waits at most
    /// `bound` until the notices are acknowledged.
    pub fn close(&self, bound: Duration) {
        if std::mem::replace(&mut *lock(&self.closing), true) {
            return;
        }
        if let Some(listener) = lock(&self.listener).take() {
            listener.close();
        }
        self.report_refusals();
        let Some(node) = self.node() else { return };
        self.wait_for_relays(bound / 2);
        let mut waiting = vec![];
        let joining = self.notify_joining_hosts();
        for job in self.jobs() {
            for host in job.hosts().into_iter().filter(|h| h.lost().is_none() && h.session.is_up()) {
                if host.session.is_routed() {
                    // The relay between this process and the host passes the notice on.
                    continue;
                }
                let word = if job.is_clients() { Control::JobOver } else { Control::Leaving };
                node.peer(host.id).send_control(word);
                waiting.push(host);
            }
        }
        let deadline = Instant::now() + bound;
        // The other side acknowledges with its next heartbeat, or by closing the connection.
        while Instant::now() < deadline && waiting.iter().any(|h| h.session.is_up() && !h.session.is_settled()) {
            waiting.iter().for_each(|h| h.session.beat(&Beat::Ping { received: vec![h.session.received()] }));
            std::thread::sleep(Duration::from_millis(2));
        }
        let deadline = deadline.min(Instant::now() + bound / 2);
        while Instant::now() < deadline && joining.iter().any(|h| h.has_pending_notice()) {
            joining.iter().for_each(|h| h.session.beat(&Beat::Ping { received: vec![h.session.received()] }));
            std::thread::sleep(Duration::from_millis(2));
        }
        joining.iter().for_each(|h| lock(&h.state).notice_pending = false);
        waiting.iter().chain(&joining).for_each(|h| h.session.close());
        for job in self.jobs().into_iter().filter(|j| !j.is_clients()) {
            self.end_job(&job, "its host's agent has ended");
        }
    }

    /// Notifies the hosts whose join is under way: such a worker may have made the job already, and receives the notice as soon as it has
    /// joined.
    fn notify_joining_hosts(&self) -> Vec<Arc<Host>> {
        let Some(node) = self.node() else { return vec![] };
        let hosts = self.jobs().into_iter().filter(|job| job.is_clients()).flat_map(|job| job.hosts());
        let part = |host: &Arc<Host>| {
            let mut state = lock(&host.state);
            state.notice_pending = state.lost.is_none() && !state.was_up && (state.joined || state.joining);
            state.notice_pending
        };
        let joining: Vec<Arc<Host>> = hosts.filter(part).collect();
        joining.iter().for_each(|host| node.peer(host.id).send_control(Control::JobOver));
        joining
    }

    /// Waits at most `bound` until the client has acknowledged the frames that relays forward to it. The relays are notified only then that
    /// this agent leaves.
    fn wait_for_relays(&self, bound: Duration) {
        let clients = self.jobs().into_iter().filter(|j| !j.is_clients()).filter_map(|j| j.host(j.id));
        let carried: Vec<Arc<Host>> = clients.filter(|c| c.session.is_routed()).collect();
        let deadline = Instant::now() + bound;
        while Instant::now() < deadline && carried.iter().any(|c| c.session.is_routed() && !c.session.is_settled()) {
            carried.iter().for_each(|c| c.session.beat(&Beat::Ping { received: vec![c.session.received()] }));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// True in an agent: other hosts can connect to this process.
    pub fn is_agent(&self) -> bool {
        lock(&self.listener).is_some()
    }

    /// Notes that the host was asked to exit: its end is no loss.
    pub fn expect_end(&self, host: ProcUid) {
        if let Some(h) = self.jobs().into_iter().find_map(|j| j.host(host)) {
            lock(&h.state).leaving = true;
        }
    }
}
