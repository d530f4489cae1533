//! Rendezvous transfers: the receiver pulls a large part directly from the sender's arena, over connections between the two processes that
//! pass no agent.
//!
//! The sender keeps the block of the part, and the frame has a record that lets the receiver find the block. The receiver holds the frame
//! until it has the part, as it holds every frame with missing parts, and then reports that the sender can free the block. If the pull
//! fails (no connection to the sender, a connection that breaks too often, no memory), the receiver refuses the part, and the sender sends
//! it by its number through the agents: a failed pull is no error of a call. A frame from a process to an agent waits until the other
//! processes of that host have pulled the parts that this process offers them, as it waits for parts that go through the agents. So a stop
//! keeps its position behind the messages that were sent before it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use net::forwarder::reserve_part_numbers;
use net::lock::lock;
use net::{Arena, Block, Link, LinkDown, Poller};
use wire::ProcUid;

use super::MAX_REMOTE_MESSAGE;

/// The value of `min_size` before this process has looked for a bulk transport.
pub const UNDECIDED: usize = usize::MAX - 1;
/// The value of `min_size` without a bulk transport.
pub const NEVER: usize = usize::MAX;

/// How long a process that could not connect to this one gets no offers. Its parts go through the agents in this time.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(60);

/// A receiver that pulls no byte for this time no longer delays frames: the frames that wait for its offers are sent, and its stop may be
/// among them. Its offers stay valid. 4 s is long for a live receiver, and short for a user who stops a frozen one.
const STALL_TIMEOUT: Duration = Duration::from_secs(4);
/// The interval of checks for receivers without progress; short against `STALL_TIMEOUT`.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The reason why a pull failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullError {
    /// This pull failed. Later pulls may succeed.
    Failed,
    /// The receiver cannot connect to the sender.
    Unreachable,
}

/// The outcome of a pull: the block with the bytes of the part.
pub(crate) type Pulled = Result<Arc<Block>, PullError>;
/// Called once with the outcome of a pull.
pub type PullDone = Box<dyn FnOnce(Result<(), PullError>) + Send>;

/// The bulk transport as this module uses it: it offers blocks of this process, and pulls blocks of others.
pub trait Exchange: Send + Sync {
    /// Offers the block: every process with the returned record can pull it.
    fn offer(&self, block: &Arc<Block>) -> Option<Vec<u8>>;
    /// Ends an offer.
    fn withdraw(&self, record: &[u8]);
    /// The number of bytes that a process has pulled from this one so far.
    fn sent(&self, to: ProcUid) -> u64;
    /// Fills the block with the bytes that another process offers by this record.
    fn pull(&self, from: ProcUid, record: &[u8], block: Arc<Block>, done: PullDone);
}

/// Sends frames to the processes of one other host.
pub trait Carrier: Send + Sync {
    /// Sends frames, and before them their large parts `blocks`, numbered from `first` on.
    fn send_now(&self, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown>;
}

/// An offered part, as its frame names it.
pub struct OfferRecord {
    pub number: u64,
    pub record: Vec<u8>,
}

/// An offered part that has not been pulled.
struct Offer {
    /// The receiver, and its host.
    to: ProcUid,
    host: ProcUid,
    block: Arc<Block>,
    record: Vec<u8>,
    /// The receiver does not pull. Frames no longer wait for this part.
    stalled: bool,
}

/// Frames to an agent that wait until the offered parts with lower numbers are pulled.
struct HeldFrames {
    /// The frames wait for offers with lower numbers than this.
    until: u64,
    to: ProcUid,
    via: Arc<dyn Carrier>,
    frames: Vec<u8>,
    blocks: Vec<Arc<Block>>,
    first: u64,
    /// The time at which the receivers last made progress, and their progress then.
    seen: (Instant, u64),
}

/// The offers by number, the held frames, and the processes that get no offers.
#[derive(Default)]
struct State {
    offered: BTreeMap<u64, Offer>,
    /// The held frames by the host of the agent.
    held: HashMap<ProcUid, VecDeque<HeldFrames>>,
    /// A timer that checks the held frames is set.
    is_watched: bool,
    /// The processes that could not connect to this one, and the time of their last refusal.
    refusing: HashMap<ProcUid, Instant>,
}

/// The offers of this process.
pub struct Offers {
    poller: Arc<Poller>,
    me: Weak<Offers>,
    exchange: OnceLock<Box<dyn Exchange>>,
    /// The size from which parts are offered.
    min_size: AtomicUsize,
    /// A thread is deciding about `min_size`.
    is_deciding: AtomicBool,
    /// The number of offered parts and held frames.
    count: AtomicUsize,
    state: Mutex<State>,
}

impl Offer {
    /// True if frames to `to`, on that host, wait for this part.
    fn holds(&self, host: ProcUid, to: ProcUid) -> bool {
        self.host == host && self.to != to && !self.stalled
    }
}

impl State {
    /// True if another process of that host has not pulled a part with a number below `until`.
    fn is_behind(&self, host: ProcUid, to: ProcUid, until: u64) -> bool {
        self.offered.range(..until).any(|(_, l)| l.holds(host, to))
    }

