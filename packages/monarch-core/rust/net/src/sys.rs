//! The system calls of the data path, as safe functions that return `io::Result`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::forked_child;

/// The page size of the kernel, a power of two: 4, 16 or 64 KiB. Offsets and sizes of mappings are multiples of it.
pub fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: no pointers. Linux knows the size in every process.
    *PAGE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize)
}

/// Most descriptors of one message; the protocol sends one.
const MAX_FDS: usize = 8;

fn check(r: libc::c_int) -> io::Result<libc::c_int> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

fn check_len(r: isize) -> io::Result<usize> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as usize) }
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the kernel has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Random bytes from the kernel's generator, which cannot be guessed.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the kernel writes at most N bytes. Up to 256 bytes are never cut short.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), N, 0) };
    if got == N as libc::c_long { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

pub fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

pub fn epoll_ctl(epoll: RawFd, op: libc::c_int, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
    forked_child::check()?;
    let mut ev = libc::epoll_event { events, u64: token };
    // SAFETY: `ev` outlives the call.
    check(unsafe { libc::epoll_ctl(epoll, op, fd, &mut ev) }).map(drop)
}

/// Milliseconds for `epoll_wait`, rounded up so that a wait never ends early; -1 waits without a limit.
pub fn millis(timeout: Option<Duration>) -> libc::c_int {
    match timeout {
        None => -1,
        Some(t) => t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as libc::c_int,
    }
}

pub fn epoll_wait(epoll: RawFd, events: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
    forked_child::check()?;
    // SAFETY: the kernel writes at most `events.len()` entries.
    check(unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, millis(timeout)) }).map(|n| n as usize)
}

/// Whether a read would not block.
pub fn is_readable(fd: RawFd) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut p, 1, 0) == 1 && p.revents & libc::POLLIN != 0 }
}

pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

pub fn eventfd_signal(fd: RawFd) {
    if forked_child::is_child() {
        return;
    }
    let one = 1u64;
    // SAFETY: eight readable bytes. The call fails only if the counter is full, and a full counter signals as well.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

pub fn eventfd_drain(fd: RawFd) {
    if forked_child::is_child() {
        return;
    }
    let mut count = 0u64;
    // SAFETY: eight writable bytes. EAGAIN means that the counter is already zero.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// Sleeps while `*word == expected`. `Interrupted` after a signal handler, `TimedOut` after the time-out.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<()> {
    let ts = timeout.map(|t| libc::timespec { tv_sec: t.as_secs() as libc::time_t, tv_nsec: t.subsec_nanos() as libc::c_long });
    let ts_ptr = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the timespec outlive the call.
    let r = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, ts_ptr) };
    if r == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EAGAIN) => Ok(()),
        Some(libc::ETIMEDOUT) => Err(io::ErrorKind::TimedOut.into()),
        _ => Err(e),
    }
}

pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address only as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

/// A connected pair of stream sockets, close-on-exec and non-blocking.
pub fn socketpair() -> io::Result<(OwnedFd, OwnedFd)> {
    pair(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
}

fn pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: two writable ints; on success their owner is this function.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) })?;
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: as for `socketpair`.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Makes the later close of a TCP socket a reset. No effect on other sockets.
pub fn reset(fd: RawFd) {
    if forked_child::is_child() {
        return;
    }
    let now = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: an option and its size. The call fails for descriptors that are no socket.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const now).cast(), size_of_val(&now) as u32) };
}

pub fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

pub fn set_close_on_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }).map(drop)
}

pub fn set_buffer_sizes(fd: RawFd, bytes: libc::c_int) {
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        // SAFETY: an int with its size. A failure is ignored; the kernel limits the size.
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4) };
    }
}

/// Sets the low-water mark: the socket is readable when `bytes` bytes have arrived, or its end.
pub fn set_least(fd: RawFd, bytes: usize) {
    let bytes = bytes as libc::c_int;
    // SAFETY: an int with its size. A failure is ignored: it only causes more wake-ups.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), 4) };
}

/// Bytes that the socket has received and no thread has read, and sent bytes that the other side has not acknowledged (TCP) or read (unix).
pub fn buffered(fd: RawFd) -> (i32, i32) {
    let (mut incoming, mut outgoing) = (0i32, 0i32);
    // SAFETY: each call writes one int.
    unsafe {
        libc::ioctl(fd, libc::FIONREAD, &raw mut incoming);
        libc::ioctl(fd, libc::TIOCOUTQ, &raw mut outgoing);
    }
    (incoming, outgoing)
}

pub fn read(fd: RawFd, buf: &mut [u8]) -> io::Result<usize> {
    forked_child::check()?;
    // SAFETY: the kernel writes at most `buf.len()` bytes.
    check_len(unsafe { libc::read(fd, buf.as_mut_ptr().cast(), buf.len()) })
}

