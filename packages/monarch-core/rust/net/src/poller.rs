//! The epoll loop that reads all sockets of a process.
//!
//! Waking a thread costs more than anything else in a small call. So the thread that waits for a reply reads the sockets itself (it
//! *leads*). Other waiting threads sleep on a futex (they *follow*). The I/O thread reads only while no thread leads. The trade-off is two
//! `epoll_ctl` calls for each wait against one wake-up.
//!
//! All sockets are in one *inner* epoll set. The I/O thread waits on an *outer* set that contains the inner one, armed one-shot. A leader
//! disarms it, waits on the inner set directly, and arms it again when it leaves. The lead moves to the thread with the traffic: a leader
//! that has woken another waiter stops leading.
//!
//! The number of a descriptor does not identify its owner: once the descriptor is closed, the next one that any thread opens gets its
//! number. So the poller keeps the last token of each number, and a late change with an earlier token has no effect.
//!
//! Peers that are not authenticated yet, and the listeners that accept them, have tokens of their own. Their descriptors are in a set of
//! their own inside the inner one. Each turn serves a few of them, and together they get a limited share of the processor (`Allowance`): a
//! flood of connections delays neither links nor heartbeats by more than one such turn.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use crate::allowance::Allowance;
use crate::delay::Delay;
use crate::forked_child;
use crate::lock::lock;
use crate::sys;
use crate::timeline::Timeline;
use crate::timers::{Task, Timers};
use crate::waiter::{IDLE, LEADING, LEADING_WAITER, NOTIFIED, SLEEPING, WOKEN_COUNT, Waiter};

/// An owner of a descriptor in the inner set.
pub trait Source: Send + Sync {
    /// Handles events of the descriptor. The reading thread calls it; it must not block and must not call into Python.
    fn ready(&self, events: u32);
}

/// A sender that holds output back for a moment, to send it together with later output.
pub trait Pending: Send + Sync {
    fn flush(&self);
}

/// The outcome of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitEnd {
    /// The condition is true.
    Ready,
    /// The deadline has passed.
    TimedOut,
    /// A signal handler ran in this thread.
    Interrupted,
    /// The condition is true, but its notification was lost.
    Unannounced,
    /// Simulated time: no thread can continue, and no timer is due.
    Stuck,
    /// Simulated time: the process of this thread was killed.
    Killed,
}

/// The thread that reads the sockets, if any.
#[derive(PartialEq, Eq)]
enum Mode {
    /// The outer set is armed: an event wakes the I/O thread.
    Armed,
    /// The I/O thread is reading.
    Reading,
    /// A waiting thread leads.
    Led,
}

/// The longest time that a message is held back behind an earlier one if its sender neither waits nor sends more. Short for a person, and
/// long enough that the I/O thread wakes once for many messages.
const SOON: Duration = Duration::from_micros(500);
/// Interval at which a waiting thread checks its condition without a notification. It bounds the delay that a lost notification causes.
const LOOK: Duration = Duration::from_secs(5);
/// The time that a notification may take once its condition is true. After it the notification counts as lost.
const NOTIFICATION_DELAY: Duration = Duration::from_millis(10);
/// The event token, in the inner set, of the eventfd that wakes a leader.
const LEADER_WAKE: u64 = 0;
const WAKE: u64 = 0;
/// The event token, in the outer set, of the inner set.
const INNER: u64 = 1;
/// The event token of the set of unauthenticated peers in the inner set.
const UNAUTHENTICATED_SET: u64 = u64::MAX;
/// The bit that marks the tokens of unauthenticated peers.
const UNAUTHENTICATED: u64 = 1 << 63;
/// Unauthenticated peers served in one turn. Few, so that links wait at most for four handshake steps.
const UNAUTHENTICATED_PER_TURN: usize = 4;
/// Events of one `epoll_wait`: enough for one reply of each proc of a mesh of 64 procs.
const BATCH: usize = 64;

/// A source of the inner set, with its descriptor if a forked child has to close it.
type Entry = (Option<RawFd>, Arc<dyn Source>);

