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
const RECENT: usize = 4096;
/// How long after the report of a process's end its last frames may arrive by another route.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The reason of processes whose exit reports are not kept.
const LONG_AGO: &str = "it ended long ago, and why is not kept";

/// The end of a process, also encoded as the answer to pending calls.
pub struct Ended {
    pub end: ProcEnd,
    pub bytes: Vec<u8>,
    /// The calls and components that wait for the process have been notified.
    told: AtomicBool,
}

/// True if the process was lost with its host or with the client through which it was reached: it may be alive.
fn may_live(end: &ProcEnd) -> bool {
    matches!(end.reason, ExitReason::HostLost(_) | ExitReason::LinkLost(_) | ExitReason::ClientLost(_))
}

impl Ended {
    pub fn new(end: ProcEnd) -> Arc<Self> {
        let bytes = postcard::to_stdvec(&end).unwrap_or_default();
        Arc::new(Ended { end, bytes, told: AtomicBool::new(false) })
    }

    /// True at the first call: the calls and components that wait for the process must be notified.
    pub(crate) fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }
}

/// The tombstones of processes. The exit report is kept for the last `RECENT` processes; the uid is kept for all, in eight bytes each. A
/// handle may appear at any time, and a call to a process without a tombstone would wait for it.
pub(crate) struct Tombs {
    /// The exit reports of the last processes.
    recent: HashMap<ProcUid, Arc<Ended>>,
    /// The keys of `recent`, oldest first.
    order: VecDeque<ProcUid>,
    /// The processes of which only the uid is kept.
    old: HashSet<ProcUid>,
    /// The processes of `old` that may be alive.
    old_lost: HashSet<ProcUid>,
    /// The exit report of all processes of `old`: only that they have ended.
    long_ago: Arc<Ended>,
    /// The processes whose last frames may still arrive, by the time of their tombstone.
    leaving: VecDeque<(Instant, ProcUid)>,
}

impl Default for Tombs {
    fn default() -> Self {
        let reason = ExitReason::Stopped(LONG_AGO.to_owned());
        let end = ProcEnd { pid: 0, started: true, host: String::new(), reason, cleaning: vec![], recent: vec![], output: vec![] };
        let long_ago = Ended::new(end);
        long_ago.tell();
        Tombs {
            recent: HashMap::new(),
            order: VecDeque::new(),
            old: HashSet::new(),
            old_lost: HashSet::new(),
            long_ago,
            leaving: VecDeque::new(),
        }
    }
}

impl Tombs {
    /// The end of a process, if it has a tombstone.
    pub fn get(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.recent.get(&uid).cloned().or_else(|| self.get_old(uid))
    }

    /// The exit report of a process of which only the uid is kept.
    pub fn get_old(&self, uid: ProcUid) -> Option<Arc<Ended>> {
        self.old.contains(&uid).then(|| self.long_ago.clone())
    }

    /// Inserts a tombstone. Only the first report of an end counts.
    pub fn add(&mut self, uid: ProcUid, ended: Arc<Ended>, now: Instant) {
        if self.recent.contains_key(&uid) || self.old.contains(&uid) {
            return;
        }
        self.recent.insert(uid, ended);
        self.order.push_back(uid);
        self.leaving.push_back((now, uid));
        if self.order.len() > RECENT
            && let Some(first) = self.order.pop_front()
        {
            let is_lost = self.recent.remove(&first).is_some_and(|ended| may_live(&ended.end));
            self.old.insert(first);
            if is_lost {
                self.old_lost.insert(first);
            }
        }
    }