/// Reads at most `limit` bytes into the spare capacity of `buf`, which grows if necessary.
pub fn read_into(fd: RawFd, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
    forked_child::check()?;
    buf.reserve(limit);
    let spare = buf.spare_capacity_mut();
    // SAFETY: `reserve` made at least `limit` bytes writable.
    let n = check_len(unsafe { libc::read(fd, spare.as_mut_ptr().cast(), limit) })?;
    // SAFETY: the kernel has written `n` bytes.
    unsafe { buf.set_len(buf.len() + n) };
    Ok(n)
}

/// One gather write that neither blocks nor raises SIGPIPE.
pub fn send_slices(fd: RawFd, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
    forked_child::check()?;
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    // `IoSlice` has the layout of `iovec`, by its documentation. The kernel only reads.
    msg.msg_iov = slices.as_ptr().cast_mut().cast();
    msg.msg_iovlen = slices.len().min(libc::UIO_MAXIOV as usize);
    // SAFETY: the slices outlive the call.
    check_len(unsafe { libc::sendmsg(fd, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// Receives into several pieces of memory, without waiting; 0 at the end of the stream.
pub fn receive_slices(fd: RawFd, slices: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
    forked_child::check()?;
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    // `IoSliceMut` has the layout of `iovec`, by its documentation.
    msg.msg_iov = slices.as_mut_ptr().cast();
    msg.msg_iovlen = slices.len().min(libc::UIO_MAXIOV as usize);
    // SAFETY: the slices outlive the call, and nothing else uses their memory.
    check_len(unsafe { libc::recvmsg(fd, &mut msg, libc::MSG_DONTWAIT) })
}

/// Ends the stream now, in both directions, even if another process has a copy of the descriptor.
pub fn shutdown(fd: RawFd) {
    if forked_child::is_child() {
        return;
    }
    // SAFETY: no pointers. A failure means that the connection has already ended.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Replaces the file behind a descriptor number. The number stays in use; only this process loses the old file.
pub fn replace(fd: RawFd, by: RawFd) {
    // SAFETY: no pointers. A failure leaves the descriptor as it is.
    unsafe { libc::dup3(by, fd, libc::O_CLOEXEC) };
}

/// Closes a socket for writing; bytes that were sent before arrive.
pub fn shutdown_write(fd: RawFd) {
    if forked_child::is_child() {
        return;
    }
    // SAFETY: no pointers. A failure means that the connection has already ended.
    unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Whether the kernel lacks memory, or too many descriptors are in flight.
pub fn is_short(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS))
}

/// One gather write with descriptors attached to its first byte.
pub fn send(fd: RawFd, bufs: &[&[u8]], fds: &[RawFd]) -> io::Result<usize> {
    forked_child::check()?;
    /// Most slices of one write.
    const MAX_IOV: usize = 16;
    let mut iov = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_IOV];
    let count = bufs.len().min(MAX_IOV);
    for (v, b) in iov.iter_mut().zip(bufs) {
        *v = libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() };
    }
    let mut control = ControlBuffer::default();
    // SAFETY: an all-zero msghdr is valid; every pointer set below outlives the call.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = count;
    let fds = &fds[..fds.len().min(MAX_FDS)];
    if !fds.is_empty() {
        let bytes = std::mem::size_of_val(fds);
        msg.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the control buffer is larger than CMSG_SPACE of MAX_FDS ints, so the header and the data fit.
        unsafe {
            msg.msg_controllen = libc::CMSG_SPACE(bytes as u32) as usize;
            let c = libc::CMSG_FIRSTHDR(&msg);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(bytes as u32) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(c).cast(), fds.len());
        }
    }
    // SAFETY: see above.
    check_len(unsafe { libc::sendmsg(fd, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// The buffer for the descriptors of one message, aligned as the kernel requires.
#[repr(align(8))]
struct ControlBuffer([u8; 64]);

impl Default for ControlBuffer {
    fn default() -> Self {
        ControlBuffer([0; 64])
    }
}

/// Descriptors that arrived with frames, in order. `None` in the place of a lost one: this process had reached its limit.
pub type Descriptors = std::collections::VecDeque<Option<OwnedFd>>;

/// Receives into the spare capacity of `buf` and appends descriptors to `fds`. A frame has at most one descriptor, and one receive returns
/// descriptors of one frame only, so a truncation loses one descriptor.
pub fn recv_into(fd: RawFd, buf: &mut Vec<u8>, fds: &mut Descriptors, flags: libc::c_int) -> io::Result<usize> {
    forked_child::check()?;
    let mut control = ControlBuffer::default();
    let spare = buf.spare_capacity_mut();
    let mut iov = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
    // SAFETY: as in `send`.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = control.0.len();
    let n = check_len(unsafe { libc::recvmsg(fd, &mut msg, flags | libc::MSG_CMSG_CLOEXEC) })?;
    // SAFETY: the kernel wrote n bytes into the spare capacity, and whole control messages into `control`.
    unsafe {
        buf.set_len(buf.len() + n);
        if msg.msg_controllen > 0 {
            let mut c = libc::CMSG_FIRSTHDR(&msg);
            while !c.is_null() {
                if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*c).cmsg_len - libc::CMSG_LEN(0) as usize;
                    let data: *const libc::c_int = libc::CMSG_DATA(c).cast();
                    for i in 0..bytes / size_of::<libc::c_int>() {
                        fds.push_back(Some(OwnedFd::from_raw_fd(data.add(i).read_unaligned())));
                    }
                }
                c = libc::CMSG_NXTHDR(&msg, c);
            }
        }
    }
    if msg.msg_flags & libc::MSG_CTRUNC != 0 {
        // The bytes have been taken from the socket. Only the handler of the frame can do without the descriptor.
        fds.push_back(None);
    }
    Ok(n)
}

/// The user id of the process at the other end of a unix socket.
pub fn peer_user(fd: RawFd) -> io::Result<u32> {
    Ok(peer(fd)?.uid)
}

/// The id of the process at the other end of a unix socket. If this side connected, that is the process that listened. 0 if the process is
/// in another PID namespace.
pub fn peer_pid(fd: RawFd) -> io::Result<i32> {
    Ok(peer(fd)?.pid)
}

fn peer(fd: RawFd) -> io::Result<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &mut len) })?;
    Ok(cred)
}

