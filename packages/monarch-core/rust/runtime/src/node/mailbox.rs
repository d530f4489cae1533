//! The queue of an actor or a port: messages that it has not handled yet.
//!
//! A mailbox exists before its actor does: messages that overtake the spawn wait in it. Events (failures of meshes that the actor owns) do
//! not wait behind messages. A push wakes the consumer; a pop gives credit back to the sender.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use net::{RecvPart, Waiter, sys};
use wire::frame::{EXCEPTION, EXPLICIT_PORT, RANKED, TO_PORT};
use wire::{MailboxId, ProcUid, SlotId, Status, Trace};

use crate::node::cell::{Cell, Outcome};
use crate::node::credit::{Consumed, OVERHEAD};
use crate::node::inspection::{ActorState, hex};
use crate::sync::{Arc, Mutex, MutexGuard, lock};

/// A message on its way to user code.
pub struct Incoming {
    pub from: ProcUid,
    pub dest: MailboxId,
    pub sender: MailboxId,
    pub slot: SlotId,
    pub rank: u32,
    pub flags: u8,
    /// The span that it is; from when it is taken, the span that handles it.
    pub trace: Option<Box<Trace>>,
    pub method: Box<[u8]>,
    pub extent: Box<[u8]>,
    pub parts: Vec<RecvPart>,
}

impl Incoming {
    pub fn cost(&self) -> u64 {
        self.parts.iter().map(|p| p.len() as u64).sum::<u64>() + OVERHEAD
    }

    pub fn trace(&self) -> Trace {
        self.trace.as_deref().copied().unwrap_or_default()
    }

    /// The rank that a ranked port message carries.
    pub fn ranked(&self) -> Option<u32> {
        (self.flags & RANKED != 0).then_some(self.rank)
    }
}

/// What an actor is shown to do while it handles an event.
const EVENT: &[u8] = b"(event)";

/// Marks a message to one rank of several: the answer counts as rank 0.
pub const CHOSEN: u32 = 1 << 31;

/// The rank that an answer carries, given the rank that the message was sent to.
pub fn answer_rank(rank: u32) -> u32 {
    if rank & CHOSEN != 0 { 0 } else { rank }
}

/// From so many messages on the growth of a mailbox is an event.
const DEEP: u64 = 64;

fn note_received(m: &Incoming, depth: u64) {
    if m.flags & TO_PORT == 0 {
        let (rank, bytes) = (u64::from(m.rank & !CHOSEN), m.cost() - OVERHEAD);
        let received = || events::message_received(m.dest.0, &m.method, rank, m.from.0, m.sender.0, m.slot.0, bytes, depth);
        events::in_trace(m.trace().words(), received);
    }
    if depth >= DEEP && depth.is_power_of_two() {
        events::queue_depth(m.dest.0, depth);
    }
}

/// A traced one is handled in a span of its own, below the one that it is.
fn note_begun(mailbox: MailboxId, m: &mut Incoming) {
    let parent = m.trace().span;
    if let Some(trace) = &mut m.trace {
        **trace = trace.child();
    }
    let begun = || events::message_begun(mailbox.0, &m.method, u64::from(m.rank & !CHOSEN), m.from.0, m.slot.0, parent);
    events::in_trace(m.trace().words(), begun);
}

/// What became of a pushed message.
pub enum Pushed {
    Queued,
    /// Somebody was waiting for it; the credit to give back now, if it is worth a frame.
    Taken(Option<(ProcUid, u64)>),
}

pub enum Delivery {
    Message(Incoming),
    /// Opaque to this crate: the Python side's own bytes.
    Event(Box<[u8]>),
}

/// The sleep of an event loop.
pub trait Sleeper: Send + Sync {
    /// The loop's thread sleeps.
    fn is_asleep(&self) -> bool;
    /// A descriptor that the loop watches is ready.
    fn has_work(&self) -> bool;
    /// How often it has slept.
    fn sleeps(&self) -> u64;
    /// Ends the sleep, whatever its descriptors report.
    fn wake(&self);
}

/// The consumer of a mailbox, and its notification.
pub enum Consumer {
    /// A thread that blocks.
    Thread(std::sync::Arc<Waiter>),
    /// An event loop that watches a descriptor.
    Loop(OwnedFd, Option<std::sync::Arc<dyn Sleeper>>),
    /// A stand-in whose scheduling is explored.
    #[cfg(feature = "shuttle")]
    Model(Box<dyn Fn() + Send + Sync>),
}

impl Consumer {
    fn wake(&self) {
        match self {
            Consumer::Thread(w) => w.notify(),
            Consumer::Loop(fd, _) => sys::eventfd_signal(fd.as_raw_fd()),
            #[cfg(feature = "shuttle")]
            Consumer::Model(wake) => wake(),
        }
    }

