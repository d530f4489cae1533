//! The links of procs, in their agent: two procs of a host get a socket to each other, and a link that ends is the end of its proc.

use std::time::Duration;

use net::lock::lock;
use net::sys;
use wire::{Control, Frame, ProcUid};

use crate::agent::census::exit_status;
use crate::agent::zygote::from_status;
use crate::agent::{Agent, LINGER};

/// How long a zygote that runs may take to report an exit.
const UNREPORTED: Duration = Duration::from_millis(250);
/// Between two attempts to get the descriptors of a link.
const SHORTAGE: Duration = Duration::from_millis(10);

impl Agent {
    pub(crate) fn connect(&self, from: ProcUid, target: ProcUid) {
        let Some(node) = self.node() else { return };
        let mut state = lock(&self.state);
        if let Some(ended) = node.end_of(target) {
            drop(state);
            node.peer_unlinked(from).0.send_control(Control::ProcsEnded { ends: vec![(target, ended.end.clone())] });
            return;
        }
        if !state.procs.contains_key(&target) && !state.guests.contains_key(&target) {
            state.awaited.entry(target).or_default().push(from);
            return;
        }
        if !state.linked.entry(from).or_default().insert(target) {
            return;
        }
        state.linked.entry(target).or_default().insert(from);
        drop(state);
        self.link(from, target);
    }

    /// Gives two procs a socket to each other. What they have sent waits for it, also for the descriptors that it needs.
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
            let _ = node.peer_unlinked(to).0.link.send(&[&frame], vec![fd]);
        }
    }

    /// Until one of both has ended.
    fn is_linked(&self, a: ProcUid, b: ProcUid) -> bool {
        lock(&self.state).linked.get(&a).is_some_and(|known| known.contains(&b))
    }

    /// The link of a proc ended; normally the zygote tells us at once how its process ended.
    pub fn link_down(&self, uid: ProcUid) {
        self.guest_ended(uid);
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

    /// A zygote that is stopped reports no exit; until it does, the kernel has the status.
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
