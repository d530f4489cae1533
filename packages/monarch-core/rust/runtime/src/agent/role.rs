//! The agent as the components of its process know it, and the components that it gets after its construction: the gateway, and in
//! simulations the launcher of procs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use wire::exit::ProcEnd;
use wire::{Control, ProcUid};

use crate::agent::Agent;
use crate::agent::simulated::Launcher;
use crate::agent::zygote::Report;
use crate::gateway::Gateway;
use crate::roles::LocalAgent;

impl Agent {
    /// The gateway of this process to other hosts, which is made at the first call.
    pub fn open_gateway(&self) -> io::Result<Arc<Gateway>> {
        let node = self.node.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        Ok(self.gateway.get_or_init(|| Gateway::new(&node)).clone())
    }

    pub(crate) fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.get()
    }

    /// Makes new procs nodes of this process, for simulations.
    pub fn simulate(&self, launcher: Arc<Launcher>) {
        let me = self.me.clone();
        launcher.report_to(Box::new(move |uid, status| {
            if let Some(agent) = me.upgrade() {
                agent.report(Report::Exited { uid, status });
            }
        }));
        let _ = self.launcher.set(launcher);
    }
}

impl LocalAgent for Agent {
    fn control(&self, from: ProcUid, c: Control) {
        self.control(from, c);
    }

    fn printed(&self, kind: u16, body: &[u8]) {
        self.printed(kind, body);
    }

    fn owners_ended(&self, ends: &[(ProcUid, ProcEnd)]) {
        self.owners_ended(ends);
    }

    fn link_down(&self, peer: ProcUid) {
        self.link_down(peer);
    }

    fn inspected(&self, from: ProcUid, id: u64, body: Vec<u8>) {
        self.inspected(from, id, body);
    }

    fn ponged(&self, from: ProcUid) {
        self.ponged(from);
    }

    fn shares_a_job(&self, proc: ProcUid, asker: ProcUid) -> Option<bool> {
        self.has_proc(proc).then(|| self.share_a_job(proc, asker))
    }

    fn is_in_job(&self, proc: ProcUid, here: ProcUid) -> bool {
        self.is_in_job(proc, here)
    }

    fn job_of(&self, requester: ProcUid) -> Option<ProcUid> {
        self.job_of(requester)
    }

    fn end_of(&self, proc: ProcUid) -> Option<ProcEnd> {
        self.end_of(proc)
    }

    fn note_exchange(&self, a: ProcUid, b: ProcUid) {
        self.note_exchange(a, b);
    }

    fn started(&self) -> Vec<ProcUid> {
        self.started()
    }

    fn host_ended(&self, host: ProcUid, end: &ProcEnd) {
        self.host_ended(host, end);
    }

    fn host_left(&self, host: ProcUid, here: ProcUid, end: &ProcEnd) {
        self.host_left(host, here, end);
    }

    fn job_ended(&self, here: ProcUid, why: &str) {
        self.job_ended(here, why);
    }

    fn host(&self) -> String {
        self.host().to_owned()
    }

    fn keep_ring(&self, of: ProcUid, ring: OwnedFd) {
        self.recordings.add(of, ring);
    }

    fn close_in_child(&self) {
        self.output.poller.close_in_child();
    }
}
