//! Procs that are nodes of this process, for tests.
//!
//! They replace the children of the zygote: the agent starts them, is notified of their end, and treats them like others. Their links are
//! socket pairs too; only that all of them share one poller, whose time is simulated.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use net::lock::lock;
use wire::ProcUid;

use crate::agent::Agent;
use crate::agent::zygote::Report;
use crate::node::Node;
use crate::node::system::SystemEvent;

/// What the kernel says of a process that got SIGKILL.
const KILLED: i32 = libc::SIGKILL;

enum Proc {
    /// On its way to the housekeeping thread, which starts it; its link.
    Asked(OwnedFd),
    /// Its node and its threads.
    Runs(Arc<Node>, u64),
}

/// Starts and ends simulated procs, in the place of a zygote.
pub struct Launcher {
    client: Weak<Node>,
    procs: Mutex<HashMap<ProcUid, Proc>>,
}

impl Launcher {
    pub fn new(client: &Arc<Node>) -> Arc<Self> {
        Arc::new(Launcher { client: Arc::downgrade(client), procs: Mutex::default() })
    }

    pub(crate) fn start(&self, uid: ProcUid, setup: &[u8], link: OwnedFd) {
        lock(&self.procs).insert(uid, Proc::Asked(link));
        if let Some(client) = self.client.upgrade() {
            client.system.push(SystemEvent::Launch { uid, setup: setup.to_vec() });
        }
    }

    /// The node of a proc that was asked for, with its link to come; none if it has been killed meanwhile.
    pub fn node(&self, uid: ProcUid, group: u64) -> Option<(Arc<Node>, OwnedFd)> {
        let client = self.client.upgrade()?;
        let mut procs = lock(&self.procs);
        let Some(Proc::Asked(link)) = procs.remove(&uid) else { return None };
        let node = Node::on(client.poller.clone(), uid, client.uid);
        procs.insert(uid, Proc::Runs(node.clone(), group));
        Some((node, link))
    }

    /// The proc is to be no more, at once and without its doing.
    pub(crate) fn kill(&self, uid: ProcUid) {
        self.end(uid, KILLED);
    }

    /// A proc has ended by itself, with this wait status.
    pub fn exited(&self, uid: ProcUid, status: i32) {
        self.end(uid, status);
    }

    fn end(&self, uid: ProcUid, status: i32) {
        let Some(proc) = lock(&self.procs).remove(&uid) else { return };
        let Some(client) = self.client.upgrade() else { return };
        let agent = client.agent().map(Arc::downgrade);
        let poller = client.poller.clone();
        // On the thread that reads: what the proc has sent before counts.
        client.poller.spawn(Box::new(move || {
            if let Proc::Runs(node, group) = proc {
                // Before its threads learn that they are no more: what they make of that must reach nothing.
                node.disconnect();
                // Also of one that has ended by itself: a thread that it left behind goes with it.
                if let Some(t) = poller.timeline() {
                    t.kill(group);
                }
                node.end();
            }
            if let Some(agent) = agent.as_ref().and_then(Weak::<Agent>::upgrade) {
                agent.report(Report::Exited { uid, status });
            }
        }));
    }
}

impl Node {
    /// Closes all links of this node, those to come as well: what its threads still send goes nowhere.
    fn disconnect(&self) {
        self.over.store(true, Ordering::Release);
        let peers = std::mem::take(&mut *self.peers.write().unwrap_or_else(PoisonError::into_inner));
        peers.values().for_each(|p| p.link.close());
    }

    /// Ends this node while its process goes on: one of a simulated world. Nothing comes or goes any more, and nothing holds on to it.
    pub fn end(&self) {
        self.disconnect();
        let mailboxes = std::mem::take(&mut *self.mailboxes.write().unwrap_or_else(PoisonError::into_inner));
        mailboxes.values().for_each(|m| drop(m.close(Arc::from(&b""[..]))));
        let calls = std::mem::take(&mut *lock(&self.slots));
        drop(calls);
        self.system.push(SystemEvent::RootLost);
        self.system.end();
    }
}
