//! Who reads the sockets.
//!
//! Waking a thread costs more than anything else in a small call, so the thread that waits for a reply
//! reads the sockets itself (it *leads*); others that wait sleep on a futex (they *follow*); the I/O thread
//! stands in only while nobody leads. The trade-off is two `epoll_ctl` calls a wait against one wake-up.
//!
//! All sockets are in one *inner* epoll set. The I/O thread waits on an *outer* set that holds the inner
//! one, armed one-shot. A leader disarms it, waits on the inner set directly, and arms it again when it
//! leaves. The lead moves to where the traffic goes: a leader that has woken another waiter steps back.
//!
//! The number of a descriptor does not say whose it is: once the descriptor is closed, the next one that any thread opens gets its number.
//! So the poller keeps the token that each number was registered for last, and a late change for an earlier one changes nothing.
//!
//! Descriptors of *strangers*, peers that have not proved who they are and the listeners that they come to, are in a set of their own
//! inside the inner one. A few of them are served at a time, and together they get a share of the processor (`Allowance`): a flood of
//! connections delays neither links nor heartbeats by more than one such turn.

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
use crate::waiter::{IDLE, LEADING, LED_BY, NOTIFIED, SLEEPING, WOKEN, Waiter};

/// Something with a descriptor in the inner set.
pub trait Source: Send + Sync {
    /// Called by whoever reads; must not block and must not call into Python.
    fn ready(&self, events: u32);
}

/// Something that has been held back for a moment, to go out together with what comes next.
pub trait Pending: Send + Sync {
    fn flush(&self);
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitEnd {
    Ready,
    TimedOut,
    /// A signal handler ran in this thread.
    Interrupted,
    /// What was waited for is there, and no notification has come of it.
    Unannounced,
    /// In simulated time: nothing can happen any more.
    Stuck,
    /// In simulated time: the process of this thread has been killed.
    Killed,
}

#[derive(PartialEq, Eq)]
enum Mode {
    /// The outer set is armed: the I/O thread will be woken.
    Armed,
    /// The I/O thread is reading.
    Reading,
    /// A waiter leads.
    Led,
}

/// How long a message that closely follows another may be held back if its sender neither waits nor sends more.
const SOON: Duration = Duration::from_micros(500);
/// A thread that waits for what is announced looks by itself this often: a notification that was lost delays it, and no more.
const LOOK: Duration = Duration::from_secs(5);
/// So long a notification that is on its way may take, once what it is about is there.
const UNDER_WAY: Duration = Duration::from_millis(10);
const KICK: u64 = 0;
const WAKE: u64 = 0;
const INNER: u64 = 1;
/// In the inner set: the set of strangers.
const STRANGERS: u64 = u64::MAX;
/// The mark of tokens of strangers.
const STRANGER: u64 = 1 << 63;
/// Strangers served in one turn, before links get theirs.
const STRANGERS_IN_A_TURN: usize = 4;
/// Events taken per `epoll_wait`; enough for one reply of each proc of a 64-proc mesh.
const BATCH: usize = 64;

/// What is in the inner set, with its descriptor if that is closed in a fork.
type Entry = (Option<RawFd>, Arc<dyn Source>);

#[derive(Default)]
struct Sources {
    by_token: HashMap<u64, Entry>,
    /// The token that a descriptor with this number was registered for last.
    tokens: HashMap<RawFd, u64>,
}

impl Sources {
    fn has(&self, token: u64, fd: RawFd) -> bool {
        self.tokens.get(&fd) == Some(&token)
    }
}

pub struct Poller {
    inner: OwnedFd,
    strangers: OwnedFd,
    allowance: Mutex<Allowance>,
    /// To give to timers.
    me: Weak<Poller>,
    outer: OwnedFd,
    kick: OwnedFd,
    wake: OwnedFd,
    mode: Mutex<Mode>,
    sources: RwLock<Sources>,
    next_token: AtomicU64,
    timers: Mutex<Timers>,
    tasks: Mutex<Vec<Task>>,
    pending: Mutex<Vec<Arc<dyn Pending>>>,
    /// Length of `pending`, to look at without the lock; it changes under it.
    pending_count: AtomicUsize,
    flush_is_due: AtomicBool,
    stopped: AtomicBool,
    /// Of all links that it reads.
    pub delay: Delay,
    /// Time is simulated.
    timeline: Option<Arc<Timeline>>,
}

impl Poller {
    pub fn new() -> io::Result<Arc<Self>> {
        Poller::on(None)
    }

    /// One for all processes of a simulated world; its threads do not lead.
    pub fn simulated(timeline: Arc<Timeline>) -> io::Result<Arc<Self>> {
        Poller::on(Some(timeline))
    }