/// The sources of the inner set.
#[derive(Default)]
struct Sources {
    by_token: HashMap<u64, Entry>,
    /// The token under which each descriptor number was last registered.
    tokens: HashMap<RawFd, u64>,
}

impl Sources {
    fn has(&self, token: u64, fd: RawFd) -> bool {
        self.tokens.get(&fd) == Some(&token)
    }
}

/// The epoll loop of one process. All links, sessions and timers of the process use it.
pub struct Poller {
    inner: OwnedFd,
    unauthenticated: OwnedFd,
    allowance: Mutex<Allowance>,
    /// A reference to this poller, for timers.
    me: Weak<Poller>,
    outer: OwnedFd,
    leader_wake: OwnedFd,
    wake: OwnedFd,
    mode: Mutex<Mode>,
    sources: RwLock<Sources>,
    next_token: AtomicU64,
    timers: Mutex<Timers>,
    tasks: Mutex<Vec<Task>>,
    pending: Mutex<Vec<Arc<dyn Pending>>>,
    /// The length of `pending`, readable without its lock; it changes only under the lock.
    pending_count: AtomicUsize,
    flush_is_due: AtomicBool,
    stopped: AtomicBool,
    /// The delay that a test puts on all links of this poller.
    pub delay: Delay,
    /// Set if time is simulated.
    timeline: Option<Arc<Timeline>>,
}

impl Poller {
    pub fn new() -> io::Result<Arc<Self>> {
        Poller::on(None)
    }

    /// The poller of all processes of a simulated world. Only its I/O thread reads sockets; no other thread leads.
    pub fn simulated(timeline: Arc<Timeline>) -> io::Result<Arc<Self>> {
        Poller::on(Some(timeline))
    }

    fn on(timeline: Option<Arc<Timeline>>) -> io::Result<Arc<Self>> {
        let (inner, outer) = (sys::epoll_create()?, sys::epoll_create()?);
        let unauthenticated = sys::epoll_create()?;
        let (leader_wake, wake) = (sys::eventfd()?, sys::eventfd()?);
        sys::epoll_ctl(inner.as_raw_fd(), libc::EPOLL_CTL_ADD, leader_wake.as_raw_fd(), libc::EPOLLIN as u32, LEADER_WAKE)?;
        sys::epoll_ctl(inner.as_raw_fd(), libc::EPOLL_CTL_ADD, unauthenticated.as_raw_fd(), libc::EPOLLIN as u32, UNAUTHENTICATED_SET)?;
        sys::epoll_ctl(outer.as_raw_fd(), libc::EPOLL_CTL_ADD, wake.as_raw_fd(), libc::EPOLLIN as u32, WAKE)?;
        sys::epoll_ctl(outer.as_raw_fd(), libc::EPOLL_CTL_ADD, inner.as_raw_fd(), ARMED, INNER)?;
        Ok(Arc::new_cyclic(|me| Poller {
            inner,
            unauthenticated,
            allowance: Mutex::default(),
            me: me.clone(),
            outer,
            leader_wake,
            wake,
            mode: Mutex::new(Mode::Armed),
            sources: RwLock::default(),
            next_token: AtomicU64::new(1),
            timers: Mutex::default(),
            tasks: Mutex::default(),
            pending: Mutex::default(),
            pending_count: AtomicUsize::new(0),
            flush_is_due: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            delay: Delay::default(),
            timeline,
        }))
    }

    pub fn timeline(&self) -> Option<&Arc<Timeline>> {
        self.timeline.as_ref()
    }

    /// The clock of all deadlines.
    pub fn now(&self) -> Instant {
        self.timeline.as_ref().map_or_else(Instant::now, |t| t.now())
    }

    /// Wakes the I/O thread.
    pub fn wake(&self) {
        sys::eventfd_signal(self.wake.as_raw_fd());
    }

    pub fn waiter(&self) -> Arc<Waiter> {
        Arc::new(Waiter::new(self.leader_wake.as_raw_fd()))
    }

