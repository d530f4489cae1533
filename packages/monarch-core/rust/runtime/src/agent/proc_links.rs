//! The links of procs, in their agent: each pair of procs that exchange frames gets a socket pair, and the end of a link shows the end of
//! its proc.

use std::time::Duration;

use net::lock::lock;
use net::sys;
use wire::{Control, Frame, ProcUid};

use crate::agent::process_table::exit_status;
use crate::agent::zygote::from_status;
use crate::agent::{Agent, LINGER};

/// The time that a running zygote has to report an exit. After it, the agent reads the status from the kernel.
const UNREPORTED: Duration = Duration::from_millis(250);
/// The pause between two attempts to make a socket pair when the process has no free descriptor.
const SHORTAGE: Duration = Duration::from_millis(10);

impl Agent {
    /// Handles a proc's request for a link to `target`: makes the link, waits for the start of `target`, or answers with its end.
    pub(crate) fn connect(&self, from: ProcUid, target: ProcUid) {
        let Some(node) = self.node() else { return };
        let mut state = lock(&self.state);
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
    fn link(&self, from: ProcUid, target: ProcUid) {
        let Some(node) = self.node() else { return };
        let Ok((a, b)) = sys::socketpair() else {
            let me = self.weak();
            let again = move || {
                if let Some(a) = me.upgrade().filter(|a| a.is_linked(from, target)) {
                    a.link(from, target);
                }
            };
            return node.poller.later(SHORTAGE, Box::new(again));
        };
        for (to, peer, fd) in [(from, target, a), (target, from, b)] {
            let frame = Frame::Control(Control::Connected { peer }).encode();
            let _ = node.peers.peer_unlinked(to).0.link.send(&[&frame], vec![fd]);
        }
    }

    /// True until one of the two processes has ended.
    fn is_linked(&self, a: ProcUid, b: ProcUid) -> bool {
        lock(&self.state).linked.get(&a).is_some_and(|known| known.contains(&b))
    }

    /// Handles the end of a proc's link. Usually the zygote reports the exit status of the process at once.
    pub fn link_down(&self, uid: ProcUid) {
        self.external_ended(uid);
        let Some(node) = self.node() else { return };
        if lock(&self.state).procs.contains_key(&uid) {
            self.look_for_exit(uid);
            let me = self.weak();
            node.poller.later(
                LINGER,
                Box::new(move || {
                    if let Some(a) = me.upgrade() {
                        a.kill(uid);
                    }
                }),
            );
        }
    }

    /// Reads the exit status of a process from the kernel if the zygote does not report it, for example because it is stopped by a signal.
    fn look_for_exit(&self, uid: ProcUid) {
        let Some(node) = self.node().filter(|_| !self.is_simulated()) else { return };
        let me = self.weak();
        let look = move || {
            let Some(a) = me.upgrade() else { return };
            let Some(pid) = lock(&a.state).procs.get(&uid).map(|p| p.pid) else { return };
            match exit_status(pid) {
                Some(status) => a.exited(vec![(uid, from_status(status))]),
                None => a.look_for_exit(uid),
            }
        };
        node.poller.later(UNREPORTED, Box::new(look));
    }
}
