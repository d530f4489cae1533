//! A job, its hosts, and the state that this process keeps of each host.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use net::Poller;
use net::address::Address;
use net::lock::lock;
use net::session::Session;
use net::trust::DialTrust;
use wire::ProcUid;
use wire::control::HostEntry;
use wire::exit::{ExitReason, ProcEnd};
use wire::greeting::JobSettings;

use super::cast::{Arrivals, Casts};
use super::forward::SessionEvents;
use super::joins::Joins;
use super::part_fragments::PartialPart;
use super::redial::Redial;
use super::{Gateway, Member};
use crate::membership::relays::Relays;
use crate::membership::{HostState, Membership, Role, Settings};
use crate::peers::ended::host_end;

/// A job as one process sees it: the client of the job, or the agent of one of its hosts. The gateway owns it.
pub struct Job {
    /// The uid of the client.
    pub id: ProcUid,
    /// The id of this process in the job; in the client, its uid.
    pub own_id: ProcUid,
    pub settings: JobSettings,
    hosts: RwLock<HashMap<ProcUid, Arc<Host>>>,
    /// The decisions about the hosts, which share it. No other lock is taken while this one is held.
    pub(super) membership: Arc<Mutex<Membership>>,
    /// True while a call of `Gateway::tick` is scheduled.
    pub(super) ticking: Mutex<bool>,
    /// When this process made the job. The times of casts are relative to it.
    pub(super) started_at: Instant,
    pub(super) casts: Mutex<Casts>,
    /// The number of frames that were sent to other hosts for casts.
    pub(super) casts_sent: AtomicU64,
    pub(super) arrivals: Mutex<Arrivals>,
    pub(super) relays: Mutex<Relays>,
    pub(super) joins: Mutex<Joins>,
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
        let membership = Membership::new(id, own_id, detector, ms(settings.lease_ms), now);
        Arc::new(Job {
            id,
            own_id,
            settings,
            hosts: RwLock::default(),
            membership: Arc::new(Mutex::new(membership)),
            ticking: Mutex::new(false),
            started_at: now,
            casts: Mutex::new(Casts::new(own_id)),
            casts_sent: AtomicU64::new(0),
            arrivals: Mutex::default(),
            relays: Mutex::new(Relays::new(role, id)),
            joins: Mutex::default(),
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
            let session = Session::new(self.id, self.own_id, id, poller.clone(), Arc::new(events));
            let (info, partial_parts, state) = (Mutex::default(), Mutex::default(), Mutex::default());
            Arc::new(Host { id, session, membership: self.membership.clone(), info, partial_parts, state, carried: AtomicU64::new(0) })
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

/// The state of the connections of a host.
#[derive(Default)]
pub(super) struct Connections {
    /// The secret or certificate with which this process authenticates when it dials the host.
    pub trust: Option<Arc<DialTrust>>,
    /// This process opens the connections of the session.
    pub dials: bool,
    /// The attempts to open the connections.
    pub redial: Redial,
    pub session_id: u64,
    /// A connection of the session has been open at some time.
    pub was_up: bool,
    /// A connection has ended in the way in which the kernel closes those of an exited process, and no connection has been opened since.
    pub closed_by_exit: bool,
    /// This client closes, and the host has not acknowledged the notice yet: connections to the host are opened for this notice only.
    pub notice_pending: bool,
}

/// A host of a job, with the session between it and this process. The job owns it.
pub struct Host {
    pub id: ProcUid,
    /// The session with the agent of the host.
    pub session: Arc<Session>,
    membership: Arc<Mutex<Membership>>,
    pub(super) info: Mutex<HostInfo>,
    /// The large parts from this host of which fragments are missing, by the sending and the receiving process.
    pub(super) partial_parts: Mutex<HashMap<(ProcUid, ProcUid), PartialPart>>,
    pub(super) state: Mutex<Connections>,
    /// Client only: bytes between the client and this host that relays have forwarded.
    pub(super) carried: AtomicU64,
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
        lock(&self.membership).end_reason(self.id).map(str::to_owned)
    }

    /// The reason why the host is lost although its agent may still run; none for any other host.
    pub fn unknown_end(&self) -> Option<String> {
        lock(&self.membership).unknown_end(self.id).map(str::to_owned)
    }

    /// The state of the host in the job.
    pub(super) fn membership(&self) -> HostState {
        lock(&self.membership).state(self.id)
    }

    /// True if the host has joined and has not ended.
    pub(super) fn is_joined(&self) -> bool {
        self.membership().is_joined()
    }

    /// For tests: the number of retries that were planned until now, after failed attempts to open a connection.
    pub fn retries(&self) -> u64 {
        lock(&self.state).redial.retries()
    }

    /// For tests: true while a connection is being opened.
    pub fn is_opening(&self) -> bool {
        lock(&self.state).redial.is_opening()
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
        let (state, why) = match self.membership() {
            HostState::Left => return None,
            state if state.is_ended() => ("lost", Some(format!("lost: {}", self.lost().unwrap_or_default()))),
            state if state.is_joined() => ("joined", None),
            _ => ("joining", Some("it has not joined yet".to_owned())),
        };
        Some(Member { id: self.id, name: self.name(), state, why })
    }

    /// True while the host has not acknowledged the last notice of this closing process.
    pub(super) fn has_pending_notice(&self) -> bool {
        if self.membership().is_ended() || self.session.is_settled() {
            return false;
        }
        // The other side closes its connections in answer to the notice. An end before the notice was written is no answer. The order of
        // these checks matters: the flag is reset before a connection is attached, and then all unacknowledged bytes are unwritten.
        let is_closed = lock(&self.state).closed_by_exit;
        !is_closed || self.session.is_up() || self.session.waiting().0 > 0
    }

    /// The end of all processes of the host if it is lost.
    pub(super) fn end(&self) -> Option<ProcEnd> {
        let why = self.lost()?;
        let end = host_end(&self.name(), &why);
        Some(if self.membership() == HostState::LinkLost { ProcEnd { reason: ExitReason::LinkLost(why), ..end } } else { end })
    }

    /// The entry of the host in the lists that other hosts receive; none if the host cannot be dialled.
    pub(super) fn entry(&self) -> Option<HostEntry> {
        let info = self.info();
        let (unix, tcp) = match info.address? {
            Address::Tcp { host, port } => (String::new(), (host, port)),
            Address::Unix(name) => (name, Default::default()),
            Address::Inherited(_) => return None,
        };
        Some(HostEntry { host: self.id, name: info.name, unix, tcp, places: info.resolved })
    }

    /// Takes over the entry of the host that the client has sent. The host may not have joined yet.
    pub(super) fn learn_place(&self, entry: HostEntry) {
        let mut info = lock(&self.info);
        info.name = entry.name;
        info.resolved = entry.places;
        let (host, port) = entry.tcp;
        info.address = Some(if entry.unix.is_empty() { Address::Tcp { host, port } } else { Address::Unix(entry.unix) });
    }
}
