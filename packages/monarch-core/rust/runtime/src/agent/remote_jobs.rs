//! Procs of jobs of other hosts' clients at an agent: the job of a process, the services that answer several jobs, and the end of procs
//! with their owner, host or job.

use std::collections::HashSet;

use net::lock::lock;
use wire::exit::ProcEnd;
use wire::{Control, ProcUid};

use crate::agent::{Agent, LINGER, Proc};
use crate::gateway::Job;
use crate::node::Node;

impl Agent {
    /// The id of this host in the job of the process `requester`.
    pub fn job_of(&self, requester: ProcUid) -> Option<ProcUid> {
        let node = self.node()?;
        if requester == node.uid {
            return Some(node.uid);
        }
        let local = {
            let state = lock(&self.state);
            state.procs.get(&requester).map(|p| p.here).or_else(|| state.external_processes.contains_key(&requester).then_some(node.uid))
        };
        local.or_else(|| node.peers.routes.place(requester).map(|p| p.here))
    }

    /// True if the process is in the job in which this host has the id `here`, or is a service that answers this job.
    pub(crate) fn is_in_job(&self, proc: ProcUid, here: ProcUid) -> bool {
        let state = lock(&self.state);
        let is_external = || self.node().is_some_and(|node| node.uid == here) && state.external_processes.contains_key(&proc);
        state.procs.get(&proc).map_or_else(is_external, |p| p.here == here || p.serves.contains(&here))
    }

    /// True if the proc is in the table, or may be among the spawn requests that are not handled yet.
    pub(crate) fn has_proc(&self, uid: ProcUid) -> bool {
        let state = lock(&self.state);
        state.procs.contains_key(&uid) || state.starting > 0
    }

    /// True if the process `asker` may send to a proc of this agent: both are in the same job, or one of them is a service that answers the
    /// other one's job.
    pub(crate) fn share_a_job(&self, proc: ProcUid, asker: ProcUid) -> bool {
        let Some(here) = self.job_of(asker) else { return false };
        let state = lock(&self.state);
        let (Some(proc), asker) = (state.procs.get(&proc), state.procs.get(&asker)) else { return true };
        proc.here == here || proc.serves.contains(&here) || asker.is_some_and(|a| a.serves.contains(&proc.here))
    }

    /// Lets a service of this agent answer the processes of the requesting process's job too. Returns the client's uid; none if one of the
    /// two processes has ended.
    pub fn add_served_job(&self, proc: ProcUid, requester: ProcUid) -> Option<ProcUid> {
        let here = self.job_of(requester)?;
        let job = self.client_of(here)?;
        lock(&self.state).procs.get_mut(&proc)?.serves.insert(here);
        Some(job)
    }

    /// The id of this host in the job that has the host `host` and the process `asker`: a service is in several jobs.
    pub fn own_id_beside(&self, host: ProcUid, asker: ProcUid) -> Option<ProcUid> {
        let has = |job: &Job| (job.id == host || job.host(host).is_some()) && self.is_in_job(asker, job.own_id);
        Some(self.gateway()?.jobs.all().into_iter().find(|job| has(job))?.own_id)
    }

    /// The uid of the client in whose job this host has the id `here`.
    pub fn client_of(&self, here: ProcUid) -> Option<ProcUid> {
        let node = self.node()?;
        if here == node.uid { Some(here) } else { Some(self.gateway()?.jobs.by_own_id(here)?.id) }
    }

    /// Sets a note of a service for inspections; an empty text removes it.
    pub fn note(&self, name: String, text: String) {
        let mut notes = lock(&self.inspections.notes);
        if text.is_empty() {
            notes.remove(&name);
        } else {
            notes.insert(name, text);
        }
    }

    /// The end of a process; none if it is not known to have ended.
    pub(crate) fn end_of(&self, proc: ProcUid) -> Option<ProcEnd> {
        Some(self.node()?.peers.end_of(proc)?.end.clone())
    }

    /// Notes that two processes, one of them here, have exchanged frames: each is notified when the other one ends.
    pub(crate) fn note_exchange(&self, a: ProcUid, b: ProcUid) {
        let mut state = lock(&self.state);
        if state.linked.get(&a).is_some_and(|known| known.contains(&b)) {
            return;
        }
        state.linked.entry(a).or_default().insert(b);
        state.linked.entry(b).or_default().insert(a);
    }

    /// Stops the procs whose owner on another host has ended.
    pub(crate) fn owners_ended(&self, ends: &[(ProcUid, ProcEnd)]) {
        let orphans: Vec<ProcUid> = {
            let state = lock(&self.state);
            let is_orphan = |p: &Proc| p.stopping.is_none() && ends.iter().any(|(uid, _)| *uid == p.owner);
            state.procs.iter().filter(|(_, p)| is_orphan(p)).map(|(uid, _)| *uid).collect()
        };
        orphans.into_iter().for_each(|uid| self.stop_proc(uid, LINGER, None, "its owner is gone"));
    }

    /// Handles the end of a host: notifies the procs that have exchanged frames with it, and stops the procs whose owner was on it.
    pub(crate) fn host_ended(&self, host: ProcUid, end: &ProcEnd) {
        let Some(node) = self.node() else { return };
        let there = |uid: &ProcUid| node.peers.is_on(*uid, host);
        let orphans: Vec<ProcUid> = {
            let state = lock(&self.state);
            state.procs.iter().filter(|(_, p)| p.stopping.is_none() && there(&p.owner)).map(|(uid, _)| *uid).collect()
        };
        self.notify_of_host(&node, host, end, None);
        orphans.into_iter().for_each(|uid| self.stop_proc(uid, LINGER, None, "its owner is gone"));
    }

    /// Handles the end of a job that included this host: notifies the services that have reached processes there through the job. The procs
    /// of the job itself are stopped.
    pub(crate) fn host_left(&self, host: ProcUid, here: ProcUid, end: &ProcEnd) {
        let Some(node) = self.node() else { return };
        self.notify_of_host(&node, host, end, Some(here));
    }

    fn notify_of_host(&self, node: &Node, host: ProcUid, end: &ProcEnd, except: Option<ProcUid>) {
        let notified = {
            let mut state = lock(&self.state);
            let gone: Vec<ProcUid> = state.linked.keys().filter(|uid| node.peers.is_on(**uid, host)).copied().collect();
            let mut notified = HashSet::new();
            for uid in gone {
                notified.extend(state.linked.remove(&uid).unwrap_or_default());
            }
            let here = |uid: &ProcUid| {
                state.procs.get(uid).map(|p| p.here).or_else(|| state.external_processes.contains_key(uid).then_some(node.uid))
            };
            notified.retain(|uid| here(uid).is_some_and(|here| Some(here) != except));
            notified
        };
        for proc in notified {
            node.peers.peer_unlinked(proc).0.send_control(Control::ProcsEnded { ends: vec![(host, end.clone())] });
        }
    }

    /// Stops all procs of a job that has ended here.
    pub(crate) fn job_ended(&self, here: ProcUid, why: &str) {
        let left: Vec<ProcUid> = {
            let mut state = lock(&self.state);
            state.procs.values_mut().for_each(|p| {
                p.serves.remove(&here);
            });
            state.procs.iter().filter(|(_, p)| p.here == here && p.stopping.is_none()).map(|(uid, _)| *uid).collect()
        };
        left.into_iter().for_each(|uid| self.stop_proc(uid, LINGER, None, why));
    }

    /// True if procs of a job still run.
    pub fn has_procs(&self, here: ProcUid) -> bool {
        lock(&self.state).procs.values().any(|p| p.here == here)
    }
}
