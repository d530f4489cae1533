//! The sender's shared memory for large parts.
//!
//! The main cost of a large argument is page faults, not copies, so memory is reused. Segments are memfds that stay mapped, and blocks are
//! allocated at the lowest free offset, so that the same warm pages are used again. A block is freed when the last `Arc` of it is dropped.
//! The sender holds one while it writes. Each link holds one per message until the receiver has released the block or has ended.
//!
//! A normal segment is 64 MiB of sparse address space. Up to `KEEP` bytes of empty segments are kept; the kernel gets the rest back at
//! once. After a second without use, all but `IDLE_KEEP` bytes go back.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use wire::BlockId;

use crate::forked_child;
use crate::lock::lock;
use crate::sys;

/// Size of an ordinary segment; a larger block gets a segment of its own size.
pub const SEGMENT: u64 = 64 << 20;
/// Total size of the segments above which an empty segment is returned to the kernel at once. 1 GiB holds two successive arguments of 256
/// MiB, which overlap in time, and the two results.
pub const KEEP: u64 = 1 << 30;
/// Total size of the segments that remain when no block has been allocated for `IDLE`.
pub const IDLE_KEEP: u64 = SEGMENT;
/// The time without an allocation after which the arena counts as idle.
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

    /// Takes `len` bytes at the lowest free offset with enough room.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let (&at, &have) = self.free.iter().find(|&(_, &have)| have >= len)?;
        self.free.remove(&at);
        if have > len {
            self.free.insert(at + len, have - len);
        }
        Some(at)
    }

    /// Returns a range and merges it with its neighbours.
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

    /// Whether all of the segment is free.
    pub fn is_whole(&self, len: u64) -> bool {
        self.free.get(&0) == Some(&len)
    }
}

/// A memfd, its mapping and its free ranges. Blocks and the arena hold it.
pub struct Segment {
    pub id: u32,
    pub len: u64,
    fd: OwnedFd,
    base: *mut u8,
    free: Mutex<FreeList>,
    /// The number of bytes from the start that have been written at least once, so that their pages exist.
    touched: Mutex<u64>,
}

// SAFETY: `base` is a shared mapping, and its blocks do not overlap.
unsafe impl Send for Segment {}
unsafe impl Sync for Segment {}

impl Segment {
    fn new(id: u32, len: u64) -> io::Result<Self> {
        let fd = sys::memfd(len)?;
        let base = sys::map(fd.as_raw_fd(), 0, len as usize, &sys::Share::Shared)?;
        // SAFETY: the mapping was just made. Huge pages are used where the system allows them for shared memory.
        unsafe { sys::advise(base, len as usize, libc::MADV_HUGEPAGE) };
        Ok(Segment { id, len, fd, base, free: Mutex::new(FreeList::new(len)), touched: Mutex::new(0) })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A receiver may hold a descriptor until it is notified that the segment is gone. `discard` frees the memory at once.
        sys::discard(self.fd.as_raw_fd(), self.len);
        // SAFETY: no block is left, because each block holds an `Arc` of this segment.
        unsafe { sys::unmap(self.base, self.len as usize) };
    }
}

/// The segments of an arena, and the id of the next one.
#[derive(Default)]
struct Segments {
    all: Vec<Arc<Segment>>,
    next: u32,
}

/// The shared memory of one process for large parts that it sends.
pub struct Arena {
    /// The page size, of which all offsets and sizes of blocks are multiples.
    page: u64,
    segments: Mutex<Segments>,
    later: OnceLock<Later>,
    trim_is_due: AtomicBool,
    /// A block was allocated since the last check for idleness.
    used: AtomicBool,
}

/// A range of bytes of one segment, allocated by `Arena::alloc` and freed on drop.
pub struct Block {
    arena: Weak<Arena>,
    pub segment: Arc<Segment>,
    offset: u64,
    size: u64,
    len: usize,
}

impl Arena {
    pub fn new() -> Arc<Self> {
        Arena::with_page(sys::page())
    }

    /// An arena whose blocks begin at multiples of `page`, which is at least the kernel's page size.
    pub fn with_page(page: usize) -> Arc<Self> {
        Arc::new(Arena {
            page: page as u64,
            segments: Mutex::default(),
            later: OnceLock::new(),
            trim_is_due: AtomicBool::new(false),
            used: AtomicBool::new(false),
        })
    }

    /// Allocates a block of at least `len` bytes at a page boundary.
    pub fn alloc(self: &Arc<Self>, len: usize) -> io::Result<Block> {
        let size = (len.max(1) as u64).next_multiple_of(self.page);
        self.used.store(true, Ordering::Relaxed);
        let mut segments = lock(&self.segments);
        let found = segments.all.iter().find_map(|s| lock(&s.free).take(size).map(|at| (s.clone(), at)));
        let (segment, offset) = match found {
            Some(found) => found,
            None => {
                let segment = Arc::new(Segment::new(segments.next, size.max(SEGMENT))?);
                segments.next += 1;
                segments.all.push(segment.clone());
                // A new segment is at least as long as the block.
                let at = lock(&segment.free).take(size).ok_or(io::ErrorKind::OutOfMemory)?;
                (segment, at)
            }
        };
        Ok(Block { arena: Arc::downgrade(self), segment, offset, size, len })
    }

    /// The address space of all segments, in bytes.
    pub fn reserved(&self) -> u64 {
        lock(&self.segments).all.iter().map(|s| s.len).sum()
    }

    /// Sets the function that runs a task after a delay. Without it an idle arena is not trimmed.
    pub fn trim_with(&self, later: Later) {
        let _ = self.later.set(later);
    }

    /// Schedules a check for idleness, unless one is scheduled.
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

    /// Returns empty segments to the kernel, largest first, until at most `keep` bytes are left or no segment is empty.
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

    /// Frees a block, and schedules trimming if the arena is larger than `IDLE_KEEP`.
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

    /// The content that `fill` has written.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are inside the mapping of the segment, which the block keeps. No thread writes to a block that can be shared.
        unsafe { std::slice::from_raw_parts(self.segment.base.add(self.offset as usize), self.len) }
    }

    /// Copies `src` to the start of the block. Pages that do not exist yet are made by one call, which is several times faster than one
    /// page fault for each.
    pub fn fill(&mut self, src: &[u8]) {
        self.fill_at(0, src);
    }

    /// Copies `src` to offset `at` of the block. Bytes beyond the end of the block are left out.
    pub fn fill_at(&mut self, at: usize, src: &[u8]) {
        let n = src.len().min((self.size as usize).saturating_sub(at));
        if n == 0 {
            return;
        }
        self.prepare(at, n);
        // SAFETY: no other thread has the block until it is sent, and `n` is at most its size.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.address().add(at), n) };
    }

    /// The address of the block, for code that fills it by other means before the block is shared.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: the offset is inside the mapping of the segment.
        unsafe { self.segment.base.add(self.offset as usize) }
    }

    /// Creates the missing pages of `n` bytes from offset `at` on, before they are written.
    pub fn prepare(&self, at: usize, n: usize) {
        let n = n.min((self.size as usize).saturating_sub(at));
        let start = self.offset + at as u64;
        let end = start + n as u64;
        let mut touched = lock(&self.segment.touched);
        if end > *touched {
            let from = (*touched).max(start);
            let page = sys::page() as u64;
            let (from, end) = (from - from % page, end.next_multiple_of(page));
            // SAFETY: the range is inside the mapping of the segment.
            unsafe {
                sys::advise(self.segment.base.add(from as usize), (end - from) as usize, libc::MADV_POPULATE_WRITE);
            }
            *touched = end;
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
