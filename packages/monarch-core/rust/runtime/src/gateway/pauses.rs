//! Pauses of the sessions with other hosts, for tests: a cut between two hosts.
//!
//! What it needs: the jobs, the connections, and the streams for bulk data.
//!
//! What always holds: a paused session opens no connection, and goes on where it was when its pause ends.

use std::collections::HashSet;
use std::sync::Arc;

use wire::ProcUid;

use super::connections::Connections;
use super::jobs::Jobs;
use super::join_tree::JoinTree;
use super::route_gateway::RouteGateway;
use crate::local::Local;

/// Pauses and resumes sessions.
pub(super) struct Pauses {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub route_gateway: Arc<RouteGateway>,
    pub connections: Arc<Connections>,
}

impl Pauses {
    /// Pauses the sessions with `hosts` and resumes all other sessions. A gateway among `hosts` pauses the hosts behind it too. Between
    /// this host and the hosts in `beside`, the other side pauses the session; this side cuts only the streams for bulk data. Returns the
    /// procs of this host, which the caller has to notify.
    pub fn cut_off(&self, hosts: &[ProcUid], beside: &[ProcUid]) -> Vec<ProcUid> {
        let cut: HashSet<ProcUid> = hosts.iter().copied().collect();
        let jobs = self.jobs.all();
        let gateway = self.route_gateway.get().filter(|gateway| {
            let agent = gateway.host.info().agent;
            jobs.iter().flat_map(|job| job.hosts()).any(|h| cut.contains(&h.id) && h.info().agent == agent)
        });
        for (job, host) in jobs.iter().flat_map(|j| j.hosts().into_iter().map(move |h| (j, h))) {
            let through_gateway = gateway.as_ref().is_some_and(|gateway| job.is_clients() || gateway.job.id == job.id);
            match (through_gateway || cut.contains(&host.id), host.session.is_paused()) {
                (true, false) => {
                    host.session.begin_pause();
                    JoinTree::leave(job, &host);
                }
                (false, true) => {
                    host.session.end_pause();
                    self.connections.open_soon(job, &host);
                }
                _ => {}
            }
        }
        let Some(node) = self.local.node() else { return vec![] };
        node.streams.cut_off(&cut.into_iter().chain(beside.iter().copied()).collect());
        node.roles.agent().map_or(vec![], |agent| agent.started())
    }
}
