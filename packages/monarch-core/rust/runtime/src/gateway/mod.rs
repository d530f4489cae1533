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
//! | `join` | connections that this process opens |
//! | `arrive` | connections that come in |
//! | `joins` | joins of many hosts at once, by a tree |
//! | `join_tree` | that tree, and the frames along it |
//! | `evidence` | indirect heartbeats along it |
//! | `bulk` | streams for bulk data, which are handed to processes |
//! | `tunnel` | hosts behind a gateway |
//! | `refusals` | reports of refused connections |
//! | `host_loss` | silent hosts, hosts that have left, and the end of their work |

mod arrive;
mod bulk;
mod cast;
mod evidence;
mod forward;
mod host_loss;
mod job;
mod join;
mod join_tree;
mod joins;
mod part_fragments;
mod refusals;
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
pub use self::forward::Via;
pub(crate) use self::forward::host_end;
use self::job::lock_state;
pub use self::job::{Host, Job};
pub use self::join::{Wanted, random};
use self::refusals::{Refusals, Report};
use self::tunnel::Tunnels;
pub use self::tunnel::Way;
use crate::node::Node;

/// The release of this build, as it is sent to others.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Something to be written down: who joined, who was refused.
pub struct Audit {
    pub what: &'static str,
    pub peer: String,
    pub detail: String,
    /// How many of its kind it stands for; peer and detail are of the last.
    pub count: u64,
}

/// A host of this client: `joining`, `joined` or `lost`; `why` it cannot be asked.
pub struct Member {
    pub id: ProcUid,
    pub name: String,
    pub state: &'static str,
    pub why: Option<String>,
}

pub struct Gateway {
    node: Weak<Node>,
    me: Weak<Gateway>,
    poller: Arc<Poller>,
    /// By the client's uid, and by the id that this host has in them.
    jobs: RwLock<HashMap<ProcUid, Arc<Job>>>,
    here: RwLock<HashMap<ProcUid, Arc<Job>>>,
    listener: Mutex<Option<Arc<Listener>>>,
    /// Of an agent: what its operator gave it.
    trust: OnceLock<Arc<HostTrust>>,
    closing: Mutex<bool>,
    /// Jobs that are over: who comes late is no stranger.
    over: Mutex<VecDeque<ProcUid>>,
    /// Of a client: how it reaches hosts, if not directly.
    way: Mutex<Option<Arc<Way>>>,
    /// Of an agent: what it passes on, by the job of the client.
    tunnels: Mutex<HashMap<ProcUid, Tunnels>>,
    refusals: Mutex<Refusals>,
}

/// In the audit log: a stranger was not let in, or was not given what it asked for.
const REFUSED: &str = "refused";

/// So many of them are remembered.
const OVER: usize = 64;

impl Gateway {
    pub fn new(node: &Arc<Node>) -> Arc<Self> {
        Arc::new_cyclic(|me| Gateway {
            node: Arc::downgrade(node),
            me: me.clone(),
            poller: node.poller.clone(),
            jobs: RwLock::default(),
            here: RwLock::default(),
            listener: Mutex::default(),
            trust: OnceLock::new(),
            closing: Mutex::new(false),
            over: Mutex::default(),
            way: Mutex::default(),
            tunnels: Mutex::default(),
            refusals: Mutex::default(),
        })
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade()
    }

    /// Lets clients in; the port.
    pub fn listen(&self, at: &Address, policy: Policy) -> io::Result<u16> {
        let trust = Arc::new(HostTrust::new(policy)?);
        let trust = self.trust.get_or_init(|| trust).clone();
        let me = self.me.clone();
        let arrived = move |peer: String, result| {
            if let Some(g) = me.upgrade() {
                g.arrived(&peer, result);
            }
        };
        let listener = Listener::open(&self.poller, at, trust, Arc::new(arrived))?;
        let port = listener.port;
        *lock(&self.listener) = Some(listener);
        Ok(port)
    }

