//! The routes of a node: the host of each remote process.
//!
//! A place is the host of a process together with the uid that this host has in the job. Frames to a process with a place go through the
//! agent of this process, or through the client of another job. A lost place is never used again; a host that joins again has another
//! place.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use net::sys::Descriptors;
use net::{Link, RecvPart};
use wire::exit::{ExitReason, ProcEnd};
use wire::frame::FRAME_FRAGMENT;
use wire::{Frame, ProcUid, Route, part_fragment};

use crate::gateway::{HostCarrier, host_end};
use crate::node::Node;
use crate::node::external_process::{CLIENT_ENDED, client_end};
use crate::node::peer::Peer;
use crate::node::proc_tombstones::Ended;

/// The place of a process: the uid of its host, and the uid of this process's host in the job that they share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    pub host: ProcUid,
    pub here: ProcUid,
}

/// The places of processes on other hosts and of those hosts themselves, and the hosts that are lost.
#[derive(Default)]
pub struct Routes {
    places: RwLock<HashMap<ProcUid, Place>>,
    /// The hosts of those places, with the latest uid of this host in their job. A proc identifies its peers' hosts only by this.
    hosts: RwLock<HashMap<ProcUid, ProcUid>>,
    /// The places that are lost. A lost host may join again; then it or this host has another uid.
    lost: RwLock<HashMap<Place, ProcEnd>>,
}

impl Routes {
    /// The place of a process, if it is on another host.
    pub fn place(&self, uid: ProcUid) -> Option<Place> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).get(&uid).copied()
    }

    /// The end of all processes of this place, if it is lost.
    pub fn lost(&self, place: Place) -> Option<ProcEnd> {
        self.lost.read().unwrap_or_else(PoisonError::into_inner).get(&place).cloned()
    }

    /// The end of a host's processes, if the host's last place is lost.
    pub fn lost_host(&self, host: ProcUid) -> Option<ProcEnd> {
        self.lost(Place { host, here: self.here(host)? })
    }

    pub fn is_host(&self, uid: ProcUid) -> bool {
        self.here(uid).is_some()
    }

    /// The uid of this host in the job of another host.
    fn here(&self, host: ProcUid) -> Option<ProcUid> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).get(&host).copied()
    }

    /// Marks a place as lost, whether or not this process knows processes there.
    pub(crate) fn lose(&self, place: Place, end: ProcEnd) {
        self.lost.write().unwrap_or_else(PoisonError::into_inner).entry(place).or_insert(end);
    }

    /// Removes the places of processes that have ended.
    pub(crate) fn forget(&self, procs: &[ProcUid]) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        for uid in procs {
            places.remove(uid);
        }
    }

    /// The other hosts of the job in which this host has this uid.
    fn beside(&self, here: ProcUid) -> Vec<ProcUid> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).iter().filter(|(_, h)| **h == here).map(|(host, _)| *host).collect()
    }

    /// The processes of the host that this process knows.
    pub(crate) fn on(&self, host: ProcUid) -> Vec<ProcUid> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).iter().filter(|(_, p)| p.host == host).map(|(uid, _)| *uid).collect()
    }
}

