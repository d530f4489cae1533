//! The table of this host's procs and of the relations between processes. It does no I/O.
//!
//! What it needs: nothing. The other components of the agent read and change the table under its lock, and call `changed` afterwards.
//!
//! What always holds:
//! - A proc is in the table from the request to start it until its end is handled. Until then `wait_idle` waits for it.
//! - No other lock is taken while the one of the table is held, except for those of tombstones, routes and streams.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use net::lock::lock;
use serde_json::value::RawValue;
use wire::ProcUid;

use crate::agent::cleanup::Cleanups;
use crate::agent::output::{Stream, Tail};
use crate::agent::responsiveness::Responsiveness;
use crate::agent::zygote::Zygote;

/// The number of cgroups kept for a proc: the present one and the one before. With version 1 of the interface, a process that was just
/// killed is shown in the root cgroup.
const CGROUPS: usize = 2;

/// A proc of this host, from the request to start it until its end is handled.
pub(crate) struct Proc {
    pub owner: ProcUid,
    /// The id of this host in the job of the proc.
    pub here: ProcUid,
    /// The ids of this host in other jobs whose processes the service of this process answers.
    pub serves: HashSet<ProcUid>,
    pub name: String,
    pub born: Instant,
    pub responsiveness: Responsiveness,
    /// The probable reason why the proc does not answer, found when it became unresponsive.
    pub silence_reason: Option<&'static str>,
    pub stacks: Option<Box<RawValue>>,
    pub pid: u32,
    pub started: bool,
    /// The reason of the stop, if the proc has been asked to stop.
    pub stopping: Option<String>,
    /// The reason why the agent has ended a proc that was not ready in time.
    pub start_failure: Option<String>,
    pub kill_at: Option<Instant>,
    /// The proc runs a clean-up that has until this time: it is not killed before.
    pub cleanup_until: Option<Instant>,
    pub cleanups: Cleanups,
    /// The memory cgroup of the proc, and the one before it.
    pub cgroups: Vec<String>,
    pub tail: Arc<Tail>,
    pub streams: Vec<Arc<Stream>>,
}

impl Proc {
    pub fn new(owner: ProcUid, here: ProcUid, name: String, tail: Arc<Tail>, streams: Vec<Arc<Stream>>) -> Proc {
        Proc {
            owner,
            here,
            serves: HashSet::new(),
            name,
            born: Instant::now(),
            responsiveness: Responsiveness::default(),
            silence_reason: None,
            stacks: None,
            pid: 0,
            started: false,
            stopping: None,
            start_failure: None,
            kill_at: None,
            cleanup_until: None,
            cleanups: Cleanups::default(),
            cgroups: Vec::new(),
            tail,
            streams,
        }
    }

    /// Sets the cgroup in which the proc's memory is counted, if it is known.
    pub fn is_in(&mut self, cgroup: Option<String>) {
        let Some(cgroup) = cgroup.filter(|c| self.cgroups.first() != Some(c)) else { return };
        self.cgroups.insert(0, cgroup);
        self.cgroups.truncate(CGROUPS);
    }

    pub fn kill_is_due(&self, now: Instant) -> bool {
        self.kill_at.is_some_and(|at| at <= now) && self.cleanup_until.is_none_or(|until| until <= now)
    }
}

/// The contents of the table.
#[derive(Default)]
pub(crate) struct State {
    pub procs: HashMap<ProcUid, Proc>,
    /// The external processes, and their pids.
    pub external_processes: HashMap<ProcUid, u32>,
    /// For each process, the processes with which it has a link or has exchanged frames. Each of them is notified of the other one's end.
    pub linked: HashMap<ProcUid, HashSet<ProcUid>>,
    /// The processes that have requested a link to a proc which is not known here yet, by that proc.
    pub link_requests: HashMap<ProcUid, Vec<ProcUid>>,
    /// Processes that have requested to be notified of the end of a proc, by that proc.
    pub watched: HashMap<ProcUid, HashSet<ProcUid>>,
    pub zygote: Option<Zygote>,
    /// The preloaded interpreters by pid: the id of this host in their job, and their description as JSON.
    pub preloaded: BTreeMap<u32, (ProcUid, Box<RawValue>)>,
    /// The number of procs that are removed from `procs` and whose end is not reported yet.
    pub ending: usize,
    /// The number of spawn requests that the I/O thread has not handled yet.
    pub starting: usize,
    pub closing: bool,
    pub watching: bool,
    /// The responsiveness check of this process itself.
    pub responsiveness: Responsiveness,
}