    fn is_asleep(&self) -> bool {
        match self {
            Consumer::Thread(w) => w.is_asleep(),
            Consumer::Loop(_, sleeper) => sleeper.as_ref().is_some_and(|s| s.is_asleep()),
            #[cfg(feature = "shuttle")]
            Consumer::Model(_) => false,
        }
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        match self {
            Consumer::Loop(_, sleeper) => sleeper.as_deref(),
            _ => None,
        }
    }

    fn wake_anyway(&self) {
        self.wake();
        if let Some(s) = self.sleeper() {
            s.wake();
        }
    }
}

/// Where a wake-up was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostAt {
    /// The thread has not been notified, or has not seen it.
    Thread,
    /// The mailbox's descriptor is not ready although messages are there.
    Descriptor,
    /// A descriptor of the loop is ready, and the poller has not reported it.
    Poller,
}

impl LostAt {
    pub fn word(self) -> &'static str {
        match self {
            LostAt::Thread => "thread",
            LostAt::Descriptor => "descriptor",
            LostAt::Poller => "poller",
        }
    }
}

/// A sleep that a look has found although there was something to do.
struct Overslept {
    since: Instant,
    /// Deliveries taken by then, and sleeps.
    progress: (u64, u64),
}

/// Looks at a mailbox that are closer together count as one: what is on its way arrives within a small part of that.
const APART: Duration = Duration::from_secs(1);

/// What the consumer has in hand, and since when. The name is kept in place: every message pays for it.
struct Doing {
    name: [u8; NAME],
    len: usize,
    since: Instant,
}

/// So much of a name is shown.
const NAME: usize = 48;

impl Doing {
    fn new(name: &[u8]) -> Self {
        let len = name.len().min(NAME);
        let mut kept = [0; NAME];
        kept[..len].copy_from_slice(&name[..len]);
        Doing { name: kept, len, since: Instant::now() }
    }
}

#[derive(Default)]
struct State {
    doing: Option<Doing>,
    overslept: Option<Overslept>,
    queue: VecDeque<Incoming>,
    events: VecDeque<Box<[u8]>>,
    /// The consumer sleeps, or its descriptor is not readable.
    idle: bool,
    /// Why nothing is accepted any more.
    closed: Option<Arc<[u8]>>,
    consumed: Consumed<ProcUid>,
    /// Who waits for the message that was taken last: process, slot and rank.
    current: Option<(ProcUid, SlotId, u32)>,
    /// Cells that each take one message, of a mailbox that belongs to a port.
    takers: VecDeque<std::sync::Weak<Cell>>,
    /// Of a port: how many messages cells have taken.
    numbered: u64,
    /// Of a port: messages that cells have given back, with their numbers, in order; they go before the queue.
    given_back: VecDeque<(u64, std::sync::Arc<Outcome>)>,
}

impl State {
    /// A message as the item that a cell takes, with its number.
    fn number(&mut self, m: Incoming) -> (u64, std::sync::Arc<Outcome>) {
        self.numbered += 1;
        let status = if m.flags & EXCEPTION != 0 { Status::Error } else { Status::Ok };
        (self.numbered, std::sync::Arc::new(Outcome { rank: 0, sender_rank: m.ranked(), status, parts: m.parts }))
    }
}

pub struct Mailbox {
    pub id: MailboxId,
    state: Mutex<State>,
    /// The last one named; an actor's thread waits as one kind first and may go on as the other.
    consumer: std::sync::RwLock<Option<std::sync::Arc<Consumer>>>,
    /// Of an actor: its display name and its thread.
    label: OnceLock<(String, u64)>,
    /// Deliveries taken so far: a stop tells by it whether the actor still makes progress.
    taken: AtomicU64,
}

impl Mailbox {
    pub fn new(id: MailboxId) -> Arc<Self> {
        Arc::new(Mailbox {
            id,
            state: Mutex::default(),
            consumer: std::sync::RwLock::default(),
            label: OnceLock::new(),
            taken: AtomicU64::new(0),
        })
    }

    /// Names the consumer, and notifies it of messages that are there already.
    pub fn set_consumer(&self, consumer: Consumer) {
        let mut state = lock(&self.state);
        let busy = !state.queue.is_empty() || !state.events.is_empty();
        state.idle = !busy;
        // Under the lock: a push that finds the mailbox idle must find the consumer too.
        *self.consumer.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(std::sync::Arc::new(consumer));
        drop(state);
        if busy {
            self.wake();
        }
    }

