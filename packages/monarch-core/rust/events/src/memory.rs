//! The mapping of a ring: a memory file without a name, which the kernel frees with its last descriptor and mapping.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

use crate::layout::Words;

/// A mapped ring, for writing in its own process or for reading in any other one.
pub struct Memory {
    base: *mut AtomicU64,
    words: usize,
}

// SAFETY: atomic words that are mapped as long as this value exists.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Memory {
    /// New zeroed memory whose size is sealed, so that no reader finds it truncated.
    pub fn create(bytes: usize) -> io::Result<(Memory, OwnedFd)> {
        // SAFETY: a constant name; the descriptor is new and has no other owner.
        let fd = unsafe {
            let fd = libc::memfd_create(c"monarch-events".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: an own descriptor.
        let sized = unsafe {
            libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) == 0
        };
        if !sized {
            return Err(io::Error::last_os_error());
        }
        Ok((Memory::map(fd.as_raw_fd(), bytes, true)?, fd))
    }

    /// Maps the memory behind a descriptor for reading.
    pub fn open(fd: RawFd) -> io::Result<Memory> {
        // SAFETY: a local structure that the kernel fills.
        let bytes = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &mut found) != 0 {
                return Err(io::Error::last_os_error());
            }
            usize::try_from(found.st_size).unwrap_or(0)
        };
        if bytes < crate::layout::HEADER || bytes % 8 != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a ring of events"));
        }
        // SAFETY: reads the seals. A file without them could shrink under the mapping.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a ring of events: its size is not sealed"));
        }
        Memory::map(fd, bytes, false)
    }

    fn map(fd: RawFd, bytes: usize, writes: bool) -> io::Result<Memory> {
        let access = if writes { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping of a whole file.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Memory { base: p.cast(), words: bytes / 8 })
    }

    pub fn words(&self) -> &Words {
        // SAFETY: mapped for the life of `self` and page-aligned; any bits are a valid atomic word.
        unsafe { std::slice::from_raw_parts(self.base, self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping; no reference outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.words * 8) };
    }
}
