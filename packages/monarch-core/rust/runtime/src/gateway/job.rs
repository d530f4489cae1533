//! A job, its hosts, and the messages that it sends along its join tree.
//!
//! What it needs: a handler for the events of its sessions. The states that it contains do no I/O; components of the gateway change them.
//!
//! What always holds:
//! - A host that is asked for is in the job from then on, whether it has joined or not, so frames for it have a session to wait in.
//! - No other lock is taken while the one of the membership is held.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use net::Poller;
use net::dial::Handshake;
use net::lock::lock;
use net::session::{Session, SessionHandler};
use wire::ProcUid;
use wire::control::HostEntry;
use wire::frame::TREE;
use wire::greeting::{self, JobSettings};
use wire::join_tree::{Along, HostEnd, TreeMessage};

use super::arrivals::Arrivals;
use super::cast_relay::{CastCounts, CastRelay};
use super::host::Host;
use super::worker_list::WorkerList;
use crate::membership::relays::Relays;
use crate::membership::{Membership, Role, Settings};
use crate::sync::{read, write};

/// The release of this build. It is sent to other hosts in greetings.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Makes the handler of the sessions of a job.
pub(super) type NewHandler = Box<dyn Fn(Weak<Job>) -> Arc<dyn SessionHandler> + Send + Sync>;

/// A job as one process sees it: the client of the job, or the agent of one of its hosts. `Jobs` owns it.
pub struct Job {
    /// The uid of the client.
    pub id: ProcUid,
    /// The id of this process in the job; in the client, its uid.
    pub own_id: ProcUid,
    pub settings: JobSettings,
    poller: Arc<Poller>,
    sessions: Arc<dyn SessionHandler>,
    hosts: RwLock<HashMap<ProcUid, Arc<Host>>>,
    /// The decisions about the hosts, which share it.
    pub(super) membership: Arc<Mutex<Membership>>,
    /// True while a tick of the membership is scheduled.
    pub(super) ticking: AtomicBool,
    /// When this process made the job. The times of casts are relative to it.
    pub(super) started_at: Instant,
    pub(super) casts: Mutex<CastRelay>,
    /// The number of frames that were sent to other hosts for casts.
    pub(super) casts_sent: AtomicU64,
    pub(super) arrivals: Mutex<Arrivals>,
    pub(super) relays: Mutex<Relays>,
    /// The lists of workers whose joins are under way.
    pub(super) lists: Mutex<Vec<WorkerList>>,
    /// The handshakes that wait for a certificate from the client, by the host that joins.
    pub(super) signing: Mutex<HashMap<ProcUid, Weak<Handshake>>>,
    /// Client only: the next introduction of new hosts is scheduled.
    pub(super) introducing: AtomicBool,
    /// The lines of a proc go to a console that the client may not see: this agent has reported that to the client; in the client, the
    /// audit log has an entry. Either happens once a job.
    pub(crate) output_warning_sent: AtomicBool,
    /// Client only: the description of the client that hosts receive when they join.
    pub(super) client_description: Mutex<String>,
}

impl Job {
    pub(super) fn new(id: ProcUid, own_id: ProcUid, settings: JobSettings, poller: &Arc<Poller>, handler: &NewHandler) -> Arc<Job> {
        let role = if id == own_id { Role::Client } else { Role::Agent };
        let ms = Duration::from_millis;
        let detector = Settings { loss: ms(settings.loss_ms), reconnect: ms(settings.reconnect_ms), role };
        let membership = Membership::new(id, own_id, detector, ms(settings.lease_ms), poller.now());
        Arc::new_cyclic(|me| Job {
            id,
            own_id,
            settings,
            poller: poller.clone(),
            sessions: handler(me.clone()),
            hosts: RwLock::default(),
            membership: Arc::new(Mutex::new(membership)),
            ticking: AtomicBool::new(false),
            started_at: poller.now(),
            casts: Mutex::new(CastRelay::new(own_id)),
            casts_sent: AtomicU64::new(0),
            arrivals: Mutex::default(),
            relays: Mutex::new(Relays::new(role, id)),
            lists: Mutex::default(),
            signing: Mutex::default(),
            introducing: AtomicBool::new(false),
            output_warning_sent: AtomicBool::new(false),
            client_description: Mutex::default(),
        })
    }

    /// True in the client of the job.
    pub fn is_clients(&self) -> bool {
        self.id == self.own_id
    }

    pub fn cast_counts(&self) -> CastCounts {
        let (records, groups) = {
            let casts = lock(&self.casts);
            (casts.relay.records(), casts.relay.groups())
        };
        CastCounts { records, groups, held: lock(&self.arrivals).held(), sent: self.casts_sent.load(Ordering::Relaxed) }
    }

