//! The joins of a job that are under way in this process.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;
use std::time::{Duration, Instant};

use net::dial::Handshake;
use wire::join_tree::{JoinFailure, WorkerInfo};
use wire::{CallId, ProcUid};

use crate::membership::Join;

/// The time limit of one worker in `membership::join`: unlimited, since each dial has a deadline of its own.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The joins that are under way. The job owns it.
#[derive(Default)]
pub(super) struct Joins {
    /// The lists of workers whose joins are under way.
    pub lists: Vec<WorkerList>,
    /// The handshakes that wait for a certificate from the client, by the host that joins.
    pub signing: HashMap<ProcUid, Weak<Handshake>>,
    /// Client only: the hosts that have been introduced to all other hosts.
    pub introduced: HashSet<ProcUid>,
    /// Client only: the next introduction is scheduled.
    pub introduction_scheduled: bool,
}

/// A list of workers that this process joins: the list of the client, or the part that an agent has received. `Joins` owns it.
pub(super) struct WorkerList {
    /// The number of the client's list in the client, which all its parts share.
    pub id: u64,
    /// The number of the list in this process. An agent may receive the same list twice.
    pub number: u64,
    /// The decisions about the list, without I/O.
    pub join: Join,
    /// The host's id and the expected agent of each worker, by rank in the list.
    pub workers: HashMap<u32, (ProcUid, u64)>,
    /// The outcomes that are not reported yet, by rank.
    pub outcomes: HashMap<u32, Result<WorkerInfo, JoinFailure>>,
    /// When the list was received. The times in `join` are relative to it.
    pub started_at: Instant,
    /// When the remaining workers of the list are given up.
    pub deadline: Instant,
    /// The number of workers that each agent joins, which is sent with each part.
    pub fan_out: u32,
    /// When `Join::on_time` is scheduled, as time since `started_at`.
    pub wake_at: Option<Duration>,
    /// Client only: the call that the outcomes answer.
    pub call_id: Option<CallId>,
    /// Client only: the ranks whose outcome is not known.
    pub open: HashSet<u32>,
}

impl WorkerList {
    pub fn new(
        (id, number): (u64, u64),
        workers: Vec<(u32, ProcUid, u64)>,
        (fan_out, agent_fan_out): (usize, usize),
        (started_at, deadline): (Instant, Instant),
        call_id: Option<CallId>,
    ) -> WorkerList {
        let open = if call_id.is_some() { workers.iter().map(|(rank, ..)| *rank).collect() } else { HashSet::new() };
        let workers = workers.into_iter().map(|(rank, host, agent)| (rank, (host, agent))).collect();
        let join = Join::with_fan_out(NO_TIMEOUT, fan_out);
        WorkerList {
            id,
            number,
            join,
            workers,
            outcomes: HashMap::new(),
            started_at,
            deadline,
            fan_out: agent_fan_out as u32,
            wake_at: None,
            call_id,
            open,
        }
    }
}