    /// A new number that identifies a source.
    pub fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// A new token for the descriptor of an unauthenticated peer, or of a listener.
    pub fn unauthenticated_token(&self) -> u64 {
        self.token() | UNAUTHENTICATED
    }

    fn set_of(&self, token: u64) -> RawFd {
        if token & UNAUTHENTICATED == 0 { self.inner.as_raw_fd() } else { self.unauthenticated.as_raw_fd() }
    }

    pub fn add(&self, token: u64, fd: RawFd, source: Arc<dyn Source>) -> io::Result<()> {
        self.enter(token, fd, (Some(fd), source), libc::EPOLLIN)
    }

    /// Adds a descriptor that reports once each time it is armed. Its owner closes it in a fork.
    pub fn add_once(&self, token: u64, fd: RawFd, source: Arc<dyn Source>) -> io::Result<()> {
        self.enter(token, fd, (None, source), libc::EPOLLONESHOT)
    }

    fn enter(&self, token: u64, fd: RawFd, entry: Entry, events: libc::c_int) -> io::Result<()> {
        forked_child::check()?;
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        sources.by_token.insert(token, entry);
        let made = sys::epoll_ctl(self.set_of(token), libc::EPOLL_CTL_ADD, fd, events as u32, token);
        if made.is_ok() {
            sources.tokens.insert(fd, token);
            return made;
        }
        let refused = sources.by_token.remove(&token);
        drop(sources);
        drop(refused);
        made
    }

    /// Arms a descriptor of `add_once`. Fails if it is not in the set: it would report nothing.
    pub fn arm(&self, token: u64, fd: RawFd) -> io::Result<()> {
        sys::epoll_ctl(self.inner.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, ARMED, token)
    }

    /// Arms the descriptor for reading, writing or both. With neither it stays disarmed.
    pub fn arm_for(&self, token: u64, fd: RawFd, read: bool, write: bool) {
        let wanted = if read { libc::EPOLLIN } else { 0 } | if write { libc::EPOLLOUT } else { 0 };
        if wanted != 0 {
            let _ = sys::epoll_ctl(self.inner.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, (wanted | libc::EPOLLONESHOT) as u32, token);
        }
    }

    pub fn want_write(&self, token: u64, fd: RawFd, yes: bool) {
        let events = libc::EPOLLIN as u32 | if yes { libc::EPOLLOUT as u32 } else { 0 };
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        if sources.has(token, fd) {
            // The call fails only for a closed descriptor, for which no thread waits.
            let _ = sys::epoll_ctl(self.set_of(token), libc::EPOLL_CTL_MOD, fd, events, token);
        }
    }

    pub fn remove(&self, token: u64, fd: RawFd) {
        if forked_child::is_child() {
            return;
        }
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        if sources.has(token, fd) {
            sources.tokens.remove(&fd);
            // Under the lock, so that a later registration of the same number is not removed.
            let _ = sys::epoll_ctl(self.set_of(token), libc::EPOLL_CTL_DEL, fd, 0, token);
        }
        let removed = sources.by_token.remove(&token);
        drop(sources);
        // Dropped outside the lock: the source may own another source, which removes itself.
        drop(removed);
    }

    /// Runs the task on the I/O thread.
    pub fn spawn(&self, task: Task) {
        if forked_child::is_child() {
            return std::mem::forget(task);
        }
        lock(&self.tasks).push(task);
        sys::eventfd_signal(self.wake.as_raw_fd());
    }

    /// Runs the task on the I/O thread after `delay`.
    pub fn later(&self, delay: Duration, task: Task) {
        self.timer(delay, task);
    }

    /// As `later`; returns the number with which `cancel` drops the task.
    pub fn timer(&self, delay: Duration, task: Task) -> u64 {
        if forked_child::is_child() {
            return (std::mem::forget(task), 0).1;
        }
        let (number, is_first) = lock(&self.timers).add(self.now() + delay, task);
        is_first.then(|| sys::eventfd_signal(self.wake.as_raw_fd()));
        number
    }

    /// Drops a task of `timer` that has not run.
    pub fn cancel(&self, number: u64) {
        lock(&self.timers).cancel(number);
    }

