//! Simulated time of real threads.
//!
//! All threads of a simulated world wait through one poller. Only its I/O thread reads the sockets and moves the clock. Time stands while
//! any thread can continue, and jumps to the next deadline or timer when none can. That is the case when every enrolled thread sleeps and
//! has not been notified, and *after this was observed* no socket was readable, no task was queued and no output was held back. Local
//! sockets deliver within the system call that sends, so no message is in flight then. No thread reads the real clock.
//!
//! The clock passes one deadline at a time, so that threads with the same deadline run one after the other.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;
use crate::poller::WaitEnd;
use crate::sys;
use crate::waiter::{IDLE, SLEEPING, Waiter};

/// Threads that end together: those of one simulated process. Group 0 belongs to no process.
#[derive(Default)]
struct Group {
    threads: usize,
    dead: Arc<AtomicBool>,
}

/// The wait of one thread.
struct Wait {
    /// The waiter of the sleeping thread, which removes this entry before it continues.
    waiter: *const Waiter,
    deadline: Option<Instant>,
    /// The group of the thread; `None` for a thread that is not enrolled.
    group: Option<u64>,
    /// The thread that is notified when no thread can continue and no timer is due.
    is_root: bool,
    stuck: bool,
    /// The order among waits with the same deadline.
    order: u64,
}

// SAFETY: the waiter is only notified, which any thread may do. It outlives its entry.
unsafe impl Send for Wait {}

impl Wait {
    fn waiter(&self) -> &Waiter {
        // SAFETY: the waiter outlives the entry, and entries are read only under the lock.
        unsafe { &*self.waiter }
    }
}

/// The groups and the waits of a timeline.
#[derive(Default)]
struct State {
    groups: HashMap<u64, Group>,
    waits: BTreeMap<u64, Wait>,
    next: u64,
    /// The poller has ended, so the clock no longer moves: later waits end at once.
    over: bool,
}

impl State {
    /// Whether all enrolled threads sleep and none has been notified. False if no thread is enrolled: the clock then stands.
    fn is_idle(&self) -> bool {
        let enrolled: usize = self.groups.values().map(|g| g.threads).sum();
        let counted = self.waits.values().filter(|w| w.group.is_some());
        let asleep = counted.filter(|w| w.waiter().state.load(Ordering::Acquire) == SLEEPING).count();
        enrolled > 0 && asleep == enrolled
    }
}

/// The calling thread as a member of a group. A thread may be in several timelines.
struct Membership {
    timeline: u64,
    group: u64,
    dead: Arc<AtomicBool>,
    is_root: bool,
}

thread_local! {
    /// The memberships of this thread, the latest last.
    static MEMBERSHIPS: RefCell<Vec<Membership>> = const { RefCell::new(Vec::new()) };
}

/// The id of the next timeline.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The clock of one simulated world. All its processes share it.
pub struct Timeline {
    id: u64,
    /// Time zero as an `Instant`; only differences to it are used.
    zero: Instant,
    nanos: AtomicU64,
    /// Chooses the order of waits with the same deadline. 0: in the order of their start.
    seed: u64,
    state: Mutex<State>,
}

