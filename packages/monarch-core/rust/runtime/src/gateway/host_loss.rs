//! Silent hosts, hosts that leave, lost hosts, and the end of a client's work.
//!
//! `membership` decides, and this file passes events to it and carries out its actions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::lock::lock;
use net::session::{FRAMES, HEARTBEAT, StreamEnd};
use wire::greeting::Heartbeat;
use wire::join_tree::{HostEnd, TreeMessage};
use wire::{Control, ProcUid};

use super::{Gateway, Host, Job};
use crate::membership::{Action, Event, LinkEnd};
use crate::peers::ended::host_end;
use crate::peers::routes::Place;

/// Kind of audit event: an event that cannot happen in the state of its host.
const UNEXPECTED: &str = "unexpected";
/// Reason for the end of a job whose client has announced its end.
const CLIENT_ENDED: &str = "its client has ended";

/// The last notice to a peer.
struct Notice {
    host: Arc<Host>,
    /// A session with the peer is opened again when it has no connection: a session between a client and a host.
    reopens: bool,
}

impl Gateway {
    /// Passes an event of a job to its state machine, and carries out the actions that follow.
    pub(super) fn on_event(&self, job: &Arc<Job>, event: Event) {
        let now = self.poller.now();
        let actions = lock(&job.membership).on(event, now);
        actions.into_iter().for_each(|action| self.carry_out(job, action));
    }

    /// Lets the detector watch this host from now on.
    pub(super) fn watch(&self, job: &Arc<Job>, host: ProcUid) {
        self.on_event(job, Event::Watched { host });
        self.tick_later(job);
    }

    /// Handles the arrival of bytes from a host: they count as a heartbeat.
    pub(super) fn heartbeat_received(&self, job: &Arc<Job>, host: ProcUid) {
        self.on_event(job, Event::Heartbeat { host });
    }

    fn tick_later(&self, job: &Arc<Job>) {
        let now = self.poller.now();
        let Some(delay) = lock(&job.membership).next(now) else { return };
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
        self.on_event(job, Event::Tick { remark: self.gateway_remark(job) });
        self.report_liveness(job, self.poller.now());
        self.tick_later(job);
    }

    fn carry_out(&self, job: &Arc<Job>, action: Action) {
        let Some(node) = self.node() else { return };
        let host = |id: ProcUid| job.host(id);
        match action {
            Action::Ping { host: id } => {
                // A relayed host gets no pings: its relay reports on it.
                if let Some(h) = host(id).filter(|h| !h.session.is_routed()) {
                    // Another member may have asked about a host to which this one has no connection.
                    self.open(job, &h);
                    h.session.send_heartbeat(&Heartbeat::Ping { received: vec![h.session.received()] });
                    self.open_anew(job, &h);
                }
            }
            Action::Probe { via, about } => host(via).into_iter().for_each(|h| h.session.send_heartbeat(&Heartbeat::Probe { about })),
            Action::Suspected { host } if job.is_relayed(host) => self.connect_directly_soon(job, vec![host]),
            Action::Suspected { .. } => {}
            Action::AgentEnded { host } => self.child_ended(job, host, HostEnd::Killed),
            Action::NotifyHost { host: id, why } => {
                if host(id).is_some_and(|h| h.session.is_up()) {
                    node.peers.peer(id).send_control(Control::HostsLost { hosts: vec![(id, why)] });
                }
            }
            Action::EndSession { host: id, reset } => {
                let Some(h) = host(id) else { return };
                lock(&h.partial_parts).clear();
                if reset { h.session.give_up() } else { h.session.close() }
            }
            Action::Record { host: id, left, why } => {
                if let Some(h) = host(id).filter(|_| !self.is_closing()) {
                    self.audit(if left { "left" } else { "lost" }, &h.name(), why);
                }
            }
            Action::EndProcesses { host: id, had_joined } => {
                if let Some(h) = host(id) {
                    self.end_processes(job, &h, had_joined);
                }
            }
            Action::NotifyOthers { host, why } if job.has_tree() => self.spread(job, &TreeMessage::HostsLost { hosts: vec![(host, why)] }),
            Action::NotifyOthers { host, why } => {
                for other in job.hosts().into_iter().filter(|h| h.id != host && h.is_joined()) {
                    node.peers.peer(other.id).send_control(Control::HostsLost { hosts: vec![(host, why.clone())] });
                }
            }
            Action::EndJob { why } => self.end_job(job, &why),
            Action::Unexpected { host: id, state, event } => {
                let name = host(id).map_or_else(String::new, |h| h.name());
                self.audit(UNEXPECTED, &name, format!("{event} of a host that is {state:?}"));
            }
        }
    }