    fn on(timeline: Option<Arc<Timeline>>) -> io::Result<Arc<Self>> {
        let (inner, outer) = (sys::epoll_create()?, sys::epoll_create()?);
        let strangers = sys::epoll_create()?;
        let (kick, wake) = (sys::eventfd()?, sys::eventfd()?);
        sys::epoll_ctl(inner.as_raw_fd(), libc::EPOLL_CTL_ADD, kick.as_raw_fd(), libc::EPOLLIN as u32, KICK)?;
        sys::epoll_ctl(inner.as_raw_fd(), libc::EPOLL_CTL_ADD, strangers.as_raw_fd(), libc::EPOLLIN as u32, STRANGERS)?;
        sys::epoll_ctl(outer.as_raw_fd(), libc::EPOLL_CTL_ADD, wake.as_raw_fd(), libc::EPOLLIN as u32, WAKE)?;
        sys::epoll_ctl(outer.as_raw_fd(), libc::EPOLL_CTL_ADD, inner.as_raw_fd(), ARMED, INNER)?;
        Ok(Arc::new_cyclic(|me| Poller {
            inner,
            strangers,
            allowance: Mutex::default(),
            me: me.clone(),
            outer,
            kick,
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

    /// What deadlines are measured by.
    pub fn now(&self) -> Instant {
        self.timeline.as_ref().map_or_else(Instant::now, |t| t.now())
    }

    /// Has the I/O thread look again.
    pub fn wake(&self) {
        sys::eventfd_signal(self.wake.as_raw_fd());
    }

    pub fn waiter(&self) -> Arc<Waiter> {
        Arc::new(Waiter::new(self.kick.as_raw_fd()))
    }

    /// A number that `add` will know the source by.
    pub fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// The same for a descriptor of a peer that has not proved who it is, or of a listener.
    pub fn stranger_token(&self) -> u64 {
        self.token() | STRANGER
    }

    fn set_of(&self, token: u64) -> RawFd {
        if token & STRANGER == 0 { self.inner.as_raw_fd() } else { self.strangers.as_raw_fd() }
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

    /// Fails if the descriptor is not in the set: nothing would be reported.
    pub fn arm(&self, token: u64, fd: RawFd) -> io::Result<()> {
        sys::epoll_ctl(self.inner.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, ARMED, token)
    }

    /// The same for what is wanted; with neither, it stays silent.
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
            // Fails only for a descriptor that was closed, and no thread waits for that one.
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
            // Below the lock: what is registered with this number meanwhile comes after it.
            let _ = sys::epoll_ctl(self.set_of(token), libc::EPOLL_CTL_DEL, fd, 0, token);
        }
        let removed = sources.by_token.remove(&token);
        drop(sources);
        // What it owns may be another source, which removes itself.
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
        if forked_child::is_child() {
            return std::mem::forget(task);
        }
        if lock(&self.timers).add(self.now() + delay, task) {
            sys::eventfd_signal(self.wake.as_raw_fd());
        }
    }

    /// Has it flushed before this or any other waiting thread sleeps.
    pub fn hold(&self, what: Arc<dyn Pending>) {
        if forked_child::is_child() {
            return;
        }
        let mut pending = lock(&self.pending);
        pending.push(what);
        self.pending_count.store(pending.len(), Ordering::Release);
    }

    /// Has the I/O thread flush what is held after `SOON`, if no thread that waits does it before.
    pub fn flush_soon(&self) {
        // One wake-up of the I/O thread per stretch of time, not per burst: it would only be in the sender's way.
        if !forked_child::is_child() && !self.flush_is_due.swap(true, Ordering::AcqRel) {
            sys::eventfd_signal(self.wake.as_raw_fd());
        }
    }

    pub fn flush_pending(&self) {
        if forked_child::is_child() {
            return;
        }
        if self.pending_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let pending = {
            let mut pending = lock(&self.pending);
            self.pending_count.store(0, Ordering::Release);
            std::mem::take(&mut *pending)
        };
        pending.iter().for_each(|p| p.flush());
    }

    /// In a fork: lets go of descriptors, which stay as they are in the parent. Their numbers stay taken, because objects that are left
    /// here close them. What a thread of the parent was about to change is left out.
    pub fn close_in_child(&self) {
        let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
        let replace = |fd: RawFd| sys::replace(fd, null.as_raw_fd());
        if let Ok(sources) = self.sources.try_read() {
            sources.by_token.values().filter_map(|(fd, _)| *fd).for_each(replace);
        }
        [&self.inner, &self.strangers, &self.outer, &self.kick, &self.wake].iter().for_each(|fd| replace(fd.as_raw_fd()));
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        sys::eventfd_signal(self.wake.as_raw_fd());
    }

    /// The I/O thread's life.
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
                // An exchange, not a store: who finds it set has added what is looked for below.
                self.flush_is_due.swap(false, Ordering::AcqRel);
                self.flush_pending();
            }
            if events[..n].iter().any(|e| e.u64 == INNER) {
                self.stand_in();
            }
        }
    }

