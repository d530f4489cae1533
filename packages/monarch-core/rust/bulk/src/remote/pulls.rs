//! Pulls of large parts of messages from the processes that offer them.
//!
//! The parts of one owner arrive in the order of the requests, cut so that each stream has a share of them; owners do not wait for each
//! other. Threads exist while parts are pulled, and the last one of an owner a little longer. It then closes the unused streams, because
//! each costs a thread on the other side.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use net::Block;
use net::lock::lock;

use super::owner::{Piece, RemoteOwner};
use super::{Fabric, Offer};
use crate::failure::{Failure, Kind};
use crate::spans::{Span, Spans};

/// Least bytes that one stream pulls at a time.
const SLICE: usize = 4 << 20;
/// Bytes of memory whose pages are made ahead of the arriving bytes.
const PREFAULT: usize = 8 << 20;
/// How long an idle thread waits for another part.
const IDLE: Duration = Duration::from_secs(5);
/// Time limit of a pull, in addition to the time that a network of `SLOW` bytes per second needs. After it the part is sent by another
/// transport.
const PULL_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes per second of the slowest network that a pull still waits for.
const SLOW: u64 = 4 << 20;

/// Receives the outcome of a pull.
pub type Done = Box<dyn FnOnce(Result<(), Failure>) + Send>;

/// A part that is being pulled or waits for it: the next byte to request, and the sections in progress.
struct Part {
    offer: Offer,
    block: Arc<Block>,
    until: Instant,
    next: usize,
    busy: usize,
    failed: Option<Failure>,
    done: Option<Done>,
}

/// The parts of one owner, in the order of their requests.
#[derive(Default)]
struct Queue {
    /// Only the first parts are being pulled.
    parts: VecDeque<Part>,
    /// The number of the first part.
    first: u64,
    threads: usize,
}

/// One owner with its streams and the queue of its parts.
struct Owner {
    remote_owner: Arc<RemoteOwner>,
    queue: Mutex<Queue>,
    more: Condvar,
}

/// A section of a part, for one thread.
struct Slice {
    part: u64,
    offer: Offer,
    block: Arc<Block>,
    until: Instant,
    at: usize,
    len: usize,
}

/// The pulls of one process, from any number of owners.
pub struct Pulls {
    fabric: Arc<dyn Fabric>,
    width: usize,
    owners: Mutex<HashMap<u64, Arc<Owner>>>,
}

impl Pulls {
    /// `width`: most streams to one owner.
    pub fn new(fabric: Arc<dyn Fabric>, width: usize) -> Pulls {
        Pulls { fabric, width: width.max(1), owners: Mutex::default() }
    }

    /// Fills the block with the part that the owner offers. No other thread reads the block meanwhile. `done` is called on a pulling thread
    /// or, if no thread can be started, on the calling one.
    pub fn pull(&self, owner: u64, offer: Offer, block: Arc<Block>, done: Done) {
        let mut owners = lock(&self.owners);
        let remote_owner = || RemoteOwner::new(owner, self.fabric.clone(), self.width);
        let made = || Arc::new(Owner { remote_owner: remote_owner(), queue: Mutex::default(), more: Condvar::new() });
        let of = owners.entry(owner).or_insert_with(made).clone();
        drop(owners);
        let until = Instant::now() + PULL_TIMEOUT + Duration::from_secs(block.len() as u64 / SLOW);
        let wanted = block.len().div_ceil(self.width).max(SLICE);
        let slices = block.len().div_ceil(wanted).max(1);
        let mut queue = lock(&of.queue);
        queue.parts.push_back(Part { offer, block, until, next: 0, busy: 0, failed: None, done: Some(done) });
        let start = slices.min(self.width.saturating_sub(queue.threads));
        queue.threads += start;
        drop(queue);
        of.more.notify_all();
        for _ in 0..start {
            let (of, width) = (of.clone(), self.width);
            let owner = of.clone();
            if crate::pool::spawn("monarch-pull", move || of.work(width)).is_err() {
                owner.has_no_thread();
            }
        }
    }
}

