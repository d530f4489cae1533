//! Unix sockets that only processes of this user can reach.
//!
//! Such a socket is a file in a directory of mode 0700, so the kernel refuses the connections of other users before this process is woken:
//! their floods cost it nothing. The socket has an abstract name instead where the directory is not available: another user has taken its
//! name, or the disk is full or read-only. Every user can connect to an abstract name, so the user of each peer is checked as well
//! (`SO_PEERCRED`).
//!
//! A killed process leaves its file behind. `sweep` removes files at which no process listens; agents call it when they start.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::sys;

/// Connections that the kernel keeps until they are accepted. More processes of one host seldom connect at the same time.
const BACKLOG: libc::c_int = 1024;
/// Attempts to bind while other processes remove the directory because it is empty.
const ATTEMPTS: usize = 16;
/// A younger file may belong to a process that has bound its socket and is about to listen.
const FRESH: Duration = Duration::from_secs(10);
/// Longest wait for the owner of an abstract name to accept a connection. The owner may be a process of another user that never accepts.
const ABSTRACT: Duration = Duration::from_secs(1);

/// The type of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A stream of bytes (`SOCK_STREAM`).
    Stream,
    /// Messages with boundaries (`SOCK_SEQPACKET`).
    Packets,
}

/// A listening socket; its file is removed on drop.
#[derive(Debug)]
pub struct ControlSocket {
    fd: OwnedFd,
    file: Option<PathBuf>,
    /// The process that has bound the socket. A forked child does not remove the file.
    pid: u32,
}

impl ControlSocket {
    /// Listens, non-blocking, under a name that no other socket of this user has.
    pub fn listen(name: &str, kind: Kind) -> io::Result<ControlSocket> {
        ControlSocket::listen_in(&of_user(), name, kind)
    }

    fn listen_in(directory: &Path, name: &str, kind: Kind) -> io::Result<ControlSocket> {
        let fd = socket(kind)?;
        let file = (0..ATTEMPTS).find_map(|_| bind_file(&fd, directory, name).transpose()).and_then(Result::ok);
        if file.is_none() {
            // A socket can be bound only once.
            let fd = socket(kind)?;
            bind(&fd, &Name::Abstract(name))?;
            listen(&fd)?;
            return Ok(ControlSocket { fd, file: None, pid: std::process::id() });
        }
        Ok(ControlSocket { fd, file, pid: std::process::id() })
    }

    /// Whether other users can connect: the socket has an abstract name.
    pub fn is_open_to_all(&self) -> bool {
        self.file.is_none()
    }
}

impl AsRawFd for ControlSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Some(file) = self.file.take().filter(|_| self.pid == std::process::id()) {
            remove(&file);
        }
    }
}

/// The name of the socket at which the process `process` answers requests for its buffers.
pub fn of_buffers(process: u64) -> String {
    format!("monarch-bulk-{process:016x}")
}

/// Removes the file of a process that has ended.
pub fn forget(name: &str) {
    let _ = fs::remove_file(of_user().join(name));
}

/// The reason inside of the error of `connect` if the process at the other end belongs to another user.
#[derive(Debug, thiserror::Error)]
pub enum OtherUser {
    /// The kernel names its user.
    #[error("the process at the other end belongs to another user")]
    Certain,
    /// It has no file in the directory of this user, and accepts nothing, so the kernel names no user.
    #[error("a process, maybe of another user, has its name and accepts nothing")]
    Likely,
}

impl OtherUser {
    pub fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|reason| reason.is::<OtherUser>())
    }
}

/// Connects to a socket of this user by its name; the result is non-blocking. The call waits up to `timeout` for a place in the queue of
/// the other side, and then fails with `WouldBlock`.
pub fn connect(name: &str, kind: Kind, timeout: Duration) -> io::Result<OwnedFd> {
    let directory = of_user();
    if is_private(&directory) {
        match connect_within(&Name::File(&directory.join(name)), kind, timeout) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
            other => return other,
        }
    }
    let fd = connect_within(&Name::Abstract(name), kind, timeout.min(ABSTRACT)).map_err(|e| match e.kind() {
        // The socket most likely belongs to another user's process: a process of this user has a file unless there is no room for one.
        io::ErrorKind::WouldBlock => io::Error::new(e.kind(), OtherUser::Likely),
        _ => e,
    })?;
    if sys::peer_user(fd.as_raw_fd())? != sys::user() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, OtherUser::Certain));
    }
    Ok(fd)
}

