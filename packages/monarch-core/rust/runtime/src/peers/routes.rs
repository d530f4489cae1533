//! The routes of a process: the host of each remote process.
//!
//! A place is the host of a process together with the uid that this host has in the job. Frames to a process with a place go through the
//! agent of this process, or through the client of another job. A lost place is never used again; a host that joins again has another
//! place. This table decides nothing, and needs nothing from other components; `Peers` changes it.

use std::collections::HashMap;
use std::sync::RwLock;

use wire::ProcUid;
use wire::exit::ProcEnd;

use crate::sync::{read, write};

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
        read(&self.places).get(&uid).copied()
    }

    /// The end of all processes of this place, if it is lost.
    pub fn lost(&self, place: Place) -> Option<ProcEnd> {
        read(&self.lost).get(&place).cloned()
    }

    /// The end of a host's processes, if the host's last place is lost.
    pub fn lost_host(&self, host: ProcUid) -> Option<ProcEnd> {
        self.lost(Place { host, here: self.here(host)? })
    }

    pub fn is_host(&self, uid: ProcUid) -> bool {
        self.here(uid).is_some()
    }

    /// Sets the place of a process.
    pub(super) fn set(&self, uid: ProcUid, place: Place) {
        write(&self.places).insert(uid, place);
    }

    /// Notes the host of a place; true if the host was known by another uid of this host: it has joined again.
    pub(super) fn note_host(&self, place: Place) -> bool {
        let is_lost = self.lost(place).is_some();
        let mut hosts = write(&self.hosts);
        let here = hosts.entry(place.host).or_insert(place.here);
        let is_back = *here != place.here && !is_lost;
        if is_back {
            *here = place.here;
        }
        is_back
    }

    /// The uid of this host in the job of another host.
    pub(super) fn here(&self, host: ProcUid) -> Option<ProcUid> {
        read(&self.hosts).get(&host).copied()
    }

    /// Marks a place as lost, whether or not this process knows processes there.
    pub(crate) fn lose(&self, place: Place, end: ProcEnd) {
        write(&self.lost).entry(place).or_insert(end);
    }

    /// Removes the places of processes that have ended.
    pub(crate) fn forget(&self, procs: &[ProcUid]) {
        let mut places = write(&self.places);
        for uid in procs {
            places.remove(uid);
        }
    }

    /// The other hosts of the job in which this host has this uid.
    pub(super) fn beside(&self, here: ProcUid) -> Vec<ProcUid> {
        read(&self.hosts).iter().filter(|(_, h)| **h == here).map(|(host, _)| *host).collect()
    }

    /// The processes of the host that this process knows.
    pub(crate) fn on(&self, host: ProcUid) -> Vec<ProcUid> {
        read(&self.places).iter().filter(|(_, p)| p.host == host).map(|(uid, _)| *uid).collect()
    }
}