    /// Ends all processes of an ended host for this process.
    fn end_processes(&self, job: &Arc<Job>, host: &Arc<Host>, had_joined: bool) {
        let (Some(node), Some(end)) = (self.node(), host.end()) else { return };
        if let Some(agent) = node.roles.agent() {
            agent.host_ended(host.id, &end);
        }
        node.peers.routes.lose(Place { host: host.id, here: job.own_id }, end.clone());
        node.ends.procs_ended(vec![(host.id, end)]);
        if had_joined {
            self.gateway_lost(job, &host.lost().unwrap_or_default());
        }
        self.cast_host_ended(job, host.id);
        self.lost_in_tree(job, host.id);
    }

    /// Handles a message of the heartbeat connection, or one that relays have forwarded.
    pub(super) fn on_beat(&self, job: &Arc<Job>, host: &Arc<Host>, beat: Heartbeat) {
        match beat {
            Heartbeat::Ping { received } => {
                self.beat_acks(host, &received);
                host.session.send_heartbeat(&Heartbeat::Pong { received: vec![host.session.received()] });
            }
            Heartbeat::Pong { received } => self.beat_acks(host, &received),
            Heartbeat::Probe { about } => {
                let now = self.poller.now();
                let ago = lock(&job.membership).on_probe(about, now);
                host.session.send_heartbeat(&Heartbeat::Probed { about, since_ms: ago.map(|d| d.as_millis() as u64) });
            }
            Heartbeat::Probed { about, since_ms } => {
                self.on_event(job, Event::ProbeAnswered { about, via: host.id, age: since_ms.map(Duration::from_millis) });
            }
            Heartbeat::Relayed { hosts } => self.on_liveness_report(job, host, hosts),
            Heartbeat::Client { since_ms } => self.on_client_age(job, Duration::from_millis(since_ms)),
        }
    }

    fn beat_acks(&self, host: &Host, received: &[u64]) {
        if let Some(n) = received.first() {
            let _ = host.session.acked(*n);
        }
    }

    /// Handles the end of one connection of a session. The detector is notified when the session has no connection left.
    pub(super) fn stream_broken(&self, job: &Arc<Job>, host: &Arc<Host>, number: u8, end: StreamEnd) {
        // The kernel may reset one of the two connections of an exited process, where unread bytes were in its buffer.
        let closed = {
            let mut state = lock(&host.state);
            state.closed_by_exit |= end == StreamEnd::Closed;
            state.closed_by_exit
        };
        if self.is_closing() {
            // The other sides close their connections in answer to the notice of this process.
            if host.has_pending_notice() {
                self.open(job, host);
            }
            return;
        }
        let alone = match number {
            FRAMES => !host.session.has_heartbeat(),
            HEARTBEAT => !host.session.is_up(),
            _ => false,
        };
        if alone {
            let end = match if closed { StreamEnd::Closed } else { end } {
                // A connection to a gateway may be forwarded by a program that has ended, and that refuses connections until it runs again.
                StreamEnd::Closed if self.is_gateway_job(job) => LinkEnd::Cut,
                StreamEnd::Closed => LinkEnd::Ended,
                StreamEnd::Reset => LinkEnd::Reset,
                StreamEnd::Garbage | StreamEnd::Failed => LinkEnd::Cut,
            };
            self.child_ended(job, host.id, if end == LinkEnd::Cut { HostEnd::Cut } else { HostEnd::Reset });
            self.link_down(job, host, end);
            if end == LinkEnd::Ended {
                self.probe_port(job, host);
            }
        }
        self.open(job, host);
    }

    /// Reports to the detector that all connections to a host have ended, or that it cannot be dialled.
    pub(super) fn link_down(&self, job: &Arc<Job>, host: &Host, cause: LinkEnd) {
        self.on_event(job, Event::LinkDown { host: host.id, cause });
    }