impl Timeline {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Timeline {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            zero: Instant::now(),
            nanos: AtomicU64::new(0),
            seed,
            state: Mutex::default(),
        })
    }

    /// Simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }

    pub fn now(&self) -> Instant {
        self.zero + self.elapsed()
    }

    /// Moves the clock forward; an earlier time has no effect.
    pub fn move_to(&self, to: Duration) {
        self.nanos.fetch_max(to.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    // ---- threads

    /// A new group for the threads of one process.
    pub fn new_group(&self) -> u64 {
        let mut state = lock(&self.state);
        state.next += 1;
        let id = state.next;
        state.groups.insert(id, Group::default());
        id
    }

    /// Counts one more thread, which is about to start, or one more activity outside the threads. The clock stands while it runs.
    pub fn enroll(&self, group: u64) {
        let mut state = lock(&self.state);
        let g = state.groups.entry(group).or_default();
        if !g.dead.load(Ordering::Acquire) {
            g.threads += 1;
        }
    }

    /// Counts one thread less. The caller must wake the poller, because this may have been the last running thread.
    pub fn dismiss(&self, group: u64) {
        if let Some(g) = lock(&self.state).groups.get_mut(&group)
            && !g.dead.load(Ordering::Acquire)
        {
            g.threads -= 1;
        }
    }

    /// Registers the calling thread, which was enrolled, as a member of the group.
    pub fn enter(&self, group: u64, is_root: bool) {
        let dead = lock(&self.state).groups.entry(group).or_default().dead.clone();
        let membership = Membership { timeline: self.id, group, dead, is_root };
        MEMBERSHIPS.with(|m| m.borrow_mut().push(membership));
    }

    /// Ends the membership of the calling thread and returns its group. `dismiss` is a separate call.
    pub fn leave(&self) -> Option<u64> {
        MEMBERSHIPS.with(|m| {
            let mut all = m.borrow_mut();
            let at = all.iter().rposition(|x| x.timeline == self.id)?;
            Some(all.remove(at).group)
        })
    }

    /// Ends the threads of a group: waiting threads now, others at their next wait. The clock no longer stops for them.
    pub fn kill(&self, group: u64) {
        let mut state = lock(&self.state);
        let Some(g) = state.groups.get_mut(&group) else { return };
        g.dead.store(true, Ordering::Release);
        g.threads = 0;
        for w in state.waits.values_mut().filter(|w| w.group == Some(group)) {
            w.group = None;
            w.waiter().notify();
        }
    }

    /// Ends all waits, because the poller has ended.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        for w in state.waits.values_mut() {
            w.stuck = true;
            w.waiter().notify();
        }
    }

    pub fn is_dead(&self, group: u64) -> bool {
        lock(&self.state).groups.get(&group).is_some_and(|g| g.dead.load(Ordering::Acquire))
    }

    /// The number of waiting threads, for tests.
    pub fn sleeping(&self) -> usize {
        lock(&self.state).waits.len()
    }

    pub fn is_idle(&self) -> bool {
        lock(&self.state).is_idle()
    }

    /// Moves the clock if no thread can continue. The target is the earliest deadline, whose thread is notified, or `timer` if that is not
    /// later; then the result is true, and the caller runs the timer. Without either, the root thread is notified. `None` if there was
    /// nothing to do.
    pub(crate) fn jump(&self, timer: Option<Instant>) -> Option<bool> {
        let mut state = lock(&self.state);
        if !state.is_idle() {
            return None;
        }
        let due = |w: &Wait| w.deadline.filter(|_| w.waiter().state.load(Ordering::Acquire) == SLEEPING);
        let first = state.waits.values().filter_map(|w| due(w).map(|d| (d, w.order, w))).min_by_key(|(d, order, _)| (*d, *order));
        match (first, timer) {
            (Some((at, ..)), Some(t)) if t <= at => self.move_to(t - self.zero),
            (None, Some(t)) => self.move_to(t.saturating_duration_since(self.zero)),
            (Some((at, _, w)), _) => {
                self.move_to(at.saturating_duration_since(self.zero));
                w.waiter().notify();
                return Some(false);
            }
            (None, None) => {
                let root = state.waits.values_mut().find(|w| w.is_root && !w.stuck)?;
                root.stuck = true;
                root.waiter().notify();
                return Some(false);
            }
        }
        Some(true)
    }

    /// Blocks this thread until `ready()`, its deadline in simulated time, or the end of its group. `before_sleep` runs before each sleep,
    /// `idle` if this thread was the last one awake.
    pub(crate) fn wait(
        &self,
        waiter: &Waiter,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> bool,
        before_sleep: impl Fn(),
        idle: impl Fn(),
    ) -> WaitEnd {
        let (group, is_root, dead) = MEMBERSHIPS.with(|m| {
            let all = m.borrow();
            let mine = all.iter().rfind(|x| x.timeline == self.id);
            mine.map_or((None, false, None), |x| (Some(x.group), x.is_root, Some(x.dead.clone())))
        });
        let is_dead = || dead.as_ref().is_some_and(|d| d.load(Ordering::Acquire));
        loop {
            waiter.state.swap(IDLE, Ordering::AcqRel);
            if is_dead() {
                return WaitEnd::Killed;
            }
            if ready() {
                return WaitEnd::Ready;
            }
            if deadline.is_some_and(|d| d <= self.now()) {
                return WaitEnd::TimedOut;
            }
            before_sleep();
            let ticket = {
                let mut state = lock(&self.state);
                if state.over {
                    return WaitEnd::Stuck;
                }
                if is_dead() || waiter.state.compare_exchange(IDLE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_err() {
                    continue;
                }
                state.next += 1;
                let ticket = state.next;
                let order = if self.seed == 0 { ticket } else { mix(ticket ^ self.seed) };
                state.waits.insert(ticket, Wait { waiter, deadline, group, is_root, stuck: false, order });
                if state.is_idle() {
                    idle();
                }
                ticket
            };
            let mut interrupted = false;
            while !interrupted && waiter.state.load(Ordering::Acquire) == SLEEPING {
                interrupted = matches!(sys::futex_wait(&waiter.state, SLEEPING, None), Err(e) if e.kind() == io::ErrorKind::Interrupted);
            }
            let stuck = lock(&self.state).waits.remove(&ticket).is_some_and(|w| w.stuck);
            if interrupted {
                return if ready() { WaitEnd::Ready } else { WaitEnd::Interrupted };
            }
            if stuck && !ready() {
                return WaitEnd::Stuck;
            }
        }
    }
}

/// SplitMix64's finalizer: a permutation of the 64-bit numbers that looks random.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