    fn count(&self) -> usize {
        self.offered.len() + self.held.values().map(VecDeque::len).sum::<usize>()
    }
}

impl Offers {
    pub fn new(poller: &Arc<Poller>) -> Arc<Self> {
        Arc::new_cyclic(|me| Offers {
            poller: poller.clone(),
            me: me.clone(),
            exchange: OnceLock::new(),
            min_size: AtomicUsize::new(UNDECIDED),
            is_deciding: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            state: Mutex::default(),
        })
    }

    /// Sets the bulk transport of message parts.
    pub fn set_exchange(&self, exchange: Box<dyn Exchange>) {
        let _ = self.exchange.set(exchange);
    }

    /// The size from which parts are offered.
    pub fn min_size(&self) -> usize {
        self.min_size.load(Ordering::Relaxed)
    }

    /// Sets the size from which parts are offered.
    pub fn set_min_size(&self, bytes: usize) {
        self.min_size.store(bytes, Ordering::Relaxed);
    }

    /// True before this process has looked for a bulk transport.
    pub fn is_undecided(&self) -> bool {
        self.min_size() == UNDECIDED
    }

    /// Runs `decide`, which sets the size from which parts are offered, unless a thread is running it: the code of a decision may send a
    /// large part itself, which is sent through the agents.
    pub fn decide<T>(&self, decide: impl FnOnce() -> T) -> Option<T> {
        if self.is_deciding.swap(true, Ordering::AcqRel) {
            return None;
        }
        let decided = decide();
        self.is_deciding.store(false, Ordering::Release);
        Some(decided)
    }

    /// The number of offered parts that have not been pulled.
    pub fn offered(&self) -> usize {
        lock(&self.state).offered.len()
    }

    /// Updates `count`, which is read without the lock.
    fn note(&self, state: &State) {
        self.count.store(state.count(), Ordering::Release);
    }

    /// Offers the block to a process of another host; `None` if the part has to be sent through the agents. If the process has ended, the
    /// caller must call `ended` after this.
    pub(crate) fn offer(&self, to: ProcUid, link: &Link, block: &Arc<Block>) -> Option<OfferRecord> {
        if block.len() < self.min_size() || self.min_size() >= UNDECIDED {
            return None;
        }
        let (host, exchange) = (link.forwarded_to()?, self.exchange.get()?);
        if lock(&self.state).refusing.get(&to).is_some_and(|since| since.elapsed() < REFUSAL_TIMEOUT) {
            return None;
        }
        let record = exchange.offer(block)?;
        let number = reserve_part_numbers(1);
        let mut state = lock(&self.state);
        state.offered.insert(number, Offer { to, host, block: block.clone(), record: record.clone(), stalled: false });
        self.note(&state);
        Some(OfferRecord { number, record })
    }

    /// Holds frames to an agent until other processes of its host have pulled the parts offered before; false if the frames can be sent
    /// now. `via` makes the carrier of the frames.
    pub(crate) fn hold(
        &self,
        host: ProcUid,
        via: impl FnOnce() -> Arc<dyn Carrier>,
        to: ProcUid,
        pieces: &[&[u8]],
        blocks: &[Arc<Block>],
        first: u64,
    ) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut state = lock(&self.state);
        let until = state.offered.last_key_value().map_or(0, |(n, _)| n + 1);
        if state.held.get(&host).is_none_or(VecDeque::is_empty) && !state.is_behind(host, to, until) {
            return false;
        }
        let seen = (Instant::now(), u64::MAX);
        let held = HeldFrames { until, to, via: via(), frames: pieces.concat(), blocks: blocks.to_vec(), first, seen };
        state.held.entry(host).or_default().push_back(held);
        self.note(&state);
        if !std::mem::replace(&mut state.is_watched, true) {
            self.check_later();
        }
        true
    }

    /// Sets a timer for `check_stalled`.
    fn check_later(&self) {
        let me = self.me.clone();
        let check_stalled = move || {
            if let Some(offers) = me.upgrade() {
                offers.check_stalled();
            }
        };
        self.poller.later(STALL_CHECK_INTERVAL, Box::new(check_stalled));
    }

