//! The owner's side: the memory behind each id.
//!
//! A registration ends in two steps. Its epoch changes at once, so that no new use begins. Its memory is released when no use is left,
//! which is checked whenever a use may have ended.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use net::lock::lock;

use crate::arena::Block;
use crate::exports::Exports;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{Id, Place};
use crate::shared::{self, EPOCHS, SLOTS, Words};

/// Receives the outcome of an operation, on any thread.
pub type Completion = Box<dyn FnOnce(Outcome<()>) + Send>;
/// Ended registrations whose reason is kept, for the texts of errors.
const TOMBSTONES: usize = 1024;

/// A range of memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub address: usize,
    pub len: usize,
    pub readonly: bool,
}

/// The object that keeps registered memory in place.
pub struct Memory {
    _keep: Box<dyn Any + Send + Sync>,
    block: Option<Arc<Block>>,
}

impl Memory {
    pub fn new(keep: Box<dyn Any + Send + Sync>, block: Option<Arc<Block>>) -> Arc<Memory> {
        Arc::new(Memory { _keep: keep, block })
    }

    pub fn block(&self) -> Option<&Arc<Block>> {
        self.block.as_ref()
    }
}

/// A registration: its slot in the table of epochs, its memory, and the parts of it.
struct Entry {
    slot: u32,
    epoch: u64,
    range: Range,
    memory: Arc<Memory>,
    parts: HashSet<Id>,
    whole: Option<Id>,
    /// The connection that requested it as a part; 0 for this process.
    creator: u64,
    lease: Option<Instant>,
}

/// The facts of a registration that other processes may know.
pub struct Found {
    pub slot: u32,
    pub epoch: u64,
    pub range: Range,
    pub memory: Arc<Memory>,
    /// The connection that requested it as a part; 0 for this process.
    pub creator: u64,
}

impl Found {
    pub fn place(&self) -> Option<Place> {
        self.memory.block().map(|b| b.place(self.range.address))
    }
}

/// An ended registration that may still be in use.
struct Draining {
    slot: u32,
    memory: Arc<Memory>,
    waiting: Vec<Completion>,
}

/// All registrations of this process, and the state of ended ones that are still in use.
#[derive(Default)]
struct State {
    entries: HashMap<Id, Entry>,
    free: Vec<u32>,
    next: u32,
    leases: BTreeMap<(Instant, Id), ()>,
    /// The number of uses of each slot by this process itself.
    pins: HashMap<u32, u32>,
    peers: HashMap<u64, Arc<Words>>,
    draining: Vec<Draining>,
    tombstones: VecDeque<(Id, Instant, String)>,
}

/// The registered memory of this process.
pub struct Registry {
    epochs: Words,
    state: Mutex<State>,
    /// The registrations that devices can reach.
    pub exports: Arc<Exports>,
}

/// Keeps registered memory in place while the holder uses it.
pub struct Pin {
    registry: Arc<Registry>,
    slot: u32,
    epoch: u64,
    pub range: Range,
    _memory: Arc<Memory>,
}

impl Pin {
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the registration has not ended.
    pub fn is_current(&self) -> bool {
        self.registry.epochs.load(self.slot as usize) == self.epoch
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if net::forked_child::is_child() {
            return;
        }
        let mut state = lock(&self.registry.state);
        if let Some(n) = state.pins.get_mut(&self.slot) {
            *n -= 1;
            if *n == 0 {
                state.pins.remove(&self.slot);
            }
        }
        let release_unused = !state.draining.is_empty();
        drop(state);
        if release_unused {
            self.registry.release_unused();
        }
    }
}

impl Registry {
    pub fn new() -> io::Result<Arc<Registry>> {
        let epochs = Words::new(c"monarch-rdma-epochs", EPOCHS)?;
        Ok(Arc::new(Registry { epochs, state: Mutex::default(), exports: Arc::new(Exports::new()?) }))
    }

    pub fn epochs(&self) -> &Words {
        &self.epochs
    }

