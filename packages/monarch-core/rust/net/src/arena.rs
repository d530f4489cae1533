//! The sender's shared memory for large parts.
//!
//! Page faults, not copies, are what a large argument costs, so memory is reused: segments are memfds that
//! stay mapped, blocks are cut from the lowest free offset so that the same warm pages serve again and again.
//! A block is freed when the last `Arc` of it goes: the sender holds one while it writes, each link one per
//! message until the receiver says that it has let go (or dies).
//!
//! Sizes: a normal segment is 64 MiB of sparse address space; up to `KEEP` bytes of segments are kept when
//! they are empty, the rest goes back to the kernel at once. After a second without use all but `IDLE_KEEP` goes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use wire::BlockId;

use crate::forked_child;
use crate::lock::lock;
use crate::sys::{self, PAGE};

pub const SEGMENT: u64 = 64 << 20;
/// Empty segments beyond this many bytes are given back at once. Two arguments of 256 MiB overlap when they follow
/// each other, and their answers too.
pub const KEEP: u64 = 1 << 30;
/// What stays when nobody has used the arena for `IDLE`.
pub const IDLE_KEEP: u64 = SEGMENT;
pub const IDLE: Duration = Duration::from_secs(1);

/// Runs a task after a delay.
pub type Later = Box<dyn Fn(Duration, Box<dyn FnOnce() + Send>) + Send + Sync>;

/// Free space of one segment: offset to length, neighbours merged.
#[derive(Debug)]
pub struct FreeList {
    free: BTreeMap<u64, u64>,
}

impl FreeList {
    pub fn new(len: u64) -> Self {
        FreeList { free: BTreeMap::from([(0, len)]) }
    }

    /// The lowest offset that fits.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let (&at, &have) = self.free.iter().find(|&(_, &have)| have >= len)?;
        self.free.remove(&at);
        if have > len {
            self.free.insert(at + len, have - len);
        }
        Some(at)
    }

    pub fn give(&mut self, mut at: u64, mut len: u64) {
        if let Some((&before, &blen)) = self.free.range(..at).next_back()
            && before + blen == at
        {
            self.free.remove(&before);
            (at, len) = (before, blen + len);
        }
        if let Some(after) = self.free.remove(&(at + len)) {
            len += after;
        }
        self.free.insert(at, len);
    }

    pub fn is_whole(&self, len: u64) -> bool {
        self.free.get(&0) == Some(&len)
    }
}

pub struct Segment {
    pub id: u32,
    pub len: u64,
    fd: OwnedFd,
    base: *mut u8,
    free: Mutex<FreeList>,
    /// Bytes from the start that have been written once, so whose pages exist.
    touched: Mutex<u64>,
}

// SAFETY: `base` is a shared mapping; blocks of it are handed out disjointly.
unsafe impl Send for Segment {}
unsafe impl Sync for Segment {}

impl Segment {
    fn new(id: u32, len: u64) -> io::Result<Self> {
        let fd = sys::memfd(len)?;
        let base = sys::map(fd.as_raw_fd(), 0, len as usize, &sys::Share::Shared)?;
        // SAFETY: just mapped. Huge pages where the system allows them for shared memory.
        unsafe { sys::advise(base, len as usize, libc::MADV_HUGEPAGE) };
        Ok(Segment { id, len, fd, base, free: Mutex::new(FreeList::new(len)), touched: Mutex::new(0) })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A receiver may hold a descriptor until it hears that the segment is gone; the memory is free at once.
        sys::discard(self.fd.as_raw_fd(), self.len);
        // SAFETY: no block is left, each held an Arc of this segment.
        unsafe { sys::unmap(self.base, self.len as usize) };
    }
}

#[derive(Default)]
struct Segments {
    all: Vec<Arc<Segment>>,
    next: u32,
}

#[derive(Default)]
pub struct Arena {
    segments: Mutex<Segments>,
    later: OnceLock<Later>,
    trim_is_due: AtomicBool,
    /// Blocks cut since the last look.
    used: AtomicBool,
}

/// A piece of the arena; freed on drop.
pub struct Block {
    arena: Weak<Arena>,
    pub segment: Arc<Segment>,
    offset: u64,
    size: u64,
    len: usize,
}

