//! Digests (BLAKE3, 256 bits) of the contents of files, of the whole or of pieces of equal size.
//!
//! A file that is written during the read is read again. If it keeps changing, the result has `settled` false: its digests may belong to a
//! content that the file never had at one time.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use blake3::Hasher;

use crate::listing::{RECORD, attributes, open, record};
use crate::worker_pool;

/// Bytes of a digest.
pub const DIGEST: usize = blake3::OUT_LEN;
/// Bytes of one read. They stay in the processor's cache between the read and the digest.
const STEP: usize = 256 << 10;
/// Least size of the buffer for a file, whatever the file's size.
const SMALLEST: usize = 4 << 10;
/// Most reads of a file that keeps changing.
const TRIES: usize = 3;
/// Least files for each thread; a thread for fewer files costs more than it saves.
const FILES_PER_THREAD: usize = 4;

/// The content of a file at the time of the read, as digests.
pub struct FileDigest {
    /// Its attributes after the read, as in a listing.
    pub record: [u8; RECORD],
    /// The digests of its pieces, one after another. An empty file has one.
    pub digests: Vec<u8>,
    /// No process has written to the file during the read.
    pub settled: bool,
    /// Whether the file has extended attributes of any class.
    pub has_xattrs: bool,
}

/// The digests of files, in their order. `piece` is in bytes; 0 requests one digest of the whole. An error for a path whose last component
/// is a symbolic link, and for anything but a regular file.
pub fn digest_files(paths: &[PathBuf], piece: u64) -> Vec<Result<FileDigest>> {
    worker_pool::each(paths.len(), FILES_PER_THREAD, |number| digest_file(&paths[number], piece))
}

fn digest_file(path: &Path, piece: u64) -> Result<FileDigest> {
    // Non-blocking: the open of a pipe would wait for a writer.
    let mut file = File::from(open(path, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK)?);
    let own = |file: &File| attributes(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH);
    let found = own(&file)?;
    if found.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Error::from_raw_os_error(libc::EINVAL));
    }
    let mut before = record(&found);
    // A buffer of `STEP` bytes for each file would have to be mapped by the kernel, which costs more than reading a small file.
    let mut buffer = vec![0; STEP.min(usize::try_from(found.st_size).unwrap_or(STEP).max(SMALLEST))];
    for left in (0..TRIES).rev() {
        let digests = digest_stream(&mut file, piece, &mut buffer)?;
        let after = record(&own(&file)?);
        // The number of links does not matter.
        let settled = before[..4] == after[..4] && before[16..] == after[16..];
        if settled || left == 0 {
            return Ok(FileDigest { record: after, digests, settled, has_xattrs: has_xattrs(&file) });
        }
        before = after;
        file.seek(SeekFrom::Start(0))?;
    }
    unreachable!("the last try returns")
}

/// Whether a file has extended attributes. False on a file system without them; true if the request fails for another reason.
fn has_xattrs(file: &File) -> bool {
    // SAFETY: without a buffer, the call returns the size of one.
    let bytes = unsafe { libc::flistxattr(file.as_raw_fd(), std::ptr::null_mut(), 0) };
    bytes > 0 || (bytes < 0 && Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP))
}

/// The digests of the pieces of a stream, which is read to its end.
fn digest_stream(file: &mut impl Read, piece: u64, buffer: &mut [u8]) -> Result<Vec<u8>> {
    let piece = if piece == 0 { u64::MAX } else { piece };
    let mut digests = vec![];
    let mut hasher = Hasher::new();
    let mut left = piece;
    loop {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = match file.read(&mut buffer[..most]) {
            Ok(read) => read,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if read == 0 {
            if left < piece || digests.is_empty() {
                digests.extend_from_slice(hasher.finalize().as_bytes());
            }
            return Ok(digests);
        }
        hasher.update(&buffer[..read]);
        left -= read as u64;
        if left == 0 {
            digests.extend_from_slice(hasher.finalize().as_bytes());
            hasher.reset();
            left = piece;
        }
    }
}

/// A digest of bytes that arrive in several calls.
#[derive(Default, Clone)]
pub struct Running(Hasher);

impl Running {
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    pub fn digest(&self) -> [u8; DIGEST] {
        *self.0.finalize().as_bytes()
    }
}

/// The digest of bytes.
pub fn digest(data: &[u8]) -> [u8; DIGEST] {
    *blake3::hash(data).as_bytes()
}