fn connect_within(name: &Name<'_>, kind: Kind, timeout: Duration) -> io::Result<OwnedFd> {
    let stream = UnixStream::from(socket(kind)?);
    if !timeout.is_zero() {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(timeout))?;
    }
    let fd = OwnedFd::from(stream);
    connect_to(&fd, name)?;
    let stream = UnixStream::from(fd);
    stream.set_write_timeout(None)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// The names of this user's socket files at which a process listens, and all abstract names of this network namespace. Both are limited to
/// names that begin with `prefix`. Abstract names may belong to any user.
pub fn names(prefix: &str) -> Vec<String> {
    let directory = of_user();
    let bound = bound_names();
    let mut found: Vec<String> = files(&directory)
        .into_iter()
        .filter(|name| name.starts_with(prefix))
        .filter(|name| bound.iter().any(|b| Path::new(b) == directory.join(name)) || listens(&directory.join(name)))
        .collect();
    found.extend(bound.iter().filter_map(|b| b.strip_prefix('@')).filter(|b| b.starts_with(prefix)).map(str::to_owned));
    found
}

/// Removes the socket files of this user at which no process listens: those of killed processes.
pub fn sweep() {
    sweep_in(&of_user(), FRESH);
}

fn sweep_in(directory: &Path, fresh: Duration) {
    let names = files(directory);
    if names.is_empty() {
        return;
    }
    // The kernel's list does not have sockets of other network namespaces; `listens` tests those.
    let bound = bound_names();
    for file in names.into_iter().map(|name| directory.join(name)) {
        if !bound.iter().any(|b| Path::new(b) == file) && !listens(&file) && age(&file).is_some_and(|age| age >= fresh) {
            remove(&file);
        }
    }
}

fn age(file: &Path) -> Option<Duration> {
    fs::symlink_metadata(file).ok()?.modified().ok()?.elapsed().ok()
}

/// The directory of this user's sockets. It may not exist.
pub fn of_user() -> PathBuf {
    // A fixed path: the temporary directory of the environment differs between processes of one user.
    PathBuf::from(format!("/tmp/monarch-{}", sys::user()))
}

fn is_private(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir() && m.uid() == sys::user() && m.mode() & 0o077 == 0)
}

/// Binds the socket and listens. `None` if the directory vanished meanwhile and another attempt is useful.
fn bind_file(fd: &OwnedFd, directory: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    if let Err(e) = fs::DirBuilder::new().mode(0o700).create(directory)
        && e.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(e);
    }
    if !is_private(directory) {
        return if directory.exists() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(None) };
    }
    let file = directory.join(name);
    match bind(fd, &Name::File(&file)) {
        // The directory was empty, and another process has removed it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    }
    if let Err(e) = listen(fd) {
        remove(&file);
        return Err(e);
    }
    Ok(Some(file))
}

fn remove(file: &Path) {
    let _ = fs::remove_file(file);
    if let Some(directory) = file.parent() {
        // The removal fails while the directory has other files.
        let _ = fs::remove_dir(directory);
    }
}

fn files(directory: &Path) -> Vec<String> {
    if !is_private(directory) {
        return vec![];
    }
    let Ok(entries) = fs::read_dir(directory) else { return vec![] };
    entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// Whether a process accepts connections at the file. A socket of the other kind gives an error other than a refusal.
fn listens(file: &Path) -> bool {
    let Ok(fd) = socket(Kind::Stream) else { return true };
    !connect_to(&fd, &Name::File(file)).is_err_and(|e| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
}

/// The names of all listening unix sockets of this network namespace; abstract names begin with `@`.
fn bound_names() -> Vec<String> {
    /// `__SO_ACCEPTCON` of the kernel: the flag of a listening socket.
    const LISTENS: &str = "00010000";
    let Ok(text) = fs::read("/proc/net/unix") else { return vec![] };
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            (fields.nth(3)? == LISTENS).then_some(())?;
            fields.nth(3).map(str::to_owned)
        })
        .collect()
}

