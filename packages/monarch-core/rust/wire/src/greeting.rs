//! Messages of two agents on a new connection, after it is authenticated.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::ProcUid;

/// Longest encoded greeting.
pub const LIMIT: usize = 16 << 10;

/// Settings that a client sends to the agents of its job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobSettings {
    /// The time without a heartbeat after which a host is lost.
    pub loss_ms: u64,
    /// The time in which a broken link can be restored while other hosts still receive heartbeats of the other end.
    pub reconnect_ms: u64,
    /// The time for which the work of a silent client is kept; 0: without a limit.
    pub lease_ms: u64,
}

/// The message of the dialling side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Greeting {
    /// A client adds a host to its job.
    Join {
        /// The id of the host in this job.
        host: ProcUid,
        /// The expected agent; 0: any agent.
        agent: u64,
        /// The client's host, process and user, for the log.
        from: String,
        settings: JobSettings,
    },
    /// A stream of a session.
    Channel { session: u64, number: u8, received: u64, from: ProcUid, to: ProcUid },
    /// A client requests a tunnel to the host at this address, within this time. `places` are the addresses to which the name was resolved
    /// before; empty: the receiver resolves it.
    Tunnel { host: String, port: u16, places: Vec<SocketAddr>, within_ms: u64 },
    /// A stream between two processes, for bytes from memory to memory; it is handed to the process `to`. `serves`: the process on the
    /// dialling side answers requests, otherwise it sends them. `number` identifies the request for this stream.
    Bulk { number: u64, from: ProcUid, from_host: ProcUid, to: ProcUid, to_host: ProcUid, serves: bool },
}

/// The reason for which a stream is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RefusalReason {
    /// The dialling host was declared lost, or its job has ended here.
    Lost,
    /// The session existed and has ended.
    NoSession,
    /// This side is dialling at the same time, and its stream is used.
    Glare,
    /// The agent at this address is not the expected one.
    OtherAgent,
    /// This agent is exiting.
    Closing,
    /// This agent is already in the job as another host.
    Twice,
}

/// The class of the reason for which a host or a process could not be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unreached {
    /// No process listens at the address of the host.
    NotListening,
    /// The host did not answer in time.
    Silent,
    /// Another error of the network, or a limit of the side that answers.
    Failed,
}

/// The answer to a greeting.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Welcome {
    /// The host has joined: its agent, its name, its pid and its release.
    Joined {
        agent: u64,
        host: String,
        pid: u32,
        release: String,
    },
    /// The stream is accepted, with the number of frames that this side has received.
    Channel {
        received: u64,
    },
    Refused(RefusalReason),
    /// The stream is now a stream to the requested host. `places` begins with the address that answered.
    Tunnel {
        places: Vec<SocketAddr>,
    },
    /// The requested host or process could not be reached.
    Unreached {
        cause: Unreached,
        why: String,
    },
    /// The stream now belongs to the other process.
    Bulk,
}

/// Messages on the heartbeat stream of a session. Lost ones are not sent again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Heartbeat {
    /// The number of frames received on each channel; the other side answers with `Pong`.
    Ping {
        received: Vec<u64>,
    },
    Pong {
        received: Vec<u64>,
    },
    /// Asks when the receiver last received a heartbeat of this host.
    Probe {
        about: ProcUid,
    },
    /// The answer to `Probe`: the time since then in milliseconds. `None` if there was no heartbeat, or not for a long time.
    Probed {
        about: ProcUid,
        since_ms: Option<u64>,
    },
    /// Up the join tree: for each relayed host, the time since its last heartbeat in milliseconds.
    Relayed {
        hosts: Vec<(ProcUid, u64)>,
    },
    /// Down the join tree: the time since the client's last heartbeat.
    Client {
        since_ms: u64,
    },
}

pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Serialising plain data into a growable vector cannot fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

/// Decodes exactly one value; `None` for all other input.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}
