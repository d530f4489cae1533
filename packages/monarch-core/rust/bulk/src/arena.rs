//! Memory that other processes can map.
//!
//! A large allocation is a sealed memfd of its own. Small ones are allocated from common segments, because each memfd costs a descriptor on
//! both sides; a process that maps one of them can also read its neighbours. New memory is zero: freed memory goes back to the kernel.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use net::arena::FreeList;
use net::lock::lock;
use net::sys::{self as base, Share};

use crate::frames::Place;
use crate::sys::{self, HUGE_PAGE};

/// Least size of an allocation with a segment of its own.
const MIN_OWN_SEGMENT: usize = 1 << 20;
/// Size of a segment that small allocations share; sparse until it is used.
const COMMON_SEGMENT: usize = 16 << 20;

/// A memfd with its mapping: the memory of one large block, or of many small ones.
struct Segment {
    id: u64,
    fd: OwnedFd,
    base: *mut u8,
    len: usize,
    /// The free ranges of a common segment.
    free: Option<Mutex<FreeList>>,
}

// SAFETY: `base` is a shared mapping, and its blocks do not overlap.
unsafe impl Send for Segment {}
unsafe impl Sync for Segment {}

impl Segment {
    fn new(id: u64, len: usize, huge: Option<bool>, common: bool) -> io::Result<Segment> {
        let fd = sys::sealed_memfd(c"monarch-rdma", len as u64, huge == Some(true))?;
        let base = base::map(fd.as_raw_fd(), 0, len, &Share::Shared)?;
        if huge.is_none() && len >= HUGE_PAGE {
            // SAFETY: the mapping was just made.
            unsafe { base::advise(base, len, libc::MADV_HUGEPAGE) };
        }
        Ok(Segment { id, fd, base, len, free: common.then(|| Mutex::new(FreeList::new(len as u64))) })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: no block is left, because each block holds the segment.
        unsafe { base::unmap(self.base, self.len) };
    }
}

/// Receives the address and the length of a block that is freed.
type OnFree = Box<dyn Fn(usize, usize) + Send + Sync>;

/// An allocation; freed on drop.
pub struct Block {
    arena: Weak<Arena>,
    segment: Arc<Segment>,
    offset: usize,
    size: usize,
    len: usize,
    /// The number of this block, which no other block ever has, whatever its address.
    serial: u64,
    /// Called with the address and the length when the block is freed.
    on_free: OnceLock<OnFree>,
}

impl Block {
    pub fn address(&self) -> usize {
        self.segment.base as usize + self.offset
    }

    /// The requested length.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd.as_fd()
    }

    /// The number of this block, unique in the process. The `on_free` of the first call is called when the block is freed.
    pub fn watched(&self, on_free: impl Fn(usize, usize) + Send + Sync + 'static) -> u64 {
        self.on_free.get_or_init(|| Box::new(on_free));
        self.serial
    }

    /// The segment and the offset of an address of this block.
    pub fn place(&self, address: usize) -> Place {
        let (segment, len) = (self.segment.id, self.segment.len as u64);
        Place { segment, len, offset: (address - self.segment.base as usize) as u64 }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The pages also belong to the parent process.
        if net::forked_child::is_child() {
            return;
        }
        if let Some(arena) = self.arena.upgrade() {
            lock(&arena.blocks).remove(&self.address());
        }
        if let Some(free) = &self.segment.free {
            // SAFETY: this block owns the range until the end of this function, and no thread reads it any more.
            unsafe { base::advise(self.address() as *mut u8, self.size, libc::MADV_REMOVE) };
            lock(free).give(self.offset as u64, self.size as u64);
        }
        if let Some(on_free) = self.on_free.get() {
            on_free(self.address(), self.len);
        }
    }
}

/// The memory of one process that others can map. Blocks hold their segment, and the arena finds a block by an address.
#[derive(Default)]
pub struct Arena {
    common: Mutex<Vec<Arc<Segment>>>,
    /// The living blocks by address.
    blocks: Mutex<BTreeMap<usize, Weak<Block>>>,
    next: AtomicU64,
    blocks_made: AtomicU64,
}

impl Arena {
    pub fn new() -> Arc<Arena> {
        Arc::default()
    }

    /// Allocates memory. `huge`: with pages of 2 MiB or an error (true), without them (false), or as the system chooses (`None`).
    pub fn allocate(self: &Arc<Self>, len: usize, huge: Option<bool>) -> io::Result<Arc<Block>> {
        let page = if huge == Some(true) { HUGE_PAGE } else { base::page() };
        let size = len.max(1).checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        let (segment, offset) = if size >= MIN_OWN_SEGMENT || huge == Some(true) {
            (Arc::new(Segment::new(self.next.fetch_add(1, Ordering::Relaxed), size, huge, false)?), 0)
        } else {
            self.cut(size)?
        };
        let serial = self.blocks_made.fetch_add(1, Ordering::Relaxed);
        let block = Arc::new(Block { arena: Arc::downgrade(self), segment, offset, size, len, serial, on_free: OnceLock::new() });
        lock(&self.blocks).insert(block.address(), Arc::downgrade(&block));
        Ok(block)
    }

    fn cut(&self, size: usize) -> io::Result<(Arc<Segment>, usize)> {
        let mut common = lock(&self.common);
        let take = |s: &Arc<Segment>| s.free.as_ref().and_then(|f| lock(f).take(size as u64)).map(|at| (s.clone(), at as usize));
        if let Some(found) = common.iter().find_map(take) {
            return Ok(found);
        }
        // Dropped common segments had no block; the kernel already has their memory, and only their descriptor was left.
        common.retain(|s| Arc::strong_count(s) > 1);
        let fresh = Arc::new(Segment::new(self.next.fetch_add(1, Ordering::Relaxed), COMMON_SEGMENT, None, true)?);
        common.push(fresh.clone());
        take(&fresh).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// The allocation that contains this range, if any.
    pub fn find(&self, address: usize, len: usize) -> Option<Arc<Block>> {
        let blocks = lock(&self.blocks);
        let block = blocks.range(..=address).next_back()?.1.upgrade()?;
        let end = address.checked_add(len)?;
        (end <= block.address() + block.len()).then_some(block)
    }
}
