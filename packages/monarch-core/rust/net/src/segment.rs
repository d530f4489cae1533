//! The receiver's view of a sender's arena.
//!
//! A writable part is mapped privately (copy on write), so that only the pages are copied that are written. Readers of a read-only part
//! copy its bytes. The block returns to its owner when the part is dropped.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock, Weak};

use wire::{BlockId, Bytes, Part};

use crate::arena::Block;
use crate::forked_child;
use crate::link::Link;
use crate::sys;

/// A segment of the peer's arena, which is mapped on the first read.
pub struct RecvSegment {
    fd: OwnedFd,
    len: u64,
    view: OnceLock<View>,
}

/// The read-only mapping of a segment.
struct View(*const u8, usize);

// SAFETY: a read-only mapping.
unsafe impl Send for View {}
unsafe impl Sync for View {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: `RecvSegment::view` made the mapping, and every user holds the segment.
        unsafe { sys::unmap(self.0.cast_mut(), self.1) };
    }
}

impl RecvSegment {
    pub fn new(fd: OwnedFd, len: u64) -> Self {
        RecvSegment { fd, len, view: OnceLock::new() }
    }

    fn view(&self) -> io::Result<&View> {
        if let Some(v) = self.view.get() {
            return Ok(v);
        }
        let p = sys::map(self.fd.as_raw_fd(), 0, self.len as usize, &sys::Share::SharedReadOnly)?;
        // Two threads may map at once; the second drops its mapping.
        let view = View(p, self.len as usize);
        Ok(self.view.get_or_init(|| view))
    }
}

/// The right of this process to read a block. The owner keeps the block until the lease is dropped.
pub struct Lease {
    link: Weak<Link>,
    segment: Arc<RecvSegment>,
    block: BlockId,
    len: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !forked_child::is_child()
            && let Some(link) = self.link.upgrade()
        {
            link.release(self.block, self.len);
        }
    }
}

/// A large or small part in the receiving process.
#[derive(Clone)]
pub enum RecvPart {
    Inline {
        data: Bytes,
        readonly: bool,
    },
    /// A block of the peer's arena.
    Shared {
        lease: Arc<Lease>,
        readonly: bool,
    },
    /// A part in the arena of this process.
    Own {
        block: Arc<Block>,
        readonly: bool,
    },
}

impl RecvPart {
    /// Takes over a part that arrived on `link`. `None` for a block outside its segment.
    pub fn accept(part: Part, link: Option<&Arc<Link>>) -> Option<RecvPart> {
        match part {
            Part::Inline { data, readonly } => Some(RecvPart::Inline { data, readonly }),
            Part::Shared { block, len, readonly } => {
                let link = link?;
                let segment = link.segment(block.segment)?;
                let end = block.offset.checked_add(len)?;
                if end > segment.len || !block.offset.is_multiple_of(sys::page() as u64) {
                    return None;
                }
                let lease = Lease { link: Arc::downgrade(link), segment, block, len: len as usize };
                Some(RecvPart::Shared { lease: Arc::new(lease), readonly })
            }
            // The caller holds these parts and looks them up by their numbers.
            Part::OutOfBand { .. } | Part::Offered { .. } => None,
        }
    }

    /// The placeholder of a part that does not arrive. Its length differs from the one in the frame, so the frame is found incomplete.
    pub fn lost() -> RecvPart {
        RecvPart::Inline { data: Bytes::Own(Box::default()), readonly: true }
    }

    /// The part with the read-only flag of the frame that names it.
    pub fn described(self, as_readonly: bool) -> RecvPart {
        match self {
            RecvPart::Inline { data, .. } => RecvPart::Inline { data, readonly: as_readonly },
            RecvPart::Shared { lease, .. } => RecvPart::Shared { lease, readonly: as_readonly },
            RecvPart::Own { block, .. } => RecvPart::Own { block, readonly: as_readonly },
        }
    }

    pub fn len(&self) -> usize {
        match self {
            RecvPart::Inline { data, .. } => data.len(),
            RecvPart::Shared { lease, .. } => lease.len,
            RecvPart::Own { block, .. } => block.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn readonly(&self) -> bool {
        match self {
            RecvPart::Inline { readonly, .. } | RecvPart::Shared { readonly, .. } | RecvPart::Own { readonly, .. } => *readonly,
        }
    }

    /// The bytes, for copying and comparing.
    pub fn bytes(&self) -> io::Result<&[u8]> {
        match self {
            RecvPart::Inline { data, .. } => Ok(data),
            RecvPart::Own { block, .. } => Ok(block.bytes()),
            RecvPart::Shared { lease, .. } => {
                let view = lease.segment.view()?;
                // SAFETY: `accept` has checked the range against the segment's length. The owner does not write to a leased block.
                Ok(unsafe { std::slice::from_raw_parts(view.0.add(lease.block.offset as usize), lease.len) })
            }
        }
    }

    /// A private, writable mapping without a copy; `None` for parts that are not in shared memory.
    pub fn map(&self) -> io::Result<Option<Mapping>> {
        let (fd, offset): (RawFd, u64) = match self {
            RecvPart::Inline { .. } => return Ok(None),
            RecvPart::Shared { lease, .. } => (lease.segment.fd.as_raw_fd(), lease.block.offset),
            RecvPart::Own { block, .. } => (block.segment.fd().as_raw_fd(), block.id().offset),
        };
        let size = self.len().max(1).next_multiple_of(sys::page());
        let p = sys::map(fd, offset, size, &sys::Share::Private)?;
        Ok(Some(Mapping { p, size, len: self.len(), _part: self.clone() }))
    }
}

/// A writable private mapping of a block.
pub struct Mapping {
    p: *mut u8,
    size: usize,
    len: usize,
    _part: RecvPart,
}

// SAFETY: private memory with one owner.
unsafe impl Send for Mapping {}
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn as_ptr(&self) -> *mut u8 {
        self.p
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, and all views of it hold this value.
        unsafe { sys::unmap(self.p, self.size) };
    }
}