    /// The number of registrations, and of ended registrations that are still in use.
    pub fn counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.entries.len(), state.draining.len())
    }

    /// Registers a range; returns its id and its epoch. The registration ends at `lease` at the latest.
    pub fn register(&self, range: Range, memory: Arc<Memory>, lease: Option<Instant>) -> Outcome<(Id, u64)> {
        self.insert(&mut lock(&self.state), range, memory, lease, None)
    }

    fn insert(
        &self,
        state: &mut State,
        range: Range,
        memory: Arc<Memory>,
        lease: Option<Instant>,
        whole: Option<(Id, u64)>,
    ) -> Outcome<(Id, u64)> {
        let id: Id = net::sys::random().map_err(|e| Failure::system("no random number", &e))?;
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.next < SLOTS => {
                state.next += 1;
                state.next - 1
            }
            None => return Err(Failure::new(Kind::Init, format!("this process has {SLOTS} buffers already"))),
        };
        // Odd while the registration exists, and even otherwise.
        let epoch = self.epochs.load(slot as usize) + 1;
        self.epochs.store(slot as usize, epoch);
        if let Some(at) = lease {
            state.leases.insert((at, id), ());
        }
        let (whole, creator) = whole.map_or((None, 0), |(id, by)| (Some(id), by));
        state.entries.insert(id, Entry { slot, epoch, range, memory, parts: HashSet::new(), whole, creator, lease });
        Ok((id, epoch))
    }

    /// Registers a part of a registration. The part can be ended separately, and ends with the whole at the latest.
    pub fn restrict(&self, id: &Id, offset: u64, len: u64, readonly: bool, creator: u64) -> Outcome<(Id, u64)> {
        let mut state = lock(&self.state);
        let entry = state.find(id)?;
        if entry.range.readonly && !readonly {
            return Err(Failure::new(Kind::Access, "a read-only handle has read-only parts"));
        }
        let address = part(entry.range, offset, len)?;
        let range = Range { address, len: len as usize, readonly };
        let (memory, lease) = (entry.memory.clone(), entry.lease);
        let made = self.insert(&mut state, range, memory, lease, Some((*id, creator)))?;
        if let Some(whole) = state.entries.get_mut(id) {
            whole.parts.insert(made.0);
        }
        Ok(made)
    }

    pub fn find(&self, id: &Id) -> Outcome<Found> {
        let state = lock(&self.state);
        let e = state.find(id)?;
        Ok(Found { slot: e.slot, epoch: e.epoch, range: e.range, memory: e.memory.clone(), creator: e.creator })
    }

    /// The reason for the end of a registration, if it is still recorded.
    pub fn why(&self, id: &Id) -> String {
        lock(&self.state).why(id)
    }

    /// Keeps these bytes in place while the result exists.
    pub fn pin(self: &Arc<Self>, id: &Id, offset: u64, len: u64, write: bool) -> Outcome<Pin> {
        let mut state = lock(&self.state);
        let entry = state.find(id)?;
        if write && entry.range.readonly {
            return Err(Failure::new(Kind::Access, "the handle is read-only"));
        }
        let address = part(entry.range, offset, len)?;
        let (slot, epoch, memory) = (entry.slot, entry.epoch, entry.memory.clone());
        *state.pins.entry(slot).or_default() += 1;
        drop(state);
        let range = Range { address, len: len as usize, readonly: !write };
        Ok(Pin { registry: self.clone(), slot, epoch, range, _memory: memory })
    }

    /// Changes an aligned word atomically; returns its previous value.
    pub fn atomic(self: &Arc<Self>, id: &Id, offset: u64, change: impl FnOnce(&AtomicU64) -> u64) -> Outcome<u64> {
        let pin = self.pin(id, offset, 8, true)?;
        if !pin.range.address.is_multiple_of(8) {
            return Err(Failure::new(Kind::Unsupported, format!("the word at offset {offset} is not aligned to 8 bytes")));
        }
        // SAFETY: eight aligned bytes of registered, writable memory, which the pin keeps.
        Ok(change(unsafe { AtomicU64::from_ptr(pin.range.address as *mut u64) }))
    }

    /// Ends a registration, if it has not ended yet; `done` is called when no copy uses it any more.
    pub fn end(&self, id: &Id, how: &str, done: Option<Completion>) {
        let mut state = lock(&self.state);
        let (mut ended, mut ids) = (vec![], vec![]);
        let mut left = vec![*id];
        while let Some(id) = left.pop() {
            let Some(entry) = state.entries.remove(&id) else { continue };
            self.epochs.store(entry.slot as usize, entry.epoch + 1);
            if let Some(at) = entry.lease {
                state.leases.remove(&(at, id));
            }
            if let Some(whole) = entry.whole.and_then(|w| state.entries.get_mut(&w)) {
                whole.parts.remove(&id);
            }
            left.extend(entry.parts);
            if state.tombstones.len() == TOMBSTONES {
                state.tombstones.pop_front();
            }
            state.tombstones.push_back((id, Instant::now(), how.to_owned()));
            ended.push(Draining { slot: entry.slot, memory: entry.memory, waiting: vec![] });
            ids.push(id);
        }
        match (done, ended.first_mut()) {
            (Some(done), Some(first)) => first.waiting.push(done),
            (Some(done), None) => {
                // The registration had ended before.
                drop(state);
                done(Ok(()));
                return;
            }
            (None, _) => {}
        }
        state.draining.extend(ended);
        drop(state);
        self.exports.note(&ids);
        self.release_unused();
    }

    /// Allows devices to reach a registration. Its memory stays until the driver has been notified of its end.
    pub fn export(self: &Arc<Self>, id: &Id, epoch: u64) -> Outcome<Range> {
        let found = self.find(id)?;
        if found.epoch != epoch {
            return Err(Failure::new(Kind::Access, "the handle has another epoch than the buffer"));
        }
        let pin = self.pin(id, 0, found.range.len as u64, false)?;
        self.exports.hold(*id, pin);
        Ok(found.range)
    }

    /// Ends a part at the request of the connection that created it; no effect for other connections.
    pub fn forget(&self, id: &Id, creator: u64) {
        let is_creator = lock(&self.state).entries.get(id).is_some_and(|e| e.creator == creator);
        if is_creator {
            self.end(id, "its handle is gone", None);
        }
    }

    /// Ends all registrations.
    pub fn end_all(&self, how: &str) {
        let all: Vec<Id> = lock(&self.state).entries.keys().copied().collect();
        all.iter().for_each(|id| self.end(id, how, None));
    }

    /// The time at which the next lease ends.
    pub fn next_lease(&self) -> Option<Instant> {
        lock(&self.state).leases.keys().next().map(|(at, _)| *at)
    }

    /// Ends the registrations whose leases have ended.
    pub fn expire(&self, now: Instant) {
        let due: Vec<Id> = lock(&self.state).leases.keys().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        due.iter().for_each(|id| self.end(id, "its lease ended", None));
    }

    /// Adds the hazards of a connected process.
    pub fn add_peer(&self, number: u64, hazards: Arc<Words>) {
        lock(&self.state).peers.insert(number, hazards);
    }

    /// Removes a process; its uses end with it.
    pub fn remove_peer(&self, number: u64) {
        lock(&self.state).peers.remove(&number);
        self.release_unused();
    }

    /// Releases the memory that is no longer in use.
    pub fn release_unused(&self) {
        let (mut completions, mut unused) = (vec![], vec![]);
        let mut state = lock(&self.state);
        let mut draining = std::mem::take(&mut state.draining);
        draining.retain_mut(|d| {
            let copies = state.is_used(d.slot, true);
            if !copies {
                completions.append(&mut d.waiting);
            }
            let is_in_use = copies || state.is_used(d.slot, false);
            if !is_in_use {
                state.free.push(d.slot);
                unused.push(d.memory.clone());
            }
            is_in_use
        });
        state.draining = draining;
        drop(state);
        drop(unused);
        completions.into_iter().for_each(|done| done(Ok(())));
    }
}

