//! This process as a member of jobs that span hosts: a client, or the agent of a host.
//!
//! Procs have a link to their agent only: the agent forwards their frames to other hosts, and delivers the frames from other hosts to them.
//! Between agents, and between a client and its agents, there are sessions; a client dials, and agents dial each other when they have
//! frames to send. The client chooses the id of a host in its job before the host has joined, so the host can be addressed at once.
//!
//! | file | noun |
//! |---|---|
//! | `job` | a job and its hosts |
//! | `forward` | forwarding of frames between procs and sessions |
//! | `cast` | this host's part in casts, and the order of incoming frames |
//! | `part_fragments` | large parts of frames, in fragments beside the frames |
//! | `dial` | connections that this process opens |
//! | `redial` | the attempts to open the connections of one host |
//! | `accept` | connections that come in |
//! | `joins` | the joins that are under way |
//! | `join_list` | joins of many hosts at once, by a tree |
//! | `join_tree` | that tree, and the frames along it |
//! | `indirect_heartbeat` | indirect heartbeats along it |
//! | `bulk` | streams for bulk data, which are handed to processes |
//! | `tunnel` | hosts behind a gateway |
//! | `random_id` | ids of jobs, hosts and sessions |
//! | `refusals` | reports of refused connections |
//! | `role` | the gateway as the components of its process know it |
//! | `host_loss` | silent hosts, hosts that have left, and the end of their work |

mod accept;
mod bulk;
mod cast;
mod dial;
mod forward;
mod host_loss;
mod indirect_heartbeat;
mod job;
mod join_list;
mod join_tree;
mod joins;
mod part_fragments;
mod random_id;
mod redial;
mod refusals;
mod role;
mod tunnel;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use net::Poller;
use net::address::Address;
use net::listener::Listener;
use net::lock::lock;
use net::trust::{HostTrust, Policy};
use wire::ProcUid;

pub use self::cast::CastCounts;
pub use self::dial::Wanted;
pub use self::job::{Host, Job};
pub use self::random_id::random_id;
use self::refusals::{Refusals, Report};
pub use self::tunnel::ClientGateway;
use self::tunnel::Tunnels;
use crate::node::Node;

pub use crate::system::Audit;

/// The release of this build. It is sent to other hosts in greetings.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// A host of this client. `state` is `joining`, `joined` or `lost`; `why` is the reason why the host cannot be inspected.
pub struct Member {
    pub id: ProcUid,
    pub name: String,
    pub state: &'static str,
    pub why: Option<String>,
}

/// Connects this process to other hosts: owns its jobs, their hosts and sessions, and the listener of an agent. The node owns the gateway.
pub struct Gateway {
    node: Weak<Node>,
    me: Weak<Gateway>,
    poller: Arc<Poller>,
    /// The jobs of this process, by the uid of the client.
    jobs: RwLock<HashMap<ProcUid, Arc<Job>>>,
    /// The same jobs, by the id that this host has in the job.
    jobs_by_own_id: RwLock<HashMap<ProcUid, Arc<Job>>>,
    listener: Mutex<Option<Arc<Listener>>>,
    /// Agent only: the secret, certificates or policy that the operator gave to this host.
    trust: OnceLock<Arc<HostTrust>>,
    /// True since `close`: no connection is opened or admitted any more.
    closing: Mutex<bool>,
    /// The last jobs that have ended. A late connection of such a job is not reported as refused.
    ended_jobs: Mutex<VecDeque<ProcUid>>,
    /// Client only: the gateway through which this client reaches its hosts; none if it dials them directly.
    route_gateway: Mutex<Option<Arc<ClientGateway>>>,
    /// Agent only: the tunnels that this agent forwards as a gateway, by the uid of the client.
    tunnels: Mutex<HashMap<ProcUid, Tunnels>>,
    /// The refused connections of the present window, for the audit log.
    refusals: Mutex<Refusals>,
}

/// Kind of audit event: a connection was not admitted, or a peer did not get what it requested.
const REFUSED: &str = "refused";

/// The number of ended jobs that `Gateway::ended_jobs` keeps. Only connections that were under way at the end of a job need the record.
const ENDED_JOBS_KEPT: usize = 64;

impl Gateway {
    /// Makes the gateway of a process, and gives it this role.
    pub fn new(node: &Arc<Node>) -> Arc<Self> {
        let gateway = Arc::new_cyclic(|me| Gateway {
            node: Arc::downgrade(node),
            me: me.clone(),
            poller: node.poller.clone(),
            jobs: RwLock::default(),
            jobs_by_own_id: RwLock::default(),
            listener: Mutex::default(),
            trust: OnceLock::new(),
            closing: Mutex::new(false),
            ended_jobs: Mutex::default(),
            route_gateway: Mutex::default(),
            tunnels: Mutex::default(),
            refusals: Mutex::default(),
        });
        node.roles.set_gateway(gateway.clone());
        gateway
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade()
    }

    /// Opens the listener to which clients and agents connect; returns its port.
    pub fn listen(&self, at: &Address, policy: Policy) -> io::Result<u16> {
        let trust = Arc::new(HostTrust::new(policy)?);
        let trust = self.trust.get_or_init(|| trust).clone();
        let me = self.me.clone();
        let on_accepted = move |peer: String, result| {
            if let Some(g) = me.upgrade() {
                g.on_accepted(&peer, result);
            }
        };
        let listener = Listener::open(&self.poller, at, trust, Arc::new(on_accepted))?;
        let port = listener.port;
        *lock(&self.listener) = Some(listener);
        Ok(port)
    }

