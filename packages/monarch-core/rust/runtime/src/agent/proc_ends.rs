//! The ends of procs: how they are stopped and killed, and who is notified.
//!
//! What it needs: the table of procs, the processes behind it (`starter`), and for the report of an end the last lines, the last events and
//! the cgroups of a proc.
//!
//! What always holds:
//! - The end of a proc is reported once, after its last lines and frames.
//! - The procs of an owner end after it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use net::control_socket;
use wire::control::DrainLimits;
use wire::exit::{ExitReason, ProcEnd};
use wire::{Control, ProcUid};

use crate::agent::cgroup::Cgroups;
use crate::agent::console::Console;
use crate::agent::options::AgentOptions;
use crate::agent::procs::{Proc, Procs};
use crate::agent::recordings::{Recordings, note_end};
use crate::agent::starter::{ProcReports, Starter};
use crate::agent::zygote::{Report, from_status};
use crate::local::Local;
use crate::node::Node;
use crate::peers::ended::client_end;
use crate::peers::external_process::CLIENT_ENDED;
use crate::tasks;

/// A proc whose link has ended while its process still runs is killed after this time: it has closed its descriptors.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
/// The reason of the stop of a proc whose owner has ended.
const OWNER_GONE: &str = "its owner is gone";

/// Ends procs.
pub(crate) struct ProcEnds {
    pub local: Arc<Local>,
    pub options: Arc<AgentOptions>,
    pub procs: Arc<Procs>,
    pub starter: Arc<Starter>,
    pub console: Arc<Console>,
    pub cgroups: Arc<Cgroups>,
    pub recordings: Arc<Recordings>,
}

impl ProcEnds {
    /// Asks a proc to stop, and kills it after `grace`. Without `drain`, the limits for its messages are its own.
    pub fn stop_proc(self: &Arc<Self>, uid: ProcUid, grace: Duration, drain: Option<DrainLimits>, reason: &str) {
        let Some(node) = self.local.node() else { return };
        {
            let mut state = self.procs.lock();
            let Some(p) = state.procs.get_mut(&uid) else { return };
            if p.stopping.is_none() {
                p.stopping = Some(reason.to_owned());
            }
        }
        let control = Control::StopProc { uid, grace_ms: grace.as_millis() as u64, drain, reason: reason.to_owned() };
        node.peers.peer_unlinked(uid).0.send_control(control);
        self.kill_later(uid, grace);
    }

    fn kill_later(self: &Arc<Self>, uid: ProcUid, grace: Duration) {
        let at = self.local.poller.now() + grace;
        self.procs.with(uid, |p| p.kill_at = Some(at));
        self.check_kill_later(uid, grace);
    }

    /// Postpones the kill of the proc, for this stop and for later ones: the proc runs a clean-up that may take `grace`.
    pub fn extend_cleanup(self: &Arc<Self>, uid: ProcUid, grace: Duration) {
        let until = self.local.poller.now() + grace;
        self.procs.with(uid, |p| p.cleanup_until = Some(until));
        self.check_kill_later(uid, grace);
    }

    fn check_kill_later(self: &Arc<Self>, uid: ProcUid, delay: Duration) {
        tasks::later(&self.local.poller, delay, self, move |me| me.kill_if_due(uid));
    }

    fn kill_if_due(self: &Arc<Self>, uid: ProcUid) {
        let now = self.local.poller.now();
        if self.procs.with(uid, |p| p.kill_is_due(now)).unwrap_or_default() {
            self.starter.kill(uid);
        }
    }

    /// Handles the ends of processes that have the same cause.
    pub fn exited(self: &Arc<Self>, ends: Vec<(ProcUid, ExitReason)>) {
        // Frames that the processes have sent before are handled first.
        let node = self.local.node();
        ends.iter().filter_map(|(uid, _)| node.as_ref()?.peers.known_peer(*uid)).for_each(|p| p.link.drain());
        ends.iter().for_each(|(uid, _)| control_socket::forget(&control_socket::of_buffers(uid.0)));
        let gone: Vec<(ProcUid, ExitReason, Proc)> = {
            let mut state = self.procs.lock();
            let gone: Vec<_> = ends.into_iter().filter_map(|(uid, why)| Some((uid, why, state.procs.remove(&uid)?))).collect();
            state.ending += gone.len();
            gone
        };
        let count = gone.len();
        let mut ends = Vec::with_capacity(count);
        for (uid, reason, p) in gone {
            p.streams.iter().for_each(|s| self.console.output.drain(s));
            let (reason, cleaning) = match p.start_failure {
                Some(why) => (ExitReason::NotStarted(why), vec![]),
                None => p.cleanups.outcome(p.stopping, || self.cgroups.explained(reason, &p.cgroups)),
            };
            let (host, output) = (self.options.host.clone(), p.tail.lines());
            let recent = self.recordings.ended(self.recordings.of(uid, p.pid, p.name, p.here), &reason);
            let end = ProcEnd { pid: p.pid, started: p.started, host, reason, cleaning, output, recent };
            note_end(uid, &end);
            ends.push((uid, end, p.owner));
        }
        self.ended(ends);
        self.procs.lock().ending -= count;
        self.procs.changed();
    }

