//! The membership of hosts in a job, as one process of the job sees it: a state machine without input, output, locks, threads or a clock.
//!
//! `Membership` takes events with their time, and returns actions that its caller, the gateway, carries out in their order. So each
//! decision is tested with simulated time and with random sequences of events (`tests/membership.rs`).
//!
//! What it needs: a call of `on` with each event, and `Event::Tick` when the time that `next` returned has passed. It uses the ids of
//! `wire` and nothing of the gateway or the node.
//!
//! What always holds:
//! - A host that has ended never becomes a member again with the same id.
//! - The end of a host is acted on once, whatever reports it and however often.
//! - The detector watches only hosts that have joined, and no action concerns a host after its end.
//! - Only the lease ends the job of a silent client. After the end of the job there are no actions.
//! - An event that cannot happen in the state of its host changes nothing; it is an error in debug builds and an audit event otherwise.
//!
//! | file | noun |
//! |---|---|
//! | `host_table` | the state of each host, and the transition table |
//! | `detector` | the failure detector: suspected hosts and lost hosts, from the times of heartbeats |
//! | `lease` | the lease of a silent client |
//! | `loss` | the actions after the end of a host |
//! | `join` | the join of many workers by a tree |
//! | `relays` | the routes along this tree |

pub mod detector;
pub mod host_table;
pub mod join;
pub mod lease;
mod loss;
pub mod relays;

use std::time::{Duration, Instant};

use wire::ProcUid;

pub use self::detector::{Detector, LinkEnd, Role, Settings};
pub use self::host_table::{HostEvent, HostState, HostTable};
pub use self::join::{Join, JoinEffect};
use self::lease::Lease;

/// The reason for the end of a job whose client's lease is over.
const CLIENT_SILENT: &str = "its client is silent";

/// An event in a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The time that `next` returned has passed. The remark is added to the reasons of losses that the detector decides now.
    Tick { remark: Option<String> },
    /// Bytes of the host have arrived on a direct connection.
    Heartbeat { host: ProcUid },
    /// Another member has reported the age of the host's last heartbeat.
    IndirectHeartbeat { host: ProcUid, age: Duration },
    /// An attempt to join the host begins.
    JoinStarted { host: ProcUid },
    /// The attempt has ended. `Joined` follows if the host has joined.
    JoinEnded { host: ProcUid },
    /// The host has joined.
    Joined { host: ProcUid },
    /// A connection to the host exists or is being opened: the host's silence counts from now on.
    Watched { host: ProcUid },
    /// The host has answered on a new connection.
    Reconnected { host: ProcUid },
    /// All connections to the host have ended, or a connection cannot be opened.
    LinkDown { host: ProcUid, cause: LinkEnd },
    /// A third host has answered a probe: the age of the last heartbeat that it has received of the suspect.
    ProbeAnswered { about: ProcUid, via: ProcUid, age: Option<Duration> },
    /// The exit of the host was requested or announced.
    ExitExpected { host: ProcUid },
    /// The host has ended, was declared lost, or does not join. `is_end_known` is true if its agent does not run any more. With `notify`,
    /// a client notifies the other hosts.
    Lost { host: ProcUid, why: String, is_end_known: bool, notify: bool },
    /// No route leads to the host.
    LinkLost { host: ProcUid, why: String },
    /// The job has ended in this process.
    JobEnded { why: String },
}

/// An action that the caller carries out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a ping to the host; to a suspect on a new connection, if that may help.
    Ping { host: ProcUid },
    /// Ask `via` when it last received a heartbeat of `about`.
    Probe { via: ProcUid, about: ProcUid },
    /// The host is suspected: probe it over a direct connection, if it is relayed.
    Suspected { host: ProcUid },
    /// The end of the connections proves the end of the host's agent. The verdict follows with the next tick.
    AgentEnded { host: ProcUid },
    /// Notify the host that it is lost, over the session if it has a connection.
    NotifyHost { host: ProcUid, why: String },
    /// End the session with the host; with `reset`, not like the end of this process.
    EndSession { host: ProcUid, reset: bool },
    /// Add the end of the host to the audit log.
    Record { host: ProcUid, left: bool, why: String },
    /// End all processes of the host for this process.
    EndProcesses { host: ProcUid, had_joined: bool },
    /// Notify all other hosts that the host is lost.
    NotifyOthers { host: ProcUid, why: String },
    /// End the job in this process.
    EndJob { why: String },
    /// Add an event that cannot happen in the state of its host to the audit log.
    Unexpected { host: ProcUid, state: HostState, event: String },
}