    /// The same in simulated time: everything that can happen now, then what is due next.
    fn run_simulated(&self, timeline: &Timeline) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        while !self.stopped.load(Ordering::Acquire) {
            // First of all: what is done from here on by this thread alone.
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

    fn stand_in(&self) {
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
        let mut strangers = false;
        for e in &events[..n] {
            match e.u64 {
                KICK => sys::eventfd_drain(self.kick.as_raw_fd()),
                STRANGERS => strangers = true,
                token => self.serve(token, e.events),
            }
        }
        if strangers {
            self.serve_strangers();
        }
        Ok(n)
    }

    fn serve(&self, token: u64, flags: u32) {
        let source = self.sources.read().unwrap_or_else(PoisonError::into_inner).by_token.get(&token).cloned();
        if let Some((_, source)) = source {
            source.ready(flags);
        }
    }

    /// A few of them, after all others; those that are left show at the next look, or when their allowance has grown again.
    fn serve_strangers(&self) {
        let before = sys::thread_time();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; STRANGERS_IN_A_TURN];
        let n = sys::epoll_wait(self.strangers.as_raw_fd(), &mut events, Some(Duration::ZERO)).unwrap_or(0);
        events[..n].iter().for_each(|e| self.serve(e.u64, e.events));
        // In simulated time nothing is flooded, and the processor's time would decide what happens.
        if self.timeline.is_some() {
            return;
        }
        let spent = sys::thread_time().saturating_sub(before);
        let rest = lock(&self.allowance).spend(spent, Instant::now());
        if let Some(rest) = rest {
            self.watch_strangers(false);
            let me = self.me.clone();
            let resume = move || {
                if let Some(poller) = me.upgrade() {
                    poller.watch_strangers(true);
                }
            };
            self.later(rest, Box::new(resume));
        }
    }

    fn watch_strangers(&self, yes: bool) {
        let events = if yes { libc::EPOLLIN as u32 } else { 0 };
        let _ = sys::epoll_ctl(self.inner.as_raw_fd(), libc::EPOLL_CTL_MOD, self.strangers.as_raw_fd(), events, STRANGERS);
    }

    /// Blocks this thread until `ready()`, which is looked at after each `notify` of the waiter.
    pub fn wait(&self, waiter: &Waiter, deadline: Option<Instant>, ready: impl FnMut() -> bool) -> WaitEnd {
        self.wait_as(waiter, deadline, ready, true, false)
    }

    /// The same where each change of `ready` is followed by a notification: `Unannounced` if one was lost, which a look has shown.
    pub fn wait_announced(&self, waiter: &Waiter, deadline: Option<Instant>, ready: impl FnMut() -> bool) -> WaitEnd {
        self.wait_as(waiter, deadline, ready, true, true)
    }

    /// The same without ever reading the sockets, for threads that are rarely the ones concerned.
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
            // An exchange, not a store: what was written before a notification that it wipes out is seen by `ready`.
            let notified = waiter.state.swap(IDLE, Ordering::AcqRel) == NOTIFIED;
            if ready() {
                let lost = announced && slept && !notified && !waiter.is_notified_within(UNDER_WAY);
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

    /// Reads for everybody until this waiter is notified, its time is over, or a signal came (true).
    fn lead(&self, waiter: &Waiter, left: Option<Duration>, may_lead: &mut bool) -> bool {
        let _reading = Reading(self);
        let mut interrupted = false;
        // A look is no deadline: it costs no look at the clock.
        let deadline = left.filter(|l| *l != LOOK).map(|l| Instant::now() + l);
        if waiter.state.compare_exchange(IDLE, LEADING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            LED_BY.set(waiter);
            loop {
                WOKEN.set(0);
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
                if WOKEN.get() > 0 {
                    *may_lead = false;
                    break;
                }
            }
        }
        interrupted
    }
}

/// A thread reads the sockets; others may when it is dropped, also by a panic of a source.
struct Reading<'a>(&'a Poller);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        LED_BY.set(std::ptr::null());
        self.0.rearm();
    }
}

const ARMED: u32 = libc::EPOLLIN as u32 | libc::EPOLLONESHOT as u32;

fn follow(state: &AtomicU32, left: Option<Duration>) -> bool {
    if state.compare_exchange(IDLE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    matches!(sys::futex_wait(state, SLEEPING, left), Err(e) if e.kind() == io::ErrorKind::Interrupted)
}
