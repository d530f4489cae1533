//! A pending call.
//!
//! A pending call holds one outcome for each addressed rank. Any thread can read it any number of times.
//!
//! A call may have a deadline. At the deadline it *expires*: later answers are dropped. It is *over*, and its observers are notified, when
//! all receivers without an answer have reported what they do with it, or `REPORT_TIME` later.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use net::lock::lock;
use net::{RecvPart, Waiter};
use wire::control::CallState;
use wire::{CallId, MailboxId, ProcUid, Status};

/// The outcome of one rank: its answer, or the reason why no answer arrives.
pub struct Outcome {
    pub rank: u32,
    /// The rank of the sender, in a message to a ranked port.
    pub sender_rank: Option<u32>,
    pub status: Status,
    pub parts: Vec<RecvPart>,
}

impl Outcome {
    /// The bytes of an outcome that has one part, as errors have; none if they cannot be read.
    pub fn body(&self) -> Vec<u8> {
        self.parts.first().and_then(|part| part.bytes().ok()).map_or_else(Vec::new, <[u8]>::to_vec)
    }

    pub fn new(rank: u32, status: Status, bytes: &[u8]) -> Arc<Self> {
        let parts = vec![RecvPart::Inline { data: bytes.into(), readonly: true }];
        Arc::new(Outcome { rank, sender_rank: None, status, parts })
    }
}

/// The condition under which a call is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// All ranks have answered, or one rank has failed.
    FirstError,
    /// All ranks have answered or failed.
    Gather,
    /// Each arrival is a result of its own.
    Stream,
}

/// The longest time from the deadline of a call to its end: the receivers report their states within this time, or not at all.
pub const REPORT_TIME: Duration = Duration::from_millis(250);

/// The report of a receiver about a call at the deadline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallReport {
    pub state: CallState,
    /// The time in the state.
    pub time: Duration,
}

/// The deadline of a call.
#[derive(Default)]
struct Limit {
    /// The time of the entry in the table of deadlines.
    due: Option<Instant>,
    is_expired: bool,
    is_over: bool,
    /// Answers are recorded also after the deadline: the operation goes on, and another observer may wait for it.
    goes_on: bool,
    reports: BTreeMap<u32, CallReport>,
}

/// The end of an expired call, as it was before any observer was notified: afterwards an observer may set another deadline.
pub(crate) struct ExpiredEnd {
    /// The time of the entry in the table of deadlines.
    pub due: Option<Instant>,
    pub goes_on: bool,
}

/// The result of a deadline that has passed.
pub(crate) enum Expiry {
    /// The call waits for the reports of its receivers.
    Waits,
    Over(ExpiredEnd),
}

/// Is notified when the call is done, or when a stream has the requested number of arrivals.
pub trait Watcher: Send + Sync {
    fn done(&self, token: u64);
}

/// A request to notify a watcher when the call is done, or has `index` + 1 arrivals.
struct Watch {
    index: usize,
    token: u64,
    watcher: Arc<dyn Watcher>,
}

/// The outcomes of a call and its waiting threads.
#[derive(Default)]
struct State {
    /// The outcomes by rank.
    outcomes: Vec<Option<Arc<Outcome>>>,
    /// The ranks with an outcome, in the order of arrival.
    arrived: Vec<u32>,
    /// The number of ranks without an outcome.
    missing: usize,
    /// The position in `arrived` of the first error, with `Mode::FirstError`.
    error: Option<usize>,
    waiters: Vec<Arc<Waiter>>,
    watches: Vec<Watch>,
    /// For the item of a port: its number in the mailbox.
    number: u64,
    /// The receive was abandoned: no item is accepted.
    abandoned: bool,
    /// The deadline, if the call has had one.
    limit: Option<Box<Limit>>,
}

impl State {
    fn is_over(&self) -> bool {
        self.limit.as_ref().is_some_and(|l| l.is_over)
    }

    /// True if the deadline has ended the call, and the operation does not go on.
    fn has_expired(&self) -> bool {
        self.limit.as_ref().is_some_and(|l| l.is_over && !l.goes_on)
    }

