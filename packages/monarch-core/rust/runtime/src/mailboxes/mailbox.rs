//! A mailbox: the queue of messages that an actor or a port has not handled yet.
//!
//! A mailbox exists before its actor: messages that overtake the spawn request wait in it. Events (failures of meshes that the actor owns)
//! do not wait behind messages. A push wakes the consumer; a pop returns credit to the sender.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use net::{RecvPart, Waiter, sys};
use serde::Serialize;
use wire::frame::{EXCEPTION, EXPLICIT_PORT, RANKED, TO_PORT};
use wire::{CallId, MailboxId, ProcUid, Status, Trace};

use super::begun::{AtDeadline, Begun, Due, overdue};
use super::credit::{Consumed, OVERHEAD};
use crate::calls::pending_call::{Outcome, PendingCall};
use crate::sync::{Arc, Mutex, MutexGuard, lock};

/// A message to user code.
pub struct Incoming {
    pub from: ProcUid,
    pub dest: MailboxId,
    pub sender: MailboxId,
    pub call_id: CallId,
    pub rank: u32,
    pub flags: u8,
    /// The span of the message. When the message is taken, it becomes the span of its handling.
    pub trace: Option<Box<Trace>>,
    pub due: Option<Due>,
    pub method: Box<[u8]>,
    pub extent: Box<[u8]>,
    pub parts: Vec<RecvPart>,
}

impl Incoming {
    /// The credit that the message needs.
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

/// The name of the work in progress while an actor handles an event.
const EVENT: &[u8] = b"(event)";

/// Marks a message to one rank of several: the answer counts as rank 0.
pub const CHOSEN: u32 = 1 << 31;

/// The rank that an answer carries, given the rank that the message was sent to.
pub fn answer_rank(rank: u32) -> u32 {
    if rank & CHOSEN != 0 { 0 } else { rank }
}

/// The smallest depth of a mailbox whose growth is recorded as an event.
const DEEP: u64 = 64;

/// Records the arrival of a message, and the growth of its mailbox.
fn note_received(m: &Incoming, depth: u64) {
    if m.flags & TO_PORT == 0 {
        let (rank, bytes) = (u64::from(m.rank & !CHOSEN), m.cost() - OVERHEAD);
        let received = || events::message_received(m.dest.0, &m.method, rank, m.from.0, m.sender.0, m.call_id.0, bytes, depth);
        events::in_trace(m.trace().words(), received);
    }
    if depth >= DEEP && depth.is_power_of_two() {
        events::queue_depth(m.dest.0, depth);
    }
}

/// Records the start of a message's handling. A traced message gets a span of its own for it, a child of the message's span.
fn note_begun(mailbox: MailboxId, m: &mut Incoming) {
    let parent = m.trace().span;
    if let Some(trace) = &mut m.trace {
        **trace = trace.child();
    }
    let begun = || events::message_begun(mailbox.0, &m.method, u64::from(m.rank & !CHOSEN), m.from.0, m.call_id.0, parent);
    events::in_trace(m.trace().words(), begun);
}

/// The outcome of a push.
pub enum Pushed {
    Queued,
    /// A thread was waiting for the message. Contains the credit to return now, if it is a quarter of the window.
    Taken(Option<(ProcUid, u64)>),
}

/// A message or an event for an actor.
pub enum Delivery {
    Message(Incoming),
    /// An event of the Python side, whose bytes this crate does not interpret.
    Event(Box<[u8]>),
}

/// The sleep of an event loop, and the means to end it.
pub trait Sleeper: Send + Sync {
    /// True while the loop's thread sleeps.
    fn is_asleep(&self) -> bool;
    /// True if a descriptor that the loop watches is ready.
    fn has_work(&self) -> bool;
    /// How often the loop has slept.
    fn sleeps(&self) -> u64;
    /// Ends the sleep, independent of the state of its descriptors.
    fn wake(&self);
}

/// The consumer of a mailbox, and the means to wake it.
pub enum Consumer {
    /// A thread that blocks until a message arrives.
    Thread(std::sync::Arc<Waiter>),
    /// An event loop that watches a descriptor.
    Loop(OwnedFd, Option<std::sync::Arc<dyn Sleeper>>),
    /// A model of a consumer, for exploring interleavings.
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

