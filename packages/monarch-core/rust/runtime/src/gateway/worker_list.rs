//! A list of workers whose joins are under way, as one process of the job sees it. It does no I/O.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wire::join_tree::{JoinFailure, WorkerInfo};
use wire::{CallId, ProcUid};

use crate::membership::join::{Join, Joined};

/// The outcomes of some workers of a list, by rank: those that have joined and those that have not.
pub(super) type Outcomes = (Vec<(u32, WorkerInfo)>, Vec<(u32, JoinFailure)>);

/// A list of workers that this process joins: the list of the client, or the part that an agent has received. The job owns it.
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
    /// A list with this id; without one, a new list of this client.
    pub fn new(
        id: Option<u64>,
        workers: Vec<(u32, ProcUid, u64)>,
        (fan_out, agent_fan_out): (usize, usize),
        (started_at, deadline): (Instant, Instant),
        call_id: Option<CallId>,
    ) -> WorkerList {
        let open = if call_id.is_some() { workers.iter().map(|(rank, ..)| *rank).collect() } else { HashSet::new() };
        let workers = workers.into_iter().map(|(rank, host, agent)| (rank, (host, agent))).collect();
        WorkerList {
            id: id.unwrap_or_else(next_number),
            number: next_number(),
            join: Join::new(fan_out),
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

    /// The rank of a host; none if it is not in the list.
    pub fn rank_of(&self, host: ProcUid) -> Option<u32> {
        self.workers.iter().find(|(_, (id, _))| *id == host).map(|(rank, _)| *rank)
    }

    /// The open workers of the client, with their ranks.
    pub fn open_hosts(&self) -> Vec<(u32, ProcUid)> {
        self.open.iter().map(|rank| (*rank, self.workers[rank].0)).collect()
    }

    /// Records the outcomes that the host `via` has reported: a join replaces a failure. Returns the rank of that host.
    pub fn report(&mut self, via: ProcUid, (joined, failed): &Outcomes) -> Option<u32> {
        joined.iter().for_each(|(rank, info)| drop(self.outcomes.insert(*rank, Ok(info.clone()))));
        for (rank, why) in failed {
            self.outcomes.entry(*rank).or_insert_with(|| Err(why.clone()));
        }
        self.rank_of(via)
    }

    /// Takes the outcomes of these ranks out, for a report.
    pub fn take(&mut self, ranks: Joined) -> Outcomes {
        let joined = ranks.joined.into_iter().filter_map(|rank| Some((rank, self.outcomes.remove(&rank)?.ok()?))).collect();
        let failed = ranks.failed.into_iter().filter_map(|(rank, why)| match self.outcomes.remove(&rank) {
            Some(Ok(_)) => None,
            Some(Err(failure)) => Some((rank, failure)),
            None => Some((rank, JoinFailure::other(why))),
        });
        (joined, failed.collect())
    }
}

/// The number of the next list of this process. The lists of a job have the numbers of its client.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> WorkerList {
        let now = Instant::now();
        WorkerList::new(None, vec![(0, ProcUid(10), 0), (1, ProcUid(11), 0)], (1, 1), (now, now), None)
    }

    fn info() -> WorkerInfo {
        WorkerInfo { agent: 5, name: "worker".to_owned(), pid: 1, release: String::new(), by: ProcUid(10) }
    }

    #[test]
    fn join_replaces_a_failure() {
        let mut list = list();
        assert_eq!(list.report(ProcUid(10), &(vec![], vec![(1, JoinFailure::other("refused"))])), Some(0));
        list.report(ProcUid(10), &(vec![(1, info())], vec![]));
        list.report(ProcUid(10), &(vec![], vec![(1, JoinFailure::other("late"))]));
        let (joined, failed) = list.take(Joined { joined: vec![1], failed: vec![] });
        assert_eq!((joined, failed), (vec![(1, info())], vec![]));
    }

    #[test]
    fn outcome_is_taken_once() {
        let mut list = list();
        list.report(ProcUid(99), &(vec![], vec![(0, JoinFailure::other("refused"))]));
        let ranks = || Joined { joined: vec![], failed: vec![(0, "no answer".to_owned())] };
        assert_eq!(list.take(ranks()).1[0].1.why, "refused");
        assert_eq!(list.take(ranks()).1[0].1.why, "no answer");
    }
}