/// The address of a part of a range.
fn part(range: Range, offset: u64, len: u64) -> Outcome<usize> {
    match offset.checked_add(len) {
        Some(end) if end <= range.len as u64 => Ok(range.address + offset as usize),
        _ => Err(Failure::new(
            Kind::Access,
            format!("bytes {offset} to {} are outside of the buffer of {}", u128::from(offset) + u128::from(len), range.len),
        )),
    }
}

impl State {
    fn find(&self, id: &Id) -> Outcome<&Entry> {
        self.entries.get(id).ok_or_else(|| Failure::new(Kind::Released, self.why(id)))
    }

    fn why(&self, id: &Id) -> String {
        match self.tombstones.iter().rev().find(|(ended, _, _)| ended == id) {
            Some((_, at, how)) => format!("{how}, {:.1} s ago", at.elapsed().as_secs_f64()),
            None => "no such buffer: it was dropped long ago, or has never existed".to_owned(),
        }
    }

    /// Whether a slot is in use, by this process or by any connected one. `copying`: mappings do not count.
    fn is_used(&self, slot: u32, copying: bool) -> bool {
        self.pins.contains_key(&slot) || self.peers.values().any(|h| shared::is_used(h, slot, copying))
    }
}

/// The atomic addition to a word.
pub fn fetch_add(add: u64) -> impl FnOnce(&AtomicU64) -> u64 {
    move |word| word.fetch_add(add, Ordering::SeqCst)
}

/// The atomic replacement of a word that has the expected value.
pub fn compare_swap(compare: u64, swap: u64) -> impl FnOnce(&AtomicU64) -> u64 {
    move |word| word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|was| was)
}