/// The name of a unix socket.
enum Name<'a> {
    File(&'a Path),
    Abstract(&'a str),
}

impl Name<'_> {
    fn address(&self) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
        // SAFETY: an all-zero address is valid.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        // An abstract name follows a NUL byte; a path ends with one.
        let (bytes, from) = match self {
            Name::File(path) => (path.as_os_str().as_bytes(), 0),
            Name::Abstract(name) => (name.as_bytes(), 1),
        };
        if bytes.len() >= address.sun_path.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, byte) in address.sun_path[from..].iter_mut().zip(bytes) {
            *to = *byte as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + bytes.len();
        Ok((address, len as libc::socklen_t))
    }
}

fn check(r: libc::c_int) -> io::Result<()> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn socket(kind: Kind) -> io::Result<OwnedFd> {
    let kind = match kind {
        Kind::Stream => libc::SOCK_STREAM,
        Kind::Packets => libc::SOCK_SEQPACKET,
    };
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    check(fd)?;
    // SAFETY: the kernel has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind(fd: &OwnedFd, name: &Name<'_>) -> io::Result<()> {
    let (address, len) = name.address()?;
    // SAFETY: `address` outlives the call and has at least `len` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })
}

fn listen(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })
}

fn connect_to(fd: &OwnedFd, name: &Name<'_>) -> io::Result<()> {
    let (address, len) = name.address()?;
    // SAFETY: as in `bind`.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) })
}

/// Accepts a connection, non-blocking; fails with `WouldBlock` if none waits.
pub fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: null pointers mean that the address is not wanted.
    let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) };
    check(fd)?;
    // SAFETY: the kernel has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("control-socket-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn reaches(file: &Path, kind: Kind) -> bool {
        connect_to(&socket(kind).unwrap(), &Name::File(file)).is_ok()
    }

    #[test]
    fn file_and_directory_go_with_the_socket() {
        let scratch = Scratch::new("goes");
        for kind in [Kind::Stream, Kind::Packets] {
            let one = ControlSocket::listen_in(&scratch.0, "one", kind).unwrap();
            assert!(!one.is_open_to_all() && is_private(&scratch.0));
            assert!(reaches(&scratch.0.join("one"), kind));
            drop(one);
            assert!(!scratch.0.exists());
        }
    }

    #[test]
    fn directory_that_others_can_enter_is_not_used() {
        let scratch = Scratch::new("open");
        fs::create_dir(&scratch.0).unwrap();
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).unwrap();
        let name = format!("abstract-{}", std::process::id());
        let one = ControlSocket::listen_in(&scratch.0, &name, Kind::Stream).unwrap();
        assert!(one.is_open_to_all());
        assert!(fs::read_dir(&scratch.0).unwrap().next().is_none());
        connect_to(&socket(Kind::Stream).unwrap(), &Name::Abstract(&name)).unwrap();
    }

    #[test]
    fn symbolic_link_is_not_used() {
        let (scratch, other) = (Scratch::new("link"), Scratch::new("target"));
        fs::DirBuilder::new().mode(0o700).create(&other.0).unwrap();
        std::os::unix::fs::symlink(&other.0, &scratch.0).unwrap();
        let one = ControlSocket::listen_in(&scratch.0, &format!("link-{}", std::process::id()), Kind::Stream).unwrap();
        assert!(one.is_open_to_all());
        fs::remove_file(&scratch.0).unwrap();
    }

    #[test]
    fn sweep_removes_only_files_without_a_listener() {
        let scratch = Scratch::new("sweep");
        let kept = [Kind::Stream, Kind::Packets].map(|kind| ControlSocket::listen_in(&scratch.0, &format!("{kind:?}"), kind).unwrap());
        let mut left = ControlSocket::listen_in(&scratch.0, "left", Kind::Stream).unwrap();
        left.file = None;
        drop(left);
        assert!(scratch.0.join("left").exists());
        sweep_in(&scratch.0, Duration::from_secs(60));
        assert!(scratch.0.join("left").exists());
        sweep_in(&scratch.0, Duration::ZERO);
        assert!(!scratch.0.join("left").exists());
        assert!(reaches(&scratch.0.join("Stream"), Kind::Stream) && reaches(&scratch.0.join("Packets"), Kind::Packets));
        drop(kept);
    }
}
