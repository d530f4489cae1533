//! Rendezvous transfers: large parts that their receiver pulls from the sender, over connections of the two processes, past all agents.
//!
//! The sender keeps the block of the part, and the frame has a record by which the receiver finds the block. The receiver keeps the frame
//! until the part is there, as it keeps any frame that waits for its parts, and then reports that the sender can free the block. Where the
//! pull fails (no connection to the sender, a connection that breaks too often, no memory), the receiver refuses the part, and the sender
//! sends it by its number through the agents: no failure here is an error of a call. A frame from a process to an agent waits until the
//! parts that this process has lent to other processes of that host are pulled, as it waits for parts that go through the agents: a stop
//! keeps its place behind the messages that were sent before it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use net::carrier::number_ahead;
use net::lock::lock;
use net::{Block, Carrier, RecvPart};
use wire::{Control, Frame, Part, ProcUid};

use crate::gateway::Via;
use crate::node::Node;
use crate::node::peer::{MOST_BETWEEN_HOSTS, Peer};

/// `lends_from` when nobody has been asked yet who moves large parts.
pub const UNDECIDED: usize = usize::MAX - 1;
/// Nobody does.
pub const NEVER: usize = usize::MAX;

/// How long nothing is lent to a process that has no way here.
const REST: Duration = Duration::from_secs(60);

/// Nothing waits any longer for somebody who gets no byte of it.
const STALLED: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(500);

/// Why a part was not fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotFetched {
    /// This one; another one may be.
    Failed,
    /// There is no way to the sender.
    NoWay,
}

pub type Fetched = Box<dyn FnOnce(Result<(), NotFetched>) + Send>;

/// Lets others have blocks of this process, and gets theirs.
pub trait Exchange: Send + Sync {
    /// From now on whoever has the record can fetch the block.
    fn lend(&self, block: &Arc<Block>) -> Option<Vec<u8>>;
    fn take_back(&self, record: &[u8]);
    /// Bytes that the process has fetched so far.
    fn sent(&self, to: ProcUid) -> u64;
    /// Fills the block with what the record of another process stands for.
    fn fetch(&self, from: ProcUid, record: &[u8], block: Arc<Block>, done: Fetched);
}

/// What a frame says of a part that is lent.
pub struct Loan {
    pub number: u64,
    pub record: Vec<u8>,
}

struct Lent {
    to: ProcUid,
    host: ProcUid,
    block: Arc<Block>,
    record: Vec<u8>,
    /// Whoever it is for does not fetch: nothing waits for that any more.
    stalled: bool,
}

/// Frames to an agent, behind parts with lower numbers.
struct Held {
    until: u64,
    to: ProcUid,
    via: Via,
    frames: Vec<u8>,
    blocks: Vec<Arc<Block>>,
    first: u64,
    /// When those that it waits for were last seen to get on, and how far they were.
    seen: (Instant, u64),
}

#[derive(Default)]
struct State {
    lent: BTreeMap<u64, Lent>,
    /// By host.
    held: HashMap<ProcUid, VecDeque<Held>>,
    /// Somebody looks at it again soon.
    is_watched: bool,
    /// Those that cannot fetch from here, and since when.
    refusing: HashMap<ProcUid, Instant>,
}

pub struct Lending {
    exchange: OnceLock<Box<dyn Exchange>>,
    from: AtomicUsize,
    /// Parts that are lent, and frames that are held.
    count: AtomicUsize,
    state: Mutex<State>,
}

impl Default for Lending {
    fn default() -> Self {
        Lending { exchange: OnceLock::new(), from: AtomicUsize::new(UNDECIDED), count: AtomicUsize::new(0), state: Mutex::default() }
    }
}

/// The parts of a frame.
pub(crate) fn parts_of(frame: &Frame) -> &[Part] {
    match frame {
        Frame::Message(m) => &m.parts,
        Frame::Reply(r) => &r.parts,
        _ => &[],
    }
}

impl Lent {
    fn holds(&self, host: ProcUid, to: ProcUid) -> bool {
        self.host == host && self.to != to && !self.stalled
    }
}

impl State {
    /// Somebody else of that host has not fetched what was lent before.
    fn is_behind(&self, host: ProcUid, to: ProcUid, until: u64) -> bool {
        self.lent.range(..until).any(|(_, l)| l.holds(host, to))
    }

    fn count(&self) -> usize {
        self.lent.len() + self.held.values().map(VecDeque::len).sum::<usize>()
    }
}