    // ---- hosts

    pub fn host(&self, id: ProcUid) -> Option<Arc<Host>> {
        read(&self.hosts).get(&id).cloned()
    }

    pub fn hosts(&self) -> Vec<Arc<Host>> {
        read(&self.hosts).values().cloned().collect()
    }

    /// The host with this id; makes it if the job does not have it yet.
    pub(super) fn host_or_new(&self, id: ProcUid) -> Arc<Host> {
        let session = || Session::new(self.id, self.own_id, id, self.poller.clone(), self.sessions.clone());
        write(&self.hosts).entry(id).or_insert_with(|| Host::new(id, session(), &self.membership)).clone()
    }

    /// The entries of the hosts that have joined, and the reasons for the loss of the others.
    pub(super) fn known_hosts(&self) -> (Vec<HostEntry>, Vec<(ProcUid, String)>) {
        let all = self.hosts();
        let joined = all.iter().filter(|h| h.is_joined()).filter_map(|h| h.entry()).collect();
        (joined, all.iter().filter_map(|h| Some((h.id, h.lost()?))).collect())
    }

    /// True if this process has a heartbeat connection of its own with the client.
    pub(super) fn has_client_heartbeat(&self) -> bool {
        self.host(self.id).is_some_and(|c| c.session.has_heartbeat())
    }

    /// The client's description of itself, which agents repeat to the hosts that they join.
    pub(super) fn description_of_client(&self) -> String {
        if self.is_clients() { lock(&self.client_description).clone() } else { self.host(self.id).map_or(String::new(), |c| c.name()) }
    }

    // ---- the join tree

    /// True if a host has joined in a tree.
    pub(super) fn has_tree(&self) -> bool {
        lock(&self.relays).has_tree()
    }

    /// The relayed hosts; none in an agent.
    pub fn relayed_hosts(&self) -> HashSet<ProcUid> {
        lock(&self.relays).relayed_hosts()
    }

    /// True in the client, if this host is relayed.
    pub(super) fn is_relayed(&self, host: ProcUid) -> bool {
        lock(&self.relays).is_relayed(host)
    }

    /// The destination of reports to the client: the relay of this host, or the client where it has a direct connection.
    pub(super) fn relay(&self) -> ProcUid {
        let direct = self.host(self.id).is_some_and(|c| c.session.is_up() && !c.session.is_routed());
        let parent = lock(&self.relays).parent();
        parent.filter(|p| !direct && self.host(*p).is_some_and(|h| h.lost().is_none())).unwrap_or(self.id)
    }

    /// The next host on the route to another one.
    pub(super) fn next_hop(&self, to: ProcUid) -> Option<ProcUid> {
        lock(&self.relays).next_hop(to)
    }

    /// Sends a frame along the tree, by the next host on the route.
    pub(super) fn send_by(&self, via: ProcUid, to: ProcUid, kind: u8, body: &[u8]) {
        if let Some(host) = self.host(via) {
            // If the host is lost, the client opens direct connections to the hosts that it relayed, and their sessions send
            // unacknowledged frames again.
            let _ = host.session.send(&[&Along { to, from: self.own_id }.frame(kind, body)]);
        }
    }

    /// Sends a message to a host, by the next host on the route.
    pub(super) fn send_along_tree(&self, to: ProcUid, message: &TreeMessage) {
        let via = if to == self.id { Some(self.relay()) } else { self.next_hop(to) };
        via.into_iter().for_each(|via| self.send_by(via, to, TREE, &greeting::encode(message)));
    }

    /// Sends a message to the next host.
    pub(super) fn send_to_next(&self, to: ProcUid, message: &TreeMessage) {
        self.send_by(to, to, TREE, &greeting::encode(message));
    }

    /// Sends a message to all hosts of the client, or, in an agent, to its children. Each agent passes the message on.
    pub(super) fn spread(&self, message: &TreeMessage) {
        let next: Vec<ProcUid> = if self.is_clients() {
            let relayed = self.relayed_hosts();
            let direct = self.hosts().into_iter().filter(|h| !relayed.contains(&h.id) && h.is_joined());
            direct.map(|h| h.id).collect()
        } else {
            lock(&self.relays).children()
        };
        next.into_iter().for_each(|host| self.send_to_next(host, message));
    }

    /// Notifies the client that the connections to a child have ended, as the client may have none of its own.
    pub(super) fn child_ended(&self, host: ProcUid, how: HostEnd) {
        if lock(&self.relays).is_child(host) {
            self.send_along_tree(self.id, &TreeMessage::Ended { host, how });
        }
    }
}
