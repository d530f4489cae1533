//! Messages along the join tree, over which the hosts of a job have joined.

use serde::{Deserialize, Serialize};

use crate::control::HostEntry;
use crate::cursor::{Cursor, DecodeError};
use crate::frame::{begin, finish};
use crate::greeting::Heartbeat;
use crate::ids::ProcUid;

/// The sending and the receiving host of a message. Hosts in between forward it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Along {
    pub to: ProcUid,
    pub from: ProcUid,
}

impl Along {
    pub const LEN: usize = 16;

    pub fn read(c: &mut Cursor<'_>) -> Result<Along, DecodeError> {
        Ok(Along { to: ProcUid(c.u64()?), from: ProcUid(c.u64()?) })
    }

    /// Encodes a whole frame of this kind.
    pub fn frame(&self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(5 + Along::LEN + body.len());
        let at = begin(&mut out, kind);
        out.extend_from_slice(&self.to.0.to_le_bytes());
        out.extend_from_slice(&self.from.0.to_le_bytes());
        out.extend_from_slice(body);
        finish(&mut out, at, 0);
        out
    }
}

/// A worker that is to join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Worker {
    pub entry: HostEntry,
    /// The expected agent; 0: any agent.
    pub agent: u64,
}

/// The description of a worker that has joined: its own facts, and the host that has joined it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkerInfo {
    pub agent: u64,
    pub name: String,
    pub pid: u32,
    pub release: String,
    pub by: ProcUid,
}

/// The kind of a failed join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinFailureKind {
    /// One side did not authenticate the other.
    Authentication,
    /// The two sides have different versions.
    Version,
    /// The worker has ended while it joined.
    Ended,
    /// Another reason: the worker may run.
    Other,
}

/// The reason why a worker has not joined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinFailure {
    pub kind: JoinFailureKind,
    pub why: String,
}

impl JoinFailure {
    pub fn other(why: impl Into<String>) -> JoinFailure {
        JoinFailure { kind: JoinFailureKind::Other, why: why.into() }
    }
}

/// The end of a relayed host, as its relay observed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HostEnd {
    /// The host sent a goodbye, or another agent answers at its address.
    Exited,
    /// The streams have ended, and no process listens at its address any more.
    Killed,
    /// All streams were reset.
    Reset,
    /// A local error of the network: timed out, no route, unreachable.
    Cut,
}

/// A message along the join tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TreeMessage {
    /// Down: assigns workers that the receiver joins within this time. Each has its place in the list `run`.
    Part {
        run: u64,
        within_ms: u64,
        fan_out: u32,
        workers: Vec<(u32, Worker)>,
    },
    /// Up, to the next host: the outcome of joins, with the reason for each failure.
    Report {
        run: u64,
        joined: Vec<(u32, WorkerInfo)>,
        failed: Vec<(u32, JoinFailure)>,
    },
    /// Up, to the client: the public key of a worker. `Certified` is the answer.
    Certify {
        host: ProcUid,
        key: Vec<u8>,
    },
    /// The certificate that the client has issued for a worker.
    Certified {
        host: ProcUid,
        certificate: Option<Vec<u8>>,
    },
    /// Down: the client knows that the receiver has joined. It uses this route and this session with the receiver.
    Begin {
        session: u64,
    },
    /// Up, to the client: the streams to a relayed host have ended.
    Ended {
        host: ProcUid,
        how: HostEnd,
    },
    /// Down, to all hosts: as the messages of the same names of `Control`.
    Hosts {
        hosts: Vec<HostEntry>,
    },
    /// Down: these hosts are lost, with the reasons.
    HostsLost {
        hosts: Vec<(ProcUid, String)>,
    },
    JobEnded,
    /// A heartbeat between two hosts without a heartbeat stream.
    Heartbeat(Heartbeat),
}