    /// The sleep of the event loop; `None` for other consumers.
    fn sleeper(&self) -> Option<&dyn Sleeper> {
        match self {
            Consumer::Loop(_, sleeper) => sleeper.as_deref(),
            _ => None,
        }
    }

    /// Wakes the consumer, independent of its descriptors.
    fn force_wake(&self) {
        self.wake();
        if let Some(s) = self.sleeper() {
            s.wake();
        }
    }
}

/// The place at which a wake-up was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostAt {
    /// The thread was not notified, or did not see the notification.
    Thread,
    /// The mailbox's descriptor is not ready although it has messages.
    Descriptor,
    /// A descriptor of the loop is ready, and the poller has not reported it.
    Poller,
}

impl LostAt {
    /// The place as a word for events.
    pub fn name(self) -> &'static str {
        match self {
            LostAt::Thread => "thread",
            LostAt::Descriptor => "descriptor",
            LostAt::Poller => "poller",
        }
    }
}

/// A sleep during which a check has found work.
struct MissedWakeup {
    since: Instant,
    /// The number of messages and events taken before the sleep, and the number of sleeps.
    progress: (u64, u64),
}

/// Two checks of a mailbox with a shorter interval count as one: a wake-up in progress arrives within a small part of this time.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The work that the consumer is doing, and its start. The name is stored in place, because every message pays for it.
struct Activity {
    name: [u8; NAME],
    len: usize,
    since: Instant,
}

/// The number of bytes of a name that are kept.
const NAME: usize = 48;

impl Activity {
    fn new(name: &[u8]) -> Self {
        let len = name.len().min(NAME);
        let mut kept = [0; NAME];
        kept[..len].copy_from_slice(&name[..len]);
        Activity { name: kept, len, since: Instant::now() }
    }
}

/// The state of an actor in an inspection.
#[derive(Serialize)]
pub struct ActorState {
    /// The id of the actor's mesh, in hexadecimal.
    pub mesh: String,
    pub display: String,
    /// The actor's thread, by its number in Python's `threading`.
    pub thread: u64,
    /// The endpoint in progress, and how many seconds it has run.
    pub doing: Option<String>,
    pub doing_for: Option<f64>,
    pub queued: usize,
    pub taken: u64,
    /// How many seconds the deadline of a call in progress has passed; `None` if there is no such call.
    pub overdue: Option<f64>,
}

/// The queues of a mailbox, and the state of its consumer.
#[derive(Default)]
struct State {
    /// The work in progress.
    doing: Option<Activity>,
    /// The messages in progress that have a deadline.
    begun: Vec<Begun>,
    /// The result of the previous check for a lost wake-up.
    missed_wakeup: Option<MissedWakeup>,
    queue: VecDeque<Incoming>,
    events: VecDeque<Box<[u8]>>,
    /// The number of events taken so far.
    events_taken: u64,
    /// The consumer sleeps, or its descriptor is not readable.
    idle: bool,
    /// The reason why the mailbox accepts no messages.
    closed: Option<Arc<[u8]>>,
    consumed: Consumed<ProcUid>,
    /// The call that waits for the message taken last: process, call id and rank.
    current: Option<(ProcUid, CallId, u32)>,
    /// For the mailbox of a port: pending receives, each of which takes one message.
    receives: VecDeque<std::sync::Weak<PendingCall>>,
    /// For a port: the number of messages that pending receives have taken.
    numbered: u64,
    /// For a port: messages that abandoned receives have returned, in the order of their numbers; they precede the queue.
    returned: VecDeque<(u64, std::sync::Arc<Outcome>)>,
}

