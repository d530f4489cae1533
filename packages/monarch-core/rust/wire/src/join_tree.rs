//! Messages along the tree by which the hosts of a job have joined.

use serde::{Deserialize, Serialize};

use crate::control::HostEntry;
use crate::cursor::{Cursor, DecodeError};
use crate::frame::{begin, finish};
use crate::greeting::Beat;
use crate::ids::ProcUid;

/// From which host to which; those in between pass it on.
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

    /// A whole frame of this kind.
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
    /// The agent that is meant; 0: whoever answers.
    pub agent: u64,
}

/// What a worker that has joined says of itself, and who has had it join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Said {
    pub agent: u64,
    pub name: String,
    pub pid: u32,
    pub release: String,
    pub by: ProcUid,
}

/// How a host that is below has ended, as who is above it sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    Exited,
    Killed,
    Reset,
    Cut,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Word {
    /// Down: these are yours to join, within so many milliseconds, by their place in the list `run`.
    Part {
        run: u64,
        within_ms: u64,
        fan_out: u32,
        workers: Vec<(u32, Worker)>,
    },
    /// Up, to the next: what became of some, or why not.
    Report {
        run: u64,
        joined: Vec<(u32, Said)>,
        failed: Vec<(u32, String)>,
    },
    /// Up, to the client: a worker's public key; and what the client has made of it.
    Certify {
        host: ProcUid,
        key: Vec<u8>,
    },
    Certified {
        host: ProcUid,
        certificate: Option<Vec<u8>>,
    },
    /// Down: the client knows that you have joined. What it has to say to you comes this way, in this session of the trunk with it.
    Begin {
        session: u64,
    },
    /// Up, to the client: the streams to a host below have ended.
    Ended {
        host: ProcUid,
        how: Ending,
    },
    /// Down, to all: as the words of the same names of `Control`.
    Hosts {
        hosts: Vec<HostEntry>,
    },
    HostsLost {
        hosts: Vec<(ProcUid, String)>,
    },
    JobOver,
    /// Between two that have no stream for it.
    Beat(Beat),
}