impl Lending {
    pub fn exchange_by(&self, exchange: Box<dyn Exchange>) {
        let _ = self.exchange.set(exchange);
    }

    /// Parts of so many bytes are lent.
    pub fn lends_from(&self) -> usize {
        self.from.load(Ordering::Relaxed)
    }

    pub fn lend_from(&self, bytes: usize) {
        self.from.store(bytes, Ordering::Relaxed);
    }

    /// Parts that others have not fetched yet.
    pub fn lent(&self) -> usize {
        lock(&self.state).lent.len()
    }

    fn note(&self, state: &State) {
        self.count.store(state.count(), Ordering::Release);
    }

    /// Lends the block to a process of another host; none if it is to be sent.
    pub(crate) fn lend(&self, peer: &Peer, block: &Arc<Block>) -> Option<Loan> {
        if block.len() < self.lends_from() || self.lends_from() >= UNDECIDED {
            return None;
        }
        let (to, host, exchange) = (peer.uid, peer.link.carried_to()?, self.exchange.get()?);
        if lock(&self.state).refusing.get(&to).is_some_and(|since| since.elapsed() < REST) {
            return None;
        }
        let record = exchange.lend(block)?;
        let number = number_ahead(1);
        {
            let mut state = lock(&self.state);
            state.lent.insert(number, Lent { to, host, block: block.clone(), record: record.clone(), stalled: false });
            self.note(&state);
        }
        // In this order with `procs_ended`.
        if peer.ended().is_some() {
            self.ended(to);
        }
        Some(Loan { number, record })
    }

    /// Keeps frames to an agent that must not be there before what was lent to others of its host; false: they can go.
    pub(crate) fn hold_back(&self, via: &Via, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut state = lock(&self.state);
        let until = state.lent.last_key_value().map_or(0, |(n, _)| n + 1);
        if state.held.get(&via.host).is_none_or(VecDeque::is_empty) && !state.is_behind(via.host, to, until) {
            return false;
        }
        let seen = (Instant::now(), u64::MAX);
        let held = Held { until, to, via: via.clone(), frames: pieces.concat(), blocks: blocks.to_vec(), first, seen };
        state.held.entry(via.host).or_default().push_back(held);
        self.note(&state);
        if !std::mem::replace(&mut state.is_watched, true) {
            self.look_later(via);
        }
        true
    }

    fn look_later(&self, via: &Via) {
        let Some(node) = via.node.upgrade() else { return };
        let via = via.clone();
        let look = move || {
            if let Some(node) = via.node.upgrade() {
                node.lending.look(&via);
            }
        };
        node.poller.later(LOOK, Box::new(look));
    }

    /// Lets frames go that wait for somebody who fetches nothing: a process that is frozen, most likely, and its stop is among them.
    fn look(&self, via: &Via) {
        let Some(exchange) = self.exchange.get() else { return };
        let mut state = lock(&self.state);
        let hosts: Vec<ProcUid> = state.held.keys().copied().collect();
        for host in hosts {
            let State { lent, held, .. } = &mut *state;
            let Some(first) = held.get_mut(&host).and_then(VecDeque::front_mut) else { continue };
            let before = lent.range_mut(..first.until).map(|(_, l)| l).filter(|l| l.holds(host, first.to));
            let before: Vec<&mut Lent> = before.collect();
            // Each that is fetched makes it less.
            let moved = before.iter().map(|l| exchange.sent(l.to) << 16).fold(before.len() as u64, u64::wrapping_add);
            if moved != first.seen.1 {
                first.seen = (Instant::now(), moved);
            } else if first.seen.0.elapsed() >= STALLED {
                before.into_iter().for_each(|l| l.stalled = true);
            }
            self.flush(&mut state, host);
        }
        state.is_watched = !state.held.is_empty();
        if state.is_watched {
            self.look_later(via);
        }
    }

    /// How far others are in fetching what they were lent.
    pub fn progress(&self) -> (usize, u64) {
        let state = lock(&self.state);
        let sent = |l: &Lent| self.exchange.get().map_or(0, |e| e.sent(l.to));
        (state.lent.len(), state.lent.values().map(sent).fold(0, u64::wrapping_add))
    }

    /// Sends what need not be held any more. Under the lock, for the order.
    fn flush(&self, state: &mut State, host: ProcUid) {
        while let Some(first) = state.held.get(&host).and_then(VecDeque::front)
            && !state.is_behind(host, first.to, first.until)
            && let Some(held) = state.held.get_mut(&host).and_then(VecDeque::pop_front)
        {
            // Of a host that is lost its processes hear otherwise.
            let _ = held.via.carry_now(held.to, &[&held.frames], &held.blocks, held.first);
        }
        state.held.retain(|_, queue| !queue.is_empty());
        self.note(state);
    }

