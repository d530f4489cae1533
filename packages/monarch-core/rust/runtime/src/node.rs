//! The node: the table of the components of one process. It has no logic of its own.
//!
//! | component | task |
//! |---|---|
//! | `peers` | other processes: links, routes, ends |
//! | `calls` | pending calls |
//! | `mailboxes`, `messages`, `replies` | messages to actors and ports, and their answers |
//! | `offers` | rendezvous transfers of large parts |
//! | `caster` | casts |
//! | `streams` | bulk streams |
//! | `ends` | the order in which components are notified of ends |
//! | `inspections`, `recording` | the state and the events of this process, for observers |
//! | `supervision` | the meshes that this process owns, and the receivers of their failures |
//! | `system` | events for the housekeeping thread |
//! | `roles` | the agent and the gateway, if this process has them |
//!
//! Components have references to those that they need, and none to the node. Links have `Frames` as their handler.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::lock::lock;
use net::{Arena, LinkHandler, Poller};
use wire::ProcUid;

use crate::calls::Calls;
use crate::cast::Source;
use crate::caster::Caster;
use crate::ends::Ends;
use crate::incoming::Frames;
use crate::inspection::{Inspections, StackRequests};
use crate::mailboxes::Mailboxes;
use crate::messages::Messages;
use crate::messages::replies::Replies;
use crate::peers::Peers;
use crate::recording::Recording;
use crate::roles::Roles;
use crate::streams::Streams;
use crate::supervision::Supervision;
use crate::system::{SystemEvent, SystemQueue};
use crate::threads::spawn_joinable;
use crate::transfers::offers::Offers;

/// The components of one process. A client, a proc and an agent have a node; simulated processes share a poller.
pub struct Node {
    pub uid: ProcUid,
    /// The process that is the agent of this one; in the client, the client itself.
    pub agent_uid: ProcUid,
    pub poller: Arc<Poller>,
    pub arena: Arc<Arena>,
    pub system: Arc<SystemQueue>,
    pub peers: Arc<Peers>,
    pub calls: Arc<Calls>,
    pub mailboxes: Arc<Mailboxes>,
    pub replies: Arc<Replies>,
    pub messages: Arc<Messages>,
    pub offers: Arc<Offers>,
    pub caster: Arc<Caster>,
    pub streams: Arc<Streams>,
    pub ends: Arc<Ends>,
    pub inspections: Arc<Inspections>,
    pub recording: Arc<Recording>,
    pub(crate) frames: Arc<Frames>,
    supervision: Mutex<Supervision>,
    pub(crate) roles: Arc<Roles>,
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
        let (roles, system): (Arc<Roles>, Arc<SystemQueue>) = Default::default();
        let (arena, offers, source) = (Arena::new(), Offers::new(&poller), Arc::new(Mutex::new(Source::new(uid))));
        let peers = Peers::new((uid, agent_uid), &poller, &roles, &offers, &source);
        let (calls, mailboxes) = (Calls::new(&peers, &system), Arc::<Mailboxes>::default());
        let replies = Replies::new(&peers, &calls, &system);
        let messages = Messages::new(&peers, &mailboxes, &replies, &system);
        let (caster, streams) = (Caster::new(&peers, &calls, source), Streams::new(&peers));
        let recording = Arc::new(Recording::new(&peers));
        let ends = Arc::new(Ends {
            peers: peers.clone(),
            calls: calls.clone(),
            replies: replies.clone(),
            offers: offers.clone(),
            streams: streams.clone(),
            system: system.clone(),
        });
        let inspections = Arc::new_cyclic(|me| Inspections {
            peers: peers.clone(),
            mailboxes: mailboxes.clone(),
            calls: calls.clone(),
            messages: messages.clone(),
            caster: caster.clone(),
            arena: arena.clone(),
            system: system.clone(),
            me: me.clone(),
            requests: StackRequests::default(),
        });
        let frames = Arc::new_cyclic(|me| Frames {
            peers: peers.clone(),
            calls: calls.clone(),
            replies: replies.clone(),
            messages: messages.clone(),
            caster: caster.clone(),
            streams: streams.clone(),
            offers: offers.clone(),
            ends: ends.clone(),
            inspections: inspections.clone(),
            recording: recording.clone(),
            system: system.clone(),
            arena: arena.clone(),
            me: me.clone(),
        });
        let handler: Arc<dyn LinkHandler> = frames.clone();
        peers.set_handler(Arc::downgrade(&handler));
        let timer = Arc::downgrade(&poller);
        arena.trim_with(Box::new(move |delay, task| drop(timer.upgrade().inspect(|poller| poller.later(delay, task)))));
        Arc::new(Node {
            uid,
            agent_uid,
            poller,
            arena,
            system,
            peers,
            calls,
            mailboxes,
            replies,
            messages,
            offers,
            caster,
            streams,
            ends,
            inspections,
            recording,
            frames,
            supervision: Mutex::default(),
            roles,
        })
    }

    /// The name of another host, and the time since its last heartbeat. Only a process with a gateway knows it.
    pub fn silence(&self, host: ProcUid) -> Option<(String, Duration)> {
        self.roles.gateway()?.silence(host)
    }

    /// In a forked child: closes what is shared with the parent.
    pub fn close_in_child(&self) {
        self.poller.close_in_child();
        if let Some(agent) = self.roles.agent() {
            agent.close_in_child();
        }
    }

    /// Reads or changes the ownership state of this process.
    pub fn supervise<T>(&self, f: impl FnOnce(&mut Supervision) -> T) -> T {
        f(&mut lock(&self.supervision))
    }

    /// Ends a node of a simulated world, whose process continues. No frames arrive or leave any more, and no reference to the node is kept.
    pub fn end(&self) {
        self.peers.close();
        self.mailboxes.close_all();
        self.calls.clear();
        self.system.push(SystemEvent::RootLost);
        self.system.end();
    }
}