    /// True if each rank without an outcome has reported its state.
    fn is_reported(&self, limit: &Limit) -> bool {
        limit.reports.len() >= self.missing && (0..).zip(&self.outcomes).all(|(r, o)| o.is_some() || limit.reports.contains_key(&r))
    }
}

/// A pending call. The caller owns it; `Calls` finds it by its call id.
pub struct PendingCall {
    pub call_id: CallId,
    pub mode: Mode,
    /// The targets by rank. A rank without a target can only receive an answer.
    pub targets: Arc<[(ProcUid, MailboxId)]>,
    /// The user has seen the error of the call, or has read the item of a port.
    pub retrieved: AtomicBool,
    /// The user has read an error that an endpoint raised.
    pub error_read: AtomicBool,
    /// The call is in the list of failed calls.
    pub(crate) is_listed: AtomicBool,
    state: Mutex<State>,
}

impl PendingCall {
    pub fn new(call_id: CallId, mode: Mode, size: usize, targets: Arc<[(ProcUid, MailboxId)]>) -> Arc<Self> {
        let state = State { outcomes: vec![None; size], missing: size, ..State::default() };
        Arc::new(PendingCall {
            call_id,
            mode,
            targets,
            retrieved: AtomicBool::new(false),
            error_read: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    /// True if the call is done in this state.
    fn state_done(&self, s: &State, index: usize) -> bool {
        if s.is_over() {
            return true;
        }
        match self.mode {
            Mode::Stream => s.arrived.len() > index,
            Mode::FirstError => s.missing == 0 || s.error.is_some(),
            Mode::Gather => s.missing == 0,
        }
    }

    /// True if there is a result to read. `index` counts the arrivals of a stream, and is ignored otherwise.
    pub fn is_done(&self, index: usize) -> bool {
        self.state_done(&lock(&self.state), index)
    }

    /// True if no further outcome is needed.
    pub(crate) fn is_finished(&self) -> bool {
        let s = lock(&self.state);
        s.missing == 0 || s.error.is_some() || s.has_expired()
    }

    /// Records an outcome; true if no further outcome is needed, so that the call id can be freed. Only the first outcome of a rank counts.
    pub fn complete(&self, outcome: Arc<Outcome>) -> bool {
        self.record(lock(&self.state), outcome)
    }

    /// Adds an outcome, and notifies the waiting threads and watchers if the call is done.
    fn record(&self, mut s: MutexGuard<'_, State>, outcome: Arc<Outcome>) -> bool {
        let rank = outcome.rank as usize;
        // The end of an expired call is final: its observers have been notified.
        if rank >= s.outcomes.len() || s.outcomes[rank].is_some() || s.has_expired() {
            return s.missing == 0 || s.has_expired();
        }
        let is_error = outcome.status != Status::Ok;
        s.outcomes[rank] = Some(outcome);
        s.arrived.push(rank as u32);
        s.missing -= 1;
        if is_error && s.error.is_none() && self.mode == Mode::FirstError {
            s.error = Some(s.arrived.len() - 1);
        }
        let finished = s.missing == 0 || s.error.is_some();
        let wake = self.mode == Mode::Stream || finished;
        if !wake {
            return false;
        }
        if finished {
            let (failed, stream) = (s.error.is_some(), self.mode == Mode::Stream);
            events::call_done(self.call_id.0, s.outcomes.len() as u64, u64::from(stream), u64::from(failed));
        }
        self.notify(s);
        finished
    }

    /// Notifies the waiting threads, and the watchers whose condition is true.
    fn notify(&self, mut s: MutexGuard<'_, State>) {
        let waiters = s.waiters.clone();
        let (due, rest) = std::mem::take(&mut s.watches).into_iter().partition(|w| self.state_done(&s, w.index));
        s.watches = rest;
        drop(s);
        waiters.iter().for_each(|w| w.notify());
        let due: Vec<Watch> = due;
        due.iter().for_each(|w| w.watcher.done(w.token));
    }

    // ---- the deadline

    /// Sets the time of the next step of the call's end, which is its deadline at first. A call that goes on forgets an earlier deadline.
    pub(crate) fn set_due(&self, due: Instant, goes_on: bool) {
        let mut s = lock(&self.state);
        let limit = s.limit.get_or_insert_default();
        if goes_on {
            **limit = Limit { goes_on, ..Limit::default() };
        }
        limit.due = Some(due);
    }

    pub(crate) fn clear_limit(&self) {
        lock(&self.state).limit = None;
    }

    /// Sets the time at which the expired call is over at the latest.
    pub(crate) fn set_due_again(&self, due: Instant) {
        if let Some(limit) = &mut lock(&self.state).limit {
            limit.due = Some(due);
        }
    }

    /// The time of the call's entry in the table of deadlines, which the caller removes.
    pub(crate) fn take_due(&self) -> Option<Instant> {
        lock(&self.state).limit.as_mut()?.due.take()
    }

    /// Expires the call, unless it is done.
    pub(crate) fn expire(&self) -> Expiry {
        let mut s = lock(&self.state);
        if s.missing == 0 || s.error.is_some() {
            return Expiry::Over(Self::taken(&mut s));
        }
        let mut limit = s.limit.take().unwrap_or_default();
        limit.is_expired = true;
        limit.due = None;
        let is_reported = s.is_reported(&limit);
        s.limit = Some(limit);
        if is_reported { Expiry::Over(self.end(s)) } else { Expiry::Waits }
    }

    /// True if the entry in the table of deadlines that was due is still the call's: an observer may have set another deadline, or none.
    pub(crate) fn has_due(&self, now: Instant) -> bool {
        lock(&self.state).limit.as_ref().and_then(|l| l.due).is_some_and(|due| due <= now)
    }

    pub(crate) fn is_expired(&self) -> bool {
        lock(&self.state).limit.as_ref().is_some_and(|l| l.is_expired)
    }

    /// True if answers are dropped now, because the call has expired.
    pub(crate) fn drops_answers(&self) -> bool {
        lock(&self.state).limit.as_ref().is_some_and(|l| l.is_expired && !l.goes_on)
    }

    /// True if the deadline of the call has passed at the time that `now` gives.
    pub(crate) fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        let due = lock(&self.state).limit.as_ref().filter(|l| !l.goes_on).and_then(|l| l.due);
        due.is_some_and(|due| due <= now())
    }

    /// Records the report of a rank, which may end the call. A report may precede the deadline here, if this process was stopped.
    pub(crate) fn report(&self, rank: u32, report: CallReport) -> Option<ExpiredEnd> {
        let mut s = lock(&self.state);
        if s.outcomes.get(rank as usize).is_none_or(Option::is_some) || s.is_over() {
            return None;
        }
        let mut limit = s.limit.take().unwrap_or_default();
        limit.reports.insert(rank, report);
        let is_over = limit.is_expired && s.is_reported(&limit);
        s.limit = Some(limit);
        is_over.then(|| self.end(s))
    }

    /// Ends an expired call, whose receivers have not all reported. `None` if it has ended before.
    pub(crate) fn give_up(&self) -> Option<ExpiredEnd> {
        let s = lock(&self.state);
        if s.is_over() { None } else { Some(self.end(s)) }
    }

    fn end(&self, mut s: MutexGuard<'_, State>) -> ExpiredEnd {
        let end = Self::taken(&mut s);
        s.limit.get_or_insert_default().is_over = true;
        events::call_done(self.call_id.0, s.outcomes.len() as u64, u64::from(self.mode == Mode::Stream), 1);
        self.notify(s);
        end
    }

    fn taken(s: &mut State) -> ExpiredEnd {
        let (due, goes_on) = s.limit.as_mut().map_or((None, false), |limit| (limit.due.take(), limit.goes_on));
        ExpiredEnd { due, goes_on }
    }

    /// After the end of an expired call: the ranks that have not answered, with their reports. `None` if the call did not expire.
    pub fn unanswered(&self) -> Option<Vec<(u32, Option<CallReport>)>> {
        let s = lock(&self.state);
        let limit = s.limit.as_ref().filter(|l| l.is_over)?;
        let missing = (0..).zip(&s.outcomes).filter(|(_, o)| o.is_none());
        Some(missing.map(|(rank, _)| (rank, limit.reports.get(&rank).cloned())).collect())
    }

    /// Records the item of a port; returns the item if the receive was abandoned.
    pub fn take_item(&self, number: u64, item: Arc<Outcome>) -> Result<(), Arc<Outcome>> {
        let mut s = lock(&self.state);
        if s.abandoned {
            return Err(item);
        }
        s.number = number;
        self.record(s, item);
        Ok(())
    }

    /// Abandons the receive. Returns an item that has arrived and was not read, with its number.
    pub fn abandon(&self) -> Option<(u64, Arc<Outcome>)> {
        let mut s = lock(&self.state);
        s.abandoned = true;
        if self.retrieved.load(Ordering::Acquire) {
            return None;
        }
        let number = s.number;
        let item = s.outcomes.first_mut().and_then(Option::take)?;
        (item.status != Status::Closed).then_some((number, item))
    }

    /// The ranks without an outcome whose target satisfies `gone`.
    pub fn waiting_for(&self, mut gone: impl FnMut(ProcUid, MailboxId) -> bool) -> Vec<u32> {
        let s = lock(&self.state);
        let open = |r: &usize| s.outcomes.get(*r).is_some_and(Option::is_none);
        let hit = self.targets.iter().enumerate().filter(|(_, (p, m))| gone(*p, *m)).map(|(r, _)| r);
        hit.filter(open).map(|r| r as u32).collect()
    }

    /// Adds a thread that is notified when the call is done, or at each arrival of a stream.
    pub fn add_waiter(&self, w: &Arc<Waiter>) {
        lock(&self.state).waiters.push(w.clone());
    }

    /// Removes the waiter once: a signal handler may wait for the same call as the code that it interrupts.
    pub fn remove_waiter(&self, w: &Arc<Waiter>) {
        let waiters = &mut lock(&self.state).waiters;
        if let Some(at) = waiters.iter().rposition(|x| Arc::ptr_eq(x, w)) {
            waiters.swap_remove(at);
        }
    }

    /// Notifies `watcher` once: when the call is done, or immediately if it is done already.
    pub fn watch(&self, index: usize, watcher: Arc<dyn Watcher>, token: u64) {
        let mut s = lock(&self.state);
        if self.state_done(&s, index) {
            drop(s);
            watcher.done(token);
        } else {
            s.watches.push(Watch { index, token, watcher });
        }
    }

    /// The error that ended the call: errors from supervision first, then the first arrival, then the lowest rank, then the deadline.
    pub fn error(&self) -> Option<Arc<Outcome>> {
        let s = lock(&self.state);
        let errors = || s.outcomes.iter().flatten().filter(|o| o.status != Status::Ok);
        let dead = errors().find(|o| matches!(o.status, Status::Failed | Status::ProcEnded));
        let first = dead.or_else(|| s.error.and_then(|i| s.outcomes[s.arrived[i] as usize].as_ref())).or_else(|| errors().next()).cloned();
        first.or_else(|| s.is_over().then(|| Outcome::new(0, Status::Expired, b"")))
    }

    /// The i-th arrival of a stream.
    pub fn arrival(&self, index: usize) -> Option<Arc<Outcome>> {
        let s = lock(&self.state);
        s.arrived.get(index).and_then(|r| s.outcomes[*r as usize].clone())
    }

    /// True if the call addresses this actor mesh.
    pub fn is_about(&self, mesh: MailboxId) -> bool {
        self.targets.iter().any(|(_, m)| *m == mesh)
    }

    pub fn outcome(&self, rank: usize) -> Option<Arc<Outcome>> {
        lock(&self.state).outcomes.get(rank).cloned().flatten()
    }

    pub fn outcomes(&self) -> Vec<Option<Arc<Outcome>>> {
        lock(&self.state).outcomes.clone()
    }

    pub fn size(&self) -> usize {
        lock(&self.state).outcomes.len()
    }
}