    fn take_back(&self, lent: impl IntoIterator<Item = Lent>) {
        if let Some(exchange) = self.exchange.get() {
            lent.into_iter().for_each(|l| exchange.take_back(&l.record));
        }
    }

    /// A process is gone: it fetches nothing more.
    pub(crate) fn ended(&self, uid: ProcUid) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = lock(&self.state);
        let numbers: Vec<u64> = state.lent.iter().filter(|(_, l)| l.to == uid).map(|(n, _)| *n).collect();
        let gone: Vec<Lent> = numbers.iter().filter_map(|n| state.lent.remove(n)).collect();
        let host = gone.first().map(|l| l.host);
        if let Some(host) = host {
            self.flush(&mut state, host);
        }
        drop(state);
        self.take_back(gone);
    }

    fn fetched(&self, by: ProcUid, number: u64) {
        let mut state = lock(&self.state);
        if state.lent.get(&number).is_none_or(|l| l.to != by) {
            return;
        }
        let gone = state.lent.remove(&number);
        if let Some(host) = gone.as_ref().map(|l| l.host) {
            self.flush(&mut state, host);
        }
        drop(state);
        self.take_back(gone);
    }

    fn refused(&self, node: &Node, by: ProcUid, number: u64, no_way: bool) {
        let block = {
            let mut state = lock(&self.state);
            if no_way {
                state.refusing.insert(by, Instant::now());
            }
            state.lent.get(&number).filter(|l| l.to == by).map(|l| l.block.clone())
        };
        if let (Some(block), Some(peer)) = (block, node.known_peer(by)) {
            let _ = peer.link.send_behind(&[], &[block], number);
        }
        // Now that it is on its way: what waited behind it still is.
        self.fetched(by, number);
    }
}

impl Node {
    /// Fetches what the frame names of the memory of its sender.
    pub(crate) fn fetch_parts(&self, from: ProcUid, frame: &Frame) {
        for part in parts_of(frame) {
            if let Part::Lent { number, len, record, .. } = part {
                self.fetch_part(from, *number, *len, record);
            }
        }
    }

    fn fetch_part(&self, from: ProcUid, number: u64, len: u64, record: &[u8]) {
        let refuse = |why| self.part_refused(from, number, why);
        let Some(exchange) = self.lending.exchange.get() else { return refuse(NotFetched::NoWay) };
        if len > MOST_BETWEEN_HOSTS {
            return refuse(NotFetched::Failed);
        }
        let Ok(block) = self.arena.alloc(len as usize).map(Arc::new) else { return refuse(NotFetched::Failed) };
        let (node, filled) = (Arc::downgrade(&self.arc()), block.clone());
        let done = move |outcome| {
            let Some(node) = node.upgrade() else { return };
            let poller = node.poller.clone();
            // All that comes from others is handled where the sockets are read.
            poller.spawn(Box::new(move || match outcome {
                Ok(()) => {
                    // In this order: who sees that its sender is done finds that it is here.
                    node.on_part(from, number, RecvPart::Own { block: filled, readonly: true });
                    node.peer(from).send_control(Control::PartFetched { number });
                }
                Err(why) => node.part_refused(from, number, why),
            }));
        };
        exchange.fetch(from, record, block, Box::new(done));
    }

    fn part_refused(&self, from: ProcUid, number: u64, why: NotFetched) {
        self.peer(from).send_control(Control::PartRefused { number, no_way: why == NotFetched::NoWay });
    }

    /// What a process says of a part that it was lent; false: it is something else.
    pub(crate) fn on_loan(&self, from: ProcUid, said: &Control) -> bool {
        match *said {
            Control::PartFetched { number } => self.lending.fetched(from, number),
            Control::PartRefused { number, no_way } => self.lending.refused(self, from, number, no_way),
            _ => return false,
        }
        true
    }
}

impl Carrier for Via {
    fn host(&self) -> ProcUid {
        self.host
    }

    fn carry(&self, to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), net::LinkDown> {
        if to == self.host
            && let Some(node) = self.node.upgrade()
            && node.lending.hold_back(self, to, pieces, blocks, first)
        {
            return Ok(());
        }
        self.carry_now(to, pieces, blocks, first)
    }
}
