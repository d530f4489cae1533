//! The node: the runtime of one process, with its peers, its mailboxes, and its pending calls.
//!
//! | file | noun |
//! |---|---|
//! | `peer` | another process, and the sending end of its link |
//! | `credit` | flow control: the bytes that a sender may have in transit to one mailbox |
//! | `mailbox` | the queue of an actor or a port |
//! | `assembly` | the frames of a sender on another host that wait for their large parts |
//! | `incomplete` | messages and answers whose large parts are missing |
//! | `payload` | the parts of one outgoing message |
//! | `incoming` | the frames that arrive on links |
//! | `delivery` | the delivery of messages to mailboxes, and the answers of closed mailboxes |
//! | `outgoing` | the sending of messages and answers |
//! | `pending_call` | a pending call |
//! | `failed_calls` | the calls that have failed |
//! | `caster` | the casts of this process |
//! | `offers` | rendezvous transfers: the receiver pulls large parts from the sender |
//! | `ended_peers` | the outcome of calls to processes that have ended |
//! | `proc_tombstones` | tombstones of processes |
//! | `actor_tombstones` | tombstones of actors |
//! | `routes` | the host of each remote process |
//! | `external_process` | external processes: of the same user, and not started by this agent |
//! | `bulk_pipes` | bulk streams made of messages, where no connection can be opened |
//! | `bulk_streams` | bulk streams between processes of different hosts, opened by their agents |
//! | `inspection` | the state of one process, for `monarch ps` and `monarch stack` |
//! | `recording` | the events of this process |
//! | `simulated` | procs that are nodes of this process, for tests |
//! | `system` | events for the housekeeping thread of this process |

mod actor_tombstones;
pub mod assembly;
mod bulk_pipes;
pub mod bulk_streams;
pub mod caster;
pub mod credit;
mod delivery;
mod ended_peers;
pub mod external_process;
mod failed_calls;
mod incoming;
mod incomplete;
pub mod inspection;
pub mod mailbox;
pub mod offers;
mod outgoing;
pub mod payload;
pub mod peer;
pub mod pending_call;
pub mod proc_tombstones;
mod recording;
pub mod routes;
pub mod simulated;
pub mod system;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use net::lock::lock;
use net::{Arena, Poller};
use wire::{CallId, Control, MailboxId, ProcUid, Status};

use crate::agent::Agent;
use crate::gateway::Gateway;
use crate::node::actor_tombstones::ActorTombstones;
use crate::node::bulk_pipes::BulkPipes;
use crate::node::bulk_streams::BulkStreams;
use crate::node::caster::Caster;
use crate::node::failed_calls::FailedCalls;
use crate::node::inspection::Inspections;
use crate::node::mailbox::Mailbox;
use crate::node::offers::Offers;
use crate::node::peer::Peer;
use crate::node::pending_call::{Mode, Outcome, PendingCall};
use crate::node::proc_tombstones::{Ended, ProcTombstones};
use crate::node::routes::Routes;
use crate::node::system::{SystemEvent, SystemQueue};
use crate::supervision::Supervision;

/// The request that reports an undeliverable message to its sender. Its body: the sender's mailbox, the receiver's mailbox, the reason.
pub const UNDELIVERABLE: u16 = 2;

/// Starts a thread that takes no signals: signals are for the interpreter's main thread.
pub fn spawn_joinable(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    // SAFETY: the sigset operations use local sets; the new thread inherits the mask, which is restored afterwards.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let made = std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        made.map_err(net::thread_limit::named)
    }
}

