//! A job, its hosts, and what this process knows of them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use net::Poller;
use net::address::Address;
use net::lock::lock;
use net::trunk::Trunk;
use net::trust::DialTrust;
use wire::ProcUid;
use wire::control::HostEntry;
use wire::exit::{ExitReason, ProcEnd};
use wire::greeting::JobSettings;

use super::cast::{Arrivals, Casts};
use super::forward::{Hands, host_end};
use super::join_tree::Tree;
use super::part_fragments::Arriving;
use super::{Gateway, Member};
use crate::detector::{Detector, Role, Settings};

pub struct Job {
    /// The client's uid.
    pub id: ProcUid,
    /// What this process is called in it; in the client, its uid.
    pub here: ProcUid,
    pub settings: JobSettings,
    hosts: RwLock<HashMap<ProcUid, Arc<Host>>>,
    pub(super) detector: Mutex<Detector>,
    /// The next look is due.
    pub(super) ticking: Mutex<bool>,
    /// When the client was heard last, or what it sent through others.
    pub(super) client_heard: Mutex<Instant>,
    pub(super) born: Instant,
    pub(super) casts: Mutex<Casts>,
    pub(super) casts_sent: AtomicU64,
    pub(super) arrivals: Mutex<Arrivals>,
    pub(super) tree: Mutex<Tree>,
    /// The client has been told, or has said, that lines of other hosts are not shown at the client.
    pub(crate) unshown: AtomicBool,
    /// Of the client: what it says of itself to hosts.
    pub(super) from: Mutex<String>,
}

impl Job {
    pub fn new(id: ProcUid, here: ProcUid, settings: JobSettings, now: Instant) -> Arc<Job> {
        let role = if id == here { Role::Client } else { Role::Agent };
        let ms = Duration::from_millis;
        let detector = Settings { loss: ms(settings.loss_ms), reconnect: ms(settings.reconnect_ms), role };
        Arc::new(Job {
            id,
            here,
            settings,
            hosts: RwLock::default(),
            detector: Mutex::new(Detector::new(detector)),
            ticking: Mutex::new(false),
            client_heard: Mutex::new(now),
            born: now,
            casts: Mutex::new(Casts::new(here)),
            casts_sent: AtomicU64::new(0),
            arrivals: Mutex::default(),
            tree: Mutex::default(),
            unshown: AtomicBool::new(false),
            from: Mutex::default(),
        })
    }

    pub fn is_clients(&self) -> bool {
        self.id == self.here
    }

    pub fn host(&self, id: ProcUid) -> Option<Arc<Host>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub fn hosts(&self) -> Vec<Arc<Host>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The host, made known now if it is not.
    pub(super) fn host_or_new(self: &Arc<Self>, id: ProcUid, gateway: &Weak<Gateway>, poller: &Arc<Poller>) -> Arc<Host> {
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let hands = Hands { gateway: gateway.clone(), job: Arc::downgrade(self) };
            let trunk = Trunk::new(self.id, self.here, id, poller.clone(), Arc::new(hands));
            let (place, arriving, state) = (Mutex::default(), Mutex::default(), Mutex::default());
            Arc::new(Host { id, trunk, place, arriving, state, carried: AtomicU64::new(0) })
        };
        hosts.entry(id).or_insert_with(make).clone()
    }
}

/// Where the agent of a host can be dialled, and what it says of itself.
#[derive(Clone, Default)]
pub struct Place {
    pub address: Option<Address>,
    pub resolved: Vec<SocketAddr>,
    pub name: String,
    pub release: String,
    pub pid: u32,
    pub agent: u64,
}

