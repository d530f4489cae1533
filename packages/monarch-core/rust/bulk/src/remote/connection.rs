//! Bytes over one stream, encrypted or not. One thread at a time uses it, and waits for room and for bytes.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use net::records::{self, HEAD, Keys, MOST, Opener, Sealer, TAIL};
use net::sys as base;

use super::traffic::Traffic;
use crate::sys;

/// Records that are read or written by one system call.
const RECORDS: usize = 16;
/// Bytes of the buffers for sealed records, in both directions.
const BUFFER: usize = RECORDS * (HEAD + MOST + TAIL);
/// Most bytes of one write. A write of 64 MiB more than halves the throughput, because the socket is locked during the write.
const AT_ONCE: usize = 512 << 10;
/// Low-water mark during a long transfer: the reader wakes when this many bytes have arrived. Each wake-up costs both sides some
/// microseconds.
const AWAITED: usize = 256 << 10;
/// Interval of checks whether to continue.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The same interval while a test cuts the stream.
const PAUSE_CHECK: Duration = Duration::from_millis(5);
/// The first byte on a stream.
const BEGIN: u8 = 1;
/// Longest frame.
const LONGEST: usize = 16 << 10;

/// The reason for which a connection is unusable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The deadline has passed.
    TimedOut,
    /// The waiting thread was asked to stop.
    Stopped,
    /// No bytes move, and the wait has found the connection dead.
    Unresponsive,
    /// The other side or its kernel has closed the connection.
    Ended,
    /// An error of the network, or a malformed frame.
    Failed(String),
}

impl From<io::Error> for Broken {
    fn from(e: io::Error) -> Broken {
        match e.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => Broken::Ended,
            _ => Broken::Failed(e.to_string()),
        }
    }
}

impl From<records::Forged> for Broken {
    fn from(_: records::Forged) -> Broken {
        Broken::Failed("a record is not authentic: it was changed on the way".to_owned())
    }
}

/// The limits of a wait.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    pub until: Option<Instant>,
    pub stop: &'a dyn Fn() -> bool,
    /// Called repeatedly while no bytes move, with the time since the last ones: returns whether the connection is dead.
    pub is_dead: &'a dyn Fn(Duration) -> bool,
}

impl<'a> Wait<'a> {
    /// A wait without a limit on the time without traffic.
    pub fn without_idle_limit(until: Option<Instant>, stop: &'a dyn Fn() -> bool) -> Wait<'a> {
        Wait { until, stop, is_dead: &|_| false }
    }
}

/// The encryption of a connection, with its buffers.
struct Protection {
    seal: Sealer,
    open: Opener,
    /// Sealed records that have not been sent.
    out: Vec<u8>,
    /// Received records; `at` is the offset of the next one, and `plain` the unread rest of the last one.
    cipher: Vec<u8>,
    at: usize,
    plain: Range<usize>,
}

/// One connection between two processes: a stream, its encryption and its counters.
pub struct RemoteConnection {
    fd: OwnedFd,
    protection: Option<Box<Protection>>,
    paused: Arc<AtomicBool>,
    /// The low-water mark of the socket.
    awaited: usize,
    /// The number by which the requesting side names the connection.
    pub number: u64,
    /// The connection is a bulk pipe over messages.
    pub is_routed: bool,
    pub traffic: Arc<Traffic>,
    /// The time since which the connection is idle.
    pub idle_since: Instant,
}

impl RemoteConnection {
    /// `None` if the keys are invalid. While `paused` is set, nothing is read or written, as with a pulled cable.
    pub fn new(fd: OwnedFd, keys: Option<&Keys>, paused: Arc<AtomicBool>) -> Option<RemoteConnection> {
        base::set_nonblocking(fd.as_raw_fd()).ok()?;
        let protection = match keys {
            None => None,
            Some(keys) => {
                let (seal, open) = keys.ciphers()?;
                Some(Box::new(Protection { seal, open, out: Vec::new(), cipher: Vec::new(), at: 0, plain: 0..0 }))
            }
        };
        let (traffic, idle_since) = (Arc::default(), Instant::now());
        Some(RemoteConnection { fd, protection, paused, awaited: 1, number: 0, is_routed: false, traffic, idle_since })
    }

    /// Whether the keys have protected so many records that the connection is to be replaced.
    pub fn needs_replacement(&self) -> bool {
        self.protection.as_ref().is_some_and(|p| p.seal.needs_replacement() || p.open.needs_replacement())
    }