/// The user id of this process.
pub fn user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// Processor time that the calling thread has used.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a buffer of the right type. A failure leaves it unchanged.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The current limit on the number of descriptors of this process.
pub fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a buffer of the right type. A failure leaves it unchanged.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Fails with `EFBIG` for a length beyond the limit of file sizes (`ulimit -f`). The limit also applies to shared memory. Growing a file
/// beyond it raises SIGXFSZ, which ends a process that does not ignore the signal.
pub fn within_file_limit(len: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a buffer of the right type. A failure leaves it unchanged.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    if len > limit.rlim_cur { Err(io::Error::from_raw_os_error(libc::EFBIG)) } else { Ok(()) }
}

/// Anonymous shared memory of `len` bytes, sparse until it is used.
pub fn memfd(len: u64) -> io::Result<OwnedFd> {
    within_file_limit(len)?;
    // SAFETY: a constant, terminated name.
    let fd = owned(unsafe { libc::memfd_create(c"monarch-arena".as_ptr(), libc::MFD_CLOEXEC) })?;
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) })?;
    Ok(fd)
}

/// Returns the memory of a memfd to the kernel. Other processes that have it open or mapped read zeros.
pub fn discard(fd: RawFd, len: u64) {
    if forked_child::is_child() {
        return;
    }
    // SAFETY: no pointers. After a failure the memory is freed with the last descriptor.
    unsafe { libc::fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, len as libc::off_t) };
}

/// The sharing of a mapping.
pub enum Share {
    /// Changes are visible in all mappings of the memory.
    Shared,
    SharedReadOnly,
    /// Copy on write.
    Private,
}

pub fn map(fd: RawFd, offset: u64, len: usize, share: &Share) -> io::Result<*mut u8> {
    let (prot, flags) = match share {
        Share::Shared => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
        Share::SharedReadOnly => (libc::PROT_READ, libc::MAP_SHARED),
        Share::Private => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE),
    };
    // SAFETY: the kernel chooses the address; no existing mapping is replaced.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset as libc::off_t) };
    if p == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(p.cast()) }
}

/// # Safety
/// The range came from `map` and is no longer used.
pub unsafe fn unmap(p: *mut u8, len: usize) {
    // SAFETY: the caller's guarantee.
    unsafe { libc::munmap(p.cast(), len) };
}

/// Gives the kernel advice about memory; failures are ignored.
///
/// # Safety
/// The range is mapped.
pub unsafe fn advise(p: *mut u8, len: usize, advice: libc::c_int) {
    // SAFETY: the caller's guarantee; the advice values in use keep the contents.
    unsafe { libc::madvise(p.cast(), len, advice) };
}

/// Least size of fresh memory for which huge pages are requested: page faults of 4 KiB each would cost more than the copy.
const HUGE: usize = 8 << 20;

/// Requests huge pages for reserved memory that is long and about to be filled.
pub fn advise_huge(fresh: &mut Vec<u8>) {
    let spare = fresh.spare_capacity_mut();
    if spare.len() >= HUGE {
        let start = spare.as_mut_ptr() as usize;
        let first = start.next_multiple_of(page());
        // SAFETY: the range is inside the memory of the vector.
        unsafe { advise(first as *mut u8, spare.len() - (first - start), libc::MADV_HUGEPAGE) };
    }
}
