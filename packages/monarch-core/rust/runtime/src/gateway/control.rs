//! The messages of the members of a job to each other: the hosts of the job, losses, the end of the job, and exits.
//!
//! A client sends them to its hosts, directly or along the join tree; an agent sends them when it leaves.
//!
//! What it needs: the jobs and their ends, the events of membership, and the connections.
//!
//! What always holds: only the client of a job reports its hosts and its end. A host reports its own exit.

use std::sync::Arc;

use wire::join_tree::{HostEnd, TreeMessage};
use wire::{Control, ProcUid};

use super::connections::Connections;
use super::job_ends::JobEnds;
use super::jobs::Jobs;
use super::membership_events::MembershipEvents;
use crate::SystemEvent;
use crate::local::Local;
use crate::membership::Event;

/// Reason for the end of a job whose client has announced its end.
const CLIENT_ENDED: &str = "its client has ended";

/// Handles messages of members.
pub(super) struct Controls {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub events: Arc<MembershipEvents>,
    pub connections: Arc<Connections>,
    pub ends: Arc<JobEnds>,
}

impl Controls {
    pub fn take(&self, from: ProcUid, c: Control) {
        match c {
            Control::Hosts { hosts } => {
                let Some(job) = self.jobs.get(from) else { return };
                for entry in hosts.into_iter().filter(|e| e.host != job.own_id) {
                    let host = job.host_or_new(entry.host);
                    self.local.route(entry.host, entry.host, job.own_id);
                    host.learn_place(entry);
                    self.events.report(&job, Event::Joined { host: host.id });
                    if host.session.waiting().0 > 0 {
                        self.connections.open(&job, &host);
                    }
                }
            }
            Control::HostsLost { hosts } => {
                let Some(job) = self.jobs.get(from) else { return };
                for (id, why) in hosts {
                    if id != job.own_id {
                        job.host_or_new(id);
                    }
                    self.events.report(&job, Event::Lost { host: id, why, is_end_known: false, notify: true });
                }
            }
            Control::JobEnded => match self.jobs.get(from) {
                Some(job) => {
                    job.spread(&TreeMessage::JobEnded);
                    // An agent that has not been notified yet would take the end of the connections for an exit of this agent.
                    for other in job.hosts().into_iter().filter(|h| h.id != job.id && h.lost().is_none() && h.session.is_up()) {
                        self.local.send(other.id, Control::JobEnded);
                    }
                    self.ends.end(&job, CLIENT_ENDED);
                }
                None => {
                    let jobs = self.jobs.all().into_iter().filter(|j| !j.is_clients());
                    if let Some((job, host)) = jobs.into_iter().find_map(|j| j.host(from).map(|h| (j, h))) {
                        self.events.report(&job, Event::ExitExpected { host: host.id });
                        self.events.ended(&job, &host, CLIENT_ENDED);
                    }
                }
            },
            Control::Shutdown { call_id } if self.jobs.get(from).is_some() => self.local.push(SystemEvent::Shutdown { from, call_id }),
            Control::Leaving => {
                if let Some((job, host)) = self.jobs.with_host(from) {
                    self.events.report(&job, Event::ExitExpected { host: host.id });
                    job.child_ended(host.id, HostEnd::Exited);
                    self.events.ended(&job, &host, "agent exited");
                }
            }
            _ => {}
        }
    }

    /// Notes that the host was asked to exit: its end is no loss.
    pub fn expect_end(&self, host: ProcUid) {
        if let Some((job, _)) = self.jobs.with_host(host) {
            self.events.report(&job, Event::ExitExpected { host });
        }
    }
}