    /// Registers pending output. Any waiting thread flushes it before it sleeps.
    pub fn hold(&self, output: Arc<dyn Pending>) {
        if !forked_child::is_child() {
            let mut pending = lock(&self.pending);
            pending.push(output);
            self.pending_count.store(pending.len(), Ordering::Release);
        }
    }

    /// Makes the I/O thread flush pending output after `SOON`, unless a waiting thread does it earlier.
    pub fn flush_soon(&self) {
        // One wake-up of the I/O thread in each interval, not for each burst: a running I/O thread slows the sender.
        if !forked_child::is_child() && !self.flush_is_due.swap(true, Ordering::AcqRel) {
            sys::eventfd_signal(self.wake.as_raw_fd());
        }
    }

    pub fn flush_pending(&self) {
        if forked_child::is_child() || self.pending_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let pending = {
            let mut pending = lock(&self.pending);
            self.pending_count.store(0, Ordering::Release);
            std::mem::take(&mut *pending)
        };
        pending.iter().for_each(|p| p.flush());
    }

    /// In a forked child: replaces all descriptors by `/dev/null`; the parent's stay unchanged. The numbers remain in use, because objects
    /// of the child still close them. If a thread of the parent held the lock of the sources at the fork, the sources are left out.
    pub fn close_in_child(&self) {
        let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
        let replace = |fd: RawFd| sys::replace(fd, null.as_raw_fd());
        if let Ok(sources) = self.sources.try_read() {
            sources.by_token.values().filter_map(|(fd, _)| *fd).for_each(replace);
        }
        [&self.inner, &self.unauthenticated, &self.outer, &self.leader_wake, &self.wake].iter().for_each(|fd| replace(fd.as_raw_fd()));
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        sys::eventfd_signal(self.wake.as_raw_fd());
    }

    /// The loop of the I/O thread.
    pub fn run(&self) {
        if let Some(t) = &self.timeline {
            return self.run_simulated(t);
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        let mut flush_at: Option<Instant> = None;
        while !self.stopped.load(Ordering::Acquire) {
            let now = Instant::now();
            if flush_at.is_none() && self.flush_is_due.load(Ordering::Acquire) {
                flush_at = Some(now + SOON);
            }
            let timers = lock(&self.timers).timeout(now);
            let flush = flush_at.map(|at| at.saturating_duration_since(now));
            let timeout = [timers, flush].into_iter().flatten().min();
            let n = sys::epoll_wait(self.outer.as_raw_fd(), &mut events, timeout).unwrap_or(0);
            if events[..n].iter().any(|e| e.u64 == WAKE) {
                sys::eventfd_drain(self.wake.as_raw_fd());
            }
            let tasks = std::mem::take(&mut *lock(&self.tasks));
            tasks.into_iter().for_each(|t| t());
            let due = lock(&self.timers).due(Instant::now());
            due.into_iter().for_each(|t| t());
            if flush_at.is_some_and(|at| at <= Instant::now()) {
                flush_at = None;
                // An exchange, not a store: a thread that finds the flag set has added its output before the flush below.
                self.flush_is_due.swap(false, Ordering::AcqRel);
                self.flush_pending();
            }
            if events[..n].iter().any(|e| e.u64 == INNER) {
                self.read_on_io_thread();
            }
        }
    }

    /// The loop in simulated time: first everything that can happen now, then the next deadline or timer.
    fn run_simulated(&self, timeline: &Timeline) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        while !self.stopped.load(Ordering::Acquire) {
            // Idleness is read first: if all threads sleep now, only this thread does anything in the rest of the round.
            let idle = timeline.is_idle();
            let tasks = std::mem::take(&mut *lock(&self.tasks));
            let mut busy = !tasks.is_empty() || self.pending_count.load(Ordering::Acquire) > 0;
            tasks.into_iter().for_each(|t| t());
            self.flush_is_due.store(false, Ordering::Release);
            self.flush_pending();
            busy |= self.read_ready(Some(Duration::ZERO)).is_ok_and(|n| n > 0);
            if busy || idle && self.jump(timeline) {
                continue;
            }
            let n = sys::epoll_wait(self.outer.as_raw_fd(), &mut events, None).unwrap_or(0);
            for e in &events[..n] {
                match e.u64 {
                    WAKE => sys::eventfd_drain(self.wake.as_raw_fd()),
                    _ => self.rearm(),
                }
            }
        }
        timeline.end();
        let left = std::mem::take(&mut *self.sources.write().unwrap_or_else(PoisonError::into_inner));
        drop(left);
        *lock(&self.timers) = Timers::default();
        lock(&self.tasks).clear();
        lock(&self.pending).clear();
    }

