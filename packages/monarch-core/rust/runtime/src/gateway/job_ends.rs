//! The end of a client's work in this process: its job, its tunnels, its procs, and the sessions with its hosts.
//!
//! What it needs: the jobs, the tunnels, the credentials, the events of membership, and this process, whose components are notified.
//!
//! What always holds: a job that has ended is not in `Jobs` any more, whatever is reported of it.

use std::sync::Arc;

use net::lock::lock;

use super::audit::AuditLog;
use super::dialler::Dialler;
use super::job::Job;
use super::jobs::Jobs;
use super::membership_events::MembershipEvents;
use super::tunnel::Tunnels;
use crate::SystemEvent;
use crate::local::Local;
use crate::membership::Event;
use crate::peers::ended::host_end;

/// The reason of the end of another host's processes for a service that has reached them through a job.
const UNREACHED: &str = "the job through which it was reached has ended";

/// Ends jobs.
pub(super) struct JobEnds {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub events: Arc<MembershipEvents>,
    pub dialler: Arc<Dialler>,
    pub tunnels: Arc<Tunnels>,
    pub audit: Arc<AuditLog>,
}

impl JobEnds {
    pub fn end(&self, job: &Arc<Job>, why: &str) {
        self.jobs.remove(job);
        self.tunnels.end(job.id);
        self.audit.add("ended", &job.host(job.id).map_or(String::new(), |h| h.name()), why.to_owned());
        self.dialler.forget(job);
        self.events.report(job, Event::JobEnded { why: why.to_owned() });
        let hosts = job.hosts();
        for host in &hosts {
            lock(&host.partial_parts).clear();
            host.session.close();
        }
        // This host and these hosts may meet again in the same job, where this host then has another id.
        hosts.iter().for_each(|host| self.local.lose(host.id, job.own_id, host_end(&host.name(), why)));
        self.local.agent(|agent| {
            agent.host_ended(job.id, &host_end("", why));
            // Services of other hosts were reached through this job. Services of this host that wait for them would otherwise wait for
            // ever.
            for host in hosts.iter().filter(|h| h.id != job.id) {
                agent.host_left(host.id, job.own_id, &host_end(&host.name(), UNREACHED));
            }
            agent.job_ended(job.own_id, why);
        });
        self.local.procs_ended(vec![(job.id, host_end("", why))]);
        self.local.push(SystemEvent::JobEnded { here: job.own_id });
    }
}
