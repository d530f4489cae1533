//! The end of processes and meshes: calls to them fail with the exit reason.
//!
//! The tombstone of a process is inserted first; then the housekeeping thread is notified, and only then the calls fail. So a thread that
//! sees a failed call finds the end of the process. Reports of one end may arrive from several sources; only the first counts.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use net::Link;
use net::lock::lock;
use wire::exit::ProcEnd;
use wire::{MailboxId, ProcUid, Status};

use crate::node::Node;
use crate::node::incoming::NodeFrames;
use crate::node::peer::Peer;
use crate::node::pending_call::{Outcome, PendingCall};
use crate::node::proc_tombstones::Ended;
use crate::node::system::SystemEvent;

impl Node {
    /// The peer, if this process knows that the peer's process or its host has ended.
    pub fn ended_peer(&self, uid: ProcUid) -> Option<Arc<Peer>> {
        let is_lost = || self.routes.place(uid).is_some_and(|place| self.routes.lost(place).is_some());
        let peer = self.known_peer(uid).or_else(|| is_lost().then(|| self.peer_unlinked(uid).0))?;
        peer.ended().is_some().then_some(peer)
    }

    /// Takes the end of processes that have one cause. The housekeeping thread is notified of all of them first, then the calls to each of
    /// them fail.
    pub fn procs_ended(&self, ends: Vec<(ProcUid, ProcEnd)>) {
        let ends = self.expand(ends);
        let mut fresh = Vec::with_capacity(ends.len());
        for (uid, end) in ends {
            let peer = self.peer_unlinked(uid).0;
            // The report may overtake the last frames of the process, so its link is read first: answers that it sent before its end count.
            peer.link.drain();
            let ended = self.insert_tombstone(uid, end);
            let waiting = peer.set_ended(ended.clone());
            if ended.notify_once() {
                self.offers.ended(uid);
                fresh.push((peer, ended, waiting));
            }
        }
        self.forget_drained();
        if fresh.is_empty() {
            return;
        }
        let known: Vec<(ProcUid, ProcEnd)> = fresh.iter().map(|(p, ended, _)| (p.uid, ended.end.clone())).collect();
        if let Some(gateway) = self.gateway() {
            gateway.procs_ended(&known);
        }
        self.pipes_ended(|uid| known.iter().any(|(gone, _)| *gone == uid));
        self.system.push(SystemEvent::ProcsEnded { ends: known });
        let ended = fresh.iter().map(|(peer, ended, _)| (peer.uid, ended.clone())).collect();
        fresh.iter().for_each(|(peer, ..)| peer.link.close());
        self.fail_calls_to(&ended);
        for (peer, _, waiting) in fresh {
            waiting.into_iter().for_each(|m| self.give_back(m, &peer));
        }
    }

    pub(crate) fn new_peer(&self, uid: ProcUid) -> Arc<Peer> {
        let link = Link::new(uid, self.poller.clone(), Arc::new(NodeFrames(self.arc())));
        Peer::new(uid, link, self.offers.clone())
    }

    /// A peer that has ended, made again from its tombstone alone.
    pub(crate) fn peer_from_tombstone(&self, uid: ProcUid, ended: Arc<Ended>) -> Arc<Peer> {
        let peer = self.new_peer(uid);
        peer.set_ended(ended);
        peer.link.close();
        peer
    }

    /// Inserts the tombstone of a process. The first report of its end counts.
    pub(crate) fn insert_tombstone(&self, uid: ProcUid, end: ProcEnd) -> Arc<Ended> {
        let mut tombstones = self.proc_tombstones.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tombstones.get(uid) {
            return known;
        }
        let ended = Ended::new(end);
        tombstones.insert(uid, ended.clone(), self.poller.now());
        ended
    }

    /// The end of a process, if this process knows of it.
    pub fn end_of(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.proc_tombstones.read().unwrap_or_else(PoisonError::into_inner).get(uid)
    }

    /// The end of a process of which only the tombstone is left.
    pub fn end_of_old(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.proc_tombstones.read().unwrap_or_else(PoisonError::into_inner).get_old(uid)
    }

    /// Removes all state but the tombstone of ended processes that send nothing more.
    fn forget_drained(&self) {
        let drained = self.proc_tombstones.write().unwrap_or_else(PoisonError::into_inner).drained(self.poller.now());
        if drained.is_empty() {
            return;
        }
        self.routes.forget(&drained);
        let mut other_clients = self.other_clients.write().unwrap_or_else(PoisonError::into_inner);
        for uid in &drained {
            other_clients.remove(uid);
        }
        drop(other_clients);
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = drained.iter().filter_map(|uid| peers.remove(uid)).collect();
        drop(peers);
        // A link that is freed may take locks of its own.
        drop(gone);
    }

    /// Fails the pending calls to this peer, if it has ended.
    pub fn fail_calls(&self, peer: &Peer) {
        if let Some(ended) = peer.ended() {
            self.fail_calls_to(&HashMap::from([(peer.uid, ended.clone())]));
        }
    }

    /// Fails the pending calls to these processes, in one pass over the ranks of all calls.
    fn fail_calls_to(&self, ended: &HashMap<ProcUid, Arc<Ended>>) {
        let cells: Vec<Arc<PendingCall>> = lock(&self.calls).values().cloned().collect();
        for cell in cells {
            for rank in cell.waiting_for(|p, _| ended.contains_key(&p)) {
                let end = cell.targets.get(rank as usize).and_then(|(p, _)| ended.get(p));
                self.complete(cell.call_id, Outcome::new(rank, Status::ProcEnded, end.map_or(&b""[..], |e| &e.bytes)));
            }
        }
    }

    /// Fails one rank of one call because its process has ended.
    pub fn fail_rank(&self, cell: &PendingCall, rank: u32, peer: &Peer) {
        if let Some(ended) = peer.ended() {
            self.complete(cell.call_id, Outcome::new(rank, Status::ProcEnded, &ended.bytes));
        }
    }

    /// Takes the end of another owner's mesh: calls to it fail, and messages that wait for its credit are dropped.
    pub fn fail_mesh(&self, mesh: MailboxId, procs: &[ProcUid], reason: &[u8]) {
        self.orphaned.write().unwrap_or_else(PoisonError::into_inner).insert(mesh, reason.into());
        self.any_orphaned.store(true, Ordering::Release);
        let cells: Vec<Arc<PendingCall>> = lock(&self.calls).values().cloned().collect();
        cells.iter().for_each(|cell| self.fail_mesh_call(cell, mesh, reason));
        procs.iter().filter_map(|uid| self.known_peer(*uid)).for_each(|peer| peer.forget_window(mesh));
    }

    /// Fails the ranks of a call that belong to the mesh and whose processes are alive.
    pub(crate) fn fail_mesh_call(&self, cell: &PendingCall, mesh: MailboxId, reason: &[u8]) {
        // A rank whose process has ended fails with the end of the process as the reason.
        let lives = |p| self.known_peer(p).is_none_or(|peer| peer.ended().is_none());
        for rank in cell.waiting_for(|p, m| m == mesh && lives(p)) {
            self.complete(cell.call_id, Outcome::new(rank, Status::Failed, reason));
        }
    }
}