    pub fn consumer(&self) -> Option<std::sync::Arc<Consumer>> {
        self.consumer.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn wake(&self) {
        if let Some(c) = self.consumer() {
            c.wake();
        }
    }

    /// Adds a message; gives it back with the reason if the mailbox is closed.
    pub fn push(&self, message: Incoming) -> Result<Pushed, (Incoming, Arc<[u8]>)> {
        let mut state = lock(&self.state);
        if let Some(reason) = &state.closed {
            return Err((message, reason.clone()));
        }
        if state.takers.iter().any(|t| t.strong_count() > 0) {
            let (from, cost) = (message.from, message.cost());
            let credit = state.consumed.add(&from, cost).map(|bytes| (from, bytes));
            let (number, item) = state.number(message);
            self.hand_out(state, number, item);
            return Ok(Pushed::Taken(credit));
        }
        if events::is_on() {
            note_received(&message, state.queue.len() as u64 + 1);
        }
        state.queue.push_back(message);
        let wake = std::mem::replace(&mut state.idle, false);
        drop(state);
        if wake {
            self.wake();
        }
        Ok(Pushed::Queued)
    }

    /// Gives the cell one message, the next that there is; the credit that is due for one taken now.
    pub fn take_into(&self, cell: &std::sync::Arc<Cell>) -> Option<(ProcUid, u64)> {
        let mut state = lock(&self.state);
        let (item, credit) = if let Some(item) = state.given_back.pop_front() {
            (item, None)
        } else if let Some(m) = state.queue.pop_front() {
            let credit = state.consumed.add(&m.from, m.cost()).map(|bytes| (m.from, bytes));
            (state.number(m), credit)
        } else if state.closed.is_some() {
            drop(state);
            cell.complete(Outcome::new(0, Status::Closed, b""));
            return None;
        } else {
            state.takers.push_back(std::sync::Arc::downgrade(cell));
            return None;
        };
        drop(state);
        if let Err(back) = cell.take_item(item.0, item.1) {
            self.hand_out(lock(&self.state), item.0, back);
        }
        credit
    }

    /// The cell waits no more. A message that it has, and that was not read, goes to the next cell, or before those that
    /// wait, in the order of arrival; false if it was dropped, because the mailbox is closed.
    pub fn leave(&self, cell: &std::sync::Arc<Cell>) -> bool {
        let mut state = lock(&self.state);
        state.takers.retain(|t| !std::ptr::eq(t.as_ptr(), std::sync::Arc::as_ptr(cell)));
        drop(state);
        match cell.leave() {
            Some((number, item)) => self.hand_out(lock(&self.state), number, item),
            None => true,
        }
    }

    /// Gives an item to the first cell that waits, or keeps it for the next; false if the mailbox is closed. Cells are completed
    /// without the lock, and may have left meanwhile.
    fn hand_out<'a>(&'a self, mut state: MutexGuard<'a, State>, number: u64, mut item: std::sync::Arc<Outcome>) -> bool {
        loop {
            if state.closed.is_some() {
                return false;
            }
            let next = std::iter::from_fn(|| state.takers.pop_front()).find_map(|t| t.upgrade());
            let Some(cell) = next else {
                let place = state.given_back.partition_point(|(n, _)| *n < number);
                state.given_back.insert(place, (number, item));
                return true;
            };
            drop(state);
            match cell.take_item(number, item) {
                Ok(()) => return true,
                Err(back) => item = back,
            }
            state = lock(&self.state);
        }
    }

    /// Adds an event, which overtakes messages; false if the mailbox is closed.
    pub fn push_event(&self, event: Box<[u8]>) -> bool {
        let mut state = lock(&self.state);
        if state.closed.is_some() {
            return false;
        }
        state.events.push_back(event);
        state.idle = false;
        drop(state);
        // Also while messages wait: a loop takes events between the steps of an endpoint.
        self.wake();
        true
    }

    /// The next thing to handle. With nothing left the mailbox is idle, and the next push wakes the consumer.
    pub fn pop(&self) -> Option<Delivery> {
        let mut state = lock(&self.state);
        if let Some(e) = state.events.pop_front() {
            state.doing = Some(Doing::new(EVENT));
            return Some(Delivery::Event(e));
        }
        if let Some(mut m) = state.queue.pop_front() {
            self.taken.fetch_add(1, Ordering::Relaxed);
            state.doing = Some(Doing::new(&m.method));
            note_begun(self.id, &mut m);
            let answered_by_port = m.flags & EXPLICIT_PORT != 0;
            state.current = (!m.slot.is_none() && !answered_by_port).then_some((m.from, m.slot, m.rank));
            return Some(Delivery::Message(m));
        }
        state.idle = true;
        state.current = None;
        state.doing = None;
        if let Some(Consumer::Loop(fd, _)) = self.consumer().as_deref() {
            sys::eventfd_drain(fd.as_raw_fd());
        }
        None
    }

