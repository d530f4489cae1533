//! The actions that the membership of a job has decided: pings, probes, notices, and the ends of hosts and jobs.
//!
//! What it needs: the components that an action concerns. It knows all of them so that they need not know each other.
//!
//! What always holds: it decides nothing but whether its process has what an action is about.

use std::sync::Arc;

use net::lock::lock;
use wire::greeting::Heartbeat;
use wire::join_tree::{HostEnd, TreeMessage};
use wire::{Control, ProcUid};

use super::audit::AuditLog;
use super::casts::Casts;
use super::connections::Connections;
use super::heartbeats::Heartbeats;
use super::host::Host;
use super::introductions::Introductions;
use super::job::Job;
use super::job_ends::JobEnds;
use super::jobs::Jobs;
use super::join_list::JoinLists;
use super::join_tree::JoinTree;
use super::membership_events::{CarryOut, MembershipEvents};
use super::route_gateway::RouteGateway;
use crate::local::Local;
use crate::membership::{Action, Event};

/// Kind of audit event: an event that cannot happen in the state of its host.
const UNEXPECTED: &str = "unexpected";

/// Carries out actions.
pub(super) struct Actions {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub events: Arc<MembershipEvents>,
    pub connections: Arc<Connections>,
    pub route_gateway: Arc<RouteGateway>,
    pub tree: Arc<JoinTree>,
    pub introductions: Arc<Introductions>,
    pub lists: Arc<JoinLists>,
    pub heartbeats: Arc<Heartbeats>,
    pub casts: Arc<Casts>,
    pub ends: Arc<JobEnds>,
    pub audit: Arc<AuditLog>,
}

impl CarryOut for Actions {
    fn carry_out(&self, job: &Arc<Job>, action: Action) {
        let host = |id: ProcUid| job.host(id);
        match action {
            Action::Ping { host: id } => {
                // A relayed host gets no pings: its relay reports on it.
                if let Some(h) = host(id).filter(|h| !h.session.is_routed()) {
                    // Another member may have asked about a host to which this one has no connection.
                    self.connections.open(job, &h);
                    h.ping();
                    self.connections.open_anew(job, &h);
                }
            }
            Action::Probe { via, about } => host(via).into_iter().for_each(|h| h.session.send_heartbeat(&Heartbeat::Probe { about })),
            Action::Suspected { host } if job.is_relayed(host) => self.tree.connect_directly_soon(job, vec![host]),
            Action::Suspected { .. } => {}
            Action::AgentEnded { host } => job.child_ended(host, HostEnd::Killed),
            Action::NotifyHost { host: id, why } => {
                if host(id).is_some_and(|h| h.session.is_up()) {
                    self.local.send(id, Control::HostsLost { hosts: vec![(id, why)] });
                }
            }
            Action::EndSession { host: id, reset } => {
                let Some(h) = host(id) else { return };
                lock(&h.partial_parts).clear();
                if reset { h.session.give_up() } else { h.session.close() }
            }
            Action::Record { host: id, left, why } => {
                if let Some(h) = host(id).filter(|_| !self.jobs.is_closing()) {
                    self.audit.add(if left { "left" } else { "lost" }, &h.name(), why);
                }
            }
            Action::EndProcesses { host: id, had_joined } => {
                if let Some(h) = host(id) {
                    self.end_processes(job, &h, had_joined);
                }
            }
            Action::NotifyOthers { host, why } if job.has_tree() => job.spread(&TreeMessage::HostsLost { hosts: vec![(host, why)] }),
            Action::NotifyOthers { host, why } => {
                for other in job.hosts().into_iter().filter(|h| h.id != host && h.is_joined()) {
                    self.local.send(other.id, Control::HostsLost { hosts: vec![(host, why.clone())] });
                }
            }
            Action::EndJob { why } => self.ends.end(job, &why),
            Action::Unexpected { host: id, state, event } => {
                let name = host(id).map_or_else(String::new, |h| h.name());
                self.audit.add(UNEXPECTED, &name, format!("{event} of a host that is {state:?}"));
            }
        }
    }

    fn ticked(&self, job: &Arc<Job>) {
        self.heartbeats.report(job);
    }
}

impl Actions {
    /// Ends all processes of an ended host for this process.
    fn end_processes(&self, job: &Arc<Job>, host: &Host, had_joined: bool) {
        let Some(end) = host.end() else { return };
        self.local.agent(|agent| agent.host_ended(host.id, &end));
        self.local.lose(host.id, job.own_id, end.clone());
        self.local.procs_ended(vec![(host.id, end)]);
        if had_joined && self.route_gateway.is_own_job(job) {
            self.gateway_lost(&host.lost().unwrap_or_default());
        }
        self.casts.host_ended(job, host.id);
        let orphans = lock(&job.relays).on_end(host.id);
        self.tree.connect_directly_soon(job, orphans.relayed);
        self.introductions.repeat_soon(job, orphans.joined);
        self.lists.worker_lost(job, host.id);
    }

    /// Declares all hosts behind the lost gateway lost.
    fn gateway_lost(&self, why: &str) {
        let (Some(gateway), Some(work)) = (self.route_gateway.get(), self.jobs.get(self.local.uid)) else { return };
        let why = format!("the gateway {} is lost: {why}", gateway.address);
        let (agent, is_gone) = (gateway.host.info().agent, gateway.host.unknown_end().is_none());
        for host in work.hosts() {
            // The agent of the gateway may be a host of this job too.
            let is_end_known = is_gone && host.info().agent == agent;
            self.events.report(&work, Event::Lost { host: host.id, why: why.clone(), is_end_known, notify: false });
        }
    }
}
