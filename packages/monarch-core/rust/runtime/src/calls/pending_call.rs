//! A pending call.
//!
//! A pending call holds one outcome for each addressed rank. Any thread can read it any number of times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use net::lock::lock;
use net::{RecvPart, Waiter};
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

    /// Records an outcome; true if no further outcome is needed, so that the call id can be freed. Only the first outcome of a rank counts.
    pub fn complete(&self, outcome: Arc<Outcome>) -> bool {
        self.record(lock(&self.state), outcome)
    }

    /// Adds an outcome, and notifies the waiting threads and watchers if the call is done.
    fn record(&self, mut s: MutexGuard<'_, State>, outcome: Arc<Outcome>) -> bool {
        let rank = outcome.rank as usize;
        if rank >= s.outcomes.len() || s.outcomes[rank].is_some() {
            return s.missing == 0;
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
        let waiters = s.waiters.clone();
        let (due, rest) = std::mem::take(&mut s.watches).into_iter().partition(|w| self.state_done(&s, w.index));
        s.watches = rest;
        drop(s);
        waiters.iter().for_each(|w| w.notify());
        let due: Vec<Watch> = due;
        due.iter().for_each(|w| w.watcher.done(w.token));
        finished
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

    /// The error that ended the call: errors from supervision first, then the first arrival, then the lowest rank.
    pub fn error(&self) -> Option<Arc<Outcome>> {
        let s = lock(&self.state);
        let errors = || s.outcomes.iter().flatten().filter(|o| o.status != Status::Ok);
        let dead = errors().find(|o| matches!(o.status, Status::Failed | Status::ProcEnded));
        dead.or_else(|| s.error.and_then(|i| s.outcomes[s.arrived[i] as usize].as_ref())).or_else(|| errors().next()).cloned()
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