impl Queue {
    /// The next section to pull.
    fn take(&mut self, width: usize) -> Option<Slice> {
        for (i, part) in self.parts.iter_mut().enumerate() {
            let len = part.block.len();
            if part.next >= len || part.failed.is_some() {
                continue;
            }
            let (at, n) = (part.next, len.div_ceil(width).max(SLICE).min(len - part.next));
            part.next += n;
            part.busy += 1;
            let (offer, block, until) = (part.offer, part.block.clone(), part.until);
            return Some(Slice { part: self.first + i as u64, offer, block, until, at, len: n });
        }
        None
    }

    /// Records the outcome of a section; returns the callback of the part if the part is finished.
    fn put(&mut self, slice: &Slice, outcome: Result<(), Failure>) -> Option<(Done, Result<(), Failure>)> {
        let part = self.parts.get_mut((slice.part - self.first) as usize)?;
        part.busy -= 1;
        if let Err(f) = outcome {
            part.failed.get_or_insert(f);
        }
        let is_finished = part.busy == 0 && (part.next >= part.block.len() || part.failed.is_some());
        let finished = if is_finished { part.done.take() } else { None };
        let finished = finished.map(|done| (done, part.failed.take().map_or(Ok(()), Err)));
        if is_finished {
            part.next = part.block.len();
        }
        while self.parts.front().is_some_and(|p| p.done.is_none()) {
            self.parts.pop_front();
            self.first += 1;
        }
        finished
    }
}

impl Owner {
    /// The loop of a pulling thread.
    fn work(&self, width: usize) {
        let mut queue = lock(&self.queue);
        loop {
            let Some(slice) = queue.take(width) else {
                let (next, waited) = self.more.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
                queue = next;
                if waited.timed_out() && queue.parts.is_empty() {
                    queue.threads -= 1;
                    if queue.threads == 0 {
                        drop(queue);
                        self.remote_owner.close_idle();
                    }
                    return;
                }
                continue;
            };
            drop(queue);
            let outcome = self.copy(&slice);
            queue = lock(&self.queue);
            if let Some((done, outcome)) = queue.put(&slice, outcome) {
                drop(queue);
                // The callback may release the memory, which the section holds.
                drop(slice);
                done(outcome);
                queue = lock(&self.queue);
            }
        }
    }

    /// Pulls one section into the block.
    fn copy(&self, slice: &Slice) -> Result<(), Failure> {
        let mut made = slice.at;
        let end = slice.at + slice.len;
        let mut done = slice.at;
        let mut make = |done: usize| {
            if made < end && made < done + PREFAULT / 2 {
                let n = PREFAULT.min(end - made);
                slice.block.prepare(made, n);
                made += n;
            }
        };
        make(done);
        // SAFETY: the offset is inside the block.
        let local = unsafe { slice.block.address().add(slice.at) } as usize;
        let Offer { id, epoch } = slice.offer;
        let spans = Spans::new(vec![Span::contiguous(false, local, slice.at as u64, slice.len as u64)]);
        let piece = Piece { id, epoch, write: false, spans };
        let moved = |n: usize| {
            done += n;
            make(done);
        };
        // SAFETY: memory of the block, which stays until the end of the section and has no other user.
        unsafe { self.remote_owner.copy(&mut [piece], slice.until, moved) }
    }

    /// Counts a thread that could not be started. If no thread is left, all pulls fail.
    fn has_no_thread(&self) {
        let mut queue = lock(&self.queue);
        queue.threads -= 1;
        if queue.threads > 0 {
            return;
        }
        let parts: Vec<Part> = queue.parts.drain(..).collect();
        queue.first += parts.len() as u64;
        drop(queue);
        for done in parts.into_iter().filter_map(|p| p.done) {
            done(Err(Failure::new(Kind::Transfer, "no thread can be started")));
        }
    }
}