impl State {
    /// The procs that have not been asked to stop, and for which `is` is true.
    pub fn not_stopping(&self, is: impl Fn(&Proc) -> bool) -> Vec<ProcUid> {
        self.procs.iter().filter(|(_, p)| p.stopping.is_none() && is(p)).map(|(uid, _)| *uid).collect()
    }
}

/// The table of an agent. Its components share it.
#[derive(Default)]
pub(crate) struct Procs {
    state: Mutex<State>,
    /// Is notified whenever a proc has ended or started, for `wait_idle`.
    idle: Condvar,
}

impl Procs {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes a proc, if it is in the table.
    pub fn with<T>(&self, uid: ProcUid, f: impl FnOnce(&mut Proc) -> T) -> Option<T> {
        self.lock().procs.get_mut(&uid).map(f)
    }

    /// A proc has ended or started.
    pub fn changed(&self) {
        self.idle.notify_all();
    }

    /// Waits until all procs have ended, at most for `bound`. Returns false if some still run.
    pub fn wait_idle(&self, bound: Duration) -> bool {
        let deadline = Instant::now() + bound;
        let mut state = self.lock();
        while !state.procs.is_empty() || state.ending + state.starting > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.idle.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub fn started(&self) -> Vec<ProcUid> {
        self.lock().procs.iter().filter(|(_, p)| p.started).map(|(u, _)| *u).collect()
    }

    /// The procs in the table, with their pids.
    pub fn alive(&self) -> Vec<(ProcUid, u32)> {
        self.lock().procs.iter().map(|(u, p)| (*u, p.pid)).collect()
    }

    /// Notes that two processes, one of them here, have exchanged frames: each is notified when the other one ends.
    pub fn note_exchange(&self, a: ProcUid, b: ProcUid) {
        let mut state = self.lock();
        if state.linked.get(&a).is_some_and(|known| known.contains(&b)) {
            return;
        }
        state.linked.entry(a).or_default().insert(b);
        state.linked.entry(b).or_default().insert(a);
    }

    /// True until one of the two processes has ended.
    pub fn is_linked(&self, a: ProcUid, b: ProcUid) -> bool {
        self.lock().linked.get(&a).is_some_and(|known| known.contains(&b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Procs {
        let procs = Procs::default();
        procs.lock().procs.insert(ProcUid(1), Proc::new(ProcUid(9), ProcUid(9), "p".to_owned(), Tail::new(0), vec![]));
        procs
    }

    #[test]
    fn table_is_idle_after_the_last_end() {
        let procs = table();
        assert!(!procs.wait_idle(Duration::ZERO));
        procs.lock().procs.clear();
        procs.lock().ending = 1;
        assert!(!procs.wait_idle(Duration::ZERO));
        procs.lock().ending = 0;
        assert!(procs.wait_idle(Duration::ZERO));
    }

    #[test]
    fn kill_waits_for_the_clean_up() {
        let (procs, now) = (table(), Instant::now());
        let is_due = || procs.with(ProcUid(1), |p| p.kill_is_due(now)).unwrap();
        assert!(!is_due());
        procs.with(ProcUid(1), |p| p.kill_at = Some(now));
        assert!(is_due());
        procs.with(ProcUid(1), |p| p.cleanup_until = Some(now + Duration::from_secs(1)));
        assert!(!is_due());
    }

    #[test]
    fn proc_keeps_its_last_two_cgroups() {
        let procs = table();
        for cgroup in ["/a", "/b", "/b", "/c"] {
            procs.with(ProcUid(1), |p| p.is_in(Some(cgroup.to_owned())));
        }
        assert_eq!(procs.with(ProcUid(1), |p| p.cgroups.clone()).unwrap(), ["/c", "/b"]);
    }

    #[test]
    fn exchange_is_noted_for_both_processes() {
        let procs = table();
        procs.note_exchange(ProcUid(1), ProcUid(2));
        assert!(procs.is_linked(ProcUid(1), ProcUid(2)) && procs.is_linked(ProcUid(2), ProcUid(1)));
        assert!(!procs.is_linked(ProcUid(1), ProcUid(3)));
    }
}
