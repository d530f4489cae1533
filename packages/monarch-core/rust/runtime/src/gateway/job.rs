//! A job, its hosts, and the state that this process keeps of each host.

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

/// A job as one process sees it: the client of the job, or the agent of one of its hosts. The gateway owns it.
pub struct Job {
    /// The uid of the client.
    pub id: ProcUid,
    /// The id of this process in the job; in the client, its uid.
    pub here: ProcUid,
    pub settings: JobSettings,
    hosts: RwLock<HashMap<ProcUid, Arc<Host>>>,
    pub(super) detector: Mutex<Detector>,
    /// True while a call of `Gateway::tick` is scheduled.
    pub(super) ticking: Mutex<bool>,
    /// Agent only: when the last heartbeat of the client was received, directly or through relays. The client's lease begins then.
    pub(super) last_client_heartbeat: Mutex<Instant>,
    /// When this process made the job. The times of casts are relative to it.
    pub(super) born: Instant,
    pub(super) casts: Mutex<Casts>,
    /// The number of frames that were sent to other hosts for casts.
    pub(super) casts_sent: AtomicU64,
    pub(super) arrivals: Mutex<Arrivals>,
    pub(super) tree: Mutex<Tree>,
    /// The lines of a proc go to a console that the client may not see: this agent has reported that to the client; in the client, the
    /// audit log has an entry. Either happens once a job.
    pub(crate) unshown: AtomicBool,
    /// Client only: the description of the client that hosts receive when they join.
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
            last_client_heartbeat: Mutex::new(now),
            born: now,
            casts: Mutex::new(Casts::new(here)),
            casts_sent: AtomicU64::new(0),
            arrivals: Mutex::default(),
            tree: Mutex::default(),
            unshown: AtomicBool::new(false),
            from: Mutex::default(),
        })
    }

    /// True in the client of the job.
    pub fn is_clients(&self) -> bool {
        self.id == self.here
    }

    pub fn host(&self, id: ProcUid) -> Option<Arc<Host>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub fn hosts(&self) -> Vec<Arc<Host>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The host with this id; makes it if the job does not have it yet.
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

/// The address of a host's agent, and the facts that the agent has reported when it joined.
#[derive(Clone, Default)]
pub struct Place {
    pub address: Option<Address>,
    /// The socket addresses to which the name in `address` was resolved.
    pub resolved: Vec<SocketAddr>,
    pub name: String,
    /// The release of Monarch on the host.
    pub release: String,
    pub pid: u32,
    /// The uid of the agent's process.
    pub agent: u64,
}

/// The state of the connections of a host, and of its membership.
#[derive(Default)]
pub(super) struct State {
    /// The secret or certificate with which this process authenticates when it dials the host.
    pub trust: Option<Arc<DialTrust>>,
    /// A join of the host is under way: its answer has not arrived.
    pub joining: bool,
    /// The host has joined: connections of its session may be opened.
    pub joined: bool,
    /// This process opens the connections of the session.
    pub dials: bool,
    /// The connections that are being opened, by their number in the session.
    pub opening: Vec<u8>,
    pub session: u64,
    /// A connection of the session has been open at some time.
    pub was_up: bool,
    /// Consecutive attempts to open a connection that failed.
    pub failed: u32,
    /// The detector suspects the host: no heartbeat has arrived for a while.
    pub suspect: bool,
    /// A connection has ended in the way in which the kernel closes those of an exited process, and no connection has been opened since.
    pub closed: bool,
    /// The host has been asked to exit, or has announced its exit: its end is no loss.
    pub leaving: bool,
    /// This client closes and has not been able to notify the host yet: connections to the host are opened for this notice only.
    pub parting: bool,
    /// The reason why the host is lost; none while it is not.
    pub lost: Option<String>,
    /// The host is alive but no route leads to it. `lost` has the reason.
    pub no_route: bool,
}

/// A host of a job, with the session between it and this process. The job owns it.
pub struct Host {
    pub id: ProcUid,
    /// The session with the agent of the host.
    pub trunk: Arc<Trunk>,
    pub(super) place: Mutex<Place>,
    /// The large parts from this host of which fragments are missing, by the sending and the receiving process.
    pub(super) arriving: Mutex<HashMap<(ProcUid, ProcUid), Arriving>>,
    pub(super) state: Mutex<State>,
    /// Client only: bytes between the client and this host that relays have forwarded.
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

    /// The reason why the host is lost; none while it is not.
    pub fn lost(&self) -> Option<String> {
        lock(&self.state).lost.clone()
    }

    /// Records that the session has a connection again, and that the other side had received this number of frames.
    pub(super) fn resumed(&self, received: u64) {
        if events::is_on() {
            let round_trip = self.trunk.traffic().map_or(0, |t| t.round_trip);
            events::link_resumed(self.id.0, received, self.trunk.waiting().1 as u64, round_trip);
        }
    }

    /// The host as `monarch` commands and other inspections list it; none if it was asked to exit and has exited.
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

    /// True while the host has not acknowledged the last notice of this closing client.
    pub(super) fn is_parting(&self) -> bool {
        let is_yet_to_open = {
            let state = lock(&self.state);
            if state.lost.is_some() {
                return false;
            }
            !state.was_up || !state.opening.is_empty()
        };
        // The agent closes its connections after the notice. The order of these checks matters: a connection is attached before its number
        // leaves `opening`.
        (is_yet_to_open || self.trunk.is_up()) && !self.trunk.is_settled()
    }

    /// The end of all processes of the host if it is lost.
    pub(super) fn end(&self) -> Option<ProcEnd> {
        let (why, no_route) = {
            let state = lock(&self.state);
            (state.lost.clone()?, state.no_route)
        };
        let end = host_end(&self.name(), &why);
        Some(if no_route { ProcEnd { reason: ExitReason::LinkLost(why), ..end } } else { end })
    }

    /// The entry of the host in the lists that other hosts receive; none if the host cannot be dialled.
    pub(super) fn entry(&self) -> Option<HostEntry> {
        let place = self.place();
        let (unix, tcp) = match place.address? {
            Address::Tcp { host, port } => (String::new(), (host, port)),
            Address::Unix(name) => (name, Default::default()),
            Address::Adopted(_) => return None,
        };
        Some(HostEntry { host: self.id, name: place.name, unix, tcp, places: place.resolved })
    }

    /// Takes over the entry of the host that the client has sent.
    pub(super) fn learn(&self, entry: HostEntry) {
        self.learn_place(entry);
        lock(&self.state).joined = true;
    }

    /// Takes over the address of the host only: the host may not have joined yet.
    pub(super) fn learn_place(&self, entry: HostEntry) {
        let mut place = lock(&self.place);
        place.name = entry.name;
        place.resolved = entry.places;
        let (host, port) = entry.tcp;
        place.address = Some(if entry.unix.is_empty() { Address::Tcp { host, port } } else { Address::Unix(entry.unix) });
    }
}
