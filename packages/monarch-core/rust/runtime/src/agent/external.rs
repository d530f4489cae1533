//! The external processes of a client: processes of the same user that take part in its job, and that no agent has started.
//!
//! What it needs: the table of procs, and the peers of this process, to which the control socket adds links.
//!
//! What always holds: an external process has a link of its own, and is not reached through another host.

use std::io;
use std::sync::{Arc, Mutex};

use net::lock::lock;
use wire::ProcUid;

use crate::agent::procs::Procs;
use crate::local::Local;
use crate::peers::external_process::ControlSocketListener;

/// Admits external processes.
pub(crate) struct ExternalProcesses {
    pub local: Arc<Local>,
    pub procs: Arc<Procs>,
    pub control_socket: Mutex<Option<ControlSocketListener>>,
}

impl ExternalProcesses {
    /// Opens the control socket, for processes of the same user that this agent has not started.
    pub fn open(&self) -> io::Result<()> {
        let node = self.local.node().ok_or(io::ErrorKind::NotConnected)?;
        let mut open = lock(&self.control_socket);
        if open.is_none() {
            *open = Some(ControlSocketListener::open(&node.peers)?);
        }
        Ok(())
    }

    pub fn close(&self) {
        drop(lock(&self.control_socket).take());
    }

    /// Accepts an external process into this client's job: it may address all processes of the job, and spawn.
    pub fn admit(&self, uid: ProcUid, pid: u32) {
        let Some(node) = self.local.node() else { return };
        let mut state = self.procs.lock();
        if node.peers.end_of(uid).is_none() && node.peers.known_peer(uid).is_some_and(|p| p.link.is_attached()) {
            state.external_processes.insert(uid, pid);
        }
    }
}
