//! The tombstones of processes.
//!
//! A process is never forgotten after its end: a call to it must fail at once, and not wait. Only a process that was lost with its host,
//! and may still live, can lose its tombstone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wire::ProcUid;
use wire::exit::{ExitReason, ProcEnd};

/// The number of processes whose exit reports are kept, each of some hundred bytes.
const KEPT_ENDS: usize = 4096;
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

/// True if the process was lost with its host or with the client through which it was reached: it may be alive.
fn may_live(end: &ProcEnd) -> bool {
    matches!(end.reason, ExitReason::HostLost(_) | ExitReason::LinkLost(_) | ExitReason::ClientLost(_))
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

/// The tombstones of processes. The exit report is kept for the last `KEPT_ENDS` processes; the uid is kept for all, in eight bytes each. A
/// handle may appear at any time, and a call to a process without a tombstone would wait for it.
pub(crate) struct ProcTombstones {
    /// The exit reports of the last processes.
    kept: HashMap<ProcUid, Arc<Ended>>,
    /// The keys of `kept`, oldest first.
    order: VecDeque<ProcUid>,
    /// The processes of which only the uid is kept.
    old: HashSet<ProcUid>,
    /// The processes of `old` that may be alive.
    old_lost: HashSet<ProcUid>,
    /// The exit report of all processes of `old`: only that they have ended.
    unknown_end: Arc<Ended>,
    /// The processes whose last frames may still arrive, by the time of their tombstone.
    draining: VecDeque<(Instant, ProcUid)>,
}

impl Default for ProcTombstones {
    fn default() -> Self {
        let reason = ExitReason::Stopped(UNKNOWN_REASON.to_owned());
        let end = ProcEnd { pid: 0, started: true, host: String::new(), reason, cleaning: vec![], recent: vec![], output: vec![] };
        let unknown_end = Ended::new(end);
        unknown_end.notify_once();
        ProcTombstones {
            kept: HashMap::new(),
            order: VecDeque::new(),
            old: HashSet::new(),
            old_lost: HashSet::new(),
            unknown_end,
            draining: VecDeque::new(),
        }
    }
}

impl ProcTombstones {
    /// The end of a process, if it has a tombstone.
    pub fn get(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.kept.get(&uid).cloned().or_else(|| self.get_old(uid))
    }

    /// The exit report of a process of which only the uid is kept.
    pub fn get_old(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.old.contains(&uid).then(|| self.unknown_end.clone())
    }

    /// Inserts a tombstone. Only the first report of an end counts.
    pub fn insert(&mut self, uid: ProcUid, ended: Arc<Ended>, now: Instant) {
        if self.kept.contains_key(&uid) || self.old.contains(&uid) {
            return;
        }
        self.kept.insert(uid, ended);
        self.order.push_back(uid);
        self.draining.push_back((now, uid));
        if self.order.len() > KEPT_ENDS
            && let Some(first) = self.order.pop_front()
        {
            let is_lost = self.kept.remove(&first).is_some_and(|ended| may_live(&ended.end));
            self.old.insert(first);
            if is_lost {
                self.old_lost.insert(first);
            }
        }
    }

    /// Removes the tombstone of a process that was lost with its host; true if the process has no tombstone now.
    pub fn remove(&mut self, uid: ProcUid) -> bool {
        match self.kept.get(&uid) {
            Some(ended) if may_live(&ended.end) => {
                self.kept.remove(&uid);
                self.order.retain(|other| *other != uid);
                self.draining.retain(|(_, other)| *other != uid);
            }
            Some(_) => return false,
            None if self.old_lost.remove(&uid) => {
                self.old.remove(&uid);
            }
            None => {}
        }
        !self.old.contains(&uid)
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

    fn end(pid: u32) -> Arc<Ended> {
        let reason = ExitReason::ExitCode(3);
        Ended::new(ProcEnd {
            pid,
            started: true,
            host: "h".to_owned(),
            reason,
            cleaning: vec![],
            recent: vec![],
            output: vec!["a line".to_owned()],
        })
    }

    #[test]
    fn first_report_of_an_end_counts() {
        let mut tombstones = ProcTombstones::default();
        let now = Instant::now();
        assert!(tombstones.get(ProcUid(1)).is_none());
        tombstones.insert(ProcUid(1), end(10), now);
        tombstones.insert(ProcUid(1), end(11), now);
        assert_eq!(tombstones.get(ProcUid(1)).map(|e| e.end.pid), Some(10));
    }

    #[test]
    fn old_tombstones_keep_no_exit_report() {
        let mut tombstones = ProcTombstones::default();
        let now = Instant::now();
        for n in 0..=KEPT_ENDS as u64 {
            tombstones.insert(ProcUid(n), end(n as u32), now);
        }
        let first = tombstones.get(ProcUid(0)).expect("it has ended");
        assert_eq!(first.end.reason, ExitReason::Stopped(UNKNOWN_REASON.to_owned()));
        assert!(!first.notify_once(), "no second notification");
        assert_eq!(tombstones.get(ProcUid(1)).map(|e| e.end.pid), Some(1));
        assert_eq!((tombstones.kept.len(), tombstones.order.len(), tombstones.old.len()), (KEPT_ENDS, KEPT_ENDS, 1));
        // A later report of the same end changes nothing.
        tombstones.insert(ProcUid(0), end(7), now);
        assert_eq!(tombstones.get(ProcUid(0)).map(|e| e.end.pid), Some(0));
    }

    fn lost() -> Arc<Ended> {
        let ended = end(0);
        Ended::new(ProcEnd { reason: ExitReason::HostLost("silent".to_owned()), ..ended.end.clone() })
    }

    #[test]
    fn tombstone_of_lost_process_can_be_removed() {
        let mut tombstones = ProcTombstones::default();
        let now = Instant::now();
        tombstones.insert(ProcUid(1), lost(), now);
        tombstones.insert(ProcUid(2), end(2), now);
        assert!(tombstones.remove(ProcUid(1)) && tombstones.remove(ProcUid(3)));
        assert!(!tombstones.remove(ProcUid(2)), "it has ended by itself");
        assert!(tombstones.get(ProcUid(1)).is_none());
        assert_eq!(tombstones.drained(now + LAST_FRAMES_DELAY), vec![ProcUid(2)], "what is known of a process that is back is kept");
        // The process may be lost again.
        tombstones.insert(ProcUid(1), lost(), now);
        assert!(tombstones.get(ProcUid(1)).is_some_and(|ended| ended.notify_once()));
        assert_eq!((tombstones.kept.len(), tombstones.order.len()), (2, 2));
    }

    #[test]
    fn old_tombstone_of_lost_process_can_be_removed() {
        let mut tombstones = ProcTombstones::default();
        let now = Instant::now();
        tombstones.insert(ProcUid(1), lost(), now);
        for n in 0..=KEPT_ENDS as u64 {
            tombstones.insert(ProcUid(10 + n), end(n as u32), now);
        }
        assert!(!tombstones.kept.contains_key(&ProcUid(1)) && tombstones.get(ProcUid(1)).is_some());
        assert!(tombstones.remove(ProcUid(1)) && !tombstones.remove(ProcUid(10)));
        assert!(tombstones.get(ProcUid(1)).is_none() && tombstones.get(ProcUid(10)).is_some());
        assert!(tombstones.old_lost.is_empty());
    }

    #[test]
    fn last_frames_have_time_to_arrive() {
        let mut tombstones = ProcTombstones::default();
        let start = Instant::now();
        tombstones.insert(ProcUid(1), end(1), start);
        tombstones.insert(ProcUid(2), end(2), start + Duration::from_secs(5));
        assert_eq!(tombstones.drained(start + Duration::from_secs(9)), vec![]);
        assert_eq!(tombstones.drained(start + LAST_FRAMES_DELAY), vec![ProcUid(1)]);
        assert_eq!(tombstones.drained(start + Duration::from_secs(60)), vec![ProcUid(2)]);
        assert_eq!(tombstones.drained(start + Duration::from_secs(60)), vec![]);
    }
}
