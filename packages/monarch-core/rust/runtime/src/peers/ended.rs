//! The ends of processes: exit reports, tombstones, and the state that a process leaves for its last frames.
//!
//! It needs nothing from other components, and has no clock of its own. A process with a tombstone has ended, or was lost with its host.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wire::ProcUid;
use wire::exit::{ExitReason, ProcEnd};

use crate::tombstones::Tombstones;

/// How long after the report of a process's end its last frames may arrive by another route.
const LAST_FRAMES_DELAY: Duration = Duration::from_secs(10);
/// The reason of processes whose exit reports are not kept.
const UNKNOWN_REASON: &str = "it ended long ago, and why is not kept";

/// The end of a process, also encoded as the answer to pending calls.
pub struct Ended {
    pub end: ProcEnd,
    pub bytes: Vec<u8>,
    /// The calls and components that wait for the process have been notified.
    notified: AtomicBool,
}

impl Ended {
    pub fn new(end: ProcEnd) -> Arc<Self> {
        let bytes = postcard::to_stdvec(&end).unwrap_or_default();
        Arc::new(Ended { end, bytes, notified: AtomicBool::new(false) })
    }

    /// True at the first call: the calls and components that wait for the process must be notified.
    pub(crate) fn notify_once(&self) -> bool {
        !self.notified.swap(true, Ordering::AcqRel)
    }
}

/// The end that is reported for all processes of a lost host.
pub(crate) fn host_end(host: &str, why: &str) -> ProcEnd {
    unobserved_end(0, host, ExitReason::HostLost(why.to_owned()))
}

/// The exit report of a client, or of a process that was reached through it.
pub(crate) fn client_end(pid: u32, why: &str) -> ProcEnd {
    unobserved_end(pid, "", ExitReason::ClientLost(why.to_owned()))
}

/// An exit report of a process whose end no agent has observed.
fn unobserved_end(pid: u32, host: &str, reason: ExitReason) -> ProcEnd {
    ProcEnd { pid, started: true, host: host.to_owned(), reason, cleaning: vec![], output: vec![], recent: vec![] }
}

/// The ended processes that this process knows of.
pub(crate) struct EndedProcs {
    tombstones: Tombstones<ProcUid, Arc<Ended>>,
    /// The processes whose last frames may still arrive, by the time of their tombstone.
    draining: VecDeque<(Instant, ProcUid)>,
}

impl Default for EndedProcs {
    fn default() -> Self {
        let unknown_end = Ended::new(unobserved_end(0, "", ExitReason::Stopped(UNKNOWN_REASON.to_owned())));
        unknown_end.notify_once();
        EndedProcs { tombstones: Tombstones::new(unknown_end), draining: VecDeque::new() }
    }
}

impl EndedProcs {
    /// The end of a process, if it has a tombstone.
    pub fn get(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.tombstones.get(uid)
    }

    /// The end of a process whose exit report is not kept.
    pub fn get_old(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.tombstones.get_old(uid)
    }

    /// Inserts the tombstone of a process, and returns its end: the first report counts.
    pub fn insert(&mut self, uid: ProcUid, end: ProcEnd, now: Instant) -> Arc<Ended> {
        if let Some(known) = self.get(uid) {
            return known;
        }
        // A process that was lost with its host, or with the client through which it was reached, may be alive.
        let may_live = matches!(end.reason, ExitReason::HostLost(_) | ExitReason::LinkLost(_) | ExitReason::ClientLost(_));
        let ended = Ended::new(end);
        self.tombstones.insert(uid, ended.clone(), may_live);
        self.draining.push_back((now, uid));
        ended
    }

    /// Removes the tombstone of a process that may live; true if the process has no tombstone now.
    pub fn remove(&mut self, uid: ProcUid) -> bool {
        let is_removed = self.tombstones.remove(uid);
        if is_removed {
            self.draining.retain(|(_, other)| *other != uid);
        }
        is_removed
    }

    /// The processes whose last frames have arrived by now. Each process is returned once.
    pub fn drained(&mut self, now: Instant) -> Vec<ProcUid> {
        let count = self.draining.partition_point(|(at, _)| now.saturating_duration_since(*at) >= LAST_FRAMES_DELAY);
        self.draining.drain(..count).map(|(_, uid)| uid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(pid: u32, reason: ExitReason) -> ProcEnd {
        unobserved_end(pid, "h", reason)
    }

    #[test]
    fn tombstone_of_lost_process_can_be_removed() {
        let mut all = EndedProcs::default();
        let now = Instant::now();
        all.insert(ProcUid(1), end(0, ExitReason::HostLost("silent".to_owned())), now);
        all.insert(ProcUid(2), end(2, ExitReason::ExitCode(3)), now);
        assert_eq!(all.insert(ProcUid(2), end(4, ExitReason::ExitCode(5)), now).end.pid, 2);
        assert!(all.remove(ProcUid(1)) && all.remove(ProcUid(3)));
        assert!(!all.remove(ProcUid(2)), "it has ended by itself");
        assert_eq!(all.drained(now + LAST_FRAMES_DELAY), vec![ProcUid(2)], "what is known of a process that is back is kept");
        // The process may be lost again.
        assert!(all.insert(ProcUid(1), end(0, ExitReason::HostLost("silent".to_owned())), now).notify_once());
    }

    #[test]
    fn processes_without_exit_report_are_not_reported() {
        let mut all = EndedProcs::default();
        (0..5000).for_each(|n| drop(all.insert(ProcUid(n), end(n as u32, ExitReason::ExitCode(3)), Instant::now())));
        let first = all.get_old(ProcUid(0)).expect("it has ended");
        assert_eq!(first.end.reason, ExitReason::Stopped(UNKNOWN_REASON.to_owned()));
        assert!(!first.notify_once());
    }

    #[test]
    fn last_frames_have_time_to_arrive() {
        let mut all = EndedProcs::default();
        let start = Instant::now();
        all.insert(ProcUid(1), end(1, ExitReason::ExitCode(3)), start);
        all.insert(ProcUid(2), end(2, ExitReason::ExitCode(3)), start + Duration::from_secs(5));
        assert_eq!(all.drained(start + Duration::from_secs(9)), vec![]);
        assert_eq!(all.drained(start + LAST_FRAMES_DELAY), vec![ProcUid(1)]);
        assert_eq!(all.drained(start + Duration::from_secs(60)), vec![ProcUid(2)]);
        assert_eq!(all.drained(start + Duration::from_secs(60)), vec![]);
    }
}