/// The membership of hosts in a job, in one process of the job. The job of the gateway owns it.
pub struct Membership {
    role: Role,
    /// The id of the client of the job.
    client: ProcUid,
    /// The id of this process in the job.
    own_id: ProcUid,
    detector: Detector,
    /// Agent only.
    lease: Option<Lease>,
    hosts: HostTable,
    /// The reason for the end of the job in this process; none before it.
    over: Option<String>,
}

impl Membership {
    /// A job without other hosts. `lease` is the length of the client's lease at an agent.
    pub fn new(client: ProcUid, own_id: ProcUid, settings: Settings, lease: Duration, now: Instant) -> Self {
        let settings = detector::Settings { reconnect: lease::reconnect_limit(settings, lease), ..settings };
        Membership {
            role: settings.role,
            client,
            own_id,
            detector: Detector::new(settings),
            lease: (settings.role == Role::Agent).then(|| Lease::new(lease, now)),
            hosts: HostTable::default(),
            over: None,
        }
    }

    // ---- events

    /// Takes an event: returns the actions that follow, in their order.
    pub fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        if self.over.is_some() {
            return vec![];
        }
        match event {
            Event::Heartbeat { host } => self.on_heartbeat(host, now),
            Event::Tick { remark } => self.tick(remark.as_deref(), now),
            Event::IndirectHeartbeat { host, age } => self.on_indirect_heartbeat(host, age, now),
            Event::JoinStarted { host } => self.change(host, HostEvent::JoinStarted),
            Event::JoinEnded { host } => self.change(host, HostEvent::JoinEnded),
            Event::Joined { host } => self.change(host, HostEvent::Joined),
            Event::Watched { host } => self.watch(host, now),
            Event::Reconnected { host } => self.change(host, HostEvent::Reconnected),
            Event::LinkDown { host, cause } => self.link_down(host, cause, now),
            Event::ProbeAnswered { about, via, age } => {
                self.detector.on_probe_answer(about, via, age, now);
                vec![]
            }
            Event::ExitExpected { host } => self.change(host, HostEvent::ExitExpected),
            Event::Lost { host, why, .. } if host == self.own_id => vec![Action::EndJob { why: format!("declared lost: {why}") }],
            Event::Lost { host, why, is_end_known, notify } => self.end(host, end_event(is_end_known), &why, notify),
            Event::LinkLost { host, why } => self.end(host, HostEvent::LinkLost, &why, true),
            Event::JobEnded { why } => {
                self.over = Some(why);
                vec![]
            }
        }
    }

    fn on_heartbeat(&mut self, host: ProcUid, now: Instant) -> Vec<Action> {
        if host == self.client
            && let Some(lease) = &mut self.lease
        {
            lease.renew(now);
            self.watch_client(now);
        }
        self.detector.on_heartbeat(host, now);
        vec![]
    }

    fn on_indirect_heartbeat(&mut self, host: ProcUid, age: Duration, now: Instant) -> Vec<Action> {
        if host == self.client
            && let Some(lease) = &mut self.lease
        {
            now.checked_sub(age).into_iter().for_each(|at| lease.renew(at));
            self.watch_client(now);
        }
        self.detector.on_indirect_heartbeat(host, age, now);
        vec![]
    }

    /// Watches a client that was silent for long again, if the detector has stopped to watch it.
    fn watch_client(&mut self, now: Instant) {
        if self.detector.watch(self.client, now) {
            self.hosts.change(self.client, HostEvent::Recovered, "");
        }
    }

    fn watch(&mut self, host: ProcUid, now: Instant) -> Vec<Action> {
        let state = self.hosts.state(host);
        if state.is_ended() {
            return vec![];
        }
        if !state.is_joined() {
            return self.unexpected(host, format!("{:?}", Event::Watched { host }));
        }
        if self.detector.watch(host, now) { self.change(host, HostEvent::Recovered) } else { vec![] }
    }

    fn link_down(&mut self, host: ProcUid, cause: LinkEnd, now: Instant) -> Vec<Action> {
        if self.detector.link_down(host, cause, now) { vec![Action::AgentEnded { host }] } else { vec![] }
    }

    fn tick(&mut self, remark: Option<&str>, now: Instant) -> Vec<Action> {
        let mut actions = vec![];
        for action in self.detector.tick(now) {
            match action {
                detector::Action::Ping(host) => actions.push(Action::Ping { host }),
                detector::Action::Probe { via, about } => actions.push(Action::Probe { via, about }),
                detector::Action::Suspect(host) => {
                    actions.extend(self.change(host, HostEvent::Suspected));
                    actions.push(Action::Suspected { host });
                }
                detector::Action::Recovered(host) => actions.extend(self.change(host, HostEvent::Recovered)),
                // The lease decides the loss of the client.
                detector::Action::Lost { host, .. } | detector::Action::LinkLost { host, .. } if host == self.client => {}
                detector::Action::Lost { host, why, is_end_known } => {
                    actions.extend(self.end(host, end_event(is_end_known), &remarked(why, remark), true))
                }
                detector::Action::LinkLost { host, why } => {
                    actions.extend(self.end(host, HostEvent::LinkLost, &remarked(why, remark), true))
                }
            }
        }
        if self.lease.as_ref().is_some_and(|lease| lease.is_over(now)) {
            actions.push(Action::EndJob { why: CLIENT_SILENT.to_owned() });
        }
        actions
    }

    fn change(&mut self, host: ProcUid, event: HostEvent) -> Vec<Action> {
        match self.hosts.change(host, event, "") {
            Some(_) => vec![],
            None => self.unexpected(host, format!("{event:?}")),
        }
    }

    fn end(&mut self, host: ProcUid, event: HostEvent, why: &str, notify: bool) -> Vec<Action> {
        let Some((before, after)) = self.hosts.change(host, event, why) else { return self.unexpected(host, format!("{event:?}")) };
        if before == after {
            return vec![];
        }
        self.detector.forget(host);
        loss::actions(self.role, &loss::End { host, why, before, after, is_client: host == self.client, notify })
    }

    fn unexpected(&self, host: ProcUid, event: String) -> Vec<Action> {
        let state = self.hosts.state(host);
        debug_assert!(false, "host {host:?} is {state:?}, so {event} cannot happen");
        vec![Action::Unexpected { host, state, event }]
    }

    /// Takes a probe of another member: returns the age of the last heartbeat of the host, if the host has joined and has not ended. The
    /// host is pinged, so the next answer is better.
    pub fn on_probe(&mut self, about: ProcUid, now: Instant) -> Option<Duration> {
        if self.state(about).is_joined() { self.detector.on_probe(about, now) } else { None }
    }

    // ---- state

    /// The time until the next tick; `None` if nothing is due.
    pub fn next(&self, now: Instant) -> Option<Duration> {
        if self.over.is_some() {
            return None;
        }
        // The detector stops to watch a silent client, but the client's lease still has to end.
        let lease = self.lease.as_ref().and_then(Lease::end).map(|end| end.saturating_duration_since(now));
        [self.detector.next(now), lease].into_iter().flatten().min()
    }

    /// The state of a host. All hosts are lost after the end of the job.
    pub fn state(&self, host: ProcUid) -> HostState {
        match self.hosts.state(host) {
            state if self.over.is_none() || state.is_ended() => state,
            _ => HostState::Lost,
        }
    }

    /// The reason why the host has ended; none while it has not.
    pub fn end_reason(&self, host: ProcUid) -> Option<&str> {
        self.hosts.end_reason(host).or(self.over.as_deref())
    }

    /// The reason why the host has ended for this process although its agent may still run; none for any other host.
    pub fn unknown_end(&self, host: ProcUid) -> Option<&str> {
        self.hosts.unknown_end(host)
    }

    /// The age of the last heartbeat of a host; `None` before the first one.
    pub fn heartbeat_age(&self, host: ProcUid, now: Instant) -> Option<Duration> {
        self.detector.heartbeat_age(host, now)
    }

    /// Agent only: when the last heartbeat of the client was received, directly or through relays.
    pub fn last_client_heartbeat(&self) -> Option<Instant> {
        self.lease.as_ref().map(Lease::last_heartbeat)
    }
}

fn end_event(is_end_known: bool) -> HostEvent {
    if is_end_known { HostEvent::Ended } else { HostEvent::Lost }
}

fn remarked(why: String, remark: Option<&str>) -> String {
    remark.map_or_else(|| why.clone(), |remark| format!("{why}; {remark}"))
}
