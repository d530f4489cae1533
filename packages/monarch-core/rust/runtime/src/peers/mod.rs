//! The other processes that this process knows: links to them, the hosts that they are on, and their ends.
//!
//! | file | noun |
//! |---|---|
//! | `peer` | another process: its link, the credit of its mailboxes, and the messages that wait for it |
//! | `routes` | the host of each remote process |
//! | `routing` | changes of the routes: hosts that join again, and processes that are reached through other clients |
//! | `carrier` | the sending of frames to the processes of one other host |
//! | `ended` | the ends of processes |
//! | `external_process` | the control socket: processes of the same user that this agent has not started |
//!
//! A peer is made when a frame to or from it appears, and gets its link from the agent or its route from the first frame. It needs the
//! roles of this process (agent, gateway), the offers, and a handler for the frames of links. A process has at most one live peer, and no
//! live peer once its tombstone is inserted; the peer itself is removed some time later, when its last frames have arrived.

pub mod carrier;
pub mod ended;
pub mod external_process;
pub mod peer;
pub mod routes;
mod routing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

use net::lock::lock;
use net::{Link, LinkHandler, Poller};
use wire::exit::ProcEnd;
use wire::{Control, ProcUid};

use self::ended::{Ended, EndedProcs};
use self::peer::Peer;
use self::routes::Routes;
use crate::cast::Source;
use crate::roles::Roles;
use crate::sync::{read, write};
use crate::transfers::offers::Offers;

/// The peers of one process.
pub struct Peers {
    pub uid: ProcUid,
    /// The process that is the agent of this one; in the client, the client itself.
    pub agent_uid: ProcUid,
    pub(crate) poller: Arc<Poller>,
    pub(crate) roles: Arc<Roles>,
    offers: Arc<Offers>,
    /// The numbers of all frames that this process sends to other hosts, casts included.
    source: Arc<Mutex<Source>>,
    /// The hosts of processes on other hosts.
    pub routes: Routes,
    peers: RwLock<HashMap<ProcUid, Arc<Peer>>>,
    /// The procs of other clients' hosts, each with its client; such a client is mapped to itself.
    other_clients: RwLock<HashMap<ProcUid, ProcUid>>,
    ended: RwLock<EndedProcs>,
    /// The receiver of the frames of all links.
    handler: OnceLock<Weak<dyn LinkHandler>>,
    /// Set when a simulated process has ended.
    is_over: AtomicBool,
    me: Weak<Peers>,
}

