//! Bytes over one stream, encrypted or not. Used by one thread at a time, which waits for room and for bytes.

use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use net::records::{self, HEAD, Keys, MOST, Opener, Sealer, TAIL};
use net::sys as base;

use super::traffic::Traffic;
use crate::sys;

/// Records that are read, and written, at once.
const RECORDS: usize = 16;
const BUFFER: usize = RECORDS * (HEAD + MOST + TAIL);
/// Given to the kernel at once: of one write of 64 MiB the other side gets less than half as much in the same time, for the socket is
/// locked all the while.
const AT_ONCE: usize = 512 << 10;
/// Of a long piece: who reads it is woken when so many bytes are there. Each time costs both sides some microseconds.
const AWAITED: usize = 256 << 10;
/// How often it is looked whether to go on.
const LOOK: Duration = Duration::from_millis(100);
/// The same, where a test has cut the line.
const LOOK_STILL: Duration = Duration::from_millis(5);
/// The first byte of all.
const BEGIN: u8 = 1;
/// Of one frame.
const LONGEST: usize = 16 << 10;

/// Why a line is of no use any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    TimedOut,
    /// Whoever waits does not want to any more.
    Stopped,
    /// Nothing moves, and the wait says that nothing will.
    Silent,
    /// The other side has closed it, or its kernel has.
    Ended,
    /// The network, or what came makes no sense.
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
        Broken::Failed("what came was not what the other side had sent".to_owned())
    }
}

/// How long to wait, and whether still to.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    pub until: Option<Instant>,
    pub stop: &'a dyn Fn() -> bool,
    /// Asked again and again while nothing moves, with the time since when: is the connection dead?
    pub is_dead: &'a dyn Fn(Duration) -> bool,
}

impl<'a> Wait<'a> {
    /// However long nothing moves.
    pub fn patient(until: Option<Instant>, stop: &'a dyn Fn() -> bool) -> Wait<'a> {
        Wait { until, stop, is_dead: &|_| false }
    }
}

struct Protection {
    seal: Sealer,
    open: Opener,
    /// Sealed, and not sent yet.
    out: Vec<u8>,
    /// What came: records, the next one from `at`; `plain` is what is left of the last one.
    cipher: Vec<u8>,
    at: usize,
    plain: Range<usize>,
}

pub struct Line {
    fd: OwnedFd,
    protection: Option<Box<Protection>>,
    still: Arc<AtomicBool>,
    /// The kernel tells of so many bytes, not of fewer.
    awaited: usize,
    /// What the asking side calls it.
    pub number: u64,
    /// It goes by messages.
    pub is_routed: bool,
    pub traffic: Arc<Traffic>,
    /// Since when it has not been used.
    pub rests: Instant,
}

impl Line {
    /// None: the keys are no keys. While it is `still` nothing is read or written, as if a cable were pulled.
    pub fn new(fd: OwnedFd, keys: Option<&Keys>, still: Arc<AtomicBool>) -> Option<Line> {
        base::set_nonblocking(fd.as_raw_fd()).ok()?;
        let protection = match keys {
            None => None,
            Some(keys) => {
                let (seal, open) = keys.ciphers()?;
                Some(Box::new(Protection { seal, open, out: Vec::new(), cipher: Vec::new(), at: 0, plain: 0..0 }))
            }
        };
        let (traffic, rests) = (Arc::default(), Instant::now());
        Some(Line { fd, protection, still, awaited: 1, number: 0, is_routed: false, traffic, rests })
    }

    /// Its keys have protected much already.
    pub fn is_tired(&self) -> bool {
        self.protection.as_ref().is_some_and(|p| p.seal.is_tired() || p.open.is_tired())
    }