    /// Removes the tombstone of a process that was lost with its host; true if the process has no tombstone now.
    pub fn lift(&mut self, uid: ProcUid) -> bool {
        match self.recent.get(&uid) {
            Some(ended) if may_live(&ended.end) => {
                self.recent.remove(&uid);
                self.order.retain(|other| *other != uid);
                self.leaving.retain(|(_, other)| *other != uid);
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
    pub fn silent(&mut self, now: Instant) -> Vec<ProcUid> {
        let count = self.leaving.partition_point(|(at, _)| now.saturating_duration_since(*at) >= LAST_WORDS);
        self.leaving.drain(..count).map(|(_, uid)| uid).collect()
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
    fn the_first_news_counts() {
        let mut tombs = Tombs::default();
        let now = Instant::now();
        assert!(tombs.get(ProcUid(1)).is_none());
        tombs.add(ProcUid(1), end(10), now);
        tombs.add(ProcUid(1), end(11), now);
        assert_eq!(tombs.get(ProcUid(1)).map(|e| e.end.pid), Some(10));
    }

    #[test]
    fn of_the_old_only_that_they_have_ended() {
        let mut tombs = Tombs::default();
        let now = Instant::now();
        for n in 0..=RECENT as u64 {
            tombs.add(ProcUid(n), end(n as u32), now);
        }
        let first = tombs.get(ProcUid(0)).expect("it has ended");
        assert_eq!(first.end.reason, ExitReason::Stopped(LONG_AGO.to_owned()));
        assert!(!first.tell(), "nobody is told of it again");
        assert_eq!(tombs.get(ProcUid(1)).map(|e| e.end.pid), Some(1));
        assert_eq!((tombs.recent.len(), tombs.order.len(), tombs.old.len()), (RECENT, RECENT, 1));
        // A later report of the same end changes nothing.
        tombs.add(ProcUid(0), end(7), now);
        assert_eq!(tombs.get(ProcUid(0)).map(|e| e.end.pid), Some(0));
    }

    fn lost() -> Arc<Ended> {
        let ended = end(0);
        Ended::new(ProcEnd { reason: ExitReason::HostLost("silent".to_owned()), ..ended.end.clone() })
    }

    #[test]
    fn end_with_the_host_can_be_forgotten() {
        let mut tombs = Tombs::default();
        let now = Instant::now();
        tombs.add(ProcUid(1), lost(), now);
        tombs.add(ProcUid(2), end(2), now);
        assert!(tombs.lift(ProcUid(1)) && tombs.lift(ProcUid(3)));
        assert!(!tombs.lift(ProcUid(2)), "it has ended by itself");
        assert!(tombs.get(ProcUid(1)).is_none());
        assert_eq!(tombs.silent(now + LAST_WORDS), vec![ProcUid(2)], "what is known of a process that is back is kept");
        // The process may be lost again.
        tombs.add(ProcUid(1), lost(), now);
        assert!(tombs.get(ProcUid(1)).is_some_and(|ended| ended.tell()));
        assert_eq!((tombs.recent.len(), tombs.order.len()), (2, 2));
    }

    #[test]
    fn old_end_with_the_host_can_be_forgotten() {
        let mut tombs = Tombs::default();
        let now = Instant::now();
        tombs.add(ProcUid(1), lost(), now);
        for n in 0..=RECENT as u64 {
            tombs.add(ProcUid(10 + n), end(n as u32), now);
        }
        assert!(tombs.recent.get(&ProcUid(1)).is_none() && tombs.get(ProcUid(1)).is_some());
        assert!(tombs.lift(ProcUid(1)) && !tombs.lift(ProcUid(10)));
        assert!(tombs.get(ProcUid(1)).is_none() && tombs.get(ProcUid(10)).is_some());
        assert!(tombs.old_lost.is_empty());
    }

    #[test]
    fn last_words_have_their_time() {
        let mut tombs = Tombs::default();
        let start = Instant::now();
        tombs.add(ProcUid(1), end(1), start);
        tombs.add(ProcUid(2), end(2), start + Duration::from_secs(5));
        assert_eq!(tombs.silent(start + Duration::from_secs(9)), vec![]);
        assert_eq!(tombs.silent(start + LAST_WORDS), vec![ProcUid(1)]);
        assert_eq!(tombs.silent(start + Duration::from_secs(60)), vec![ProcUid(2)]);
        assert_eq!(tombs.silent(start + Duration::from_secs(60)), vec![]);
    }
}