    /// Notifies all processes that refer to these procs, and stops the procs that they owned.
    pub fn ended(self: &Arc<Self>, ends: Vec<(ProcUid, ProcEnd, ProcUid)>) {
        let Some(node) = self.local.node() else { return };
        let mut reports: HashMap<ProcUid, Vec<(ProcUid, ProcEnd)>> = HashMap::new();
        let mut orphans: Vec<ProcUid> = vec![];
        {
            let mut state = self.procs.lock();
            for (uid, end, owner) in &ends {
                state.external_processes.remove(uid);
                let mut notified = state.linked.remove(uid).unwrap_or_default();
                notified.extend(state.link_requests.remove(uid).unwrap_or_default());
                notified.extend(state.watched.remove(uid).unwrap_or_default());
                notified.insert(*owner);
                notified.remove(&node.uid);
                for other in notified {
                    if let Some(s) = state.linked.get_mut(&other) {
                        s.remove(uid);
                    }
                    reports.entry(other).or_default().push((*uid, end.clone()));
                }
                // A proc that is being stopped has a deadline already.
                orphans.extend(state.not_stopping(|p| p.owner == *uid));
                // The tombstone is inserted before another thread can request a link to the process.
                node.peers.insert_tombstone(*uid, end.clone());
            }
        }
        for (other, ends) in reports {
            node.peers.peer_unlinked(other).0.send_control(Control::ProcsEnded { ends });
        }
        node.ends.procs_ended(ends.into_iter().map(|(uid, end, _)| (uid, end)).collect());
        for o in orphans {
            self.stop_proc(o, LINGER, None, OWNER_GONE);
        }
        self.procs.changed();
    }

    /// Stops the procs whose owner on another host has ended.
    pub fn owners_ended(self: &Arc<Self>, ends: &[(ProcUid, ProcEnd)]) {
        self.stop_orphans(|p| ends.iter().any(|(uid, _)| *uid == p.owner));
    }

    fn stop_orphans(self: &Arc<Self>, is_orphan: impl Fn(&Proc) -> bool) {
        let orphans = self.procs.lock().not_stopping(is_orphan);
        orphans.into_iter().for_each(|uid| self.stop_proc(uid, LINGER, None, OWNER_GONE));
    }

    /// Handles the end of a host: notifies the procs that have exchanged frames with it, and stops the procs whose owner was on it.
    pub fn host_ended(self: &Arc<Self>, host: ProcUid, end: &ProcEnd) {
        let Some(node) = self.local.node() else { return };
        let orphans = self.procs.lock().not_stopping(|p| node.peers.is_on(p.owner, host));
        self.notify_of_host(&node, host, end, None);
        orphans.into_iter().for_each(|uid| self.stop_proc(uid, LINGER, None, OWNER_GONE));
    }

    /// Handles the end of a job that included this host: notifies the services that have reached processes there through the job. The procs
    /// of the job itself are stopped.
    pub fn host_left(&self, host: ProcUid, here: ProcUid, end: &ProcEnd) {
        if let Some(node) = self.local.node() {
            self.notify_of_host(&node, host, end, Some(here));
        }
    }

    fn notify_of_host(&self, node: &Node, host: ProcUid, end: &ProcEnd, except: Option<ProcUid>) {
        let notified = {
            let mut state = self.procs.lock();
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
    pub fn job_ended(self: &Arc<Self>, here: ProcUid, why: &str) {
        let left: Vec<ProcUid> = {
            let mut state = self.procs.lock();
            state.procs.values_mut().for_each(|p| {
                p.serves.remove(&here);
            });
            state.procs.iter().filter(|(_, p)| p.here == here && p.stopping.is_none()).map(|(uid, _)| *uid).collect()
        };
        left.into_iter().for_each(|uid| self.stop_proc(uid, LINGER, None, why));
        self.starter.job_ended(here);
    }

    /// Takes the end of an external process's link, which is the end of the process: what it has spawned ends too.
    pub fn external_ended(self: &Arc<Self>, uid: ProcUid) {
        let Some(node) = self.local.node() else { return };
        let Some(pid) = self.procs.lock().external_processes.get(&uid).copied() else { return };
        self.ended(vec![(uid, client_end(pid, CLIENT_ENDED), node.uid)]);
    }

    /// Stops the procs that external processes have spawned.
    pub fn stop_external_procs(self: &Arc<Self>, grace: Duration, drain: DrainLimits, reason: &str) {
        let theirs: Vec<ProcUid> = {
            let state = self.procs.lock();
            state.procs.iter().filter(|(_, p)| state.external_processes.contains_key(&p.owner)).map(|(uid, _)| *uid).collect()
        };
        theirs.into_iter().for_each(|uid| self.stop_proc(uid, grace, Some(drain), reason));
    }
}

impl ProcReports for ProcEnds {
    fn report(self: Arc<Self>, r: Report) {
        match r {
            Report::Started { uid, pid } => {
                let cgroup = self.cgroups.watch(pid);
                self.procs.with(uid, |p| {
                    p.pid = pid;
                    p.is_in(cgroup);
                });
            }
            Report::Exited { uid, status } => self.exited(vec![(uid, from_status(status))]),
            Report::Failed { uid, why } => self.exited(vec![(uid, ExitReason::NotStarted(why))]),
            Report::Preloaded { here, pid, description } => {
                let mut state = self.procs.lock();
                match description {
                    Some(description) => state.preloaded.insert(pid, (here, description)),
                    None => state.preloaded.remove(&pid),
                };
            }
            Report::Gone => {
                let (zygote, procs) = {
                    let mut state = self.procs.lock();
                    state.preloaded.clear();
                    (state.zygote.take(), state.procs.keys().copied().collect::<Vec<_>>())
                };
                // The link of the zygote may end a moment before the process can be reaped.
                if let Some(z) = zygote {
                    z.end();
                }
                // The kernel has sent SIGKILL to its children when it ended.
                let killed = ExitReason::Signal { signal: libc::SIGKILL, core_dumped: false };
                self.exited(procs.into_iter().map(|uid| (uid, killed.clone())).collect());
            }
        }
    }
}
