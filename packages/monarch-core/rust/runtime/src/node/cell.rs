//! A pending call.
//!
//! It holds one outcome for each addressed rank. Any thread can look at it any number of times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use net::lock::lock;
use net::{RecvPart, Waiter};
use wire::{MailboxId, ProcUid, SlotId, Status};

/// What one rank answered.
pub struct Outcome {
    pub rank: u32,
    /// Of a ranked port message.
    pub sender_rank: Option<u32>,
    pub status: Status,
    pub parts: Vec<RecvPart>,
}

impl Outcome {
    pub fn new(rank: u32, status: Status, bytes: &[u8]) -> Arc<Self> {
        let parts = vec![RecvPart::Inline { data: bytes.into(), readonly: true }];
        Arc::new(Outcome { rank, sender_rank: None, status, parts })
    }
}

/// When a cell is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// All ranks have answered, or one with an error.
    FirstError,
    /// All ranks have answered, whatever.
    Gather,
    /// Each arrival counts by itself.
    Stream,
}

/// Told when the cell has at least so many arrivals (or is done).
pub trait Watcher: Send + Sync {
    fn done(&self, token: u64);
}

struct Watch {
    index: usize,
    token: u64,
    watcher: Arc<dyn Watcher>,
}

#[derive(Default)]
struct State {
    outcomes: Vec<Option<Arc<Outcome>>>,
    arrived: Vec<u32>,
    missing: usize,
    /// Position in `arrived` of the first error, in a mode that ends there.
    error: Option<usize>,
    waiters: Vec<Arc<Waiter>>,
    watches: Vec<Watch>,
    /// Of the item of a port: its number in the mailbox.
    number: u64,
    /// Waits for no item any more.
    left: bool,
}

pub struct Cell {
    pub slot: SlotId,
    pub mode: Mode,
    /// By rank; a rank without a target can only be answered.
    pub targets: Arc<[(ProcUid, MailboxId)]>,
    /// Its error has been seen by the user, or the item of a port has been read.
    pub retrieved: AtomicBool,
    state: Mutex<State>,
}

impl Cell {
    pub fn new(slot: SlotId, mode: Mode, size: usize, targets: Arc<[(ProcUid, MailboxId)]>) -> Arc<Self> {
        let state = State { outcomes: vec![None; size], missing: size, ..State::default() };
        Arc::new(Cell { slot, mode, targets, retrieved: AtomicBool::new(false), state: Mutex::new(state) })
    }

    fn state_done(&self, s: &State, index: usize) -> bool {
        match self.mode {
            Mode::Stream => s.arrived.len() > index,
            Mode::FirstError => s.missing == 0 || s.error.is_some(),
            Mode::Gather => s.missing == 0,
        }
    }

    /// Is there an answer? `index` counts arrivals of a stream and is ignored otherwise.
    pub fn is_done(&self, index: usize) -> bool {
        self.state_done(&lock(&self.state), index)
    }

    /// Records an answer; true when no more are of interest, so that the slot can go. A rank counts once.
    pub fn complete(&self, outcome: Arc<Outcome>) -> bool {
        self.record(lock(&self.state), outcome)
    }

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
            events::call_done(self.slot.0, s.outcomes.len() as u64, u64::from(stream), u64::from(failed));
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

    /// Records the item of a port; gives it back if the cell has left.
    pub fn take_item(&self, number: u64, item: Arc<Outcome>) -> Result<(), Arc<Outcome>> {
        let mut s = lock(&self.state);
        if s.left {
            return Err(item);
        }
        s.number = number;
        self.record(s, item);
        Ok(())
    }

    /// Waits for no item any more; gives the item that has come, with its number, unless it was read.
    pub fn leave(&self) -> Option<(u64, Arc<Outcome>)> {
        let mut s = lock(&self.state);
        s.left = true;
        if self.retrieved.load(Ordering::Acquire) {
            return None;
        }
        let number = s.number;
        let item = s.outcomes.first_mut().and_then(Option::take)?;
        (item.status != Status::Closed).then_some((number, item))
    }

    /// The ranks not yet heard of whose target satisfies `gone`.
    pub fn waiting_for(&self, mut gone: impl FnMut(ProcUid, MailboxId) -> bool) -> Vec<u32> {
        let s = lock(&self.state);
        let open = |r: &usize| s.outcomes.get(*r).is_some_and(Option::is_none);
        let hit = self.targets.iter().enumerate().filter(|(_, (p, m))| gone(*p, *m)).map(|(r, _)| r);
        hit.filter(open).map(|r| r as u32).collect()
    }

    pub fn add_waiter(&self, w: &Arc<Waiter>) {
        lock(&self.state).waiters.push(w.clone());
    }

    /// Takes it back once: a signal handler may wait for the same call as the code that it interrupts.
    pub fn remove_waiter(&self, w: &Arc<Waiter>) {
        let waiters = &mut lock(&self.state).waiters;
        if let Some(at) = waiters.iter().rposition(|x| Arc::ptr_eq(x, w)) {
            waiters.swap_remove(at);
        }
    }

    /// Tells `watcher` once; at once if it is done already.
    pub fn watch(&self, index: usize, watcher: Arc<dyn Watcher>, token: u64) {
        let mut s = lock(&self.state);
        if self.state_done(&s, index) {
            drop(s);
            watcher.done(token);
        } else {
            s.watches.push(Watch { index, token, watcher });
        }
    }

    /// The error that ended it: supervision first, then the order of arrival, lowest rank among equals.
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

    /// Does it concern this actor mesh?
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
