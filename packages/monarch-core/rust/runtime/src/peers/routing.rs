//! Changes of the routes of a process: places of processes, hosts that join again, and processes that are reached through other clients.

use std::sync::Arc;

use net::lock::lock;
use wire::ProcUid;
use wire::exit::{ExitReason, ProcEnd};

use super::Peers;
use super::carrier::HostCarrier;
use super::ended::{Ended, client_end, host_end};
use super::external_process::CLIENT_ENDED;
use super::routes::Place;
use crate::sync::{read, write};

impl Peers {
    /// The host of a process, or 0 if this process does not know it.
    pub fn host_of(&self, uid: ProcUid) -> ProcUid {
        self.routes.place(uid).map(|p| p.host).or_else(|| self.client_of(uid)).unwrap_or(ProcUid(0))
    }

    /// Sets the place of a process. Its host is reached through the agent of this process, or through another client. A process that was
    /// lost with its host can be reached again when the host has joined again, with another uid.
    pub fn route(&self, uid: ProcUid, host: ProcUid, here: ProcUid) {
        let place = Place { host, here };
        let known = self.routes.place(uid);
        if known == Some(place) || uid == self.uid || host == here {
            return;
        }
        match known {
            Some(known) if !self.may_move(known, place) => return,
            None if self.end_of(uid).is_none() => {}
            _ if !self.is_back(uid, place) => return,
            _ => {}
        }
        if self.routes.note_host(place) {
            // The processes of that host have lost the state of frames from this one, and expect new numbers.
            lock(&self.source).order.restart(place.host);
        }
        self.routes.set(uid, place);
        if let Some(peer) = self.known_peer(uid)
            && !peer.link.is_attached()
        {
            peer.link.forward_by(self.carrier(place));
        }
    }

    /// True if a process that is known at one place may now be at this other one.
    fn may_move(&self, known: Place, place: Place) -> bool {
        // If this host has had two uids for the same host, the later one counts.
        self.routes.lost(place).is_none() && (known.host == place.host || self.routes.lost(known).is_some())
    }

    /// Removes the tombstone of a process that was lost with its host, and its link; false if the process itself has ended.
    fn is_back(&self, uid: ProcUid, place: Place) -> bool {
        if self.routes.lost(place).is_some() || !write(&self.ended).remove(uid) {
            return false;
        }
        let before = write(&self.peers).remove(&uid);
        if let Some(peer) = before {
            // Existing handles refer to the old peer.
            peer.set_ended(Ended::new(host_end("", "the job through which it was reached has ended")));
            peer.link.close();
        }
        true
    }

    /// True if the uid is that of the host, or of a known process of the host.
    pub(crate) fn is_on(&self, uid: ProcUid, host: ProcUid) -> bool {
        uid == host || self.routes.place(uid).is_some_and(|place| place.host == host)
    }

    /// The carrier of frames to that place.
    pub(super) fn carrier(&self, Place { host, here }: Place) -> Arc<HostCarrier> {
        let by_other_client = self.is_other_client(here);
        let is_agent = self.roles.agent().is_some();
        // An agent has another uid in each job; a client and a proc have one uid. An external process keeps its own in the jobs of others.
        let from = if is_agent && !by_other_client { here } else { self.uid };
        let agent = if by_other_client { Some(here) } else { (!is_agent).then_some(self.agent_uid) };
        Arc::new(HostCarrier { peers: self.me.clone(), host, here, from, agent })
    }

    /// The number of bytes that wait in this process for the host of a process.
    pub(crate) fn waiting_for(&self, uid: ProcUid) -> usize {
        self.routes.place(uid).and_then(|place| Some(self.roles.gateway()?.waiting_for(place.host, place.here))).unwrap_or(0)
    }

    /// Adds the processes that end with others: a host's end is the end of all its known processes, a client's that of its procs and hosts.
    pub(crate) fn expand_ends(&self, ends: Vec<(ProcUid, ProcEnd)>) -> Vec<(ProcUid, ProcEnd)> {
        let mut out = Vec::with_capacity(ends.len());
        for (uid, end) in ends.into_iter().flat_map(|(uid, end)| self.expand_client(uid, end)) {
            if let Some(here) = self.routes.here(uid) {
                self.routes.lose(Place { host: uid, here }, end.clone());
                out.extend(self.routes.on(uid).into_iter().filter(|p| *p != uid).map(|p| (p, end.clone())));
            }
            out.push((uid, end));
        }
        out
    }

    /// Adds the hosts and procs that are reached through a client that has ended.
    fn expand_client(&self, uid: ProcUid, end: ProcEnd) -> Vec<(ProcUid, ProcEnd)> {
        let mut all = vec![];
        if self.is_other_client(uid) {
            let why = if let ExitReason::ClientLost(why) = &end.reason { why } else { CLIENT_ENDED };
            let lost = client_end(0, why);
            let procs: Vec<ProcUid> =
                read(&self.other_clients).iter().filter(|(proc, c)| **c == uid && **proc != uid).map(|(p, _)| *p).collect();
            all.extend(self.routes.beside(uid).into_iter().chain(procs).map(|gone| (gone, lost.clone())));
        }
        all.push((uid, end));
        all
    }

    // ---- other clients

    /// The client of another job through which a process is reached.
    pub(super) fn client_of(&self, uid: ProcUid) -> Option<ProcUid> {
        read(&self.other_clients).get(&uid).copied()
    }

    /// True if this process is an external process of that client.
    pub(crate) fn is_other_client(&self, uid: ProcUid) -> bool {
        self.client_of(uid) == Some(uid)
    }

    /// Sets the client through which processes are reached.
    pub(crate) fn reach_through(&self, client: ProcUid, procs: impl IntoIterator<Item = ProcUid>) {
        write(&self.other_clients).extend(procs.into_iter().map(|proc| (proc, client)));
    }
}
