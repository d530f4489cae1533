//! Messages of the runtime itself; rare, so they are encoded with postcard.

use serde::{Deserialize, Serialize};

use crate::exit::ProcEnd;
use crate::ids::{BlockId, MailboxId, ProcUid, SlotId};

/// How one proc is to be started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcPlan {
    /// Program and arguments; empty: fork from the zygote.
    pub command: Vec<String>,
    /// The whole environment of a proc started by a command.
    pub env: Vec<(String, String)>,
    pub cwd: String,
    /// Pickled set-up for the proc's Python side.
    pub setup: Vec<u8>,
    /// How long it may take from start to its first frame; 0: no limit.
    pub ready_ms: u64,
    /// Shown before each line of output.
    pub prefix: String,
    /// Shown to those who look in.
    pub name: String,
    /// Where its output is kept too, below the job's log directory and without the stream's name; empty: nowhere.
    pub capture: String,
}

/// A host of a job, and where its agent can be dialled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostEntry {
    pub host: ProcUid,
    pub name: String,
    /// Address as dialled, and what it was resolved to.
    pub unix: String,
    pub tcp: (String, u16),
    pub places: Vec<std::net::SocketAddr>,
}

/// What is said on a stream for bulk data that goes by messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PipeWord {
    Open,
    Bytes(Vec<u8>),
    /// So many bytes of the receiver's have been taken.
    Room(u32),
    Close,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Control {
    /// First frame on a link: who speaks.
    Hello {
        version: u32,
        uid: ProcUid,
        pid: u32,
    },
    /// The receiver's arena segment, its descriptor rides along.
    Segment {
        segment: u32,
        len: u64,
    },
    /// The sender will not use this segment again.
    SegmentGone {
        segment: u32,
    },
    /// Blocks that the receiver has let go.
    Release {
        blocks: Vec<BlockId>,
    },
    /// A proc asks its agent for a link to another proc.
    Connect {
        target: ProcUid,
    },
    /// The answer, with the descriptor of a socket that leads there.
    Connected {
        peer: ProcUid,
    },
    /// An owner asks the agent for procs.
    SpawnProcs {
        owner: ProcUid,
        procs: Vec<(ProcUid, ProcPlan)>,
    },
    /// The agent tells owners and peers of procs that have ended of one cause.
    ProcsEnded {
        ends: Vec<(ProcUid, ProcEnd)>,
    },
    /// Start an actor.
    SpawnActor {
        mailbox: MailboxId,
        spec: Vec<u8>,
    },
    /// End a proc: gracefully within `grace_ms`, then by SIGKILL. To the proc: without the kill.
    StopProc {
        uid: ProcUid,
        grace_ms: u64,
        reason: String,
    },
    /// A proc that is being stopped needs more time: it runs a clean-up.
    Extend {
        grace_ms: u64,
    },
    /// An actor of a proc begins its `__cleanup__`, or has ended it.
    Cleanup {
        mesh: MailboxId,
        begins: bool,
    },
    /// Anything for the Python side of the receiving process.
    System {
        kind: u16,
        slot: SlotId,
        body: Vec<u8>,
    },
    /// Does Python run there?
    Ping {
        seq: u64,
    },
    Pong {
        seq: u64,
    },
    /// Somebody looks in: what for is a number of the runtime's inspection.
    Inspect {
        id: u64,
        what: u8,
    },
    /// The answer, as JSON.
    Inspected {
        id: u64,
        body: Vec<u8>,
    },
    /// A proc wants to be told when another one ends.
    Watch {
        target: ProcUid,
    },
    /// A client tells an agent who else is in the job.
    Hosts {
        hosts: Vec<HostEntry>,
    },
    /// These hosts are lost: nothing of theirs is taken any more.
    HostsLost {
        hosts: Vec<(ProcUid, String)>,
    },
    /// The client's work is over, and with it the job.
    JobOver,
    /// The agent is to end, when the procs of the job have.
    Shutdown {
        slot: SlotId,
    },
    /// The agent ends.
    Leaving,
    /// A proc wants a stream for bulk data to a process on another host. To a client: one of its own processes is wanted by a proc that
    /// cannot dial it.
    BulkDial {
        number: u64,
        from: ProcUid,
        to: ProcUid,
        to_host: ProcUid,
    },
    /// The answer, or a stream that somebody else has opened: its descriptor rides along. `keys` protect it; empty: nothing does.
    BulkStream {
        number: u64,
        peer: ProcUid,
        /// Where the peer is, and what this host is called in that job.
        host: ProcUid,
        here: ProcUid,
        /// The other side answers.
        serves: bool,
        /// It was opened from this side, which speaks first: the other side has its end by then.
        dialled: bool,
        keys: Vec<u8>,
    },
    /// There is none.
    BulkRefused {
        number: u64,
        why: String,
    },
    /// `by_sender`: the number is one of the sender's, who has opened it.
    BulkPipe {
        number: u64,
        by_sender: bool,
        what: PipeWord,
    },
    /// For tests: from now on nothing goes between those hosts and this process, and between others again. The answer says that it is so.
    CutOff {
        hosts: Vec<ProcUid>,
        slot: SlotId,
        rank: u32,
    },
    /// The sender of this has a part that the receiver had lent it.
    PartFetched {
        number: u64,
    },
    /// It cannot fetch it, and waits for it to be sent; `no_way`: nor any other, for the time being.
    PartRefused {
        number: u64,
        no_way: bool,
    },
    /// The agent wants the events of this process, in a ring for at least so many; 0: no longer.
    Record {
        events: u32,
    },
    /// The ring of the sender's events; its descriptor rides along.
    Recording,
    /// The descriptor of a segment of the receiver's arena was lost: the segment is to be announced again.
    SegmentLost {
        segment: u32,
    },
}

impl Control {
    pub fn encode(&self) -> Vec<u8> {
        // Serializing plain data into a growable vector cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }
}
