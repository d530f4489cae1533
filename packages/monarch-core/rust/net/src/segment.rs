//! The receiver's view of a sender's arena.
//!
//! A writable part is mapped privately (copy on write), so that nothing is copied until it is written to;
//! a read-only part is copied out by whoever wants it. The block goes back to its owner on drop.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock, Weak};

use wire::{BlockId, Bytes, Part};

use crate::arena::Block;
use crate::forked_child;
use crate::link::Link;
use crate::sys::{self, PAGE};

pub struct RecvSegment {
    fd: OwnedFd,
    len: u64,
    view: OnceLock<View>,
}

struct View(*const u8, usize);

// SAFETY: a read-only mapping.
unsafe impl Send for View {}
unsafe impl Sync for View {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped by `RecvSegment::view`, and every user holds the segment.
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
        // Of two that map it at once, the one that comes second unmaps.
        let view = View(p, self.len as usize);
        Ok(self.view.get_or_init(|| view))
    }
}

/// A block that its owner keeps for us until this is dropped.
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

/// A part as the receiving process holds it.
#[derive(Clone)]
pub enum RecvPart {
    Inline {
        data: Bytes,
        readonly: bool,
    },
    Shared {
        lease: Arc<Lease>,
        readonly: bool,
    },
    /// In the arena of this process.
    Own {
        block: Arc<Block>,
        readonly: bool,
    },
}

impl RecvPart {
    /// Takes over a part that came through `link`; a block outside its segment is refused.
    pub fn adopt(part: Part, link: Option<&Arc<Link>>) -> Option<RecvPart> {
        match part {
            Part::Inline { data, readonly } => Some(RecvPart::Inline { data, readonly }),
            Part::Shared { block, len, readonly } => {
                let link = link?;
                let segment = link.segment(block.segment)?;
                let end = block.offset.checked_add(len)?;
                if end > segment.len || block.offset % PAGE as u64 != 0 {
                    return None;
                }
                let lease = Lease { link: Arc::downgrade(link), segment, block, len: len as usize };
                Some(RecvPart::Shared { lease: Arc::new(lease), readonly })
            }
            // Whoever has it knows.
            Part::Ahead { .. } | Part::Lent { .. } => None,
        }
    }

    /// Stands for a part that does not come: the frame that names it finds that it is not what it should be.
    pub fn lost() -> RecvPart {
        RecvPart::Inline { data: Bytes::Own(Box::default()), readonly: true }
    }

    /// The same part, as the frame that it belongs to describes it.
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

    /// The bytes, to copy or compare.
    pub fn bytes(&self) -> io::Result<&[u8]> {
        match self {
            RecvPart::Inline { data, .. } => Ok(data),
            RecvPart::Own { block, .. } => Ok(block.bytes()),
            RecvPart::Shared { lease, .. } => {
                let view = lease.segment.view()?;
                // SAFETY: checked against the segment's length in `adopt`; the owner does not write to a leased block.
                Ok(unsafe { std::slice::from_raw_parts(view.0.add(lease.block.offset as usize), lease.len) })
            }
        }
    }

    /// A private, writable view without copying; only for parts in shared memory.
    pub fn map(&self) -> io::Result<Option<Mapping>> {
        let (fd, offset): (RawFd, u64) = match self {
            RecvPart::Inline { .. } => return Ok(None),
            RecvPart::Shared { lease, .. } => (lease.segment.fd.as_raw_fd(), lease.block.offset),
            RecvPart::Own { block, .. } => (block.segment.fd().as_raw_fd(), block.id().offset),
        };
        let size = self.len().max(1).next_multiple_of(PAGE);
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
        // SAFETY: mapped in `map`, and views into it hold the owner.
        unsafe { sys::unmap(self.p, self.size) };
    }
}
