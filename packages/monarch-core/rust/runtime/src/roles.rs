//! The roles that a process may have beside its own work: the agent of its host, and the gateway to other hosts.
//!
//! A client and an agent have both roles, a proc has none. The components of a process know the two roles by the traits here only; `Agent`
//! and `Gateway` implement them, and use the components. A role is set once, and stays until the process ends.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use net::{Link, RecvPart};
use serde::Serialize;
use wire::exit::ProcEnd;
use wire::{CallId, Cast, Control, ProcUid, Reply, Route, Status};

/// The casts of a process: unfinished casts and their groups, frames that wait for earlier ones, pending calls of this process.
#[derive(Serialize, Clone, Copy, Default)]
pub struct CastState {
    pub records: usize,
    pub groups: usize,
    pub held: usize,
    pub calls: usize,
}

/// The agent of this host, if it is a part of this process.
pub trait LocalAgent: Send + Sync {
    /// Handles a message of a proc, or of this process, to the agent.
    fn control(&self, from: ProcUid, c: Control);
    /// Takes lines of output that another host has sent.
    fn printed(&self, kind: u16, body: &[u8]);
    /// Takes the ends of processes that may own procs of this host.
    fn owners_ended(&self, ends: &[(ProcUid, ProcEnd)]);
    fn link_down(&self, peer: ProcUid);
    /// Takes the answer of a process to an inspection.
    fn inspected(&self, from: ProcUid, id: u64, body: Vec<u8>);
    /// Takes the report that Python runs in a process.
    fn ponged(&self, from: ProcUid);
    /// True if this proc of this host is in a job of `asker`; none if no such proc is on this host.
    fn shares_a_job(&self, proc: ProcUid, asker: ProcUid) -> Option<bool>;
    /// True if the proc, or this process, belongs to the job in which this host has the id `here`.
    fn is_in_job(&self, proc: ProcUid, here: ProcUid) -> bool;
    /// The id of this host in the job of a process of this host.
    fn job_of(&self, requester: ProcUid) -> Option<ProcUid>;
    /// The end of a proc of this host.
    fn end_of(&self, proc: ProcUid) -> Option<ProcEnd>;
    /// Notes that two processes exchange frames: each is notified of the other one's end.
    fn note_exchange(&self, a: ProcUid, b: ProcUid);
    /// The procs of this host that run.
    fn started(&self) -> Vec<ProcUid>;
    fn host_ended(&self, host: ProcUid, end: &ProcEnd);
    /// Takes the loss of a route: the host can no longer be reached through the job in which this host has the id `here`.
    fn host_left(&self, host: ProcUid, here: ProcUid, end: &ProcEnd);
    fn job_ended(&self, here: ProcUid, why: &str);
    /// The name of this host.
    fn host(&self) -> String;
    /// Takes the ring with the events of a process of this host.
    fn keep_ring(&self, of: ProcUid, ring: OwnedFd);
    /// In a forked child: closes what is shared with the parent.
    fn close_in_child(&self);
}

/// The gateway of this process to other hosts.
pub trait LocalGateway: Send + Sync {
    /// True if the uid is that of a job, or of a host of a job, of this process.
    fn knows(&self, uid: ProcUid) -> bool;
    /// Handles a message of another host's agent to this one.
    fn control(&self, from: ProcUid, c: Control);
    /// Sends frames of this process to another host.
    fn forward(&self, head: &Route, body: &[&[u8]]);
    /// Sends a large part of a frame of this process to another host.
    fn forward_part(&self, head: &Route, number: u64, part: RecvPart);
    /// Forwards frames, or a large part, that a proc of this host has sent on its link.
    fn forward_of_proc(&self, link: &Arc<Link>, head: &Route, body: &[u8]);
    /// The number of bytes that wait for a host; `here` is the id of this host in the same job.
    fn waiting_for(&self, host: ProcUid, here: ProcUid) -> usize;
    /// Takes the ends of processes, here or elsewhere.
    fn procs_ended(&self, ends: &[(ProcUid, ProcEnd)]);
    /// Adds a cast of this process, in order. `send_casts` sends it, and may run on many threads at once.
    fn cast_here(&self, cast: Cast);
    fn send_casts(&self);
    /// Takes a frame about casts of a proc of this host.
    fn cast_of_proc(&self, proc: ProcUid, frame: &[u8]);
    /// Takes the answer of a proc of this host to a cast.
    fn cast_reply(&self, proc: ProcUid, reply: Reply, link: &Arc<Link>);
    /// Takes the answer of this process to a cast; `parts` are encoded.
    fn cast_answer(&self, call_id: CallId, status: Status, parts: Vec<u8>);
    /// The name of another host of a job, and the time since its last heartbeat.
    fn silence(&self, host: ProcUid) -> Option<(String, Duration)>;
    /// The casts of all jobs. `calls` is 0.
    fn cast_state(&self) -> CastState;
}

/// The roles of one process.
#[derive(Default)]
pub struct Roles {
    agent: OnceLock<Arc<dyn LocalAgent>>,
    gateway: OnceLock<Arc<dyn LocalGateway>>,
}

impl Roles {
    pub fn set_agent(&self, agent: Arc<dyn LocalAgent>) {
        let _ = self.agent.set(agent);
    }

    pub fn agent(&self) -> Option<&dyn LocalAgent> {
        self.agent.get().map(|agent| &**agent)
    }

    pub fn set_gateway(&self, gateway: Arc<dyn LocalGateway>) {
        let _ = self.gateway.set(gateway);
    }

    pub fn gateway(&self) -> Option<&dyn LocalGateway> {
        self.gateway.get().map(|gateway| &**gateway)
    }
}