    /// Whether the other side has closed the connection, or has sent bytes without a request.
    pub fn is_stale(&self) -> bool {
        if self.paused.load(Ordering::Relaxed) {
            return false;
        }
        let mut byte = [0u8; 1];
        // SAFETY: one local byte.
        let n = unsafe { libc::recv(self.fd.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        n >= 0 || io::Error::last_os_error().kind() != ErrorKind::WouldBlock
    }

    /// Waits while a test cuts the stream.
    #[inline]
    fn await_unpaused(&self, wait: Wait<'_>) -> Result<(), Broken> {
        if self.paused.load(Ordering::Relaxed) { self.wait_while_paused(wait) } else { Ok(()) }
    }

    #[cold]
    fn wait_while_paused(&self, wait: Wait<'_>) -> Result<(), Broken> {
        while self.paused.load(Ordering::Relaxed) {
            if wait.until.is_some_and(|until| until <= Instant::now()) {
                return Err(Broken::TimedOut);
            }
            if (wait.stop)() {
                return Err(Broken::Stopped);
            }
            std::thread::sleep(PAUSE_CHECK);
        }
        Ok(())
    }

    /// Waits for room or for bytes, until one of the limits of the wait is reached.
    fn wait(&self, events: libc::c_short, wait: Wait<'_>) -> Result<(), Broken> {
        // Silence is counted in checks, not by the clock: time during which this process is frozen does not count.
        let (mut idle, mut buffered) = (Duration::ZERO, None);
        loop {
            let now = Instant::now();
            if wait.until.is_some_and(|until| until <= now) {
                return Err(Broken::TimedOut);
            }
            if (wait.stop)() {
                return Err(Broken::Stopped);
            }
            let look = now + CHECK_INTERVAL;
            let seen = sys::poll(&[(self.fd.as_raw_fd(), events)], Some(wait.until.map_or(look, |until| until.min(look))))?;
            if !seen.is_empty() {
                return Ok(());
            }
            // On a slow network it takes long until the low-water mark is reached, so the fill of the kernel's buffers is compared.
            let moves = buffered.replace(base::buffered(self.fd.as_raw_fd())).is_some_and(|before| Some(before) != buffered);
            idle = if moves { Duration::ZERO } else { idle + CHECK_INTERVAL };
            if !moves && (wait.is_dead)(idle) {
                return Err(Broken::Unresponsive);
            }
        }
    }

    /// Waits for bytes; `bytes` more of them are expected.
    fn wait_for(&mut self, bytes: usize, wait: Wait<'_>) -> Result<(), Broken> {
        let wanted = if bytes < AWAITED { 1 } else { AWAITED };
        if wanted != self.awaited {
            base::set_least(self.fd.as_raw_fd(), wanted);
            self.awaited = wanted;
        }
        self.wait(libc::POLLIN, wait)
    }

    fn write(&self, mut slices: &mut [IoSlice<'_>], wait: Wait<'_>) -> Result<(), Broken> {
        while slices.iter().any(|s| !s.is_empty()) {
            self.await_unpaused(wait)?;
            match base::send_slices(self.fd.as_raw_fd(), slices) {
                Ok(n) => {
                    self.traffic.add_sent(n);
                    IoSlice::advance_slices(&mut slices, n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(libc::POLLOUT, wait)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Sends all pieces completely.
    pub fn send(&mut self, pieces: &[&[u8]], wait: Wait<'_>) -> Result<(), Broken> {
        let Some(mut p) = self.protection.take() else {
            let (large, small): (&[&[u8]], _) = match pieces {
                [large] if large.len() > AT_ONCE => (pieces, &[][..]),
                small => (&[], small),
            };
            for piece in large.iter().flat_map(|piece| piece.chunks(AT_ONCE)) {
                self.write(&mut [IoSlice::new(piece)], wait)?;
            }
            let mut slices: Vec<IoSlice<'_>> = small.iter().map(|p| IoSlice::new(p)).collect();
            return self.write(&mut slices, wait);
        };
        let mut run = || {
            for plain in pieces.iter().flat_map(|piece| piece.chunks(MOST)) {
                p.seal.seal(plain, &mut p.out)?;
                if p.out.len() >= BUFFER {
                    self.write(&mut [IoSlice::new(&p.out)], wait)?;
                    p.out.clear();
                }
            }
            self.write(&mut [IoSlice::new(&p.out)], wait)?;
            p.out.clear();
            Ok(())
        };
        let sent = run();
        self.protection = Some(p);
        sent
    }

    /// Fills memory with the next bytes.
    ///
    /// # Safety
    /// `len` bytes from `to` on are valid for writing.
    pub unsafe fn receive(&mut self, to: *mut u8, len: usize, wait: Wait<'_>) -> Result<(), Broken> {
        // SAFETY: the caller's guarantee.
        unsafe { self.receive_counted(to, len, wait, &mut 0) }
    }

    /// Fills memory with the next bytes. `done` is the number of received bytes, also after an error.
    ///
    /// # Safety
    /// `len` bytes from `to` on are valid for writing.
    pub unsafe fn receive_counted(&mut self, to: *mut u8, len: usize, wait: Wait<'_>, done: &mut usize) -> Result<(), Broken> {
        while *done < len {
            // SAFETY: the offset is inside the caller's range.
            let to = unsafe { to.add(*done) };
            self.await_unpaused(wait)?;
            match self.protection.as_deref_mut() {
                None => match self.read(to, len - *done) {
                    Ok(0) => return Err(Broken::Ended),
                    Ok(n) => *done += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait_for(len - *done, wait)?,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.into()),
                },
                Some(p) if !p.plain.is_empty() => {
                    let n = p.plain.len().min(len - *done);
                    // SAFETY: the caller's range, and bytes of the own buffer.
                    unsafe { std::ptr::copy_nonoverlapping(p.cipher[p.plain.start..].as_ptr(), to, n) };
                    p.plain.start += n;
                    *done += n;
                }
                Some(p) => {
                    if !p.next()? {
                        self.fill(len - *done, wait)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills runs of memory with the next bytes. `done` is the number of received bytes, also after an error.
    pub fn receive_runs(&mut self, mut runs: &mut [IoSliceMut<'_>], wait: Wait<'_>, done: &mut usize) -> Result<(), Broken> {
        if self.protection.is_some() {
            for run in runs {
                let mut count = 0;
                // SAFETY: memory that the slice borrows.
                let received = unsafe { self.receive_counted(run.as_mut_ptr(), run.len(), wait, &mut count) };
                *done += count;
                received?;
            }
            return Ok(());
        }
        let mut left: usize = runs.iter().map(|run| run.len()).sum();
        while left > 0 {
            self.await_unpaused(wait)?;
            match base::receive_slices(self.fd.as_raw_fd(), runs) {
                Ok(0) => return Err(Broken::Ended),
                Ok(n) => {
                    self.traffic.add_received(n);
                    *done += n;
                    left -= n;
                    IoSliceMut::advance_slices(&mut runs, n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait_for(left, wait)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Whether bytes are encrypted: they are copied on their way then.
    pub fn is_encrypted(&self) -> bool {
        self.protection.is_some()
    }

    fn read(&self, to: *mut u8, len: usize) -> io::Result<usize> {
        // SAFETY: the caller of `receive` guarantees that range.
        let n = unsafe { libc::recv(self.fd.as_raw_fd(), to.cast(), len, 0) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        self.traffic.add_received(n as usize);
        Ok(n as usize)
    }

    /// Reads more records, and waits until some arrive. `content` bytes of content are still expected.
    fn fill(&mut self, content: usize, wait: Wait<'_>) -> Result<(), Broken> {
        let fd = self.fd.as_raw_fd();
        loop {
            self.await_unpaused(wait)?;
            let Some(p) = self.protection.as_deref_mut() else { return Ok(()) };
            p.cipher.drain(..p.at);
            (p.at, p.plain) = (0, 0..0);
            let begun = p.cipher.len();
            let room = BUFFER.saturating_sub(begun).max(MOST);
            match base::read_into(fd, &mut p.cipher, room) {
                Ok(0) => return Err(Broken::Ended),
                Ok(n) => {
                    self.traffic.add_received(n);
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait_for(content.saturating_sub(begun), wait)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The side that opened the stream sends a first byte when it has its end, and the other side waits for that byte.
    pub fn begin(&mut self, dialled: bool, wait: Wait<'_>) -> Result<(), Broken> {
        if dialled {
            return self.send(&[&[BEGIN]], wait);
        }
        let mut first = 0u8;
        // SAFETY: one local byte.
        unsafe { self.receive(&raw mut first, 1, wait) }?;
        if first == BEGIN { Ok(()) } else { Err(Broken::Failed("the other side sent a malformed frame".to_owned())) }
    }

    /// Sends a frame: its length, then its bytes.
    pub fn send_frame(&mut self, frame: &[u8], wait: Wait<'_>) -> Result<(), Broken> {
        let mut whole = (frame.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(frame);
        self.send(&[&whole], wait)
    }

    pub fn receive_number(&mut self, wait: Wait<'_>) -> Result<u32, Broken> {
        let mut bytes = [0u8; 4];
        // SAFETY: four local bytes.
        unsafe { self.receive(bytes.as_mut_ptr(), 4, wait) }?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub fn receive_frame(&mut self, wait: Wait<'_>) -> Result<Vec<u8>, Broken> {
        let len = self.receive_number(wait)? as usize;
        if len > LONGEST {
            return Err(Broken::Failed("the other side sent a malformed frame".to_owned()));
        }
        let mut frame = vec![0u8; len];
        // SAFETY: `len` bytes of a local buffer.
        unsafe { self.receive(frame.as_mut_ptr(), len, wait) }?;
        Ok(frame)
    }
}

impl Protection {
    /// Decrypts the next record, if it has arrived completely.
    fn next(&mut self) -> Result<bool, Broken> {
        let Some(length) = records::length(&self.cipher[self.at..])? else { return Ok(false) };
        let Some(record) = self.cipher.get_mut(self.at..self.at + length) else { return Ok(false) };
        let Some(plain) = self.open.open(record)? else { return Err(Broken::Ended) };
        let n = plain.len();
        self.plain = self.at + HEAD..self.at + HEAD + n;
        self.at += length;
        Ok(true)
    }
}