/// The runtime of one process. A client, a proc and an agent have one; simulated processes share a poller.
pub struct Node {
    pub uid: ProcUid,
    pub poller: Arc<Poller>,
    pub arena: Arc<Arena>,
    pub system: SystemQueue,
    /// The meshes that this process owns, and the receivers of their failures.
    supervision: Mutex<Supervision>,
    pub inspections: Inspections,
    pub bulk_streams: BulkStreams,
    pub(crate) bulk_pipes: BulkPipes,
    pub offers: Arc<Offers>,
    /// The process that is the agent of this one; in the client, the client itself.
    pub agent_uid: ProcUid,
    agent: OnceLock<Arc<Agent>>,
    /// The processes that this process has exchanged frames with or sends to.
    pub(crate) peers: RwLock<HashMap<ProcUid, Arc<Peer>>>,
    pub(crate) caster: Caster,
    /// The hosts of processes on other hosts.
    pub routes: Routes,
    gateway: OnceLock<Arc<Gateway>>,
    /// The procs of other clients' hosts, each with its client; such a client is mapped to itself.
    pub(crate) other_clients: RwLock<HashMap<ProcUid, ProcUid>>,
    /// The tombstones of processes.
    pub(crate) proc_tombstones: RwLock<ProcTombstones>,
    /// The mailboxes of the actors and ports of this process.
    pub(crate) mailboxes: RwLock<HashMap<MailboxId, Arc<Mailbox>>>,
    /// The tombstones of actors.
    actor_tombstones: RwLock<ActorTombstones>,
    /// Meshes whose owner's process has ended and to which this process has handles, with the answer to calls.
    pub(crate) orphaned: RwLock<HashMap<MailboxId, Arc<[u8]>>>,
    pub(crate) any_orphaned: AtomicBool,
    /// The pending calls by call id.
    pub(crate) calls: Mutex<HashMap<CallId, Arc<PendingCall>>>,
    failed_calls: Mutex<FailedCalls>,
    next_call_id: AtomicU64,
    /// The number of replies whose call was gone.
    pub dropped_replies: AtomicU64,
    /// The number of messages to ports whose receiver was dropped.
    pub dropped_items: AtomicU64,
    me: OnceLock<std::sync::Weak<Node>>,
    /// Set when a simulated process has ended.
    pub(crate) over: AtomicBool,
    /// This process records its events for its own ring, with or without an observer.
    pub(crate) flight_recorder: AtomicBool,
}

impl Node {
    /// Makes the runtime of this process, and starts its I/O thread.
    pub fn start(uid: ProcUid, agent_uid: ProcUid) -> io::Result<Arc<Self>> {
        let node = Node::on(Poller::new()?, uid, agent_uid);
        let poller = node.poller.clone();
        // Without the I/O thread no frame would ever arrive.
        spawn_joinable("monarch-io", move || poller.run())?;
        Ok(node)
    }

    /// Makes a runtime on a poller that another thread runs.
    pub fn on(poller: Arc<Poller>, uid: ProcUid, agent_uid: ProcUid) -> Arc<Self> {
        let node = Arc::new(Node {
            uid,
            poller,
            arena: Arena::new(),
            system: SystemQueue::default(),
            supervision: Mutex::default(),
            inspections: Inspections::default(),
            bulk_streams: BulkStreams::default(),
            bulk_pipes: BulkPipes::default(),
            offers: Arc::default(),
            agent_uid,
            agent: OnceLock::new(),
            peers: RwLock::default(),
            caster: Caster::new(uid),
            routes: Routes::default(),
            gateway: OnceLock::new(),
            other_clients: RwLock::default(),
            proc_tombstones: RwLock::default(),
            mailboxes: RwLock::default(),
            actor_tombstones: RwLock::default(),
            orphaned: RwLock::default(),
            any_orphaned: AtomicBool::new(false),
            calls: Mutex::default(),
            failed_calls: Mutex::default(),
            next_call_id: AtomicU64::new(1),
            dropped_replies: AtomicU64::new(0),
            dropped_items: AtomicU64::new(0),
            me: OnceLock::new(),
            over: AtomicBool::new(false),
            flight_recorder: AtomicBool::new(false),
        });
        let _ = node.me.set(Arc::downgrade(&node));
        let poller = Arc::downgrade(&node.poller);
        node.arena.trim_with(Box::new(move |delay, task| {
            if let Some(p) = poller.upgrade() {
                p.later(delay, task);
            }
        }));
        node
    }

    /// A reference that keeps the node alive.
    pub(crate) fn arc(&self) -> Arc<Node> {
        // proof: `on` is the only constructor and sets `me`; a method runs only while the node is alive.
        self.me.get().and_then(std::sync::Weak::upgrade).expect("node is alive")
    }

    /// In a forked child: closes what is shared with the parent.
    pub fn close_in_child(&self) {
        self.poller.close_in_child();
        if let Some(agent) = self.agent() {
            agent.output.poller.close_in_child();
        }
    }

    pub fn set_agent(&self, agent: Arc<Agent>) {
        let _ = self.agent.set(agent);
    }

