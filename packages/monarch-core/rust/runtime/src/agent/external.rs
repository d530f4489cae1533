//! The external processes of a client: processes of the same user that take part in its job, and that no agent has started.

use std::io;
use std::time::Duration;

use net::lock::lock;
use wire::ProcUid;
use wire::control::DrainLimits;

use crate::agent::Agent;
use crate::peers::ended::client_end;
use crate::peers::external_process::{CLIENT_ENDED, ControlSocketListener};

impl Agent {
    /// Opens the control socket, for processes of the same user that this agent has not started.
    pub fn open_control_socket(&self) -> io::Result<()> {
        let node = self.node.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let mut open = lock(&self.control_socket);
        if open.is_none() {
            *open = Some(ControlSocketListener::open(&node.peers)?);
        }
        Ok(())
    }

    /// Accepts an external process into this client's job: it may address all processes of the job, and spawn.
    pub(crate) fn admit_external(&self, uid: ProcUid, pid: u32) {
        let Some(node) = self.node() else { return };
        let mut state = lock(&self.state);
        // The process must have a link of its own, and not be reached through another host.
        if node.peers.end_of(uid).is_none() && node.peers.known_peer(uid).is_some_and(|p| p.link.is_attached()) {
            state.external_processes.insert(uid, pid);
        }
    }

    /// Takes the end of an external process's link, which is the end of the process: what it has spawned ends too.
    pub(crate) fn external_ended(&self, uid: ProcUid) {
        let Some(node) = self.node() else { return };
        let Some(pid) = lock(&self.state).external_processes.get(&uid).copied() else { return };
        self.ended(vec![(uid, client_end(pid, CLIENT_ENDED), node.uid)]);
    }

    /// Stops the procs that external processes have spawned.
    pub fn stop_external_procs(&self, grace: Duration, drain: DrainLimits, reason: &str) {
        let theirs: Vec<ProcUid> = {
            let state = lock(&self.state);
            state.procs.iter().filter(|(_, p)| state.external_processes.contains_key(&p.owner)).map(|(uid, _)| *uid).collect()
        };
        theirs.into_iter().for_each(|uid| self.stop_proc(uid, grace, Some(drain), reason));
    }
}