    /// The next event only.
    pub fn pop_event(&self) -> Option<Box<[u8]>> {
        lock(&self.state).events.pop_front()
    }

    pub fn len(&self) -> usize {
        lock(&self.state).queue.len()
    }

    pub fn is_empty(&self) -> bool {
        let state = lock(&self.state);
        state.queue.is_empty() && state.events.is_empty()
    }

    /// Counts a handled message; the credit to send to its sender now.
    pub fn consumed(&self, from: ProcUid, cost: u64) -> Option<u64> {
        lock(&self.state).consumed.add(&from, cost)
    }

    /// Refuses what comes from now on; gives what nobody will handle, and the credit that is due.
    pub fn close(&self, reason: Arc<[u8]>) -> (Vec<Incoming>, Vec<(ProcUid, u64)>) {
        let mut state = lock(&self.state);
        if state.closed.is_none() {
            state.closed = Some(reason);
        }
        state.events.clear();
        let takers: Vec<_> = state.takers.drain(..).collect();
        // Of these the credit has gone back already.
        state.given_back.clear();
        let left: Vec<_> = state.queue.drain(..).collect();
        let mut credit = state.consumed.drain();
        credit.extend(left.iter().map(|m| (m.from, m.cost())));
        state.idle = false;
        drop(state);
        for cell in takers.iter().filter_map(std::sync::Weak::upgrade) {
            cell.complete(Outcome::new(0, Status::Closed, b""));
        }
        self.wake();
        (left, credit)
    }

    /// Who waits for the message in progress, of a consumer that takes one after another.
    pub fn current(&self) -> Option<(ProcUid, SlotId, u32)> {
        lock(&self.state).current
    }

    /// Names the actor that takes from this mailbox, on its thread.
    pub fn set_label(&self, display: String, thread: u64) {
        events::actor_begins(self.id.0, display.as_bytes());
        let _ = self.label.set((display, thread));
    }

    pub fn is_actors(&self) -> bool {
        self.label.get().is_some()
    }

    /// Something other than a message is in hand, or nothing.
    pub fn set_doing(&self, name: Option<&str>) {
        lock(&self.state).doing = name.map(|n| Doing::new(n.as_bytes()));
    }

    /// Looks whether the consumer sleeps although there is something for it. If it does at two looks, and has done nothing between them, a
    /// wake-up was lost: wakes it, and gives where that was.
    pub fn look(&self, now: Instant) -> Option<LostAt> {
        let consumer = self.consumer()?;
        let asleep = consumer.is_asleep();
        let has_work = asleep && consumer.sleeper().is_some_and(Sleeper::has_work);
        let progress = (self.taken(), consumer.sleeper().map_or(0, Sleeper::sleeps));
        let mut state = lock(&self.state);
        let lies = state.doing.is_none() && (!state.queue.is_empty() || !state.events.is_empty());
        if !asleep || !lies && !has_work || state.closed.is_some() {
            state.overslept = None;
            return None;
        }
        let since = match &state.overslept {
            Some(first) if first.progress == progress => first.since,
            _ => {
                state.overslept = Some(Overslept { since: now, progress });
                return None;
            }
        };
        let slept = now.saturating_duration_since(since);
        if slept < APART {
            return None;
        }
        state.overslept = None;
        let messages = (state.queue.len() + state.events.len()) as u64;
        drop(state);
        let lost_at = match &*consumer {
            _ if has_work => LostAt::Poller,
            Consumer::Loop(..) => LostAt::Descriptor,
            _ => LostAt::Thread,
        };
        events::wakeup_lost(self.id.0, lost_at.word().as_bytes(), messages, u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX));
        consumer.wake_anyway();
        Some(lost_at)
    }

    /// Nothing is in hand, and nothing waits.
    pub fn is_resting(&self) -> bool {
        let state = lock(&self.state);
        state.doing.is_none() && state.queue.is_empty() && state.events.is_empty()
    }

    /// The state for `monarch ps`; none if this is no actor's.
    pub fn describe(&self) -> Option<ActorState> {
        let (display, thread) = self.label.get()?;
        let state = lock(&self.state);
        Some(ActorState {
            mesh: hex(self.id.0),
            display: display.clone(),
            thread: *thread,
            doing: state.doing.as_ref().map(|d| String::from_utf8_lossy(&d.name[..d.len]).into_owned()),
            doing_for: state.doing.as_ref().map(|d| d.since.elapsed().as_secs_f64()),
            queued: state.queue.len(),
            taken: self.taken(),
        })
    }

    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub fn closed(&self) -> Option<Arc<[u8]>> {
        lock(&self.state).closed.clone()
    }
}
