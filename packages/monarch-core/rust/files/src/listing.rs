//! The entries of a directory with their attributes, as bytes: equal bytes mean that nothing has changed.
//!
//! All numbers are little-endian. A listing is the number of entries (4 bytes), a record for each entry, and their names in the same order,
//! each followed by a NUL; entries are sorted by name. A record has 64 bytes: mode, links, uid, gid (4 bytes each), device, inode, size,
//! blocks of 512 bytes, mtime and ctime in nanoseconds (8 bytes each). A time before 1677 or after 2262 is replaced by the nearest time in
//! between. Links, size, blocks and ctime of a directory are 0, because they change with its content. Symbolic links are not followed. An
//! entry that is removed during the read is left out.

use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::worker_pool;

/// Bytes of a record.
pub const RECORD: usize = 64;
/// Bytes of directory entries that one system call may return.
const BUFFER: usize = 64 << 10;

/// The listings of directories, in their order. An error for a path whose last component is a symbolic link.
pub fn list_directories(paths: &[PathBuf]) -> Vec<Result<Vec<u8>>> {
    worker_pool::each_short(paths.len(), |number| list_directory(&paths[number]))
}

fn list_directory(path: &Path) -> Result<Vec<u8>> {
    let directory = open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW)?;
    let mut names = names_in(&directory)?;
    names.sort_unstable();
    let mut records = Vec::with_capacity(4 + names.iter().map(|name| RECORD + name.as_bytes_with_nul().len()).sum::<usize>());
    records.extend_from_slice(&[0; 4]);
    let mut kept = Vec::with_capacity(names.len());
    for name in names {
        match attributes(directory.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => {
                records.extend_from_slice(&record(&found));
                kept.push(name);
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(e),
        }
    }
    records[..4].copy_from_slice(&(kept.len() as u32).to_le_bytes());
    kept.iter().for_each(|name| records.extend_from_slice(name.as_bytes_with_nul()));
    Ok(records)
}

pub(crate) fn open(path: &Path, flags: libc::c_int) -> Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))?;
    loop {
        // SAFETY: `path` ends with a NUL.
        let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: the descriptor was opened here and has no other owner.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let error = Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// The names in a directory, in the order of the kernel.
fn names_in(directory: &OwnedFd) -> Result<Vec<CString>> {
    // The kernel writes records whose first field has 8 bytes.
    let mut buffer = vec![0_u64; BUFFER / 8];
    let mut names = vec![];
    loop {
        // SAFETY: the buffer has `BUFFER` bytes.
        let read = unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer.as_mut_ptr(), BUFFER) };
        if read < 0 {
            return Err(Error::last_os_error());
        }
        if read == 0 {
            return Ok(names);
        }
        // SAFETY: the kernel has written `read` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), read as usize) };
        let mut at = 0;
        while at < bytes.len() {
            // Inode and offset (8 bytes each), length of the record (2), type (1), name and NUL.
            let length = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
            if let Ok(name) = CStr::from_bytes_until_nul(&bytes[at + 19..at + length])
                && name != c"."
                && name != c".."
            {
                names.push(name.to_owned());
            }
            at += length;
        }
    }
}

/// The attributes of a name in a directory; those of the descriptor itself if the name is empty and the flags permit that.
pub(crate) fn attributes(directory: libc::c_int, name: &CStr, flags: libc::c_int) -> Result<libc::stat64> {
    let mut found = std::mem::MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: `name` ends with a NUL, and `found` has room for the answer.
    if unsafe { libc::fstatat64(directory, name.as_ptr(), found.as_mut_ptr(), flags) } < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call has filled the structure.
    Ok(unsafe { found.assume_init() })
}

/// The record of an entry.
pub(crate) fn record(found: &libc::stat64) -> [u8; RECORD] {
    let is_directory = found.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let own = |number: u64| if is_directory { 0 } else { number };
    let nanoseconds = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest) as u64;
    let changed = nanoseconds(found.st_ctime, found.st_ctime_nsec);
    let mut out = [0; RECORD];
    #[allow(clippy::unnecessary_cast, reason = "it has 32 bits on aarch64")]
    let small = [found.st_mode, own(found.st_nlink as u64) as u32, found.st_uid, found.st_gid];
    for (place, number) in out[..16].chunks_exact_mut(4).zip(small) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let large = [
        found.st_dev,
        found.st_ino,
        own(found.st_size as u64),
        own(found.st_blocks as u64),
        nanoseconds(found.st_mtime, found.st_mtime_nsec),
        own(changed),
    ];
    for (place, number) in out[16..].chunks_exact_mut(8).zip(large) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    out
}
