//! A host of a job, with the session between it and this process, and the state of its connections.
//!
//! What it needs: the membership of the job, which decides about the host. Other components open and close the connections.
//!
//! What always holds:
//! - A host keeps its id. Its address and its name may become known later.
//! - A host has one session for its whole life. The connections of the session may end and be opened again.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::address::Address;
use net::lock::lock;
use net::session::Session;
use net::trust::DialTrust;
use wire::ProcUid;
use wire::control::HostEntry;
use wire::exit::{ExitReason, ProcEnd};
use wire::greeting::Heartbeat;

use super::part_fragments::PartialParts;
use super::redial::Redial;
use crate::membership::{HostState, Membership};
use crate::peers::ended::host_end;

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
    /// Client only: the host has been introduced to all other hosts.
    pub introduced: bool,
}

/// A host of this client. `state` is `joining`, `joined` or `lost`; `why` is the reason why the host cannot be inspected.
pub struct Member {
    pub id: ProcUid,
    pub name: String,
    pub state: &'static str,
    pub why: Option<String>,
}

/// A host of a job, with the session between it and this process. The job owns it.
pub struct Host {
    pub id: ProcUid,
    /// The session with the agent of the host.
    pub session: Arc<Session>,
    membership: Arc<Mutex<Membership>>,
    pub(super) info: Mutex<HostInfo>,
    pub(super) partial_parts: Mutex<PartialParts>,
    pub(super) state: Mutex<Connections>,
    /// Client only: bytes between the client and this host that relays have forwarded.
    pub(super) carried: AtomicU64,
}

impl Host {
    pub(super) fn new(id: ProcUid, session: Arc<Session>, membership: &Arc<Mutex<Membership>>) -> Arc<Host> {
        let (info, partial_parts, state) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Host { id, session, membership: membership.clone(), info, partial_parts, state, carried: AtomicU64::new(0) })
    }

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

    /// The time since the last heartbeat of the host; none for one that is not watched.
    pub(super) fn heartbeat_age(&self, now: Instant) -> Option<Duration> {
        lock(&self.membership).heartbeat_age(self.id, now)
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

    /// The host has joined, and its agent has described itself.
    pub(super) fn introduce_itself(&self, agent: u64, name: String, pid: u32, release: String) {
        let mut info = lock(&self.info);
        (info.name, info.pid, info.release, info.agent) = (name, pid, release, agent);
    }

    /// The heartbeat of this side, with the number of frames that it has received.
    pub(super) fn ping(&self) {
        self.session.send_heartbeat(&Heartbeat::Ping { received: vec![self.session.received()] });
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