    pub fn job(&self, id: ProcUid) -> Option<Arc<Job>> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The job in which this process is the host with that id.
    pub fn job_here(&self, host: ProcUid) -> Option<Arc<Job>> {
        self.here.read().unwrap_or_else(PoisonError::into_inner).get(&host).cloned()
    }

    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// What this host is called in the job of that client, if it is one of another host.
    pub(crate) fn here_in(&self, client: ProcUid) -> Option<ProcUid> {
        self.job(client).filter(|j| !j.is_clients()).map(|j| j.here)
    }

    /// The hosts of this client, by name.
    pub(crate) fn members(&self) -> Vec<Member> {
        let Some(job) = self.node().and_then(|n| self.job(n.uid)) else { return vec![] };
        let mut all: Vec<Member> = job.hosts().into_iter().filter_map(|h| h.member()).collect();
        all.sort_by(|a, b| (&a.name, a.id.0).cmp(&(&b.name, b.id.0)));
        all
    }

    /// Clients of other hosts, as they have described themselves.
    pub(crate) fn clients(&self) -> Vec<String> {
        let mut all: Vec<String> = self.jobs().iter().filter(|j| !j.is_clients()).filter_map(|j| Some(j.host(j.id)?.name())).collect();
        all.sort();
        all.dedup();
        all
    }

    /// For tests: from now on nothing goes between these hosts and this one, and between others again; with a gateway, neither what is
    /// behind it. Those `beside` are cut off by the other side, but for memory that is shared with them. Procs here are to be told that.
    pub fn cut_off(&self, hosts: &[ProcUid], beside: &[ProcUid]) -> Vec<ProcUid> {
        let cut: HashSet<ProcUid> = hosts.iter().copied().collect();
        let jobs = self.jobs();
        let way = self.way().filter(|way| {
            let agent = way.host.place().agent;
            jobs.iter().flat_map(|job| job.hosts()).any(|h| cut.contains(&h.id) && h.place().agent == agent)
        });
        for (job, host) in jobs.iter().flat_map(|j| j.hosts().into_iter().map(move |h| (j, h))) {
            let by_way = way.as_ref().is_some_and(|way| job.is_clients() || way.job.id == job.id);
            match (by_way || cut.contains(&host.id), host.trunk.is_still()) {
                (true, false) => {
                    host.trunk.stand_still();
                    self.leave_tree(job, &host);
                }
                (false, true) => {
                    host.trunk.go_on();
                    self.open_soon(job, &host);
                }
                _ => {}
            }
        }
        let Some(node) = self.node() else { return vec![] };
        node.bulk_streams.cut_off(&cut.into_iter().chain(beside.iter().copied()).collect());
        node.agent().map_or(vec![], |agent| agent.started())
    }

    fn add_job(&self, job: Arc<Job>) {
        // Its client may be back.
        lock(&self.over).retain(|over| *over != job.id);
        self.here.write().unwrap_or_else(PoisonError::into_inner).insert(job.here, job.clone());
        self.jobs.write().unwrap_or_else(PoisonError::into_inner).insert(job.id, job);
    }

    fn drop_job(&self, job: &Job) {
        self.here.write().unwrap_or_else(PoisonError::into_inner).remove(&job.here);
        self.jobs.write().unwrap_or_else(PoisonError::into_inner).remove(&job.id);
        let mut over = lock(&self.over);
        over.push_back(job.id);
        if over.len() > OVER {
            over.pop_front();
        }
    }

    fn is_closing(&self) -> bool {
        *lock(&self.closing)
    }

    pub(crate) fn audit(&self, what: &'static str, peer: &str, detail: String) {
        if let Some(node) = self.node() {
            node.system.push(crate::SystemEvent::Audit(Audit { what, peer: peer.to_owned(), detail, count: 1 }));
        }
    }

    /// A stranger was refused: reported, or counted where there are many.
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