    /// Sends frames that wait for a receiver without progress: this receiver is most likely frozen, and its stop may be among the frames.
    fn check_stalled(&self) {
        let Some(exchange) = self.exchange.get() else { return };
        let mut state = lock(&self.state);
        let hosts: Vec<ProcUid> = state.held.keys().copied().collect();
        for host in hosts {
            let State { offered, held, .. } = &mut *state;
            let Some(first) = held.get_mut(&host).and_then(VecDeque::front_mut) else { continue };
            let before = offered.range_mut(..first.until).map(|(_, l)| l).filter(|l| l.holds(host, first.to));
            let before: Vec<&mut Offer> = before.collect();
            // The number of offers is part of the sum: each completed pull reduces it.
            let moved = before.iter().map(|l| exchange.sent(l.to) << 16).fold(before.len() as u64, u64::wrapping_add);
            if moved != first.seen.1 {
                first.seen = (Instant::now(), moved);
            } else if first.seen.0.elapsed() >= STALL_TIMEOUT {
                before.into_iter().for_each(|l| l.stalled = true);
            }
            self.flush(&mut state, host);
        }
        state.is_watched = !state.held.is_empty();
        if state.is_watched {
            self.check_later();
        }
    }

    /// The number of offered parts, and the sum of bytes that their receivers have pulled.
    pub fn progress(&self) -> (usize, u64) {
        let state = lock(&self.state);
        let sent = |l: &Offer| self.exchange.get().map_or(0, |e| e.sent(l.to));
        (state.offered.len(), state.offered.values().map(sent).fold(0, u64::wrapping_add))
    }

    /// Sends the frames that no longer have to wait. The lock is held, which keeps their order.
    fn flush(&self, state: &mut State, host: ProcUid) {
        while let Some(first) = state.held.get(&host).and_then(VecDeque::front)
            && !state.is_behind(host, first.to, first.until)
            && let Some(held) = state.held.get_mut(&host).and_then(VecDeque::pop_front)
        {
            // An error means that the host is lost, and its processes are notified of that separately.
            let _ = held.via.send_now(held.to, &[&held.frames], &held.blocks, held.first);
        }
        state.held.retain(|_, queue| !queue.is_empty());
        self.note(state);
    }

    /// Ends the offers in the bulk transport.
    fn withdraw(&self, offered: impl IntoIterator<Item = Offer>) {
        if let Some(exchange) = self.exchange.get() {
            offered.into_iter().for_each(|l| exchange.withdraw(&l.record));
        }
    }

    /// Takes the end of a process, which pulls nothing more.
    pub(crate) fn ended(&self, uid: ProcUid) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = lock(&self.state);
        let numbers: Vec<u64> = state.offered.iter().filter(|(_, l)| l.to == uid).map(|(n, _)| *n).collect();
        let gone: Vec<Offer> = numbers.iter().filter_map(|n| state.offered.remove(n)).collect();
        let host = gone.first().map(|l| l.host);
        if let Some(host) = host {
            self.flush(&mut state, host);
        }
        drop(state);
        self.withdraw(gone);
    }

    /// Takes the report that a part was pulled.
    pub(crate) fn on_pulled(&self, by: ProcUid, number: u64) {
        let mut state = lock(&self.state);
        if state.offered.get(&number).is_none_or(|l| l.to != by) {
            return;
        }
        let gone = state.offered.remove(&number);
        if let Some(host) = gone.as_ref().map(|l| l.host) {
            self.flush(&mut state, host);
        }
        drop(state);
        self.withdraw(gone);
    }

    /// Takes the report that a pull failed: the part is sent through the agents, on the receiver's link.
    pub(crate) fn on_refused(&self, by: ProcUid, link: Option<&Link>, number: u64, unavailable: bool) {
        let block = {
            let mut state = lock(&self.state);
            if unavailable {
                state.refusing.insert(by, Instant::now());
            }
            state.offered.get(&number).filter(|l| l.to == by).map(|l| l.block.clone())
        };
        if let (Some(block), Some(link)) = (block, link) {
            let _ = link.send_behind(&[], &[block], number);
        }
        // The part has been sent, and frames that waited for it are sent behind it.
        self.on_pulled(by, number);
    }

    /// Pulls an offered part of another process. `done` gets the block with its bytes, possibly on another thread.
    pub(crate) fn pull(&self, arena: &Arc<Arena>, from: ProcUid, record: &[u8], len: u64, done: impl FnOnce(Pulled) + Send + 'static) {
        let Some(exchange) = self.exchange.get() else { return done(Err(PullError::Unreachable)) };
        if len > MAX_REMOTE_MESSAGE {
            return done(Err(PullError::Failed));
        }
        let Ok(block) = arena.alloc(len as usize).map(Arc::new) else { return done(Err(PullError::Failed)) };
        let filled = block.clone();
        exchange.pull(from, record, block, Box::new(move |outcome| done(outcome.map(|()| filled))));
    }
}
