//! Control messages of the runtime. They are rare, so they are encoded with postcard.

use serde::{Deserialize, Serialize};

use crate::exit::ProcEnd;
use crate::ids::{BlockId, CallId, MailboxId, ProcUid};

/// The plan for the start of one proc.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcPlan {
    /// Program and arguments; empty: the proc is forked from the zygote.
    pub command: Vec<String>,
    /// The whole environment of a proc that a command starts.
    pub env: Vec<(String, String)>,
    pub cwd: String,
    /// The pickled set-up for the proc's Python side.
    pub setup: Vec<u8>,
    /// Time limit from the start to the first frame of the proc; 0: no limit.
    pub ready_ms: u64,
    /// The text before each line of output.
    pub prefix: String,
    /// The name in `monarch ps` and other inspections.
    pub name: String,
    /// The path of a copy of its output, below the job's log directory and without the stream's name; empty: no copy.
    pub capture: String,
}

/// The time limits for the messages that the actors of a proc have received before its stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainLimits {
    /// For each message that an actor is handling.
    pub message_ms: u64,
    /// For all messages of an actor.
    pub actor_ms: u64,
}

/// A host of a job with the addresses of its agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostEntry {
    pub host: ProcUid,
    pub name: String,
    /// The address as dialled, and the addresses to which its name was resolved.
    pub unix: String,
    pub tcp: (String, u16),
    pub places: Vec<std::net::SocketAddr>,
}

/// A message of a bulk pipe, which replaces a bulk stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PipeFrame {
    Open,
    Bytes(Vec<u8>),
    /// The sender has consumed this many bytes of the receiver's.
    Credit(u32),
    Close,
}

/// A call without an answer at its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExpiredCall {
    pub call_id: CallId,
    pub rank: u32,
    /// The time in the state.
    pub millis: u64,
}

/// The state of a call at its receiver.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum CallState {
    /// Its message waits behind others. `behind` is the work in progress; empty if the actor does not work yet.
    Queued { behind: String },
    /// The endpoint runs. `place` is the line of code; empty if Python did not report it in time.
    Running { endpoint: String, place: String },
    /// The endpoint has returned, and its port is not answered.
    Owed,
    /// The message has not left the caller.
    Unsent,
    /// The process has ended.
    Ended,
}

/// A control message between two processes of a job, or between a process and its agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Control {
    /// The first frame on a link: identifies the sender.
    Hello {
        version: u32,
        uid: ProcUid,
        pid: u32,
    },
    /// Announces a segment of the sender's arena to the receiver; the descriptor is sent with the frame.
    Segment {
        segment: u32,
        len: u64,
    },
    /// The sender no longer uses this segment.
    SegmentGone {
        segment: u32,
    },
    /// The sender has released these blocks of the receiver's arena.
    Release {
        blocks: Vec<BlockId>,
    },
    /// A proc requests a link to another proc from its agent.
    Connect {
        target: ProcUid,
    },
    /// The answer to `Connect`, with the descriptor of a socket to the peer.
    Connected {
        peer: ProcUid,
    },
    /// An owner requests procs from the agent.
    SpawnProcs {
        owner: ProcUid,
        procs: Vec<(ProcUid, ProcPlan)>,
    },
    /// The agent notifies owners and peers of procs that have ended for the same reason.
    ProcsEnded {
        ends: Vec<(ProcUid, ProcEnd)>,
    },
    /// Requests the start of an actor.
    SpawnActor {
        mailbox: MailboxId,
        spec: Vec<u8>,
    },
    /// Requests the end of a proc, gracefully within `grace_ms` and then by SIGKILL. If it is sent to the proc itself, no kill follows.
    /// Without `drain`, the limits are the proc's own.
    StopProc {
        uid: ProcUid,
        grace_ms: u64,
        drain: Option<DrainLimits>,
        reason: String,
    },
    /// A proc that is being stopped needs more time, because it runs a clean-up.
    Extend {
        grace_ms: u64,
    },
    /// An actor of a proc has begun its `__cleanup__`, or has finished it.
    Cleanup {
        mesh: MailboxId,
        begins: bool,
    },
    /// A message for the Python side of the receiving process.
    System {
        kind: u16,
        call_id: CallId,
        body: Vec<u8>,
    },
    /// Checks whether Python runs in the receiver.
    Ping {
        seq: u64,
    },
    Pong {
        seq: u64,
    },
    /// A request of the inspection; `what` is the number of the requested information.
    Inspect {
        id: u64,
        what: u8,
    },
    /// The answer to `Inspect`, as JSON.
    Inspected {
        id: u64,
        body: Vec<u8>,
    },
    /// A proc requests a notice of the end of another proc.
    Watch {
        target: ProcUid,
    },
    /// The client sends the hosts of the job to an agent.
    Hosts {
        hosts: Vec<HostEntry>,
    },
    /// These hosts are lost: their frames are no longer accepted.
    HostsLost {
        hosts: Vec<(ProcUid, String)>,
    },
    /// The client has finished, and its job ends.
    JobEnded,
    /// The agent is to exit when the procs of the job have ended.
    Shutdown {
        call_id: CallId,
    },
    /// The sending agent exits.
    Leaving,
    /// A proc requests a stream for bulk data to a process on another host. Sent to a client: a proc that cannot dial the client requests a
    /// stream to one of its processes.
    BulkDial {
        number: u64,
        from: ProcUid,
        to: ProcUid,
        to_host: ProcUid,
    },
    /// The answer to `BulkDial`, or a stream that another process has opened; the descriptor is sent with the frame. `keys` encrypt the
    /// stream; empty: it is not encrypted.
    BulkStream {
        number: u64,
        peer: ProcUid,
        /// The host of the peer, and the id of this host in that job.
        host: ProcUid,
        here: ProcUid,
        /// The other side answers requests.
        serves: bool,
        /// This side has opened the stream and sends first: the other side already has its end.
        dialled: bool,
        keys: Vec<u8>,
    },
    /// The answer to `BulkDial` if no stream can be opened.
    BulkRefused {
        number: u64,
        why: String,
    },
    /// A message of a bulk pipe. `by_sender`: the sender has opened the pipe, so the number is one of the sender's.
    BulkPipe {
        number: u64,
        by_sender: bool,
        what: PipeFrame,
    },
    /// For tests: cuts the connections between this process and those hosts, and restores all others. The answer confirms the change.
    CutOff {
        hosts: Vec<ProcUid>,
        call_id: CallId,
        rank: u32,
    },
    /// The sender has pulled a part that the receiver offered.
    PartPulled {
        number: u64,
    },
    /// The sender cannot pull the part and waits until it is sent. `unavailable`: for now it cannot pull any part.
    PartRefused {
        number: u64,
        unavailable: bool,
    },
    /// The agent requests the events of this process, in a ring for at least this many; 0 ends the recording.
    Record {
        events: u32,
    },
    /// The ring of the sender's events; the descriptor is sent with the frame.
    Recording,
    /// The deadline of these calls of the receiver has passed at the sender, which has not answered them.
    CallsExpired {
        calls: Vec<ExpiredCall>,
        state: CallState,
    },
    /// The descriptor of a segment of the receiver's arena was lost: the segment must be announced again.
    SegmentLost {
        segment: u32,
    },
}

impl Control {
    pub fn encode(&self) -> Vec<u8> {
        // Serialising plain data into a growable vector cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }
}
