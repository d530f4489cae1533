//! The messages of a control connection: a request is one message, and so is its answer, which repeats its number.
//!
//! A thread whose wait for an answer has timed out leaves the answer to later readers, which skip it by its number. No message is longer
//! than `sys::LONGEST`.

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Kind};

/// A random id: each process that has it may use the memory behind it.
pub type Id = [u8; 16];
/// The version of control connections: of all messages in this file, and of the layout of the shared words.
pub const CONTROL_VERSION: u32 = 5;
/// Most jobs in one message: each takes up to ten bytes of `sys::LONGEST`.
pub const MOST_JOBS: usize = 128;
/// Most parts of one gathered copy: each takes up to 60 bytes of a frame, and about 15 as a rule.
pub const MOST_PARTS: usize = 256;

/// A request to an owner about its memory.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first request.
    Hello {
        version: u32,
        /// The jobs of the requesting side; the owner must belong to one of them.
        jobs: Vec<u64>,
        uid: u64,
    },
    /// Requests the location of a buffer, and the word that shows its end.
    Open {
        id: Id,
        epoch: u64,
    },
    /// Requests a descriptor of the buffer's segment. It allows writing only if the buffer does.
    Segment {
        id: Id,
    },
    /// Requests a new id for a part of the buffer.
    Restrict {
        id: Id,
        offset: u64,
        len: u64,
        readonly: bool,
    },
    /// Ends the buffer.
    Drop {
        id: Id,
    },
    /// Ends a part that this side had requested and no longer refers to. Not answered.
    Forget {
        id: Id,
    },
    /// Requests the reason for the end of a buffer.
    Why {
        id: Id,
    },
    /// Reports that hazards of ended registrations are gone. Not answered.
    HazardsReleased,
    FetchAdd {
        id: Id,
        offset: u64,
        add: u64,
    },
    /// Replaces a word that has the expected value atomically.
    CompareSwap {
        id: Id,
        offset: u64,
        compare: u64,
        swap: u64,
    },
    /// Makes this connection copy through a ring.
    Stage,
    /// Requests a copy, on such a connection or on a stream between hosts.
    Copy {
        id: Id,
        epoch: u64,
        offset: u64,
        len: u64,
        write: bool,
    },
    /// Requests a read of several parts of a buffer, whose bytes arrive one after another: `len` bytes after the first `skip` ones. On a
    /// ring, of one part.
    Gather {
        id: Id,
        epoch: u64,
        skip: u64,
        len: u64,
        parts: Vec<Part>,
    },
    /// The first request on a stream between hosts: its number, unique in the requesting process. Not answered.
    Numbered {
        number: u64,
    },
    /// Asks whether the stream with this number is still served, and how many bytes it has moved.
    Progress {
        number: u64,
    },
    /// Reports that these streams are no longer used. Answered when no thread serves them.
    Abandon {
        numbers: Vec<u64>,
    },
}

/// The answer of an owner.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// With descriptors of the epochs and of this side's hazards. The bytes of `nonce` are at the address `canary`.
    Welcome {
        owner: u64,
        pid: i32,
        canary: u64,
        nonce: [u8; 16],
    },
    /// The answer to `Open`. `address` and `segment` are empty for processes of other hosts.
    Opened {
        slot: u32,
        epoch: u64,
        address: u64,
        len: u64,
        readonly: bool,
        segment: Option<Place>,
    },
    /// With the descriptor of the segment.
    Segment,
    /// The answer to `Restrict`: the id and the epoch of the part.
    Restricted {
        id: Id,
        epoch: u64,
    },
    /// The previous value of a word; on a ring, the length of a piece that was filled or emptied.
    Value(u64),
    /// With the descriptor of the ring.
    Ring,
    Done,
    /// The request was refused.
    Refused {
        kind: u8,
        detail: String,
    },
    /// The owner's process exits. Not an answer.
    Goodbye,
    /// The bytes that the owner's end of a stream has sent and received.
    Progress {
        is_served: bool,
        sent: u64,
        received: u64,
    },
}

/// Runs of `run` bytes of a buffer from `offset` on: an outer and an inner dimension of `counts` steps, each of `steps` bytes.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub offset: u64,
    pub run: u64,
    pub counts: [u64; 2],
    pub steps: [u64; 2],
}

/// A location in a segment.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub segment: u64,
    /// The length of the segment.
    pub len: u64,
    pub offset: u64,
}

impl Reply {
    pub fn refused(f: &Failure) -> Reply {
        // The text must fit into a message.
        Reply::Refused { kind: f.kind as u8, detail: f.detail.chars().take(256).collect() }
    }
}

/// The failure behind a `Refused` answer.
pub fn refusal(kind: u8, detail: String) -> Failure {
    let kind = match kind {
        1 => Kind::Released,
        3 => Kind::Access,
        6 => Kind::Unsupported,
        7 => Kind::Init,
        _ => Kind::Transfer,
    };
    Failure::new(kind, detail)
}

/// A message: its number, and the value.
pub fn encode<T: Serialize>(number: u32, what: &T) -> Vec<u8> {
    let mut out = number.to_le_bytes().to_vec();
    // proof: writing into a vector does not fail, and the types above have nothing that postcard cannot write.
    out.extend(postcard::to_stdvec(what).expect("serializable"));
    out
}

/// The number and the value of a message; `None` if it is malformed.
pub fn decode<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Option<(u32, T)> {
    let (number, rest) = message.split_first_chunk::<4>()?;
    let (what, rest) = postcard::take_from_bytes(rest).ok()?;
    rest.is_empty().then_some((u32::from_le_bytes(*number), what))
}
