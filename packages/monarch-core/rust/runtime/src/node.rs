//! This process: its peers, its mailboxes, and its pending calls.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use net::lock::lock;
use net::sys::Descriptors;
use net::{Arena, Link, LinkHandler, Poller};
use wire::frame::{RETURN, STOP, TO_PORT};
use wire::{Control, Frame, MailboxId, ProcUid, Route, SlotId, Status};

use crate::agent::Agent;
use crate::bulk_pipes::BulkPipes;
use crate::bulk_streams::BulkStreams;
use crate::caster::{BY_TREE, Caster};
use crate::cell::{Cell, Mode, Outcome};
use crate::console::{LINES, UNSHOWN};
use crate::gateway::Gateway;
use crate::graves::Graves;
use crate::inspection::Inspections;
use crate::lending::Lending;
use crate::mailbox::{Incoming, Mailbox, Pushed, answer_rank};
use crate::peer::{Head, Peer, Returned};
use crate::routes::{Place, Routes};
use crate::supervision::Supervision;
use crate::system::{SystemEvent, SystemQueue};
use crate::tombs::{Ended, Tombs};

/// The request that tells a sender what could not be delivered: mailbox of the sender, then of the receiver, then why.
pub const UNDELIVERABLE: u16 = 2;

/// A thread that takes no signals: those are for the interpreter's main thread.
pub fn spawn_joinable(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    // SAFETY: sigset operations on a local set; the mask is inherited by the new thread and then restored.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let made = std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        made
    }
}

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
    pub lending: Arc<Lending>,
    /// The process that is our agent: ourselves in the client.
    pub agent_uid: ProcUid,
    agent: OnceLock<Arc<Agent>>,
    pub(crate) peers: RwLock<HashMap<ProcUid, Arc<Peer>>>,
    pub(crate) caster: Caster,
    /// Processes on other hosts.
    pub routes: Routes,
    gateway: OnceLock<Arc<Gateway>>,
    /// Procs of other agents, and which; such an agent is its own.
    pub(crate) foreign: RwLock<HashMap<ProcUid, ProcUid>>,
    pub(crate) tombs: RwLock<Tombs>,
    pub(crate) mailboxes: RwLock<HashMap<MailboxId, Arc<Mailbox>>>,
    graves: RwLock<Graves>,
    /// Meshes referred to here whose owner's process is gone, and what calls to them are answered with.
    pub(crate) orphaned: RwLock<HashMap<MailboxId, Arc<[u8]>>>,
    pub(crate) any_orphaned: AtomicBool,
    pub(crate) slots: Mutex<HashMap<SlotId, Arc<Cell>>>,
    /// Calls that ended with a failure and are still held by somebody.
    failed_cells: Mutex<Vec<std::sync::Weak<Cell>>>,
    next_slot: AtomicU64,
    /// Replies that nobody waited for any more.
    pub dropped_replies: AtomicU64,
    /// Messages to ports whose receiver was dropped.
    pub dropped_items: AtomicU64,
    me: OnceLock<std::sync::Weak<Node>>,
    /// Of a simulated process that is no more.
    pub(crate) over: AtomicBool,
    /// It records its events for itself, whoever else wants them.
    pub(crate) flight_recorder: AtomicBool,
}

impl Node {
    /// The runtime of this process; its I/O thread runs from now on.
    pub fn start(uid: ProcUid, agent_uid: ProcUid) -> io::Result<Arc<Self>> {
        let node = Node::on(Poller::new()?, uid, agent_uid);
        let poller = node.poller.clone();
        // Without it nothing would ever arrive.
        spawn_joinable("monarch-io", move || poller.run())?;
        Ok(node)
    }

    /// The same on a poller that somebody else runs.
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
            lending: Arc::default(),
            agent_uid,
            agent: OnceLock::new(),
            peers: RwLock::default(),
            caster: Caster::new(uid),
            routes: Routes::default(),
            gateway: OnceLock::new(),
            foreign: RwLock::default(),
            tombs: RwLock::default(),
            mailboxes: RwLock::default(),
            graves: RwLock::default(),
            orphaned: RwLock::default(),
            any_orphaned: AtomicBool::new(false),
            slots: Mutex::default(),
            failed_cells: Mutex::default(),
            next_slot: AtomicU64::new(1),
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

