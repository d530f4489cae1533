//! Files with the bytes that procs print, one file for each stream of each proc.
//!
//! A separate thread writes them. If the disk is slow, the thread that reads the pipes waits for it once, for `DISK_STALL_TIMEOUT`; after
//! that, bytes that do not fit into the queue are dropped until half of the queue is free. While the disk is full, printed bytes are lost.
//! Both are reported once on stderr, and in the file at the place where bytes are missing.
//!
//! A file that has reached `LIMIT` is renamed to `NAME.1`, the next one to `NAME.2` and so on; the newest `KEPT` of these files are kept.

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use net::lock::lock;

/// Size from which on a file is renamed. A process that prints at full speed fills it in about a second, and an editor can still open it.
const LIMIT: u64 = 64 << 20;
/// Renamed files that are kept for one stream. With the current file, a stream has at most 1 GiB.
const KEPT: u64 = 15;
/// Levels of folders above a file that Monarch makes: those of the job and of the mesh. The user chooses the folder above them.
const FOLDERS: usize = 2;
/// Limit of bytes that wait for the disk.
const QUEUE: usize = 16 << 20;
/// The time that a process which prints may be delayed by a disk that accepts no bytes.
const DISK_STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The files of one stream, and the number of bytes that could not be written. The stream shares it with the writing thread.
pub struct CaptureFile {
    path: PathBuf,
    limit: u64,
    kept: u64,
    /// Locked during writes, so it may be locked for long while the disk is slow.
    state: Mutex<State>,
    /// The number of bytes that were dropped without an attempt to write them, and the reason.
    skipped: Mutex<(u64, String)>,
}

/// The state of the file that is written at the moment.
#[derive(Default)]
struct State {
    /// The current file, once it is open.
    file: Option<File>,
    size: u64,
    /// The number of files that have been renamed.
    rotations: u64,
    /// The number of bytes that are missing after the last written ones, and the reason.
    lost: u64,
    why: String,
    /// The last written byte does not end a line.
    within_line: bool,
}

impl CaptureFile {
    pub fn new(path: PathBuf) -> Self {
        CaptureFile::bounded(path, LIMIT, KEPT)
    }

