//! The links of procs, in their agent: each pair of procs that exchange frames gets a socket pair, and the end of a link shows the end of
//! its proc.
//!
//! What it needs: the table of procs, and the ends of procs, to which the end of a link leads.
//!
//! What always holds: two procs have one link, also if both have requested it.

use std::sync::Arc;
use std::time::Duration;

use net::sys;
use wire::{Control, Frame, ProcUid};

use crate::agent::kernel_state::exit_status;
use crate::agent::proc_ends::{LINGER, ProcEnds};
use crate::agent::procs::Procs;
use crate::agent::starter::Starter;
use crate::agent::zygote::from_status;
use crate::local::Local;
use crate::tasks;

/// The time that a running zygote has to report an exit. After it, the agent reads the status from the kernel.
const UNREPORTED: Duration = Duration::from_millis(250);
/// The pause between two attempts to make a socket pair when the process has no free descriptor.
const SHORTAGE: Duration = Duration::from_millis(10);

/// Links procs.
pub(crate) struct ProcLinks {
    pub local: Arc<Local>,
    pub procs: Arc<Procs>,
    pub starter: Arc<Starter>,
    pub ends: Arc<ProcEnds>,
}

impl ProcLinks {
    /// Handles a proc's request for a link to `target`: makes the link, waits for the start of `target`, or answers with its end.
    pub fn connect(self: &Arc<Self>, from: ProcUid, target: ProcUid) {
        let Some(node) = self.local.node() else { return };
        let mut state = self.procs.lock();
        if let Some(ended) = node.peers.end_of(target) {
            drop(state);
            node.peers.peer_unlinked(from).0.send_control(Control::ProcsEnded { ends: vec![(target, ended.end.clone())] });
            return;
        }
        if !state.procs.contains_key(&target) && !state.external_processes.contains_key(&target) {
            state.link_requests.entry(target).or_default().push(from);
            return;
        }
        if !state.linked.entry(from).or_default().insert(target) {
            return;
        }
        state.linked.entry(target).or_default().insert(from);
        drop(state);
        self.link(from, target);
    }

    /// Sends each of two procs an end of a socket pair. Frames that the procs have sent wait for it, also while no descriptor is free.
    fn link(self: &Arc<Self>, from: ProcUid, target: ProcUid) {
        let Some(node) = self.local.node() else { return };
        let Ok((a, b)) = sys::socketpair() else {
            return tasks::later(&self.local.poller, SHORTAGE, self, move |me| {
                if me.procs.is_linked(from, target) {
                    me.link(from, target);
                }
            });
        };
        for (to, peer, fd) in [(from, target, a), (target, from, b)] {
            let frame = Frame::Control(Control::Connected { peer }).encode();
            let _ = node.peers.peer_unlinked(to).0.link.send(&[&frame], vec![fd]);
        }
    }

    /// Handles the end of a proc's link. Usually the zygote reports the exit status of the process at once.
    pub fn down(self: &Arc<Self>, uid: ProcUid) {
        self.ends.external_ended(uid);
        if self.procs.lock().procs.contains_key(&uid) {
            self.look_for_exit(uid);
            tasks::later(&self.local.poller, LINGER, &self.starter, move |starter| starter.kill(uid));
        }
    }

    /// Reads the exit status of a process from the kernel if the zygote does not report it, for example because it is stopped by a signal.
    fn look_for_exit(self: &Arc<Self>, uid: ProcUid) {
        if self.starter.is_simulated() {
            return;
        }
        tasks::later(&self.local.poller, UNREPORTED, self, move |me| {
            let Some(pid) = me.procs.with(uid, |p| p.pid) else { return };
            match exit_status(pid) {
                Some(status) => me.ends.exited(vec![(uid, from_status(status))]),
                None => me.look_for_exit(uid),
            }
        });
    }
}