    fn jump(&self, timeline: &Timeline) -> bool {
        let next = lock(&self.timers).timeout(timeline.now()).map(|left| timeline.now() + left);
        let jumped = timeline.jump(next);
        if jumped == Some(true) {
            let due = lock(&self.timers).due(timeline.now());
            due.into_iter().for_each(|t| t());
        }
        jumped.is_some()
    }

    fn read_on_io_thread(&self) {
        {
            let mut mode = lock(&self.mode);
            if *mode != Mode::Armed {
                return;
            }
            *mode = Mode::Reading;
        }
        let _reading = Reading(self);
        let _ = self.read_ready(Some(Duration::ZERO));
    }

    fn rearm(&self) {
        let mut mode = lock(&self.mode);
        *mode = Mode::Armed;
        let _ = sys::epoll_ctl(self.outer.as_raw_fd(), libc::EPOLL_CTL_MOD, self.inner.as_raw_fd(), ARMED, INNER);
    }

    fn read_ready(&self, timeout: Option<Duration>) -> io::Result<usize> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let n = sys::epoll_wait(self.inner.as_raw_fd(), &mut events, timeout)?;
        let mut unauthenticated = false;
        for e in &events[..n] {
            match e.u64 {
                LEADER_WAKE => sys::eventfd_drain(self.leader_wake.as_raw_fd()),
                UNAUTHENTICATED_SET => unauthenticated = true,
                token => self.serve(token, e.events),
            }
        }
        if unauthenticated {
            self.serve_unauthenticated();
        }
        Ok(n)
    }

    fn serve(&self, token: u64, flags: u32) {
        let source = self.sources.read().unwrap_or_else(PoisonError::into_inner).by_token.get(&token).cloned();
        if let Some((_, source)) = source {
            source.ready(flags);
        }
    }

    /// Serves a few unauthenticated peers, after all other sources. The rest are served in the next round, or when the allowance permits.
    fn serve_unauthenticated(&self) {
        let before = sys::thread_time();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; UNAUTHENTICATED_PER_TURN];
        let n = sys::epoll_wait(self.unauthenticated.as_raw_fd(), &mut events, Some(Duration::ZERO)).unwrap_or(0);
        events[..n].iter().for_each(|e| self.serve(e.u64, e.events));
        // Simulated time has no floods, and real processor time would make the outcome random.
        if self.timeline.is_some() {
            return;
        }
        let spent = sys::thread_time().saturating_sub(before);
        let rest = lock(&self.allowance).spend(spent, Instant::now());
        if let Some(rest) = rest {
            self.watch_unauthenticated(false);
            let me = self.me.clone();
            let resume = move || {
                if let Some(poller) = me.upgrade() {
                    poller.watch_unauthenticated(true);
                }
            };
            self.later(rest, Box::new(resume));
        }
    }

    fn watch_unauthenticated(&self, yes: bool) {
        let events = if yes { libc::EPOLLIN as u32 } else { 0 };
        let _ = sys::epoll_ctl(self.inner.as_raw_fd(), libc::EPOLL_CTL_MOD, self.unauthenticated.as_raw_fd(), events, UNAUTHENTICATED_SET);
    }

    /// Blocks this thread until `ready()` is true. `ready` is called after each notification of the waiter.
    pub fn wait(&self, waiter: &Waiter, deadline: Option<Instant>, ready: impl FnMut() -> bool) -> WaitEnd {
        self.wait_as(waiter, deadline, ready, true, false)
    }

    /// Waits where each change of `ready` has a notification. `Unannounced` if a periodic check shows that a notification was lost.
    pub fn wait_announced(&self, waiter: &Waiter, deadline: Option<Instant>, ready: impl FnMut() -> bool) -> WaitEnd {
        self.wait_as(waiter, deadline, ready, true, true)
    }

    /// Waits without reading the sockets, for threads whose events seldom come from sockets.
    pub fn follow(&self, waiter: &Waiter, deadline: Option<Instant>, ready: impl FnMut() -> bool) -> WaitEnd {
        self.wait_as(waiter, deadline, ready, false, false)
    }

    fn wait_as(
        &self,
        waiter: &Waiter,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> bool,
        mut may_lead: bool,
        announced: bool,
    ) -> WaitEnd {
        if let Some(t) = &self.timeline {
            return t.wait(waiter, deadline, ready, || self.flush_pending(), || self.wake());
        }
        let mut slept = false;
        loop {
            // An exchange, not a store: `ready` sees everything that was written before a notification that the exchange removes.
            let notified = waiter.state.swap(IDLE, Ordering::AcqRel) == NOTIFIED;
            if ready() {
                let lost = announced && slept && !notified && !waiter.is_notified_within(NOTIFICATION_DELAY);
                return if lost { WaitEnd::Unannounced } else { WaitEnd::Ready };
            }
            let left = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return WaitEnd::TimedOut,
                left if announced => Some(left.map_or(LOOK, |left| left.min(LOOK))),
                left => left,
            };
            self.flush_pending();
            slept = true;
            let interrupted =
                if may_lead && self.take_lead() { self.lead(waiter, left, &mut may_lead) } else { follow(&waiter.state, left) };
            if interrupted {
                return if ready() { WaitEnd::Ready } else { WaitEnd::Interrupted };
            }
        }
    }

    fn take_lead(&self) -> bool {
        let mut mode = lock(&self.mode);
        if *mode != Mode::Armed {
            return false;
        }
        *mode = Mode::Led;
        let _ = sys::epoll_ctl(self.outer.as_raw_fd(), libc::EPOLL_CTL_MOD, self.inner.as_raw_fd(), 0, INNER);
        true
    }

    /// Reads the sockets for all threads until this waiter is notified, its time has passed, or a signal has arrived. Returns true for a
    /// signal.
    fn lead(&self, waiter: &Waiter, left: Option<Duration>, may_lead: &mut bool) -> bool {
        let _reading = Reading(self);
        let mut interrupted = false;
        // The periodic check needs no exact time, so it does not read the clock.
        let deadline = left.filter(|l| *l != LOOK).map(|l| Instant::now() + l);
        if waiter.state.compare_exchange(IDLE, LEADING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            LEADING_WAITER.set(waiter);
            loop {
                WOKEN_COUNT.set(0);
                let left = deadline.map_or(left, |d| Some(d.saturating_duration_since(Instant::now())));
                match self.read_ready(left) {
                    Ok(0) if deadline.is_none() => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => interrupted = true,
                    Err(_) => interrupted = true,
                    Ok(_) => {}
                }
                if interrupted || waiter.state.load(Ordering::Acquire) == NOTIFIED || left == Some(Duration::ZERO) {
                    break;
                }
                if WOKEN_COUNT.get() > 0 {
                    *may_lead = false;
                    break;
                }
            }
        }
        interrupted
    }
}

/// The guard of the reading thread. Its drop, also after a panic of a source, lets another thread read.
struct Reading<'a>(&'a Poller);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        LEADING_WAITER.set(std::ptr::null());
        self.0.rearm();
    }
}

/// The events of a one-shot interest in reading.
const ARMED: u32 = libc::EPOLLIN as u32 | libc::EPOLLONESHOT as u32;

fn follow(state: &AtomicU32, left: Option<Duration>) -> bool {
    if state.compare_exchange(IDLE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    matches!(sys::futex_wait(state, SLEEPING, left), Err(e) if e.kind() == io::ErrorKind::Interrupted)
}