    /// The other side has ended it, or says something without being asked.
    pub fn is_stale(&self) -> bool {
        if self.still.load(Ordering::Relaxed) {
            return false;
        }
        let mut byte = [0u8; 1];
        // SAFETY: one byte of ours.
        let n = unsafe { libc::recv(self.fd.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        n >= 0 || io::Error::last_os_error().kind() != ErrorKind::WouldBlock
    }

    #[inline]
    fn go(&self, wait: Wait<'_>) -> Result<(), Broken> {
        if self.still.load(Ordering::Relaxed) { self.stand_still(wait) } else { Ok(()) }
    }

    #[cold]
    fn stand_still(&self, wait: Wait<'_>) -> Result<(), Broken> {
        while self.still.load(Ordering::Relaxed) {
            if wait.until.is_some_and(|until| until <= Instant::now()) {
                return Err(Broken::TimedOut);
            }
            if (wait.stop)() {
                return Err(Broken::Stopped);
            }
            std::thread::sleep(LOOK_STILL);
        }
        Ok(())
    }

    fn wait(&self, events: libc::c_short, wait: Wait<'_>) -> Result<(), Broken> {
        // Counted in looks: while this process is frozen nothing is silent.
        let (mut silence, mut buffered) = (Duration::ZERO, None);
        loop {
            let now = Instant::now();
            if wait.until.is_some_and(|until| until <= now) {
                return Err(Broken::TimedOut);
            }
            if (wait.stop)() {
                return Err(Broken::Stopped);
            }
            let look = now + LOOK;
            let seen = sys::poll(&[(self.fd.as_raw_fd(), events)], Some(wait.until.map_or(look, |until| until.min(look))))?;
            if !seen.is_empty() {
                return Ok(());
            }
            // On a slow network it takes long until so many bytes are there, or there is so much room, that the kernel tells.
            let moves = buffered.replace(base::buffered(self.fd.as_raw_fd())).is_some_and(|before| Some(before) != buffered);
            silence = if moves { Duration::ZERO } else { silence + LOOK };
            if !moves && (wait.is_dead)(silence) {
                return Err(Broken::Silent);
            }
        }
    }

    /// Of a piece, so many bytes are still to come.
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
            self.go(wait)?;
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

    /// Sends all of the pieces.
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
        // SAFETY: the caller's promise.
        unsafe { self.receive_counted(to, len, wait, &mut 0) }
    }

    /// The same; `done` is how many came, also where the connection broke before all did.
    ///
    /// # Safety
    /// `len` bytes from `to` on are valid for writing.
    pub unsafe fn receive_counted(&mut self, to: *mut u8, len: usize, wait: Wait<'_>, done: &mut usize) -> Result<(), Broken> {
        while *done < len {
            // SAFETY: within the caller's range.
            let to = unsafe { to.add(*done) };
            self.go(wait)?;
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
                    // SAFETY: the caller's range, and bytes of our own buffer.
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

    fn read(&self, to: *mut u8, len: usize) -> io::Result<usize> {
        // SAFETY: the caller of `receive` promises that range.
        let n = unsafe { libc::recv(self.fd.as_raw_fd(), to.cast(), len, 0) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        self.traffic.add_received(n as usize);
        Ok(n as usize)
    }

    /// Reads more records, of which so many bytes of content are still to come; waits until there are any.
    fn fill(&mut self, content: usize, wait: Wait<'_>) -> Result<(), Broken> {
        let fd = self.fd.as_raw_fd();
        loop {
            self.go(wait)?;
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

    /// The side that opened the stream says that it has its end, and the other side waits for that.
    pub fn begin(&mut self, dialled: bool, wait: Wait<'_>) -> Result<(), Broken> {
        if dialled {
            return self.send(&[&[BEGIN]], wait);
        }
        let mut first = 0u8;
        // SAFETY: one byte of ours.
        unsafe { self.receive(&raw mut first, 1, wait) }?;
        if first == BEGIN { Ok(()) } else { Err(Broken::Failed("a malformed frame came".to_owned())) }
    }

    /// A message of its own: its length, then its bytes.
    pub fn send_frame(&mut self, frame: &[u8], wait: Wait<'_>) -> Result<(), Broken> {
        let mut whole = (frame.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(frame);
        self.send(&[&whole], wait)
    }

    pub fn receive_number(&mut self, wait: Wait<'_>) -> Result<u32, Broken> {
        let mut bytes = [0u8; 4];
        // SAFETY: four bytes of ours.
        unsafe { self.receive(bytes.as_mut_ptr(), 4, wait) }?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub fn receive_frame(&mut self, wait: Wait<'_>) -> Result<Vec<u8>, Broken> {
        let len = self.receive_number(wait)? as usize;
        if len > LONGEST {
            return Err(Broken::Failed("a malformed frame came".to_owned()));
        }
        let mut frame = vec![0u8; len];
        // SAFETY: `len` bytes of ours.
        unsafe { self.receive(frame.as_mut_ptr(), len, wait) }?;
        Ok(frame)
    }
}

impl Protection {
    /// Decrypts the next record, if it is there whole.
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