impl State {
    fn take_event(&mut self) -> Option<Box<[u8]>> {
        let event = self.events.pop_front()?;
        self.events_taken += 1;
        Some(event)
    }

    /// Turns a message into the item of a pending receive, with its number.
    fn number(&mut self, m: Incoming) -> (u64, std::sync::Arc<Outcome>) {
        self.numbered += 1;
        let status = if m.flags & EXCEPTION != 0 { Status::Error } else { Status::Ok };
        (self.numbered, std::sync::Arc::new(Outcome { rank: 0, sender_rank: m.ranked(), status, parts: m.parts }))
    }
}

/// The mailbox of an actor or a port. `Mailboxes` finds it by its id; its consumer takes the messages.
pub struct Mailbox {
    pub id: MailboxId,
    state: Mutex<State>,
    /// The consumer that was set last: an actor's thread may wait in one way first and in the other way later.
    consumer: std::sync::RwLock<Option<std::sync::Arc<Consumer>>>,
    /// For an actor: its display name and its thread.
    label: OnceLock<(String, u64)>,
    /// The number of messages taken so far. A stop reads it to see whether the actor makes progress.
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

    /// Sets the consumer, and wakes it if messages have arrived already.
    pub fn set_consumer(&self, consumer: Consumer) {
        let mut state = lock(&self.state);
        let busy = !state.queue.is_empty() || !state.events.is_empty();
        state.idle = !busy;
        // Set under the lock: a push that finds the mailbox idle must find the consumer too.
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

    /// Adds a message; returns it with the reason if the mailbox is closed.
    #[allow(clippy::result_large_err, reason = "a refused message is moved once, and refusals are rare")]
    pub fn push(&self, message: Incoming) -> Result<Pushed, (Incoming, Arc<[u8]>)> {
        let mut state = lock(&self.state);
        if let Some(reason) = &state.closed {
            return Err((message, reason.clone()));
        }
        if state.receives.iter().any(|t| t.strong_count() > 0) {
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

    /// Gives the next message to a pending receive, or registers the receive. Returns the credit that is now due for a taken message.
    pub fn take_into(&self, cell: &std::sync::Arc<PendingCall>) -> Option<(ProcUid, u64)> {
        let mut state = lock(&self.state);
        let (item, credit) = if let Some(item) = state.returned.pop_front() {
            (item, None)
        } else if let Some(m) = state.queue.pop_front() {
            let credit = state.consumed.add(&m.from, m.cost()).map(|bytes| (m.from, bytes));
            (state.number(m), credit)
        } else if state.closed.is_some() {
            drop(state);
            cell.complete(Outcome::new(0, Status::Closed, b""));
            return None;
        } else {
            state.receives.push_back(std::sync::Arc::downgrade(cell));
            return None;
        };
        drop(state);
        if let Err(back) = cell.take_item(item.0, item.1) {
            self.hand_out(lock(&self.state), item.0, back);
        }
        credit
    }

    /// Abandons a receive. If it holds an unread message, the message goes to the next pending receive, or before the queued messages in
    /// the order of arrival; false if the message was dropped because the mailbox is closed.
    pub fn abandon(&self, cell: &std::sync::Arc<PendingCall>) -> bool {
        let mut state = lock(&self.state);
        state.receives.retain(|t| !std::ptr::eq(t.as_ptr(), std::sync::Arc::as_ptr(cell)));
        drop(state);
        match cell.abandon() {
            Some((number, item)) => self.hand_out(lock(&self.state), number, item),
            None => true,
        }
    }

    /// Gives an item to the first pending receive, or keeps it for the next one; false if the mailbox is closed. A receive is completed
    /// without the lock, and may have been abandoned meanwhile.
    fn hand_out<'a>(&'a self, mut state: MutexGuard<'a, State>, number: u64, mut item: std::sync::Arc<Outcome>) -> bool {
        loop {
            if state.closed.is_some() {
                return false;
            }
            let next = std::iter::from_fn(|| state.receives.pop_front()).find_map(|t| t.upgrade());
            let Some(cell) = next else {
                let place = state.returned.partition_point(|(n, _)| *n < number);
                state.returned.insert(place, (number, item));
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

    /// Adds an event, which precedes all messages; false if the mailbox is closed.
    pub fn push_event(&self, event: Box<[u8]>) -> bool {
        let mut state = lock(&self.state);
        if state.closed.is_some() {
            return false;
        }
        state.events.push_back(event);
        state.idle = false;
        drop(state);
        // The consumer is woken also while messages wait: an event loop takes events between the steps of an endpoint.
        self.wake();
        true
    }

    /// The next event or message. If there is none, the mailbox is idle, and the next push wakes the consumer.
    pub fn pop(&self) -> Option<Delivery> {
        let mut state = lock(&self.state);
        if let Some(e) = state.take_event() {
            state.doing = Some(Activity::new(EVENT));
            return Some(Delivery::Event(e));
        }
        if let Some(mut m) = state.queue.pop_front() {
            self.taken.fetch_add(1, Ordering::Relaxed);
            state.doing = Some(Activity::new(&m.method));
            note_begun(self.id, &mut m);
            let answered_by_port = m.flags & EXPLICIT_PORT != 0;
            state.current = (!m.call_id.is_none() && !answered_by_port).then_some((m.from, m.call_id, m.rank));
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

    /// Notes that the handling of a message with a deadline begins.
    pub fn begin(&self, m: &Incoming, now: Instant) {
        lock(&self.state).begun.extend(m.due.map(|due| Begun::new(due, m, now)));
    }

    /// Notes that the handling of a message with a deadline has ended.
    pub fn finish(&self, number: u64) {
        lock(&self.state).begun.retain(|b| b.due.number != number);
    }

    /// Takes the messages with these numbers, sorted, whose deadline has passed. Messages that have not begun are removed, unless `keeps`
    /// is true for them.
    pub(crate) fn expire(&self, numbers: &[u64], keeps: impl Fn(&Incoming) -> bool) -> AtDeadline {
        let mut state = lock(&self.state);
        let State { queue, begun, doing, .. } = &mut *state;
        let doing = doing.as_ref().map_or_else(String::new, |d| String::from_utf8_lossy(&d.name[..d.len]).into_owned());
        AtDeadline::take(queue, begun, doing, numbers, keeps)
    }

    /// True if an event loop takes from this mailbox.
    pub(crate) fn is_on_loop(&self) -> bool {
        self.consumer().is_some_and(|c| matches!(*c, Consumer::Loop(..)))
    }

    /// The next event; `None` if only messages wait.
    pub fn pop_event(&self) -> Option<Box<[u8]>> {
        lock(&self.state).take_event()
    }

    pub fn len(&self) -> usize {
        lock(&self.state).queue.len()
    }

    pub fn is_empty(&self) -> bool {
        let state = lock(&self.state);
        state.queue.is_empty() && state.events.is_empty()
    }

    /// Counts a handled message. Returns the credit to send to its sender now.
    pub fn consumed(&self, from: ProcUid, cost: u64) -> Option<u64> {
        lock(&self.state).consumed.add(&from, cost)
    }

    /// Refuses all later messages. Returns the messages that will not be handled, and the credit that is due.
    pub fn close(&self, reason: Arc<[u8]>) -> (Vec<Incoming>, Vec<(ProcUid, u64)>) {
        let mut state = lock(&self.state);
        if state.closed.is_none() {
            state.closed = Some(reason);
        }
        state.events.clear();
        let receives: Vec<_> = state.receives.drain(..).collect();
        // The credit of these items was returned when they were taken.
        state.returned.clear();
        let left: Vec<_> = state.queue.drain(..).collect();
        let mut credit = state.consumed.drain();
        credit.extend(left.iter().map(|m| (m.from, m.cost())));
        state.idle = false;
        drop(state);
        for cell in receives.iter().filter_map(std::sync::Weak::upgrade) {
            cell.complete(Outcome::new(0, Status::Closed, b""));
        }
        self.wake();
        (left, credit)
    }

    /// The call that waits for the message in progress, for a consumer that takes one message after another.
    pub fn current(&self) -> Option<(ProcUid, CallId, u32)> {
        lock(&self.state).current
    }

    /// Sets the name and the thread of the actor that takes from this mailbox. It is called on that thread.
    pub fn set_label(&self, display: String, thread: u64) {
        events::actor_begins(self.id.0, display.as_bytes());
        let _ = self.label.set((display, thread));
    }

    /// True if an actor takes from this mailbox.
    pub fn is_actors(&self) -> bool {
        self.label.get().is_some()
    }

    /// Sets the work in progress that is no message; `None` if there is none.
    pub fn set_doing(&self, name: Option<&str>) {
        lock(&self.state).doing = name.map(|n| Activity::new(n.as_bytes()));
    }

    /// Checks whether the consumer sleeps although it has work. If two checks find that, with no progress between them, a wake-up was lost:
    /// the consumer is woken, and the place of the loss is returned.
    pub fn check_wakeup(&self, now: Instant) -> Option<LostAt> {
        let consumer = self.consumer()?;
        let asleep = consumer.is_asleep();
        let has_work = asleep && consumer.sleeper().is_some_and(Sleeper::has_work);
        let sleeps = consumer.sleeper().map_or(0, Sleeper::sleeps);
        let mut state = lock(&self.state);
        let progress = (self.taken() + state.events_taken, sleeps);
        let has_queued = state.doing.is_none() && (!state.queue.is_empty() || !state.events.is_empty());
        if !asleep || !has_queued && !has_work || state.closed.is_some() {
            state.missed_wakeup = None;
            return None;
        }
        let since = match &state.missed_wakeup {
            Some(first) if first.progress == progress => first.since,
            _ => {
                state.missed_wakeup = Some(MissedWakeup { since: now, progress });
                return None;
            }
        };
        let slept = now.saturating_duration_since(since);
        if slept < CHECK_INTERVAL {
            return None;
        }
        state.missed_wakeup = None;
        let messages = (state.queue.len() + state.events.len()) as u64;
        drop(state);
        let lost_at = match &*consumer {
            _ if has_work => LostAt::Poller,
            Consumer::Loop(..) => LostAt::Descriptor,
            _ => LostAt::Thread,
        };
        events::wakeup_lost(self.id.0, lost_at.name().as_bytes(), messages, u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX));
        consumer.force_wake();
        Some(lost_at)
    }

    /// True if the consumer has no work in progress, and no message or event waits.
    pub fn is_resting(&self) -> bool {
        let state = lock(&self.state);
        state.doing.is_none() && state.queue.is_empty() && state.events.is_empty()
    }

    /// The state for `monarch ps`; `None` if the mailbox belongs to a port.
    pub fn describe(&self, now: Instant) -> Option<ActorState> {
        let (display, thread) = self.label.get()?;
        let state = lock(&self.state);
        Some(ActorState {
            mesh: format!("{:016x}", self.id.0),
            display: display.clone(),
            thread: *thread,
            doing: state.doing.as_ref().map(|d| String::from_utf8_lossy(&d.name[..d.len]).into_owned()),
            doing_for: state.doing.as_ref().map(|d| d.since.elapsed().as_secs_f64()),
            queued: state.queue.len(),
            taken: self.taken(),
            overdue: overdue(&state.begun, now),
        })
    }

    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub fn closed(&self) -> Option<Arc<[u8]>> {
        lock(&self.state).closed.clone()
    }
}