    /// Handles a host that is alive but that no route leads to. In this process it counts as lost; a client does not use it any more.
    pub(super) fn link_lost(&self, job: &Arc<Job>, host: &Arc<Host>, why: &str) {
        self.on_event(job, Event::LinkLost { host: host.id, why: self.with_gateway_remark(job, why) });
    }

    /// Ends a host in this process, although its agent may still run: its processes have ended, and it is not admitted again with this id.
    pub(super) fn host_lost(&self, job: &Arc<Job>, host: &Arc<Host>, why: &str) {
        let why = self.with_gateway_remark(job, why);
        self.on_event(job, Event::Lost { host: host.id, why, is_end_known: false, notify: true });
    }

    /// Ends a host whose agent has ended.
    pub(super) fn host_ended(&self, job: &Arc<Job>, host: &Arc<Host>, why: &str) {
        let why = self.with_gateway_remark(job, why);
        self.on_event(job, Event::Lost { host: host.id, why, is_end_known: true, notify: true });
    }

    /// Handles a control message of a member of a job.
    pub(crate) fn control(&self, from: ProcUid, c: Control) {
        let Some(node) = self.node() else { return };
        match c {
            Control::Hosts { hosts } => {
                let Some(job) = self.job(from) else { return };
                for entry in hosts.into_iter().filter(|e| e.host != job.own_id) {
                    let host = job.host_or_new(entry.host, &self.me, &self.poller);
                    node.peers.route(entry.host, entry.host, job.own_id);
                    host.learn_place(entry);
                    self.on_event(&job, Event::Joined { host: host.id });
                    if host.session.waiting().0 > 0 {
                        self.open(&job, &host);
                    }
                }
            }
            Control::HostsLost { hosts } => {
                let Some(job) = self.job(from) else { return };
                for (id, why) in hosts {
                    if id != job.own_id {
                        job.host_or_new(id, &self.me, &self.poller);
                    }
                    self.on_event(&job, Event::Lost { host: id, why, is_end_known: false, notify: true });
                }
            }
            Control::JobEnded => match self.job(from) {
                Some(job) => {
                    self.spread(&job, &TreeMessage::JobEnded);
                    // An agent that has not been notified yet would take the end of the connections for an exit of this agent.
                    for other in job.hosts().into_iter().filter(|h| h.id != job.id && h.lost().is_none() && h.session.is_up()) {
                        node.peers.peer(other.id).send_control(Control::JobEnded);
                    }
                    self.end_job(&job, CLIENT_ENDED);
                }
                None => {
                    let found = self.jobs().into_iter().filter(|j| !j.is_clients()).find_map(|j| j.host(from).map(|h| (j, h)));
                    if let Some((job, host)) = found {
                        self.on_event(&job, Event::ExitExpected { host: host.id });
                        self.host_ended(&job, &host, CLIENT_ENDED);
                    }
                }
            },
            Control::Shutdown { call_id } if self.job(from).is_some() => {
                node.system.push(crate::SystemEvent::Shutdown { from, call_id });
            }
            Control::Leaving => {
                let found = self.jobs().into_iter().find_map(|j| j.host(from).map(|h| (j, h)));
                if let Some((job, host)) = found {
                    self.on_event(&job, Event::ExitExpected { host: host.id });
                    self.child_ended(&job, host.id, HostEnd::Exited);
                    self.host_ended(&job, &host, "agent exited");
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
        self.on_event(job, Event::JobEnded { why: why.to_owned() });
        for host in job.hosts() {
            lock(&host.partial_parts).clear();
            host.session.close();
        }
        if let Some(node) = self.node() {
            // This host and these hosts may meet again in the same job, where this host then has another id.
            for host in job.hosts() {
                node.peers.routes.lose(Place { host: host.id, here: job.own_id }, host_end(&host.name(), why));
            }
            if let Some(agent) = node.roles.agent() {
                agent.host_ended(job.id, &host_end("", why));
                // Services of other hosts were reached through this job. Services of this host that wait for them would otherwise wait for
                // ever.
                for host in job.hosts().into_iter().filter(|h| h.id != job.id) {
                    agent.host_left(host.id, job.own_id, &host_end(&host.name(), "the job through which it was reached has ended"));
                }
                agent.job_ended(job.own_id, why);
            }
            node.ends.procs_ended(vec![(job.id, host_end("", why))]);
            node.system.push(crate::SystemEvent::JobEnded { here: job.own_id });
        }
    }

    /// Closes all sessions: a client notifies its hosts that the job is over, an agent notifies its peers that it leaves. Waits at most
    /// `bound` until the notices are acknowledged.
    ///
    /// A session between a client and a host may have no connection at this moment, or lose it while the notice is under way. The client
    /// opens another one. So the notice waits, and the listener of an agent stays open. A peer that does not connect costs half of `bound`.
    pub fn close(&self, bound: Duration) {
        if std::mem::replace(&mut *lock(&self.closing), true) {
            return;
        }
        // A relay may end before it has forwarded the last frames of this agent. The client then connects to this agent directly, as long
        // as the listener is open.
        self.wait_for_relays(bound / 2);
        self.report_refusals();
        let (begin, notices) = (Instant::now(), self.send_notices());
        let is_pending = |notice: &Notice| {
            let session = &notice.host.session;
            match notice.reopens {
                true => notice.host.has_pending_notice() && (session.is_up() || begin.elapsed() < bound / 2),
                false => session.is_up() && !session.is_settled(),
            }
        };
        // The other side acknowledges with its next heartbeat, or by closing the connection.
        while begin.elapsed() < bound && notices.iter().any(is_pending) {
            notices.iter().for_each(|n| n.host.session.send_heartbeat(&Heartbeat::Ping { received: vec![n.host.session.received()] }));
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Some(listener) = lock(&self.listener).take() {
            listener.close();
        }
        for notice in &notices {
            lock(&notice.host.state).notice_pending = false;
            notice.host.session.close();
        }
        for job in self.jobs().into_iter().filter(|j| !j.is_clients()) {
            self.end_job(&job, "its host's agent has ended");
        }
    }

    /// Sends the last notice to each peer. A worker whose join is under way may have made the job already: it receives the notice as soon
    /// as it has joined.
    fn send_notices(&self) -> Vec<Notice> {
        let Some(node) = self.node() else { return vec![] };
        let mut notices = vec![];
        for (job, host) in self.jobs().into_iter().flat_map(|j| j.hosts().into_iter().map(move |h| (j.clone(), h))) {
            let (word, reopens) = match job.is_clients() {
                true => (Control::JobEnded, host.membership().may_have_job()),
                false => (Control::Leaving, host.id == job.id && host.lost().is_none()),
            };
            let is_up = host.session.is_up();
            let may_open = {
                let mut state = lock(&host.state);
                state.notice_pending = job.is_clients() && reopens;
                // A client that was never connected is refused when it connects.
                reopens && (!is_up && state.was_up || job.is_clients() && !state.was_up)
            };
            // The relay between this process and the host passes the notice on.
            if !may_open && (host.lost().is_some() || !is_up || host.session.is_routed()) {
                continue;
            }
            node.peers.peer(host.id).send_control(word);
            if may_open && job.is_clients() {
                self.open_soon(&job, &host);
            }
            notices.push(Notice { host, reopens });
        }
        notices
    }

    /// Waits at most `bound` until the client has acknowledged the frames that relays forward to it. The relays are notified only then that
    /// this agent leaves.
    fn wait_for_relays(&self, bound: Duration) {
        let clients = self.jobs().into_iter().filter(|j| !j.is_clients()).filter_map(|j| j.host(j.id));
        let carried: Vec<Arc<Host>> = clients.filter(|c| c.session.is_routed()).collect();
        let deadline = Instant::now() + bound;
        while Instant::now() < deadline && carried.iter().any(|c| !c.session.is_settled()) {
            carried.iter().for_each(|c| c.session.send_heartbeat(&Heartbeat::Ping { received: vec![c.session.received()] }));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// True in an agent: other hosts can connect to this process.
    pub fn is_agent(&self) -> bool {
        lock(&self.listener).is_some()
    }

    /// Notes that the host was asked to exit: its end is no loss.
    pub fn expect_end(&self, host: ProcUid) {
        if let Some(job) = self.jobs().into_iter().find(|j| j.host(host).is_some()) {
            self.on_event(&job, Event::ExitExpected { host });
        }
    }
}
