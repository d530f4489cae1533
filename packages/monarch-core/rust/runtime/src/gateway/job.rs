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
use super::forward::{SessionEvents, host_end};
use super::join_tree::Tree;
use super::part_fragments::PartialPart;
use super::{Gateway, Member};
use crate::membership::detector::{Detector, Role, Settings};

/// A job as one process sees it: the client of the job, or the agent of one of its hosts. The gateway owns it.
pub struct Job {
    /// The uid of the client.
    pub id: ProcUid,
    /// The id of this process in the job; in the client, its uid.
    pub own_id: ProcUid,
    pub settings: JobSettings,
    hosts: RwLock<HashMap<ProcUid, Arc<Host>>>,
    pub(super) detector: Mutex<Detector>,
    /// True while a call of `Gateway::tick` is scheduled.
    pub(super) ticking: Mutex<bool>,
    /// Agent only: when the last heartbeat of the client was received, directly or through relays. The client's lease begins then.
    pub(super) last_client_heartbeat: Mutex<Instant>,
    /// When this process made the job. The times of casts are relative to it.
    pub(super) started_at: Instant,
    pub(super) casts: Mutex<Casts>,
    /// The number of frames that were sent to other hosts for casts.
    pub(super) casts_sent: AtomicU64,
    pub(super) arrivals: Mutex<Arrivals>,
    pub(super) tree: Mutex<Tree>,
    /// The lines of a proc go to a console that the client may not see: this agent has reported that to the client; in the client, the
    /// audit log has an entry. Either happens once a job.
    pub(crate) output_warning_sent: AtomicBool,
    /// Client only: the description of the client that hosts receive when they join.
    pub(super) client_description: Mutex<String>,
}

impl Job {
    pub fn new(id: ProcUid, own_id: ProcUid, settings: JobSettings, now: Instant) -> Arc<Job> {
        let role = if id == own_id { Role::Client } else { Role::Agent };
        let ms = Duration::from_millis;
        let detector = Settings { loss: ms(settings.loss_ms), reconnect: ms(settings.reconnect_ms), role };
        Arc::new(Job {
            id,
            own_id,
            settings,
            hosts: RwLock::default(),
            detector: Mutex::new(Detector::new(detector)),
            ticking: Mutex::new(false),
            last_client_heartbeat: Mutex::new(now),
            started_at: now,
            casts: Mutex::new(Casts::new(own_id)),
            casts_sent: AtomicU64::new(0),
            arrivals: Mutex::default(),
            tree: Mutex::default(),
            output_warning_sent: AtomicBool::new(false),
            client_description: Mutex::default(),
        })
    }

    /// True in the client of the job.
    pub fn is_clients(&self) -> bool {
        self.id == self.own_id
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
            let events = SessionEvents { gateway: gateway.clone(), job: Arc::downgrade(self) };
            let session = Trunk::new(self.id, self.own_id, id, poller.clone(), Arc::new(events));
            let (info, partial_parts, state) = (Mutex::default(), Mutex::default(), Mutex::default());
            Arc::new(Host { id, session, info, partial_parts, state, carried: AtomicU64::new(0) })
        };
        hosts.entry(id).or_insert_with(make).clone()
    }
}

/// The address of a host's agent, and the facts that the agent has reported when it joined.
#[derive(Clone, Default)]
pub struct HostInfo {
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
pub(super) struct Membership {
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
    pub session_id: u64,
    /// A connection of the session has been open at some time.
    pub was_up: bool,
    /// Consecutive attempts to open a connection that failed.
    pub failed: u32,
    /// The detector suspects the host: no heartbeat has arrived for a while.
    pub is_suspected: bool,
    /// A connection has ended in the way in which the kernel closes those of an exited process, and no connection has been opened since.
    pub closed_by_exit: bool,
    /// The host has been asked to exit, or has announced its exit: its end is no loss.
    pub leaving: bool,
    /// This client closes and has not been able to notify the host yet: connections to the host are opened for this notice only.
    pub notice_pending: bool,
    /// The reason why the host is lost; none while it is not.
    pub lost: Option<String>,
    /// The host is alive but no route leads to it. `lost` has the reason.
    pub no_route: bool,
}

/// A host of a job, with the session between it and this process. The job owns it.
pub struct Host {
    pub id: ProcUid,
    /// The session with the agent of the host.
    pub session: Arc<Trunk>,
    pub(super) info: Mutex<HostInfo>,
    /// The large parts from this host of which fragments are missing, by the sending and the receiving process.
    pub(super) partial_parts: Mutex<HashMap<(ProcUid, ProcUid), PartialPart>>,
    pub(super) state: Mutex<Membership>,
    /// Client only: bytes between the client and this host that relays have forwarded.
    pub(super) carried: AtomicU64,
}

pub(super) fn lock_state(host: &Host) -> MutexGuard<'_, Membership> {
    lock(&host.state)
}

impl Host {
    pub fn info(&self) -> HostInfo {
        lock(&self.info).clone()
    }

    pub fn name(&self) -> String {
        lock(&self.info).name.clone()
    }

    /// The reason why the host is lost; none while it is not.
    pub fn lost(&self) -> Option<String> {
        lock(&self.state).lost.clone()
    }

    /// Records that the session has a connection again, and that the other side had received this number of frames.
    pub(super) fn resumed(&self, received: u64) {
        if events::is_on() {
            let round_trip = self.session.traffic().map_or(0, |t| t.round_trip);
            events::link_resumed(self.id.0, received, self.session.waiting().1 as u64, round_trip);
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
    pub(super) fn has_pending_notice(&self) -> bool {
        let is_yet_to_open = {
            let state = lock(&self.state);
            if state.lost.is_some() {
                return false;
            }
            !state.was_up || !state.opening.is_empty()
        };
        // The agent closes its connections after the notice. The order of these checks matters: a connection is attached before its number
        // leaves `opening`.
        (is_yet_to_open || self.session.is_up()) && !self.session.is_settled()
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
        let info = self.info();
        let (unix, tcp) = match info.address? {
            Address::Tcp { host, port } => (String::new(), (host, port)),
            Address::Unix(name) => (name, Default::default()),
            Address::Adopted(_) => return None,
        };
        Some(HostEntry { host: self.id, name: info.name, unix, tcp, places: info.resolved })
    }

    /// Takes over the entry of the host that the client has sent.
    pub(super) fn learn(&self, entry: HostEntry) {
        self.learn_place(entry);
        lock(&self.state).joined = true;
    }

    /// Takes over the address of the host only: the host may not have joined yet.
    pub(super) fn learn_place(&self, entry: HostEntry) {
        let mut info = lock(&self.info);
        info.name = entry.name;
        info.resolved = entry.places;
        let (host, port) = entry.tcp;
        info.address = Some(if entry.unix.is_empty() { Address::Tcp { host, port } } else { Address::Unix(entry.unix) });
    }
}