#[derive(Default)]
pub(super) struct State {
    /// What it is dialled with.
    pub trust: Option<Arc<DialTrust>>,
    /// It is asked to join, and has not answered.
    pub joining: bool,
    /// Both sides know each other: streams may be opened.
    pub joined: bool,
    /// This process opens the streams.
    pub dials: bool,
    /// Streams that are being opened, by their number.
    pub opening: Vec<u8>,
    pub session: u64,
    /// It was up at some time.
    pub was_up: bool,
    /// Attempts in a row that failed.
    pub failed: u32,
    /// It has not been heard for a while.
    pub suspect: bool,
    /// A stream has ended as those of a process do that ends, and no other has been opened since.
    pub closed: bool,
    /// It was told to end.
    pub leaving: bool,
    /// This client closes, and has not been able to report that yet: streams are opened for it alone.
    pub parting: bool,
    pub lost: Option<String>,
    /// It is not: only the way to it is.
    pub no_route: bool,
}

pub struct Host {
    pub id: ProcUid,
    pub trunk: Arc<Trunk>,
    pub(super) place: Mutex<Place>,
    /// Parts on their way from there, by who sends them to whom.
    pub(super) arriving: Mutex<HashMap<(ProcUid, ProcUid), Arriving>>,
    pub(super) state: Mutex<State>,
    /// Bytes that others have carried between it and this client.
    pub(super) carried: AtomicU64,
}

pub(super) fn lock_state(host: &Host) -> MutexGuard<'_, State> {
    lock(&host.state)
}

impl Host {
    pub fn place(&self) -> Place {
        lock(&self.place).clone()
    }

    pub fn name(&self) -> String {
        lock(&self.place).name.clone()
    }

    pub fn lost(&self) -> Option<String> {
        lock(&self.state).lost.clone()
    }

    /// The session has a connection, to whose other side so many frames had come.
    pub(super) fn resumed(&self, received: u64) {
        if events::is_on() {
            let round_trip = self.trunk.traffic().map_or(0, |t| t.round_trip);
            events::link_resumed(self.id.0, received, self.trunk.waiting().1 as u64, round_trip);
        }
    }

    /// For those who look in; none if it was told to end, and has.
    pub(super) fn member(&self) -> Option<Member> {
        let name = self.name();
        let state = lock(&self.state);
        let (now, why) = match &state.lost {
            Some(_) if state.leaving => return None,
            Some(why) => ("lost", Some(format!("lost: {why}"))),
            None if state.joined => ("joined", None),
            None => ("joining", Some("it has not joined yet".to_owned())),
        };
        Some(Member { id: self.id, name, state: now, why })
    }

    /// What this client has to report last is still to be acknowledged.
    pub(super) fn is_parting(&self) -> bool {
        let is_yet_to_open = {
            let state = lock(&self.state);
            if state.lost.is_some() {
                return false;
            }
            !state.was_up || !state.opening.is_empty()
        };
        // An agent that has received it closes. In this order: a stream that is no more being opened is in its place.
        (is_yet_to_open || self.trunk.is_up()) && !self.trunk.is_settled()
    }

    /// The end of all its processes, if it is lost.
    pub(super) fn end(&self) -> Option<ProcEnd> {
        let (why, no_route) = {
            let state = lock(&self.state);
            (state.lost.clone()?, state.no_route)
        };
        let end = host_end(&self.name(), &why);
        Some(if no_route { ProcEnd { reason: ExitReason::LinkLost(why), ..end } } else { end })
    }

    /// For the others of the job; none if it cannot be dialled.
    pub(super) fn entry(&self) -> Option<HostEntry> {
        let place = self.place();
        let (unix, tcp) = match place.address? {
            Address::Tcp { host, port } => (String::new(), (host, port)),
            Address::Unix(name) => (name, Default::default()),
            Address::Adopted(_) => return None,
        };
        Some(HostEntry { host: self.id, name: place.name, unix, tcp, places: place.resolved })
    }

    /// What the client says of it.
    pub(super) fn learn(&self, entry: HostEntry) {
        self.learn_place(entry);
        lock(&self.state).joined = true;
    }

    pub(super) fn learn_place(&self, entry: HostEntry) {
        let mut place = lock(&self.place);
        place.name = entry.name;
        place.resolved = entry.places;
        let (host, port) = entry.tcp;
        place.address = Some(if entry.unix.is_empty() { Address::Tcp { host, port } } else { Address::Unix(entry.unix) });
    }
}