impl Node {
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
        self.know_host(place);
        self.routes.places.write().unwrap_or_else(PoisonError::into_inner).insert(uid, place);
        if let Some(peer) = self.known_peer(uid)
            && !peer.link.is_attached()
        {
            peer.link.forward_by(self.via(place));
        }
    }

    /// Notes a host. A host that has joined again expects new sequence numbers.
    fn know_host(&self, place: Place) {
        let is_lost = self.routes.lost(place).is_some();
        let mut hosts = self.routes.hosts.write().unwrap_or_else(PoisonError::into_inner);
        let here = hosts.entry(place.host).or_insert(place.here);
        if *here != place.here && !is_lost {
            *here = place.here;
            drop(hosts);
            // The processes of that host have lost the state of frames from this one.
            self.caster.restart(place.host);
        }
    }

    /// True if a process that is known at one place may now be at this other one.
    fn may_move(&self, known: Place, place: Place) -> bool {
        // If this host has had two uids for the same host, the later one counts.
        self.routes.lost(place).is_none() && (known.host == place.host || self.routes.lost(known).is_some())
    }

    /// Removes the tombstone of a process that was lost with its host, and its link; false if the process itself has ended.
    fn is_back(&self, uid: ProcUid, place: Place) -> bool {
        if self.routes.lost(place).is_some() || !self.proc_tombstones.write().unwrap_or_else(PoisonError::into_inner).remove(uid) {
            return false;
        }
        let before = self.peers.write().unwrap_or_else(PoisonError::into_inner).remove(&uid);
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

    /// Takes a routed frame that arrived on a link, to or from another host.
    pub(crate) fn on_carried(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        let is_brought = self.agent().is_none() || head.to_host == link.peer && self.is_other_client(link.peer);
        match self.gateway() {
            None if !is_brought => {}
            Some(gateway) if !is_brought => match part_fragment::read_part(body) {
                Some(part) => gateway.send_part_for(link, head, part),
                None => gateway.send_for(link.peer, head, body),
            },
            _ => {
                self.route(head.from, head.from_host, head.to_host);
                match part_fragment::read_part(body) {
                    Some(part) => {
                        if let Ok((number, part)) = part {
                            self.on_part(head.from, number, RecvPart::accept(part, Some(link)).unwrap_or_else(RecvPart::lost));
                        }
                    }
                    None => self.on_routed(head, body),
                }
            }
        }
    }

    /// Takes frames from a process on another host.
    pub(crate) fn on_routed(&self, head: &Route, body: &[u8]) {
        let peer = self.peer_unlinked(head.from).0;
        for frame in wire::routed::Frames::of(body) {
            // A malformed frame is the fault of its sender, which belongs to the job.
            if frame.first() == Some(&FRAME_FRAGMENT) {
                if let Some(run) = peer.add_fragment(&frame[1..]) {
                    self.on_run(&peer, Arc::new(run));
                }
            } else if let Ok(frame) = Frame::decode(frame) {
                self.on_remote_frame(&peer, frame);
            }
        }
    }

    /// Takes a large part from a process on another host.
    pub(crate) fn on_part(&self, from: ProcUid, number: u64, part: RecvPart) {
        let peer = self.peer_unlinked(from).0;
        if peer.on_part(number, part) {
            while let Some(frame) = peer.next_whole() {
                self.on_frame(&peer.link, frame, &mut Descriptors::new());
            }
        }
    }

    /// Takes a run of frames that arrived in fragments.
    pub(crate) fn on_run(&self, peer: &Arc<Peer>, run: Arc<Vec<u8>>) {
        let mut at = 0;
        for frame in wire::routed::Frames::of(&run) {
            at += 4 + frame.len();
            if let Ok(frame) = Frame::decode_within(&run, at - frame.len()..at) {
                self.on_remote_frame(peer, frame);
            }
        }
    }

    /// Takes a frame from another host: pulls its offered parts, and handles it when it is complete.
    fn on_remote_frame(&self, peer: &Peer, frame: Frame) {
        self.pull_parts(peer.uid, &frame);
        if let Some(frame) = peer.on_frame(frame) {
            self.on_frame(&peer.link, frame, &mut Descriptors::new());
        }
    }

    /// The carrier of frames to that place.
    pub(crate) fn via(&self, place: Place) -> Arc<HostCarrier> {
        let by_other_client = self.is_other_client(place.here);
        // An agent has another uid in each job; a client and a proc have one uid. An external process keeps its own in the jobs of others.
        let from = if self.agent().is_some() && !by_other_client { place.here } else { self.uid };
        let agent = if by_other_client { Some(place.here) } else { self.agent().is_none().then_some(self.agent_uid) };
        Arc::new(HostCarrier { node: Arc::downgrade(&self.arc()), host: place.host, here: place.here, from, agent })
    }

    /// The number of bytes that wait in this process for the host of a process.
    pub(crate) fn waiting_for(&self, uid: ProcUid) -> usize {
        let place = self.routes.place(uid);
        let host = place.and_then(|p| self.gateway()?.job_by_own_id(p.here)?.host(p.host));
        host.map_or(0, |h| h.session.waiting().0)
    }

    /// Adds the processes that end with others: a host's end is the end of all its known processes, a client's that of its procs and hosts.
    pub(crate) fn expand(&self, ends: Vec<(ProcUid, ProcEnd)>) -> Vec<(ProcUid, ProcEnd)> {
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
            let procs = self.procs_of_client(uid).into_iter().filter(|proc| *proc != uid);
            all.extend(self.routes.beside(uid).into_iter().chain(procs).map(|gone| (gone, lost.clone())));
        }
        all.push((uid, end));
        all
    }
}
