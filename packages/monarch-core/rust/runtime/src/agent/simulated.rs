//! Simulated procs: nodes of this process in the place of procs, for tests.
//!
//! Simulated procs replace the children of the zygote: the agent starts them, is notified of their end, and treats them like other procs.
//! Their links are socket pairs too, but all of them share one poller, whose time is simulated.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use net::lock::lock;
use wire::ProcUid;

use crate::node::Node;
use crate::system::SystemEvent;

/// The wait status of a process that SIGKILL has ended.
const KILLED: i32 = libc::SIGKILL;

/// The state of a simulated proc.
enum Proc {
    /// The housekeeping thread has been asked to start the proc. Contains its link.
    Asked(OwnedFd),
    /// The proc runs. Contains its node, and the group of its threads.
    Runs(Arc<Node>, u64),
}

/// Starts and ends simulated procs, in the place of a zygote.
pub struct Launcher {
    client: Weak<Node>,
    procs: Mutex<HashMap<ProcUid, Proc>>,
    /// Reports the end of a proc, with its wait status, to the agent.
    report: OnceLock<ReportExit>,
}

type ReportExit = Box<dyn Fn(ProcUid, i32) + Send + Sync>;

impl Launcher {
    pub fn new(client: &Arc<Node>) -> Arc<Self> {
        Arc::new(Launcher { client: Arc::downgrade(client), procs: Mutex::default(), report: OnceLock::new() })
    }

    /// Sets the agent's receiver of exits.
    pub(crate) fn report_to(&self, report: ReportExit) {
        let _ = self.report.set(report);
    }

    /// Starts a simulated proc, for the agent.
    pub(crate) fn start(&self, uid: ProcUid, setup: &[u8], link: OwnedFd) {
        lock(&self.procs).insert(uid, Proc::Asked(link));
        if let Some(client) = self.client.upgrade() {
            client.system.push(SystemEvent::Launch { uid, setup: setup.to_vec() });
        }
    }

    /// The node of a requested proc, and the link that it has to attach; `None` if the proc was killed meanwhile.
    pub fn node(&self, uid: ProcUid, group: u64) -> Option<(Arc<Node>, OwnedFd)> {
        let client = self.client.upgrade()?;
        let mut procs = lock(&self.procs);
        let Some(Proc::Asked(link)) = procs.remove(&uid) else { return None };
        let node = Node::on(client.poller.clone(), uid, client.uid);
        procs.insert(uid, Proc::Runs(node.clone(), group));
        Some((node, link))
    }

    /// Kills a proc: it ends at once, without running code of its own.
    pub(crate) fn kill(self: &Arc<Self>, uid: ProcUid) {
        self.end(uid, KILLED);
    }

    /// Takes the exit of a proc, with its wait status.
    pub fn exited(self: &Arc<Self>, uid: ProcUid, status: i32) {
        self.end(uid, status);
    }

    /// Ends a proc, and reports its wait status to the agent.
    fn end(self: &Arc<Self>, uid: ProcUid, status: i32) {
        let Some(proc) = lock(&self.procs).remove(&uid) else { return };
        let Some(client) = self.client.upgrade() else { return };
        let (poller, me) = (client.poller.clone(), self.clone());
        // Runs on the thread that reads the sockets: frames that the proc sent before its end count.
        client.poller.spawn(Box::new(move || {
            if let Proc::Runs(node, group) = proc {
                // Before its threads learn of the end: what they send because of it must reach no process.
                node.peers.close();
                // Also for a proc that exited: its remaining threads end with it.
                if let Some(t) = poller.timeline() {
                    t.kill(group);
                }
                node.end();
            }
            if let Some(report) = me.report.get() {
                report(uid, status);
            }
        }));
    }
}