impl Arena {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A block of at least `len` bytes, at a page boundary.
    pub fn alloc(self: &Arc<Self>, len: usize) -> io::Result<Block> {
        let size = (len.max(1) as u64).next_multiple_of(PAGE as u64);
        self.used.store(true, Ordering::Relaxed);
        let mut segments = lock(&self.segments);
        let found = segments.all.iter().find_map(|s| lock(&s.free).take(size).map(|at| (s.clone(), at)));
        let (segment, offset) = match found {
            Some(found) => found,
            None => {
                let segment = Arc::new(Segment::new(segments.next, size.max(SEGMENT))?);
                segments.next += 1;
                segments.all.push(segment.clone());
                // A fresh segment is at least as long as the block.
                let at = lock(&segment.free).take(size).ok_or(io::ErrorKind::OutOfMemory)?;
                (segment, at)
            }
        };
        Ok(Block { arena: Arc::downgrade(self), segment, offset, size, len })
    }

    /// Bytes of address space in use by segments.
    pub fn reserved(&self) -> u64 {
        lock(&self.segments).all.iter().map(|s| s.len).sum()
    }

    /// Names who runs the trimming of an idle arena; without it nothing is trimmed.
    pub fn trim_with(&self, later: Later) {
        let _ = self.later.set(later);
    }

    fn trim_later(self: &Arc<Self>) {
        if let Some(later) = self.later.get()
            && !self.trim_is_due.swap(true, Ordering::AcqRel)
        {
            let me = Arc::downgrade(self);
            later(
                IDLE,
                Box::new(move || {
                    if let Some(arena) = me.upgrade() {
                        arena.trim_is_due.store(false, Ordering::Release);
                        if arena.used.swap(false, Ordering::AcqRel) { arena.trim_later() } else { arena.trim(IDLE_KEEP) }
                    }
                }),
            );
        }
    }

    /// Gives empty segments back, largest first, until no more than `keep` bytes are left or none is empty.
    pub fn trim(&self, keep: u64) {
        let mut segments = lock(&self.segments);
        segments.all.sort_by_key(|s| s.len);
        let mut total: u64 = segments.all.iter().map(|s| s.len).sum();
        for i in (0..segments.all.len()).rev() {
            if total > keep && lock(&segments.all[i].free).is_whole(segments.all[i].len) {
                total -= segments.all.remove(i).len;
            }
        }
    }

    fn give(self: &Arc<Self>, block: &Block) {
        self.give_back(block);
        if self.reserved() > IDLE_KEEP {
            self.trim_later();
        }
    }

    fn give_back(&self, block: &Block) {
        let mut segments = lock(&self.segments);
        lock(&block.segment.free).give(block.offset, block.size);
        let total: u64 = segments.all.iter().map(|s| s.len).sum();
        if total > KEEP && lock(&block.segment.free).is_whole(block.segment.len) {
            segments.all.retain(|s| !Arc::ptr_eq(s, &block.segment));
        }
    }
}

impl Block {
    pub fn id(&self) -> BlockId {
        BlockId { segment: self.segment.id, offset: self.offset }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What `fill` has put in.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping of the segment, which the block keeps; nobody writes to a block that can be shared.
        unsafe { std::slice::from_raw_parts(self.segment.base.add(self.offset as usize), self.len) }
    }

    /// Copies the bytes in; pages that do not exist yet are made in one go, which is several times faster
    /// than one fault each.
    pub fn fill(&mut self, src: &[u8]) {
        self.fill_at(0, src);
    }

    /// The same from a place in the block on; what does not fit is left out.
    pub fn fill_at(&mut self, at: usize, src: &[u8]) {
        let n = src.len().min((self.size as usize).saturating_sub(at));
        self.prepare(at, n);
        // SAFETY: the block is ours alone until it is sent, and long enough.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.address().add(at), n) };
    }

    /// Where it is, for whoever fills it some other way before anybody else sees it.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: inside the mapping of the segment.
        unsafe { self.segment.base.add(self.offset as usize) }
    }

    /// Makes pages that do not exist yet: so many bytes are going to be written there.
    pub fn prepare(&self, at: usize, n: usize) {
        let n = n.min((self.size as usize).saturating_sub(at));
        let start = self.offset + at as u64;
        let end = start + n as u64;
        let mut touched = lock(&self.segment.touched);
        if end > *touched {
            let from = (*touched).max(start);
            let from = from - from % PAGE as u64;
            // SAFETY: inside the segment's mapping.
            unsafe {
                sys::advise(
                    self.segment.base.add(from as usize),
                    (end.next_multiple_of(PAGE as u64) - from) as usize,
                    libc::MADV_POPULATE_WRITE,
                );
            }
            *touched = end.next_multiple_of(PAGE as u64);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !forked_child::is_child()
            && let Some(arena) = self.arena.upgrade()
        {
            arena.give(self);
        }
    }
}
