//! Digests (BLAKE3, 256 bits) of the contents of files, of the whole or of pieces of equal size.
//!
//! A file that is written meanwhile is read again. One that keeps changing is given with `settled` false: its digests may belong to
//! contents that it never had at one time.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use blake3::Hasher;

use crate::crew;
use crate::listing::{RECORD, attributes, open, record};

/// Bytes of a digest.
pub const DIGEST: usize = blake3::OUT_LEN;
/// A file is read in steps of so many bytes: they stay in the processor's cache between the read and the digest.
const STEP: usize = 256 << 10;
const SMALLEST: usize = 4 << 10;
/// Reads of a file that changes meanwhile.
const TRIES: usize = 3;
/// Threads pay where so many files are to be read.
const FILES_PER_THREAD: usize = 4;

/// What a file held when it was read.
pub struct FileDigest {
    /// Its attributes, as in a listing, after it has been read.
    pub record: [u8; RECORD],
    /// The digests of its pieces, one after another: one of an empty file.
    pub digests: Vec<u8>,
    /// No process has written to it while it was read.
    pub settled: bool,
    /// It has extended attributes, of whatever class.
    pub has_xattrs: bool,
}

/// The digests of files, in their order. `piece` is in bytes; 0 is for one digest of the whole. The last component of a path may not be a
/// symbolic link, and what is no regular file is refused.
pub fn digest_files(paths: &[PathBuf], piece: u64) -> Vec<Result<FileDigest>> {
    crew::each(paths.len(), FILES_PER_THREAD, |number| digest_file(&paths[number], piece))
}

fn digest_file(path: &Path, piece: u64) -> Result<FileDigest> {
    // A pipe would wait for a writer.
    let mut file = File::from(open(path, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK)?);
    let own = |file: &File| attributes(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH);
    let found = own(&file)?;
    if found.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Error::from_raw_os_error(libc::EINVAL));
    }
    let mut before = record(&found);
    // A buffer of `STEP` bytes is memory that the kernel has to map for each file, which costs more than a small file's content.
    let mut buffer = vec![0; STEP.min(usize::try_from(found.st_size).unwrap_or(STEP).max(SMALLEST))];
    for left in (0..TRIES).rev() {
        let digests = digest_stream(&mut file, piece, &mut buffer)?;
        let after = record(&own(&file)?);
        // How many names it has does not matter.
        let settled = before[..4] == after[..4] && before[16..] == after[16..];
        if settled || left == 0 {
            return Ok(FileDigest { record: after, digests, settled, has_xattrs: has_xattrs(&file) });
        }
        before = after;
        file.seek(SeekFrom::Start(0))?;
    }
    unreachable!("the last try returns")
}

/// A file system without extended attributes has none; what cannot be asked may have some.
fn has_xattrs(file: &File) -> bool {
    // SAFETY: no buffer is given: the call answers how large one would be.
    let bytes = unsafe { libc::flistxattr(file.as_raw_fd(), std::ptr::null_mut(), 0) };
    bytes > 0 || (bytes < 0 && Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP))
}

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

/// A digest of bytes that come one after another.
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