impl Peers {
    pub(crate) fn new(
        (uid, agent_uid): (ProcUid, ProcUid),
        poller: &Arc<Poller>,
        roles: &Arc<Roles>,
        offers: &Arc<Offers>,
        source: &Arc<Mutex<Source>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Peers {
            uid,
            agent_uid,
            poller: poller.clone(),
            roles: roles.clone(),
            offers: offers.clone(),
            source: source.clone(),
            routes: Routes::default(),
            peers: RwLock::default(),
            other_clients: RwLock::default(),
            ended: RwLock::default(),
            handler: OnceLock::new(),
            is_over: AtomicBool::new(false),
            me: me.clone(),
        })
    }

    /// Sets the receiver of the frames of all links.
    pub(crate) fn set_handler(&self, handler: Weak<dyn LinkHandler>) {
        let _ = self.handler.set(handler);
    }

    // ---- peers

    pub fn all(&self) -> Vec<Arc<Peer>> {
        read(&self.peers).values().cloned().collect()
    }

    /// The peer, if this process has one or knows of its end.
    pub fn known_peer(&self, uid: ProcUid) -> Option<Arc<Peer>> {
        let known = read(&self.peers).get(&uid).cloned();
        known.or_else(|| Some(self.peer_from_tombstone(uid, self.end_of(uid)?)))
    }

    /// True if this process can send to a process, or knows that it has ended, without asking another process. An agent knows all processes
    /// of its host; the process must be in a job of `asker`.
    pub fn knows(&self, uid: ProcUid, asker: ProcUid) -> bool {
        let is_known = uid == self.uid || uid == self.agent_uid || self.end_of(uid).is_some() || self.routes.is_host(uid);
        if is_known
            || self.routes.place(uid).is_some()
            || self.client_of(uid).is_some()
            || self.roles.gateway().is_some_and(|g| g.knows(uid))
        {
            return true;
        }
        // An agent belongs to the jobs of all its procs.
        let shares_a_job = self.roles.agent().and_then(|agent| agent.shares_a_job(uid, asker)).map(|shares| asker == self.uid || shares);
        shares_a_job.unwrap_or_else(|| self.known_peer(uid).is_some_and(|p| p.link.is_attached() || p.link.is_forwarded()))
    }

    /// The peer, without a request for a link to it. The flag is true if the peer is new.
    pub fn peer_unlinked(&self, uid: ProcUid) -> (Arc<Peer>, bool) {
        if let Some(p) = self.known_peer(uid) {
            return (p, false);
        }
        let mut peers = write(&self.peers);
        if let Some(p) = peers.get(&uid) {
            return (p.clone(), false);
        }
        let peer = self.new_peer(uid);
        if self.is_over.load(Ordering::Acquire) {
            peer.link.close();
            return (peer, false);
        }
        if let Some(place) = self.routes.place(uid) {
            peer.link.forward_by(self.carrier(place));
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
        let client = self.client_of(uid);
        if let (true, Some(agent)) = (fresh && client != Some(uid), client) {
            self.peer_unlinked(agent).0.send_control(Control::Connect { target: uid });
        } else if fresh && client.is_none() && uid != self.uid && uid != self.agent_uid && self.uid != self.agent_uid {
            self.to_agent(Control::Connect { target: uid });
        }
        peer
    }

    fn new_peer(&self, uid: ProcUid) -> Arc<Peer> {
        let handler = self.handler.get().and_then(Weak::upgrade).unwrap_or_else(|| Arc::new(Unhandled));
        Peer::new(uid, Link::new(uid, self.poller.clone(), handler), self.offers.clone())
    }

    /// Closes all links, also later ones: frames that threads of this process still send are dropped.
    pub(crate) fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        let peers = std::mem::take(&mut *write(&self.peers));
        peers.values().for_each(|p| p.link.close());
    }

    // ---- agents

    /// Sends to the agent of this process, which may be this process.
    pub fn to_agent(&self, c: Control) {
        match self.roles.agent() {
            Some(agent) => agent.control(self.uid, c),
            None => self.peer_unlinked(self.agent_uid).0.send_control(c),
        }
    }

    /// Sends to the agent through which this process reaches the hosts of a job. `here` is this host's uid in that job.
    pub(crate) fn to_agent_beside(&self, here: ProcUid, c: Control) {
        if self.is_other_client(here) { self.peer_unlinked(here).0.send_control(c) } else { self.to_agent(c) }
    }

    /// Sends to the agent of a host.
    pub fn to_agent_of(&self, host: ProcUid, c: Control) {
        if self.routes.place(host).is_some() || self.is_other_client(host) {
            self.peer(host).send_control(c);
        } else {
            self.to_agent(c);
        }
    }

    // ---- ends

    /// The end of a process, if this process knows of it.
    pub fn end_of(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        read(&self.ended).get(uid)
    }

    /// The end of a process of which only the tombstone is left.
    pub fn end_of_old(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        read(&self.ended).get_old(uid)
    }

    /// The peer, if this process knows that the peer's process or its host has ended.
    pub fn ended_peer(&self, uid: ProcUid) -> Option<Arc<Peer>> {
        let peer = self.known_peer(uid).or_else(|| self.is_lost(uid).then(|| self.peer_unlinked(uid).0))?;
        peer.ended().is_some().then_some(peer)
    }

    /// True if this process knows that the other one has ended.
    pub fn has_ended(&self, uid: ProcUid) -> bool {
        self.is_lost(uid) || self.known_peer(uid).is_some_and(|p| p.ended().is_some())
    }

    /// True if the place of the process is lost.
    fn is_lost(&self, uid: ProcUid) -> bool {
        self.routes.place(uid).is_some_and(|place| self.routes.lost(place).is_some())
    }

    /// Inserts the tombstone of a process. The first report of its end counts.
    pub(crate) fn insert_tombstone(&self, uid: ProcUid, end: ProcEnd) -> Arc<Ended> {
        write(&self.ended).insert(uid, end, self.poller.now())
    }

    /// A peer that has ended, made again from its tombstone alone.
    fn peer_from_tombstone(&self, uid: ProcUid, ended: Arc<Ended>) -> Arc<Peer> {
        let peer = self.new_peer(uid);
        peer.set_ended(ended);
        peer.link.close();
        peer
    }

    /// Removes all state but the tombstone of ended processes that send nothing more.
    pub(crate) fn forget_drained(&self) {
        let drained = write(&self.ended).drained(self.poller.now());
        if drained.is_empty() {
            return;
        }
        self.routes.forget(&drained);
        let mut other_clients = write(&self.other_clients);
        drained.iter().for_each(|uid| _ = other_clients.remove(uid));
        drop(other_clients);
        let mut peers = write(&self.peers);
        let gone: Vec<_> = drained.iter().filter_map(|uid| peers.remove(uid)).collect();
        drop(peers);
        // A link that is freed may take locks of its own.
        drop(gone);
    }

    /// The number of the next frame to a host; never 0.
    fn next_frame_number(&self, host: ProcUid) -> u64 {
        lock(&self.source).order.next(host) + 1
    }
}

/// The handler of links that are made while the process ends.
struct Unhandled;

impl LinkHandler for Unhandled {
    fn frame(&self, _: &Arc<Link>, _: wire::Frame, _: &mut net::sys::Descriptors) {}

    fn down(&self, _: &Arc<Link>) {}
}
