//! Lines that procs print.
//!
//! Each proc's stdout and stderr are pipes that the agent reads. Lines come out whole, with the proc's prefix, in
//! order, on the agent's own stdout and stderr. A thread of its own does it: a console that does not read slows
//! down those who print, and nobody else.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use net::lock::lock;
use net::{Poller, Source, sys};

/// Lines that may wait for the console before a pipe is left unread.
const BACKLOG: usize = 256 << 10;
/// More than a pipe holds: what a proc that is gone can have left in it.
const PIPE: usize = 1 << 20;
/// Longer lines are cut (contract 13.1).
const LINE: usize = 4096;
const TRUNCATED: &[u8] = b"[TRUNCATED]";

/// The last lines of a proc, both streams.
pub struct Tail {
    lines: Mutex<VecDeque<String>>,
    keep: usize,
}

impl Tail {
    pub fn new(keep: usize) -> Arc<Self> {
        Arc::new(Tail { lines: Mutex::default(), keep })
    }

    fn add(&self, line: &[u8]) {
        if self.keep == 0 {
            return;
        }
        let mut lines = lock(&self.lines);
        if lines.len() == self.keep {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).into_owned());
    }

    pub fn lines(&self) -> Vec<String> {
        lock(&self.lines).iter().cloned().collect()
    }
}

#[derive(Default)]
struct Lines {
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    cut: bool,
    /// Whole lines with prefix, not yet on the console.
    pending: Vec<u8>,
    ended: bool,
}

/// One stream of one proc.
pub struct Stream {
    pipe: OwnedFd,
    console: libc::c_int,
    prefix: Vec<u8>,
    tail: Arc<Tail>,
    lines: Mutex<Lines>,
    token: u64,
}

impl Stream {
    fn feed(&self, l: &mut Lines, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (body, ends) = match piece.split_last() {
                Some((b'\n', body)) => (body, true),
                _ => (piece, false),
            };
            if !l.cut {
                let room = LINE - l.partial.len().min(LINE);
                l.cut = body.len() > room;
                l.partial.extend_from_slice(&body[..body.len().min(room)]);
            }
            if ends {
                self.end_line(l);
            }
        }
    }

    fn end_line(&self, l: &mut Lines) {
        if l.cut {
            // Not in the middle of a character.
            if let Err(e) = std::str::from_utf8(&l.partial)
                && e.error_len().is_none()
            {
                l.partial.truncate(e.valid_up_to());
            }
            l.partial.extend_from_slice(TRUNCATED);
        }
        self.tail.add(&l.partial);
        l.pending.extend_from_slice(&self.prefix);
        let line = std::mem::take(&mut l.partial);
        l.pending.extend_from_slice(&line);
        l.pending.push(b'\n');
        l.cut = false;
    }

    /// Reads what is there until so much is pending; false at the end of the stream.
    fn read(&self, bound: usize) -> bool {
        let mut l = lock(&self.lines);
        let mut buf = [0; 16 << 10];
        loop {
            match sys::read(self.pipe.as_raw_fd(), &mut buf) {
                Ok(0) => {
                    if !l.partial.is_empty() {
                        self.end_line(&mut l);
                    }
                    l.ended = true;
                    return false;
                }
                Ok(n) => {
                    self.feed(&mut l, &buf[..n]);
                    // Give the console its turn before the backlog grows.
                    if l.pending.len() > bound {
                        return true;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }

    fn write(&self) {
        let pending = std::mem::take(&mut lock(&self.lines).pending);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            // SAFETY: a readable slice.
            let n = unsafe { libc::write(self.console, rest.as_ptr().cast(), rest.len()) };
            if n >= 0 {
                rest = &rest[n as usize..];
                continue;
            }
            match std::io::Error::last_os_error().kind() {
                std::io::ErrorKind::Interrupted => {}
                std::io::ErrorKind::WouldBlock => {
                    let mut p = libc::pollfd { fd: self.console, events: libc::POLLOUT, revents: 0 };
                    // SAFETY: one valid pollfd.
                    unsafe { libc::poll(&mut p, 1, -1) };
                }
                // A closed console takes nothing; the lines are in the tail.
                _ => return,
            }
        }
    }
}

struct StreamSource(Arc<Stream>, std::sync::Weak<Poller>);

impl Source for StreamSource {
    fn ready(&self, _events: u32) {
        let more = self.0.read(BACKLOG);
        self.0.write();
        if !more && let Some(p) = self.1.upgrade() {
            p.remove(self.0.token, self.0.pipe.as_raw_fd());
        }
    }
}

/// The thread that carries lines to the console.
pub struct Output {
    poller: Arc<Poller>,
    started: AtomicBool,
}

impl Output {
    pub fn new() -> std::io::Result<Self> {
        Ok(Output { poller: Poller::new()?, started: AtomicBool::new(false) })
    }

    fn start(&self) {
        if !self.started.swap(true, Ordering::AcqRel) {
            let poller = self.poller.clone();
            crate::node::spawn_thread("monarch-output", move || poller.run());
        }
    }

    pub fn add(&self, pipe: OwnedFd, console: libc::c_int, prefix: &str, tail: Arc<Tail>) -> std::io::Result<Arc<Stream>> {
        self.start();
        sys::set_nonblocking(pipe.as_raw_fd())?;
        let token = self.poller.token();
        let stream = Arc::new(Stream { pipe, console, prefix: prefix.into(), tail, lines: Mutex::default(), token });
        let source = StreamSource(stream.clone(), Arc::downgrade(&self.poller));
        self.poller.add(token, stream.pipe.as_raw_fd(), Arc::new(source))?;
        Ok(stream)
    }

    /// The proc is gone: takes what it left in the pipe into its tail now, and to the console soon.
    pub fn drain(&self, stream: &Arc<Stream>) {
        let pending = lock(&stream.lines).pending.len();
        stream.read(pending + PIPE);
        let mut l = lock(&stream.lines);
        if !l.partial.is_empty() {
            stream.end_line(&mut l);
        }
        drop(l);
        let s = stream.clone();
        self.poller.spawn(Box::new(move || s.write()));
    }

    /// Takes what is in the pipe to the console soon, ahead of the kernel's word that there is something.
    pub fn carry(&self, stream: &Arc<Stream>) {
        let s = stream.clone();
        self.poller.spawn(Box::new(move || {
            s.read(BACKLOG);
            s.write();
        }));
    }

    /// Waits until all that was handed over is on the console, at most so long.
    pub fn flush(&self, bound: Duration) {
        if !self.started.load(Ordering::Acquire) {
            return;
        }
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let theirs = gate.clone();
        self.poller.spawn(Box::new(move || {
            *lock(&theirs.0) = true;
            theirs.1.notify_all();
        }));
        let deadline = Instant::now() + bound;
        let mut open = lock(&gate.0);
        while !*open {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            open = gate.1.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
