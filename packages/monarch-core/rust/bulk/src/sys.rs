//! The system calls that only bulk copies need, as safe functions that return `io::Result`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use net::sys as base;

/// The size of a huge page of the memory file system.
pub const HUGE_PAGE: usize = 2 << 20;

fn check(r: libc::c_int) -> io::Result<libc::c_int> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the kernel has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Process and user at the other end of a socket; for a connected socket, those of the process that listened. The pid is 0 if it is not
/// visible here.
pub fn peer(fd: RawFd) -> io::Result<(i32, u32)> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &mut len) })?;
    Ok((cred.pid, cred.uid))
}

/// A descriptor that is readable once the process has ended.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as libc::c_int)
}

pub fn thread_id() -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// The list that the kernel reads when a thread ends. It has one futex, by its distance from the entry.
#[repr(C)]
struct RobustList {
    first: *const RobustEntry,
    offset: libc::c_long,
    pending: *const RobustEntry,
    entry: RobustEntry,
}

/// An entry of the list; its futex lies at the list's offset from it.
#[repr(C)]
struct RobustEntry {
    next: *const RobustEntry,
}

/// Makes the kernel mark the futex, which contains the id of the calling thread, when that thread ends. The thread must hold no robust
/// mutex of the C library.
pub fn mark_at_end(futex: &std::sync::atomic::AtomicU32) {
    // The list is never freed, because the thread may end at any time.
    let list = Box::leak(Box::new(RobustList {
        first: std::ptr::null(),
        offset: 0,
        pending: std::ptr::null(),
        entry: RobustEntry { next: std::ptr::null() },
    }));
    let head = (&raw const *list).cast::<RobustEntry>();
    list.entry.next = head;
    list.first = &raw const list.entry;
    list.offset = (&raw const *futex as isize - &raw const list.entry as isize) as libc::c_long;
    // SAFETY: three words, which are never freed. If the kernel refuses, the end is noticed later.
    unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const *list, size_of::<[usize; 3]>()) };
}

/// The events of each descriptor; empty at the deadline.
pub fn poll(fds: &[(RawFd, libc::c_short)], until: Option<Instant>) -> io::Result<Vec<libc::c_short>> {
    let mut list: Vec<libc::pollfd> = fds.iter().map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 }).collect();
    loop {
        let left = until.map(|t| t.saturating_duration_since(Instant::now()));
        // SAFETY: the kernel writes into the entries of `list`.
        let n = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, base::millis(left)) };
        match check(n) {
            Ok(0) if left.is_none_or(|t| !t.is_zero()) => continue,
            Ok(0) => return Ok(vec![]),
            Ok(_) => return Ok(list.iter().map(|p| p.revents).collect()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
    }
}

/// The longest message on a control connection.
pub const LONGEST: usize = 2048;

/// The next message, without waiting; empty at the end of the stream.
pub fn receive(fd: RawFd, fds: &mut VecDeque<OwnedFd>) -> io::Result<Vec<u8>> {
    let mut buf = Vec::with_capacity(LONGEST);
    let mut found = base::Descriptors::new();
    base::recv_into(fd, &mut buf, &mut found, libc::MSG_DONTWAIT)?;
    for descriptor in found {
        fds.push_back(descriptor.ok_or_else(|| io::Error::other("descriptors were lost: the limit of open files is reached"))?);
    }
    Ok(buf)
}

/// Shared memory whose size is sealed, so that a process which maps it never accesses bytes beyond its end.
pub fn sealed_memfd(name: &std::ffi::CStr, len: u64, huge: bool) -> io::Result<OwnedFd> {
    base::within_file_limit(len)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | if huge { libc::MFD_HUGETLB } else { 0 };
    // SAFETY: a terminated name.
    let fd = owned(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) })?;
    Ok(fd)
}

/// Whether the memory has this length and cannot shrink. Memory of other processes is mapped only then.
pub fn is_sealed(fd: RawFd, len: u64) -> bool {
    // SAFETY: an all-zero `stat` is valid, and the kernel fills it in.
    let (seals, size) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let size = if libc::fstat(fd, &mut stat) == 0 { stat.st_size as u64 } else { 0 };
        (libc::fcntl(fd, libc::F_GET_SEALS), size)
    };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0 && size >= len
}

/// A descriptor of the same file that permits no writing, not even through a mapping.
pub fn read_only(fd: RawFd) -> io::Result<OwnedFd> {
    Ok(std::fs::File::open(format!("/proc/self/fd/{fd}"))?.into())
}

/// Copies between this process and another one; returns the number of bytes, which may be less than `len`.
///
/// # Safety
/// The local range is valid for the time of the call, and for writing unless `write`.
pub unsafe fn process_vm(pid: i32, write: bool, local: usize, remote: u64, len: usize) -> io::Result<usize> {
    let here = libc::iovec { iov_base: local as *mut libc::c_void, iov_len: len };
    let there = libc::iovec { iov_base: remote as usize as *mut libc::c_void, iov_len: len };
    // SAFETY: the caller's guarantee.
    unsafe { process_vm_runs(pid, write, &[here], &[there]) }
}

/// Copies runs between this process and another one; returns the number of bytes, which may be less than all. There are at most
/// `UIO_MAXIOV` runs.
///
/// # Safety
/// The local runs are valid for the time of the call, and for writing unless `write`.
pub unsafe fn process_vm_runs(pid: i32, write: bool, here: &[libc::iovec], there: &[libc::iovec]) -> io::Result<usize> {
    let (near, far) = ((here.as_ptr(), here.len() as libc::c_ulong), (there.as_ptr(), there.len() as libc::c_ulong));
    // SAFETY: the caller's guarantee for the local side; the kernel checks the other one.
    let n = unsafe {
        if write {
            libc::process_vm_writev(pid, near.0, near.1, far.0, far.1, 0)
        } else {
            libc::process_vm_readv(pid, near.0, near.1, far.0, far.1, 0)
        }
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Permits a process and its descendants to read the memory of this one, where Yama requires that.
pub fn name_tracer(pid: i32) {
    // SAFETY: no pointers. Without Yama the call fails, and is not needed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) };
}

/// The mode of Yama: 0 has no restriction, 1 requires a named process or an ancestor, 2 and 3 require privileges.
pub fn yama_scope() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// The deadline after a time-out in seconds, which is limited to a century.
pub fn deadline(seconds: f64) -> Instant {
    Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(Duration::from_secs(100 * 365 * 86_400))
}
