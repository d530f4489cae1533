//! What is said on a control connection: a request is one message, and so is its answer, which repeats its number.
//!
//! Whoever gave up waiting for an answer skips it by its number when it comes. Nothing here is longer than `sys::LONGEST`.

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Kind};
use crate::registry::Id;

/// Of everything in this file, and of the layout of shared words.
pub const VERSION: u32 = 4;
/// Jobs that one message names: each takes up to ten bytes of `sys::LONGEST`.
pub const MOST_JOBS: usize = 128;

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first one.
    Hello {
        version: u32,
        /// Of the side that asks; one of them must be one of the owner's.
        jobs: Vec<u64>,
        uid: u64,
    },
    /// Where is this memory, and which word ends it?
    Open {
        id: Id,
        epoch: u64,
    },
    /// A descriptor of the segment that it is in; for writing only where it may be written.
    Segment {
        id: Id,
    },
    /// A new id for a part of it.
    Restrict {
        id: Id,
        offset: u64,
        len: u64,
        readonly: bool,
    },
    /// It ends now.
    Drop {
        id: Id,
    },
    /// A part that this side had asked for, and nobody has any more. Not answered.
    Forget {
        id: Id,
    },
    /// How did it end?
    Why {
        id: Id,
    },
    /// Hazards of registrations that have ended are gone. Not answered.
    LetGo,
    FetchAdd {
        id: Id,
        offset: u64,
        add: u64,
    },
    CompareSwap {
        id: Id,
        offset: u64,
        compare: u64,
        swap: u64,
    },
    /// From now on this connection copies by way of a ring.
    Stage,
    /// On such a connection: these bytes, please.
    Copy {
        id: Id,
        epoch: u64,
        offset: u64,
        len: u64,
        write: bool,
    },
    /// The first one on a stream between hosts: its number among all of the asking process. Not answered.
    Numbered {
        number: u64,
    },
    /// Is the stream with this number of the asking process still served, and how far is it?
    HowFar {
        number: u64,
    },
    /// These streams of the asking process are used no more. Answered when no thread serves them.
    GiveUp {
        numbers: Vec<u64>,
    },
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// With descriptors of the epochs and of this side's hazards. At `canary` are the bytes of `nonce`.
    Welcome {
        owner: u64,
        pid: i32,
        canary: u64,
        nonce: [u8; 16],
    },
    Opened {
        slot: u32,
        epoch: u64,
        address: u64,
        len: u64,
        readonly: bool,
        segment: Option<Place>,
    },
    /// With the descriptor.
    Segment,
    Restricted {
        id: Id,
        epoch: u64,
    },
    Value(u64),
    /// With the descriptor of the ring.
    Ring,
    Done,
    Refused {
        kind: u8,
        detail: String,
    },
    /// The owner's process exits. Not an answer.
    Goodbye,
    /// Bytes that the owner's end of a stream has sent and received.
    SoFar {
        is_served: bool,
        sent: u64,
        received: u64,
    },
}

/// Where in a segment.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub segment: u64,
    /// Of the segment.
    pub len: u64,
    pub offset: u64,
}

impl Reply {
    pub fn refused(f: &Failure) -> Reply {
        // It has to fit into a message.
        Reply::Refused { kind: f.kind as u8, detail: f.detail.chars().take(256).collect() }
    }
}

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

pub fn encode<T: Serialize>(number: u32, what: &T) -> Vec<u8> {
    let mut out = number.to_le_bytes().to_vec();
    // proof: writing into a vector does not fail, and the types above have nothing that postcard cannot write.
    out.extend(postcard::to_stdvec(what).expect("serializable"));
    out
}

pub fn decode<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Option<(u32, T)> {
    let (number, rest) = message.split_first_chunk::<4>()?;
    let (what, rest) = postcard::take_from_bytes(rest).ok()?;
    rest.is_empty().then_some((u32::from_le_bytes(*number), what))
}