    pub(crate) fn arc(&self) -> Arc<Node> {
        // proof: `start` is the only constructor and sets it; a method runs only while the node is alive.
        self.me.get().and_then(std::sync::Weak::upgrade).expect("node is alive")
    }

    /// In a fork: lets go of what is shared with the parent.
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

    /// Of a client or an agent: what connects it to other hosts, made on first need.
    pub fn open_gateway(&self) -> Arc<Gateway> {
        self.gateway.get_or_init(|| Gateway::new(&self.arc())).clone()
    }

    pub fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.get()
    }

    // ---- peers

    pub fn known_peer(&self, uid: ProcUid) -> Option<Arc<Peer>> {
        let known = self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&uid).cloned();
        known.or_else(|| Some(self.ended_anew(uid, self.end_of(uid)?)))
    }

    /// Whether this process can send to a process, or knows that it has ended, as far as it can know that by itself. An agent knows all
    /// processes of its host; `asker` is of the job that is meant.
    pub fn knows(&self, uid: ProcUid, asker: ProcUid) -> bool {
        if uid == self.uid || uid == self.agent_uid || self.end_of(uid).is_some() || self.routes.is_host(uid) {
            return true;
        }
        if self.routes.place(uid).is_some() || self.foreign.read().unwrap_or_else(PoisonError::into_inner).contains_key(&uid) {
            return true;
        }
        if self.gateway().is_some_and(|g| g.jobs().iter().any(|job| job.id == uid || job.host(uid).is_some())) {
            return true;
        }
        match self.agent() {
            // An agent is of the jobs of all its procs.
            Some(agent) if agent.has_proc(uid) => asker == self.uid || agent.share_a_job(uid, asker),
            _ => self.known_peer(uid).is_some_and(|p| p.link.is_attached() || p.link.is_carried()),
        }
    }

    /// The peer without asking anybody for a link to it.
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
            peer.link.carry_by(self.via(place));
            if let Some(end) = self.routes.lost(place.host) {
                peer.set_ended(Ended::new(end));
                peer.link.close();
            }
        }
        peers.insert(uid, peer.clone());
        (peer, true)
    }

    /// The peer; the first time a link to it is asked for, and what is sent meanwhile waits.
    pub fn peer(&self, uid: ProcUid) -> Arc<Peer> {
        let (peer, fresh) = self.peer_unlinked(uid);
        if peer.link.is_carried() {
            return peer;
        }
        let foreign = self.foreign.read().unwrap_or_else(PoisonError::into_inner).get(&uid).copied();
        if let (true, Some(agent)) = (fresh && foreign != Some(uid), foreign) {
            self.peer_unlinked(agent).0.send_control(Control::Connect { target: uid });
        } else if fresh && foreign.is_none() && uid != self.uid && uid != self.agent_uid && self.uid != self.agent_uid {
            self.to_agent(Control::Connect { target: uid });
        }
        peer
    }

    /// Sends to this process's agent, which may be in this process.
    pub fn to_agent(&self, c: Control) {
        match self.agent() {
            Some(agent) => agent.control(self.uid, c),
            None => self.peer_unlinked(self.agent_uid).0.send_control(c),
        }
    }

    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    // ---- calls

    pub fn new_cell(&self, mode: Mode, size: usize, targets: Arc<[(ProcUid, MailboxId)]>) -> Arc<Cell> {
        let slot = SlotId(self.next_slot.fetch_add(1, Ordering::Relaxed));
        let cell = Cell::new(slot, mode, size, targets);
        lock(&self.slots).insert(slot, cell.clone());
        // After it can be found: `fail_mesh` fails either what it finds or what comes then.
        if self.any_orphaned.load(Ordering::Acquire)
            && let Some((_, mesh)) = cell.targets.first()
            && let Some(reason) = self.orphaned.read().unwrap_or_else(PoisonError::into_inner).get(mesh).cloned()
        {
            self.fail_mesh_call(&cell, *mesh, &reason);
        }
        cell
    }

    pub fn forget_cell(&self, slot: SlotId) {
        lock(&self.slots).remove(&slot);
    }

    /// Somebody holds a call to this mesh whose failure, here or to come, has not been seen yet.
    pub fn failure_may_be_seen(&self, mesh: MailboxId) -> bool {
        let unseen = |c: &Arc<Cell>| c.is_about(mesh) && !c.retrieved.load(Ordering::Acquire);
        let failed: Vec<_> = lock(&self.failed_cells).iter().filter_map(std::sync::Weak::upgrade).collect();
        failed.iter().any(unseen) || lock(&self.slots).values().any(unseen)
    }

    /// The user lets go of a call.
    pub fn drop_cell(&self, cell: &Cell) {
        self.forget_cell(cell.slot);
        let failed = cell.error().is_some_and(|o| matches!(o.status, Status::Failed | Status::ProcEnded));
        if failed && !cell.retrieved.swap(true, Ordering::AcqRel) {
            let meshes: std::collections::BTreeSet<_> = cell.targets.iter().map(|(_, m)| *m).collect();
            meshes.into_iter().for_each(|mesh| self.system.push(SystemEvent::Abandoned { mesh }));
        }
    }

    pub fn calls_in_flight(&self) -> usize {
        lock(&self.slots).len()
    }

    /// The ranks that a call still waits for; none if it is over or nobody holds it.
    pub fn unanswered(&self, slot: SlotId) -> Vec<u32> {
        let cell = lock(&self.slots).get(&slot).cloned();
        cell.filter(|c| !c.is_done(0)).map_or(vec![], |c| c.waiting_for(|_, _| true))
    }

    pub(crate) fn complete(&self, slot: SlotId, outcome: Arc<Outcome>) {
        let cell = lock(&self.slots).get(&slot).cloned();
        match cell {
            Some(cell) => {
                if matches!(outcome.status, Status::Failed | Status::ProcEnded) {
                    let mut failed = lock(&self.failed_cells);
                    failed.retain(|c| c.strong_count() > 0);
                    failed.push(Arc::downgrade(&cell));
                }
                if cell.complete(outcome) {
                    self.forget_cell(slot);
                }
            }
            None => {
                self.dropped_replies.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Looks into or changes what this process owns.
    pub fn supervise<T>(&self, f: impl FnOnce(&mut Supervision) -> T) -> T {
        f(&mut lock(&self.supervision))
    }

    /// A request to the Python side of a process.
    pub fn send_system(&self, to: ProcUid, kind: u16, slot: SlotId, body: Vec<u8>) {
        if to == self.uid {
            self.system.push(SystemEvent::Request { from: self.uid, kind, slot, body });
        } else {
            self.peer(to).send_control(Control::System { kind, slot, body });
        }
    }

    // ---- mailboxes

    /// Those that actors take from.
    pub fn actor_mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.mailboxes.read().unwrap_or_else(PoisonError::into_inner).values().filter(|m| m.is_actors()).cloned().collect()
    }

    /// The mailbox, made now if it is new; none if its actor is gone.
    pub fn mailbox(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        if let Some(m) = self.known_mailbox(id) {
            return Some(m);
        }
        let mut all = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: `close_mailbox` digs the grave first, so a mailbox made before it is found and closed.
        if self.grave(id).is_some() {
            return None;
        }
        Some(all.entry(id).or_insert_with(|| Mailbox::new(id)).clone())
    }

    pub fn known_mailbox(&self, id: MailboxId) -> Option<Arc<Mailbox>> {
        self.mailboxes.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn grave(&self, id: MailboxId) -> Option<Arc<[u8]>> {
        self.graves.read().unwrap_or_else(PoisonError::into_inner).reasons.get(&id).cloned()
    }

    /// Ends a mailbox: what is in it, and what still comes, is answered with `reason`.
    pub fn close_mailbox(&self, id: MailboxId, reason: &[u8], bury: bool) {
        let reason: Arc<[u8]> = reason.into();
        if bury {
            self.graves.write().unwrap_or_else(PoisonError::into_inner).dig(id, reason.clone());
        }
        let mailbox = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(m) = mailbox {
            for m in self.close(&m, &reason) {
                self.refuse(&m, &reason);
            }
        }
    }

    /// The same for an actor: its stoppers are not refused but given back, to be answered when it has ended.
    pub fn close_actor(&self, id: MailboxId, reason: &[u8]) -> Vec<Incoming> {
        let reason: Arc<[u8]> = reason.into();
        self.graves.write().unwrap_or_else(PoisonError::into_inner).dig(id, reason.clone());
        let mailbox = self.mailboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let left = mailbox.map_or(Vec::new(), |m| self.close(&m, &reason));
        let (stops, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|m| m.flags & STOP != 0);
        left.iter().for_each(|m| self.refuse(m, &reason));
        stops
    }

    fn close(&self, mailbox: &Mailbox, reason: &Arc<[u8]>) -> Vec<Incoming> {
        let (left, credit) = mailbox.close(reason.clone());
        for (from, bytes) in credit {
            self.give_credit(from, mailbox.id, bytes);
        }
        left
    }

    /// Tells whoever waits for the message that an actor has in hand, and may have for ever.
    pub fn fail_current(&self, mailbox: &Mailbox, reason: &[u8]) {
        if let Some((to, slot, rank)) = mailbox.current() {
            self.reply_bytes(to, slot, answer_rank(rank), Status::Failed, reason);
        }
    }

    pub fn give_credit(&self, to: ProcUid, mailbox: MailboxId, bytes: u64) {
        if to == self.uid {
            self.peer(to).refill(mailbox, bytes, |m| self.deliver(m));
        } else if let Some(peer) = self.known_peer(to) {
            peer.send_frame(&Frame::Credit { mailbox, bytes });
        }
    }

    /// The consumer has taken a message and is done with it.
    pub fn handled(&self, mailbox: &Mailbox, from: ProcUid, cost: u64) {
        if let Some(bytes) = mailbox.consumed(from, cost) {
            self.give_credit(from, mailbox.id, bytes);
        }
    }

    pub(crate) fn deliver(&self, m: Incoming) {
        let id = m.dest;
        let mailbox = if m.flags & TO_PORT != 0 { self.known_mailbox(id) } else { self.mailbox(id) };
        let refused = match mailbox {
            Some(mailbox) => match mailbox.push(m) {
                Ok(Pushed::Taken(Some((from, bytes)))) => {
                    self.give_credit(from, id, bytes);
                    None
                }
                Ok(_) => None,
                Err(refused) => Some(refused),
            },
            None => Some((m, self.grave(id).unwrap_or_else(|| Arc::from(&b""[..])))),
        };
        if let Some((m, reason)) = refused {
            self.refuse(&m, &reason);
            self.give_credit(m.from, id, m.cost());
        }
    }

    fn refuse(&self, m: &Incoming, reason: &[u8]) {
        if !m.slot.is_none() {
            self.reply_bytes(m.from, m.slot, answer_rank(m.rank), Status::Failed, reason);
        } else if m.flags & TO_PORT != 0 {
            // Its receiver was dropped, which is no failure: its senders go on.
            self.dropped_items.fetch_add(1, Ordering::Relaxed);
        } else if m.flags & RETURN != 0 {
            let mut body = m.sender.0.to_le_bytes().to_vec();
            body.extend_from_slice(&m.dest.0.to_le_bytes());
            body.extend_from_slice(reason);
            self.send_system(m.from, UNDELIVERABLE, SlotId::NONE, body);
        }
    }

    /// A message to a process that is gone comes back to its sender.
    pub fn undelivered_to_ended(&self, head: &Head<'_>, peer: &Peer) {
        self.give_back(Returned { sender: head.sender, dest: head.dest }, peer);
    }

    pub(crate) fn give_back(&self, message: Returned, peer: &Peer) {
        let mut body = message.sender.0.to_le_bytes().to_vec();
        body.extend_from_slice(&message.dest.0.to_le_bytes());
        body.extend_from_slice(&peer.uid.0.to_le_bytes());
        self.send_system(self.uid, UNDELIVERABLE, SlotId::NONE, body);
    }

    // ---- what arrives

    pub(crate) fn on_frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors) {
        match frame {
            Frame::Message(m) => self.on_message(link, m),
            Frame::Reply(r) if r.slot.0 & BY_TREE != 0 => self.on_tree_reply(link, r),
            Frame::Reply(r) => self.on_reply(link, r),
            Frame::Credit { mailbox, bytes } => {
                if let Some(p) = self.known_peer(link.peer) {
                    p.refill(mailbox, bytes, drop);
                }
            }
            Frame::Control(c) => self.on_control(link, c, fds),
            Frame::Raw(_) => {}
            Frame::Cast(frame) => self.on_cast(link.peer, &frame),
            Frame::Routed(r) => self.on_carried(link, &r.head, &r.body),
        }
    }

    fn on_control(&self, link: &Arc<Link>, c: Control, fds: &mut Descriptors) {
        match c {
            Control::Connected { peer } => {
                if let Some(fd) = fds.pop_front() {
                    // No message would ever go there, and none would fail: this process cannot go on.
                    let Some(fd) = fd else { return link.close() };
                    // A failure to register shows as a link that never carries anything; the descriptor limit is
                    // the only cause, and the agent has spent one more than we have.
                    let _ = self.peer_unlinked(peer).0.link.attach(fd);
                }
            }
            Control::SpawnActor { mailbox, spec } => {
                self.mailbox(mailbox);
                self.system.push(SystemEvent::SpawnActor { from: link.peer, mailbox, spec });
            }
            Control::System { kind: kind @ (LINES | UNSHOWN), body, .. } => {
                if let Some(agent) = self.agent() {
                    agent.printed(kind, &body);
                }
            }
            Control::System { kind, slot, body } => self.system.push(SystemEvent::Request { from: link.peer, kind, slot, body }),
            Control::ProcsEnded { ends } => {
                if let Some(agent) = self.agent() {
                    agent.owners_ended(&ends);
                }
                self.procs_ended(ends);
            }
            Control::Ping { seq } => self.pinged(link.peer, seq),
            Control::Inspect { id, what } if self.agent().is_none() => self.inspect(link.peer, id, what),
            Control::Inspected { id, body } => self.on_inspected(link.peer, id, body),
            Control::StopProc { uid, grace_ms, reason } if uid == self.uid => self.system.push(SystemEvent::StopProc { grace_ms, reason }),
            Control::Record { events } if link.peer == self.agent_uid => self.record(events),
            Control::Recording => {
                if let (Some(agent), Some(fd)) = (self.agent(), fds.pop_front().flatten()) {
                    agent.recordings.add(link.peer, fd);
                }
            }
            Control::BulkStream { number, peer, host, here, serves, dialled, keys } if link.peer == self.agent_uid => {
                self.on_bulk_stream(number, (peer, Place { host, here }), (serves, dialled), &keys, fds.pop_front().flatten())
            }
            Control::CutOff { hosts, slot, rank } if link.peer == self.agent_uid => {
                self.bulk_streams.cut_off(&hosts.into_iter().collect());
                self.reply_bytes(link.peer, slot, rank, Status::Ok, b"");
            }
            Control::BulkPipe { number, by_sender, what } => self.on_bulk_pipe(link.peer, number, by_sender, what),
            ref c if self.on_loan(link.peer, c) => {}
            Control::BulkRefused { number, why } => self.on_bulk_refused(number, why),
            c @ (Control::Hosts { .. } | Control::HostsLost { .. } | Control::JobOver | Control::Shutdown { .. } | Control::Leaving) => {
                if let Some(gateway) = self.gateway() {
                    gateway.control(link.peer, c);
                }
            }
            other => {
                if let Some(agent) = self.agent() {
                    agent.control(link.peer, other);
                }
            }
        }
    }

    fn on_down(&self, link: &Arc<Link>) {
        let (sent, received) = link.traffic();
        events::link_down(link.peer.0, sent, received);
        if self.is_foreign_agent(link.peer) {
            // A loss that is being told closes the link itself.
            if self.known_peer(link.peer).is_some_and(|p| p.ended().is_none()) {
                self.foreign_agent_lost(link.peer, "agent exited");
            }
            return;
        }
        if let Some(agent) = self.agent() {
            agent.link_down(link.peer);
        } else if link.peer == self.agent_uid {
            self.system.push(SystemEvent::RootLost);
        }
    }

    /// Starts an actor here or in another process.
    pub fn spawn_actor(&self, to: ProcUid, mailbox: MailboxId, spec: Vec<u8>) {
        if to == self.uid {
            self.mailbox(mailbox);
            self.system.push(SystemEvent::SpawnActor { from: self.uid, mailbox, spec });
        } else {
            self.peer(to).send_control(Control::SpawnActor { mailbox, spec });
        }
    }
}

pub(crate) struct NodeFrames(pub(crate) Arc<Node>);

impl LinkHandler for NodeFrames {
    fn frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors) {
        self.0.on_frame(link, frame, fds);
    }

    fn routed(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        self.0.on_carried(link, head, body);
    }

    fn down(&self, link: &Arc<Link>) {
        self.0.on_down(link);
    }
}