    pub fn bounded(path: PathBuf, limit: u64, kept: u64) -> Self {
        CaptureFile { path, limit, kept, state: Mutex::default(), skipped: Mutex::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the bytes, or as many of them as the disk accepts. Returns an error if that is not all.
    pub fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut s = lock(&self.state);
        let skipped = std::mem::take(&mut *lock(&self.skipped));
        if skipped.0 > 0 {
            s.lost += skipped.0;
            s.why = skipped.1;
        }
        self.try_append(&mut s, bytes).map_err(|(e, written)| {
            s.lost += (bytes.len() - written) as u64;
            s.why = e.to_string();
            e
        })
    }

    /// Drops this number of bytes. Does not wait for the disk.
    pub fn skip(&self, bytes: usize, why: &str) {
        let mut skipped = lock(&self.skipped);
        skipped.0 += bytes as u64;
        why.clone_into(&mut skipped.1);
    }

    fn try_append(&self, s: &mut State, bytes: &[u8]) -> Result<(), (io::Error, usize)> {
        let nothing = |e| (e, 0);
        if s.file.is_none() {
            let file = open(&self.path).map_err(nothing)?;
            s.size = file.metadata().map(|m| m.len()).unwrap_or(0);
            s.file = Some(file);
        }
        if s.lost > 0 {
            let gap = format!("{}[monarch: {} bytes are missing here: {}]\n", if s.within_line { "\n" } else { "" }, s.lost, s.why);
            let before = s.size;
            if let Err((e, _)) = self.write(s, gap.as_bytes()) {
                // An incomplete mark is removed.
                if let Some(f) = &s.file
                    && f.set_len(before).is_ok()
                {
                    s.size = before;
                }
                return Err((e, 0));
            }
            s.lost = 0;
            s.within_line = false;
        }
        self.write(s, bytes)?;
        if s.size >= self.limit && (!s.within_line || s.size >= 2 * self.limit) {
            self.rotate(s);
        }
        Ok(())
    }

    fn write(&self, s: &mut State, bytes: &[u8]) -> Result<(), (io::Error, usize)> {
        let mut written = 0;
        while written < bytes.len() {
            let Some(file) = s.file.as_mut() else { return Err((io::ErrorKind::NotFound.into(), written)) };
            match file.write(&bytes[written..]) {
                Ok(0) => return Err((io::ErrorKind::WriteZero.into(), written)),
                Ok(n) => {
                    written += n;
                    s.size += n as u64;
                    s.within_line = bytes[written - 1] != b'\n';
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err((e, written)),
            }
        }
        Ok(())
    }

    fn rotate(&self, s: &mut State) {
        s.rotations += 1;
        if std::fs::rename(&self.path, self.numbered(s.rotations)).is_err() {
            // The file goes on beyond its limit if it cannot be renamed.
            s.rotations -= 1;
            return;
        }
        s.file = None;
        s.size = 0;
        if s.rotations > self.kept {
            let _ = std::fs::remove_file(self.numbered(s.rotations - self.kept));
        }
    }

    fn numbered(&self, n: u64) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{n}"));
        name.into()
    }
}

/// Opens the file for appending, and makes its private directories.
fn open(path: &Path) -> io::Result<File> {
    let folders: Vec<&Path> = path.ancestors().skip(1).take(FOLDERS).filter(|p| !p.as_os_str().is_empty()).collect();
    // The outer folder is checked first, so no folder is made inside one of another user.
    for folder in folders.into_iter().rev() {
        private_dir(folder)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Makes the directory for this user alone, with the missing directories above it. In a place where every user may write, another user can
/// have made the directory first. The owner of a directory can read, replace and redirect the files in it, so a directory of another user
/// is an error.
fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // SAFETY: the call has no pointers.
    let me = unsafe { libc::geteuid() };
    let found = path.symlink_metadata()?;
    let name = path.display();
    let reason = if !found.is_dir() {
        format!("{name} is a symbolic link")
    } else if found.uid() != me {
        format!("{name} belongs to user {}, not to user {me}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("{name} can be written by other users (mode {:03o})", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// The bytes that wait for the disk.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Arc<CaptureFile>, Vec<u8>)>,
    bytes: usize,
    /// Bytes that were taken out of the queue are being written.
    writing: bool,
    /// The disk was too slow: new bytes are dropped until half of the queue is free.
    stalled: bool,
    started: bool,
    /// The error numbers that have been reported.
    reported: Vec<Option<i32>>,
}

/// The thread that writes the files. The output of an agent owns it.
pub struct Capture {
    queue: Mutex<Queue>,
    filled: Condvar,
    emptied: Condvar,
    /// Shows a warning to the user.
    warn: Box<dyn Fn(String) + Send + Sync>,
}

impl Capture {
    /// `warn` shows a warning to the user.
    pub fn new(warn: impl Fn(String) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Capture { queue: Mutex::default(), filled: Condvar::new(), emptied: Condvar::new(), warn: Box::new(warn) })
    }

    /// Passes bytes to the thread. A caller with `may_wait` waits for a busy disk.
    pub fn push(self: &Arc<Self>, file: &Arc<CaptureFile>, bytes: &[u8], may_wait: bool) {
        let mut q = lock(&self.queue);
        if !q.started {
            let me = self.clone();
            if let Err(e) = crate::threads::spawn_joinable("monarch-capture", move || me.run()) {
                drop(q);
                file.skip(bytes.len(), &e.to_string());
                return self.failed(file, &e);
            }
            q.started = true;
        }
        if may_wait && !q.stalled && q.bytes >= QUEUE {
            let deadline = Instant::now() + DISK_STALL_TIMEOUT;
            while q.bytes >= QUEUE {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    q.stalled = true;
                    break;
                }
                q = self.emptied.wait_timeout(q, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        if q.stalled {
            drop(q);
            let late = io::Error::from_raw_os_error(libc::ETIMEDOUT);
            file.skip(bytes.len(), &late.to_string());
            return self.failed(file, &late);
        }
        q.bytes += bytes.len();
        q.waiting.push_back((file.clone(), bytes.to_vec()));
        self.filled.notify_one();
    }

    fn run(&self) {
        loop {
            let (file, bytes) = {
                let mut q = lock(&self.queue);
                loop {
                    if let Some(next) = q.waiting.pop_front() {
                        q.writing = true;
                        break next;
                    }
                    q = self.filled.wait(q).unwrap_or_else(PoisonError::into_inner);
                }
            };
            if let Err(e) = file.append(&bytes) {
                self.failed(&file, &e);
            }
            let mut q = lock(&self.queue);
            q.writing = false;
            q.bytes -= bytes.len();
            q.stalled &= q.bytes > QUEUE / 2;
            drop(q);
            self.emptied.notify_all();
        }
    }

    /// Warns of an error, once for each error number: a disk that stays full causes one warning.
    fn failed(&self, file: &CaptureFile, e: &io::Error) {
        {
            let mut q = lock(&self.queue);
            if q.reported.contains(&e.raw_os_error()) {
                return;
            }
            q.reported.push(e.raw_os_error());
        }
        let path = file.path().display();
        (self.warn)(format!("monarch: cannot write {path}: {e}: what procs print is on the console only, until this is over"));
    }

    /// Waits until all bytes are in the files, at most until the deadline.
    pub fn flush(&self, deadline: Instant) {
        let mut q = lock(&self.queue);
        while q.writing || !q.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            q = self.emptied.wait_timeout(q, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