    pub fn job(&self, id: ProcUid) -> Option<Arc<Job>> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The job in which this process is the host with this id.
    pub fn job_by_own_id(&self, host: ProcUid) -> Option<Arc<Job>> {
        self.jobs_by_own_id.read().unwrap_or_else(PoisonError::into_inner).get(&host).cloned()
    }

    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The id of this host in the job of that client; none in the client itself, and for a client without a job here.
    pub(crate) fn own_id_in(&self, client: ProcUid) -> Option<ProcUid> {
        self.job(client).filter(|j| !j.is_clients()).map(|j| j.own_id)
    }

    /// The hosts of this client, sorted by name.
    pub(crate) fn members(&self) -> Vec<Member> {
        let Some(job) = self.node().and_then(|n| self.job(n.uid)) else { return vec![] };
        let mut all: Vec<Member> = job.hosts().into_iter().filter_map(|h| h.member()).collect();
        all.sort_by(|a, b| (&a.name, a.id.0).cmp(&(&b.name, b.id.0)));
        all
    }

    /// Clients of other hosts that have a job here, by the name that each client has sent.
    pub(crate) fn clients(&self) -> Vec<String> {
        let mut all: Vec<String> = self.jobs().iter().filter(|j| !j.is_clients()).filter_map(|j| Some(j.host(j.id)?.name())).collect();
        all.sort();
        all.dedup();
        all
    }

    /// For tests: pauses the sessions with `hosts` and resumes all other sessions. A gateway among `hosts` pauses the hosts behind it too.
    /// Between this host and the hosts in `beside`, the other side pauses the session; this side cuts only the streams for bulk data.
    /// Returns the procs of this host, which the caller has to notify.
    pub fn cut_off(&self, hosts: &[ProcUid], beside: &[ProcUid]) -> Vec<ProcUid> {
        let cut: HashSet<ProcUid> = hosts.iter().copied().collect();
        let jobs = self.jobs();
        let route_gateway = self.route_gateway().filter(|route_gateway| {
            let agent = route_gateway.host.info().agent;
            jobs.iter().flat_map(|job| job.hosts()).any(|h| cut.contains(&h.id) && h.info().agent == agent)
        });
        for (job, host) in jobs.iter().flat_map(|j| j.hosts().into_iter().map(move |h| (j, h))) {
            let through_gateway = route_gateway.as_ref().is_some_and(|route_gateway| job.is_clients() || route_gateway.job.id == job.id);
            match (through_gateway || cut.contains(&host.id), host.session.is_paused()) {
                (true, false) => {
                    host.session.begin_pause();
                    self.leave_tree(job, &host);
                }
                (false, true) => {
                    host.session.end_pause();
                    self.open_soon(job, &host);
                }
                _ => {}
            }
        }
        let Some(node) = self.node() else { return vec![] };
        node.streams.cut_off(&cut.into_iter().chain(beside.iter().copied()).collect());
        node.roles.agent().map_or(vec![], |agent| agent.started())
    }

    fn add_job(&self, job: Arc<Job>) {
        // The client may be back with the same uid.
        lock(&self.ended_jobs).retain(|ended| *ended != job.id);
        self.jobs_by_own_id.write().unwrap_or_else(PoisonError::into_inner).insert(job.own_id, job.clone());
        self.jobs.write().unwrap_or_else(PoisonError::into_inner).insert(job.id, job);
    }

    fn drop_job(&self, job: &Job) {
        self.jobs_by_own_id.write().unwrap_or_else(PoisonError::into_inner).remove(&job.own_id);
        self.jobs.write().unwrap_or_else(PoisonError::into_inner).remove(&job.id);
        let mut ended_jobs = lock(&self.ended_jobs);
        ended_jobs.push_back(job.id);
        if ended_jobs.len() > ENDED_JOBS_KEPT {
            ended_jobs.pop_front();
        }
    }

    fn is_closing(&self) -> bool {
        *lock(&self.closing)
    }

    /// Adds an event to the audit log.
    pub(crate) fn audit(&self, what: &'static str, peer: &str, detail: String) {
        if let Some(node) = self.node() {
            node.system.push(crate::SystemEvent::Audit(Audit { what, peer: peer.to_owned(), detail, count: 1 }));
        }
    }

    /// Reports a refused connection, or counts it if there were many of them.
    pub(crate) fn refused(&self, peer: &str, why: String) {
        let report = lock(&self.refusals).refused(peer, &why, self.poller.now());
        match report {
            Report::Now => self.audit(REFUSED, peer, why),
            Report::Counted(None) => {}
            Report::Counted(Some(due)) => {
                let me = self.me.clone();
                let collect = move || {
                    if let Some(g) = me.upgrade() {
                        g.report_refusals();
                    }
                };
                self.poller.later(due, Box::new(collect));
            }
        }
    }

    fn report_refusals(&self) {
        let (count, peer, detail) = lock(&self.refusals).collect();
        if let Some(node) = self.node().filter(|_| count > 0) {
            node.system.push(crate::SystemEvent::Audit(Audit { what: REFUSED, peer, detail, count }));
        }
    }
}