    pub fn agent(&self) -> Option<&Arc<Agent>> {
        self.agent.get()
    }

    /// The component of a client or an agent that connects it to other hosts. It is made at the first call.
    pub fn open_gateway(&self) -> Arc<Gateway> {
        self.gateway.get_or_init(|| Gateway::new(&self.arc())).clone()
    }

    pub fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.get()
    }

    // ---- peers

    /// The peer, if this process has one or knows of its end.
    pub fn known_peer(&self, uid: ProcUid) -> Option<Arc<Peer>> {
        let known = self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&uid).cloned();
        known.or_else(|| Some(self.peer_from_tombstone(uid, self.end_of(uid)?)))
    }

    /// True if this process can send to a process, or knows that it has ended, without asking another process. An agent knows all processes
    /// of its host; the process must be in a job of `asker`.
    pub fn knows(&self, uid: ProcUid, asker: ProcUid) -> bool {
        if uid == self.uid || uid == self.agent_uid || self.end_of(uid).is_some() || self.routes.is_host(uid) {
            return true;
        }
        if self.routes.place(uid).is_some() || self.other_clients.read().unwrap_or_else(PoisonError::into_inner).contains_key(&uid) {
            return true;
        }
        if self.gateway().is_some_and(|g| g.jobs().iter().any(|job| job.id == uid || job.host(uid).is_some())) {
            return true;
        }
        match self.agent() {
            // An agent belongs to the jobs of all its procs.
            Some(agent) if agent.has_proc(uid) => asker == self.uid || agent.share_a_job(uid, asker),
            _ => self.known_peer(uid).is_some_and(|p| p.link.is_attached() || p.link.is_forwarded()),
        }
    }

    /// The peer, without a request for a link to it. The flag is true if the peer is new.
    pub fn peer_unlinked(&self, uid: ProcUid) -> (Arc<Peer>, bool) {
        if let Some(p) = self.known_peer(uid) {
            return (p, false);
        }
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(p) = peers.get(&uid) {
            return (p.clone(), false);
        }
        let peer = self.new_peer(uid);
        if self.over.load(Ordering::Acquire) {
            peer.link.close();
            return (peer, false);
        }
        if let Some(place) = self.routes.place(uid) {
            peer.link.forward_by(self.via(place));
            if let Some(end) = self.routes.lost(place) {
                peer.set_ended(Ended::new(end));
                peer.link.close();
            }
        }
        peers.insert(uid, peer.clone());
        (peer, true)
    }

    /// The peer. The first call requests a link to it; frames that are sent meanwhile wait for the link.
    pub fn peer(&self, uid: ProcUid) -> Arc<Peer> {
        let (peer, fresh) = self.peer_unlinked(uid);
        if peer.link.is_forwarded() {
            return peer;
        }
        let client = self.other_clients.read().unwrap_or_else(PoisonError::into_inner).get(&uid).copied();
        if let (true, Some(agent)) = (fresh && client != Some(uid), client) {
            self.peer_unlinked(agent).0.send_control(Control::Connect { target: uid });
        } else if fresh && client.is_none() && uid != self.uid && uid != self.agent_uid && self.uid != self.agent_uid {
            self.to_agent(Control::Connect { target: uid });
        }
        peer
    }

    /// Sends to the agent of this process, which may be this process.
    pub fn to_agent(&self, c: Control) {
        match self.agent() {
            Some(agent) => agent.control(self.uid, c),
            None => self.peer_unlinked(self.agent_uid).0.send_control(c),
        }
    }

    /// Sends to the agent through which this process reaches the hosts of a job. `here` is this host's uid in that job.
    pub(crate) fn to_agent_beside(&self, here: ProcUid, c: Control) {
        if self.is_other_client(here) { self.peer_unlinked(here).0.send_control(c) } else { self.to_agent(c) }
    }

    /// The host of a process, or 0 if this process does not know it.
    pub fn host_of(&self, uid: ProcUid) -> ProcUid {
        let client = || self.other_clients.read().unwrap_or_else(PoisonError::into_inner).get(&uid).copied();
        self.routes.place(uid).map(|p| p.host).or_else(client).unwrap_or(ProcUid(0))
    }

    /// Sends to the agent of a host.
    pub fn to_agent_of(&self, host: ProcUid, c: Control) {
        if self.routes.place(host).is_some() || self.is_other_client(host) {
            self.peer(host).send_control(c);
        } else {
            self.to_agent(c);
        }
    }

    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    // ---- calls

    /// Makes a pending call with a new call id.
    pub fn new_call(&self, mode: Mode, size: usize, targets: Arc<[(ProcUid, MailboxId)]>) -> Arc<PendingCall> {
        let call_id = CallId(self.next_call_id.fetch_add(1, Ordering::Relaxed));
        let cell = PendingCall::new(call_id, mode, size, targets);
        lock(&self.calls).insert(call_id, cell.clone());
        // Checked after the call can be found: `fail_mesh` fails either the calls that it finds, or leads to this check.
        if self.any_orphaned.load(Ordering::Acquire)
            && let Some((_, mesh)) = cell.targets.first()
            && let Some(reason) = self.orphaned.read().unwrap_or_else(PoisonError::into_inner).get(mesh).cloned()
        {
            self.fail_mesh_call(&cell, *mesh, &reason);
        }
        cell
    }

    /// Removes a call: later answers to it are dropped.
    pub fn forget_call(&self, call_id: CallId) {
        lock(&self.calls).remove(&call_id);
    }

    /// True if a holder of a call to this mesh may still see the call's failure, now or later.
    pub fn failure_may_be_seen(&self, mesh: MailboxId) -> bool {
        let unseen = |c: &Arc<PendingCall>| c.is_about(mesh) && !c.retrieved.load(Ordering::Acquire);
        let failed = lock(&self.failed_calls).held();
        failed.iter().any(unseen) || lock(&self.calls).values().any(unseen)
    }

    /// Drops a call that its user no longer holds.
    pub fn drop_call(&self, cell: &PendingCall) {
        self.forget_call(cell.call_id);
        let failed = cell.error().is_some_and(|o| matches!(o.status, Status::Failed | Status::ProcEnded));
        if failed && !cell.retrieved.swap(true, Ordering::AcqRel) {
            let meshes: std::collections::BTreeSet<_> = cell.targets.iter().map(|(_, m)| *m).collect();
            meshes.into_iter().for_each(|mesh| self.system.push(SystemEvent::Abandoned { mesh }));
        }
    }

    pub fn calls_in_flight(&self) -> usize {
        lock(&self.calls).len()
    }

    /// The ranks that a call still waits for; empty if it is done or dropped.
    pub fn unanswered(&self, call_id: CallId) -> Vec<u32> {
        let cell = lock(&self.calls).get(&call_id).cloned();
        cell.filter(|c| !c.is_done(0)).map_or(vec![], |c| c.waiting_for(|_, _| true))
    }

    /// Records an outcome of a call. Without such a call the outcome is counted as dropped.
    pub(crate) fn complete(&self, call_id: CallId, outcome: Arc<Outcome>) {
        let cell = lock(&self.calls).get(&call_id).cloned();
        match cell {
            Some(cell) => {
                if matches!(outcome.status, Status::Failed | Status::ProcEnded) {
                    lock(&self.failed_calls).add(&cell);
                }
                if cell.complete(outcome) {
                    self.forget_call(call_id);
                }
            }
            None => {
                self.dropped_replies.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reads or changes the ownership state of this process.
    pub fn supervise<T>(&self, f: impl FnOnce(&mut Supervision) -> T) -> T {
        f(&mut lock(&self.supervision))
    }

    /// Sends a request to the Python side of a process.
    pub fn send_system(&self, to: ProcUid, kind: u16, call_id: CallId, body: Vec<u8>) {
        if to == self.uid {
            self.system.push(SystemEvent::Request { from: self.uid, kind, call_id, body });
        } else {
            self.peer(to).send_control(Control::System { kind, call_id, body });
        }
    }

    // ---- mailboxes

    /// Starts an actor in this process or in another one.
    pub fn spawn_actor(&self, to: ProcUid, mailbox: MailboxId, spec: Vec<u8>) {
        if to == self.uid {
            self.mailbox(mailbox);
            self.system.push(SystemEvent::SpawnActor { from: self.uid, mailbox, spec });
        } else {
            self.peer(to).send_control(Control::SpawnActor { mailbox, spec });
        }
    }
}
