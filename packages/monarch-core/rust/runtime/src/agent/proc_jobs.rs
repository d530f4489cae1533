//! The jobs of the processes of this host: a proc belongs to the job of a client, here or on another host, and a service may answer
//! several jobs.
//!
//! What it needs: the table of procs, the routes of this process, and the gateway, which the agent gets after its construction.
//!
//! What always holds: this host has another id in each job, and a process of this host belongs to one job.

use std::sync::{Arc, OnceLock};

use wire::ProcUid;

use crate::agent::procs::Procs;
use crate::gateway::{Gateway, Job};
use crate::local::Local;

/// The name of this process in inspections and recordings if it is the agent of a host.
pub(crate) const AGENT: &str = "agent";

/// The jobs of the processes of one host.
pub(crate) struct ProcJobs {
    pub local: Arc<Local>,
    pub procs: Arc<Procs>,
    pub gateway: OnceLock<Arc<Gateway>>,
}

impl ProcJobs {
    pub fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.get()
    }

    /// The name of this process in inspections and recordings. A process that listens is the agent of a host.
    pub fn own_name(&self) -> &'static str {
        if self.gateway().is_some_and(|g| g.is_agent()) { AGENT } else { "client" }
    }

    /// The id of this host in the job of the process `requester`.
    pub fn job_of(&self, requester: ProcUid) -> Option<ProcUid> {
        let node = self.local.node()?;
        if requester == node.uid {
            return Some(node.uid);
        }
        let local = {
            let state = self.procs.lock();
            state.procs.get(&requester).map(|p| p.here).or_else(|| state.external_processes.contains_key(&requester).then_some(node.uid))
        };
        local.or_else(|| node.peers.routes.place(requester).map(|p| p.here))
    }

    /// True if the process is in the job in which this host has the id `here`, or is a service that answers this job.
    pub fn is_in_job(&self, proc: ProcUid, here: ProcUid) -> bool {
        let state = self.procs.lock();
        let is_external = || self.local.uid == here && state.external_processes.contains_key(&proc);
        state.procs.get(&proc).map_or_else(is_external, |p| p.here == here || p.serves.contains(&here))
    }

    /// True if the proc is in the table, or may be among the spawn requests that are not handled yet.
    pub fn has_proc(&self, uid: ProcUid) -> bool {
        let state = self.procs.lock();
        state.procs.contains_key(&uid) || state.starting > 0
    }

    /// True if the process `asker` may send to a proc of this agent: both are in the same job, or one of them is a service that answers the
    /// other one's job.
    pub fn share_a_job(&self, proc: ProcUid, asker: ProcUid) -> bool {
        let Some(here) = self.job_of(asker) else { return false };
        let state = self.procs.lock();
        let (Some(proc), asker) = (state.procs.get(&proc), state.procs.get(&asker)) else { return true };
        proc.here == here || proc.serves.contains(&here) || asker.is_some_and(|a| a.serves.contains(&proc.here))
    }

    /// Lets a service of this agent answer the processes of the requesting process's job too. Returns the client's uid; none if one of the
    /// two processes has ended.
    pub fn add_served_job(&self, proc: ProcUid, requester: ProcUid) -> Option<ProcUid> {
        let here = self.job_of(requester)?;
        let job = self.client_of(here)?;
        self.procs.lock().procs.get_mut(&proc)?.serves.insert(here);
        Some(job)
    }

    /// The id of this host in the job that has the host `host` and the process `asker`: a service is in several jobs.
    pub fn own_id_beside(&self, host: ProcUid, asker: ProcUid) -> Option<ProcUid> {
        let has = |job: &Job| (job.id == host || job.host(host).is_some()) && self.is_in_job(asker, job.own_id);
        Some(self.gateway()?.jobs.all().into_iter().find(|job| has(job))?.own_id)
    }

    /// The uid of the client in whose job this host has the id `here`.
    pub fn client_of(&self, here: ProcUid) -> Option<ProcUid> {
        if here == self.local.uid { Some(here) } else { Some(self.gateway()?.jobs.by_own_id(here)?.id) }
    }
}
