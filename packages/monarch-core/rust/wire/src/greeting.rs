//! Messages of two agents when a connection between them opens, after it is authenticated.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::ProcUid;

/// Longest greeting, encoded.
pub const LIMIT: usize = 16 << 10;

/// What a client wants of the agents of its job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobSettings {
    /// Silence after which a host is lost.
    pub loss_ms: u64,
    /// How long a broken link may take to come back while others see the other end.
    pub reconnect_ms: u64,
    /// How long the work of a client that is silent is kept; 0: for ever.
    pub lease_ms: u64,
}

/// The dialling side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Greeting {
    /// A client takes a host into its job.
    Join {
        /// The id that the host has in this job.
        host: ProcUid,
        /// The agent that is meant; 0: whoever answers.
        agent: u64,
        /// For the records: the client's host, process and user.
        from: String,
        settings: JobSettings,
    },
    /// A stream of a trunk.
    Channel { session: u64, number: u8, received: u64, from: ProcUid, to: ProcUid },
    /// A client wants to reach the host at this address through this one, within so many milliseconds. `places` is what the name was
    /// resolved to before; empty: it is to be resolved here.
    Tunnel { host: String, port: u16, places: Vec<SocketAddr>, within_ms: u64 },
    /// A stream between two processes, for bytes from memory to memory: it is handed to the one that is `to`. `serves`: the dialling
    /// side's process answers; else it asks. `number` is that of a call for this stream.
    Bulk { number: u64, from: ProcUid, from_host: ProcUid, to: ProcUid, to_host: ProcUid, serves: bool },
}

/// Why a stream is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum No {
    /// You were declared lost, or your job is over here.
    Lost,
    /// There was such a session, and it is no more.
    NoSession,
    /// We dial you just now; that stream is taken.
    Glare,
    /// The agent at this address is another one than was meant.
    OtherAgent,
    /// This agent is leaving.
    Closing,
    /// This agent is in the job already, as another host.
    Twice,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Welcome {
    Joined {
        agent: u64,
        host: String,
        pid: u32,
        release: String,
    },
    Channel {
        received: u64,
    },
    Refused(No),
    /// From here on the stream is one to the host at that address; where it is, the place that answered first.
    Tunnel {
        places: Vec<SocketAddr>,
    },
    /// The network's word for why that host is not reached.
    Unreached {
        why: String,
    },
    /// The stream is the other process's from here on.
    Bulk,
}

/// What is said on a trunk's heartbeat stream. Lost ones are not sent again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Beat {
    /// Frames received on each channel; the other side answers.
    Ping {
        received: Vec<u64>,
    },
    Pong {
        received: Vec<u64>,
    },
    /// When did you hear of this host last?
    Probe {
        about: ProcUid,
    },
    /// So many milliseconds ago; none if never, or not for long.
    Probed {
        about: ProcUid,
        heard_ms: Option<u64>,
    },
    /// Up the tree of joins: so many milliseconds ago these were heard, which are below.
    Heard {
        hosts: Vec<(ProcUid, u64)>,
    },
    /// Down that tree: so long ago the client was.
    Client {
        heard_ms: u64,
    },
}

pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Serializing plain data into a growable vector cannot fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

/// None for anything but exactly one value.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}
