//! The host of each remote process.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use net::sys::Descriptors;
use net::{Link, RecvPart};
use wire::exit::ProcEnd;
use wire::frame::PIECE;
use wire::{Frame, ProcUid, Route, part_fragment};

use crate::gateway::Via;
use crate::node::Node;
use crate::node::peer::Peer;

/// The host of a process, and what the host of this process is called in the job that they share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub host: ProcUid,
    pub here: ProcUid,
}

/// Processes on other hosts, hosts themselves included, and hosts that are lost.
#[derive(Default)]
pub struct Routes {
    places: RwLock<HashMap<ProcUid, Place>>,
    /// Of those places; a proc knows its peers' hosts by nothing else.
    hosts: RwLock<HashSet<ProcUid>>,
    lost: RwLock<HashMap<ProcUid, ProcEnd>>,
}

impl Routes {
    pub fn place(&self, uid: ProcUid) -> Option<Place> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).get(&uid).copied()
    }

    pub fn lost(&self, host: ProcUid) -> Option<ProcEnd> {
        self.lost.read().unwrap_or_else(PoisonError::into_inner).get(&host).cloned()
    }

    pub fn is_host(&self, uid: ProcUid) -> bool {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).contains(&uid)
    }

    /// Processes that have ended.
    pub(crate) fn forget(&self, procs: &[ProcUid]) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        for uid in procs {
            places.remove(uid);
        }
    }

    /// Those that are on the host, and are known here.
    pub(crate) fn on(&self, host: ProcUid) -> Vec<ProcUid> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).iter().filter(|(_, p)| p.host == host).map(|(uid, _)| *uid).collect()
    }
}

impl Node {
    /// A process is on a host, which is reached through the agent of this process, or is another agent's.
    pub fn route(&self, uid: ProcUid, host: ProcUid, here: ProcUid) {
        if self.routes.place(uid).is_some() || uid == self.uid || host == here || self.end_of(uid).is_some() {
            return;
        }
        self.routes.hosts.write().unwrap_or_else(PoisonError::into_inner).insert(host);
        self.routes.places.write().unwrap_or_else(PoisonError::into_inner).insert(uid, Place { host, here });
        if let Some(peer) = self.known_peer(uid)
            && !peer.link.is_attached()
        {
            peer.link.carry_by(self.via(Place { host, here }));
        }
    }

    /// Is that the host, or a process there that is known here?
    pub(crate) fn is_on(&self, uid: ProcUid, host: ProcUid) -> bool {
        uid == host || self.routes.place(uid).is_some_and(|place| place.host == host)
    }

    /// What its link has brought, to or from another host.
    pub(crate) fn on_carried(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        match self.gateway() {
            Some(gateway) => match part_fragment::read_part(body) {
                Some(part) => gateway.send_part_for(link, head, part),
                None => gateway.send_for(link.peer, head, body),
            },
            None => {
                self.route(head.from, head.from_host, head.to_host);
                match part_fragment::read_part(body) {
                    Some(part) => {
                        if let Ok((number, part)) = part {
                            self.on_part(head.from, number, RecvPart::adopt(part, Some(link)).unwrap_or_else(RecvPart::lost));
                        }
                    }
                    None => self.on_routed(head, body),
                }
            }
        }
    }

    /// Frames from a process on another host.
    pub(crate) fn on_routed(&self, head: &Route, body: &[u8]) {
        let peer = self.peer_unlinked(head.from).0;
        for frame in wire::routed::Frames::of(body) {
            // A frame that makes no sense is the fault of its sender, who is of the job.
            if frame.first() == Some(&PIECE) {
                if let Some(run) = peer.gather(&frame[1..]) {
                    self.on_run(&peer, Arc::new(run));
                }
            } else if let Ok(frame) = Frame::decode(frame) {
                self.frame_came(&peer, frame);
            }
        }
    }

    /// A large part from a process on another host.
    pub(crate) fn on_part(&self, from: ProcUid, number: u64, part: RecvPart) {
        let peer = self.peer_unlinked(from).0;
        if peer.part_came(number, part) {
            while let Some(frame) = peer.next_whole() {
                self.on_frame(&peer.link, frame, &mut Descriptors::new());
            }
        }
    }

    /// Frames that came in pieces.
    pub(crate) fn on_run(&self, peer: &Arc<Peer>, run: Arc<Vec<u8>>) {
        let mut at = 0;
        for frame in wire::routed::Frames::of(&run) {
            at += 4 + frame.len();
            if let Ok(frame) = Frame::decode_within(&run, at - frame.len()..at) {
                self.frame_came(peer, frame);
            }
        }
    }

    fn frame_came(&self, peer: &Peer, frame: Frame) {
        self.fetch_parts(peer.uid, &frame);
        if let Some(frame) = peer.frame_came(frame) {
            self.on_frame(&peer.link, frame, &mut Descriptors::new());
        }
    }

    pub(crate) fn via(&self, place: Place) -> Arc<Via> {
        // An agent has another name in each job, a client and a proc have one.
        let from = if self.agent().is_some() { place.here } else { self.uid };
        Arc::new(Via { node: Arc::downgrade(&self.arc()), host: place.host, here: place.here, from })
    }

    /// Bytes on their way to the host of a process that have not left this one.
    pub(crate) fn waiting_for(&self, uid: ProcUid) -> usize {
        let place = self.routes.place(uid);
        let host = place.and_then(|p| self.gateway()?.job_here(p.here)?.host(p.host));
        host.map_or(0, |h| h.trunk.waiting().0)
    }

    /// Hosts among them stand for all their processes that are known here.
    pub(crate) fn expand(&self, ends: Vec<(ProcUid, ProcEnd)>) -> Vec<(ProcUid, ProcEnd)> {
        let mut out = Vec::with_capacity(ends.len());
        for (uid, end) in ends {
            if self.routes.is_host(uid) {
                self.routes.lost.write().unwrap_or_else(PoisonError::into_inner).insert(uid, end.clone());
                out.extend(self.routes.on(uid).into_iter().filter(|p| *p != uid).map(|p| (p, end.clone())));
            }
            out.push((uid, end));
        }
        out
    }
}
