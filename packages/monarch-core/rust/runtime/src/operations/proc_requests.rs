//! Requests to agents about procs, and the calls that procs answer.

use std::sync::Arc;

use wire::control::ProcPlan;
use wire::{Control, MailboxId, ProcUid};

use crate::calls::pending_call::{Mode, PendingCall};
use crate::node::Node;

/// Starts a call that these processes answer by its call id, without a message. The end of a process is a failure of `mesh`.
pub fn start_call(node: &Node, mode: Mode, size: usize, procs: &[ProcUid], mesh: MailboxId) -> Arc<PendingCall> {
    let call = node.calls.start(mode, size, procs.iter().map(|proc| (*proc, mesh)).collect());
    for (rank, proc) in (0..).zip(procs) {
        if let Some(peer) = node.peers.ended_peer(*proc) {
            node.calls.fail_rank(&call, rank, &peer);
        }
    }
    call
}

/// Requests procs from the agent of a host. Calls to procs of a host that is lost fail at once.
pub fn spawn(node: &Node, host: ProcUid, procs: Vec<(ProcUid, ProcPlan)>) {
    if node.peers.routes.lost_host(host).is_some() || node.peers.ended_peer(host).is_some() {
        // No frame is sent to a lost host, so no answer would arrive.
        procs.iter().for_each(|(uid, _)| node.calls.fail_peer(&node.peers.peer_unlinked(*uid).0));
        return;
    }
    node.peers.to_agent_of(host, Control::SpawnProcs { owner: node.uid, procs });
}

/// Requests a report of a process's end from the agent of its host.
pub fn watch(node: &Node, target: ProcUid, host: ProcUid) {
    if let Some(place) = node.peers.routes.place(target) {
        // This process may not have exchanged frames with that host yet.
        node.peers.route(place.host, place.host, place.here);
    }
    node.peers.to_agent_of(host, Control::Watch { target });
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::peers::ended::host_end;

    #[test]
    fn call_of_an_ended_process_fails_at_once() {
        let node = Node::start(ProcUid(1), ProcUid(1)).unwrap();
        node.ends.procs_ended(vec![(ProcUid(7), host_end("", "a test"))]);
        let call = start_call(&node, Mode::Gather, 2, &[ProcUid(7), ProcUid(8)], MailboxId(3));
        assert_eq!(call.waiting_for(|_, _| true), [1]);
        node.poller.stop();
    }
}
