//! Two streams whose bytes are forwarded from each to the other: the middle of a tunnel.
//!
//! Bytes that were read from one end are written to the other before more is read. So a slow reader slows its writer down, and a splice
//! holds few bytes. The end of one direction is forwarded, and the other direction continues. A failure or a reset of either end resets the
//! other end, whose peer sees the same as without a tunnel.

use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::poller::{Poller, Source};
use crate::stream::Stream;
use crate::sys;

/// Bytes of one read, and so the most that is held for each direction (an encrypted stream holds some more).
const CHUNK: usize = 64 << 10;
/// Reads in a row before the poller serves other sockets.
const IN_A_ROW: usize = 8;

/// One end of a splice, with the bytes that wait to be written to it.
struct End {
    stream: Stream,
    token: u64,
    /// The events for which the descriptor is armed: reading, writing.
    armed: Option<(bool, bool)>,
    /// The stream has ended: no more bytes arrive from it.
    ended: bool,
    /// The stream is closed for writing: no more bytes go to it.
    closed: bool,
    /// Bytes that are written to the stream, from the offset `at`.
    out: Vec<u8>,
    at: usize,
}

/// The middle of a tunnel. It registers itself with the poller and ends itself.
pub struct Splice {
    poller: Arc<Poller>,
    ends: Mutex<Option<[End; 2]>>,
}

impl Splice {
    /// Forwards until both ends have ended, one has failed, or `close` is called.
    pub fn start(poller: &Arc<Poller>, a: Stream, b: Stream) -> io::Result<Arc<Splice>> {
        let end = |stream| End { stream, token: poller.token(), armed: None, ended: false, closed: false, out: Vec::new(), at: 0 };
        let ends = [end(a), end(b)];
        let sources = [0, 1].map(|i| (ends[i].token, ends[i].stream.fd()));
        let me = Arc::new(Splice { poller: poller.clone(), ends: Mutex::new(Some(ends)) });
        for (side, (token, fd)) in sources.into_iter().enumerate() {
            if let Err(e) = poller.add_once(token, fd, Arc::new(Ready { splice: me.clone(), side })) {
                me.close();
                return Err(e);
            }
        }
        // Bytes that a stream has already decrypted cause no event at its descriptor.
        let first = me.clone();
        poller.spawn(Box::new(move || first.step(None)));
        Ok(me)
    }

    pub fn is_over(&self) -> bool {
        lock(&self.ends).is_none()
    }

    /// Whether the first end has ended; its peer has closed the stream, or one direction of it.
    pub fn has_first_ended(&self) -> bool {
        lock(&self.ends).as_ref().is_none_or(|ends| ends[0].ended)
    }

    /// Resets both ends.
    pub fn close(&self) {
        let ends = lock(&self.ends).take();
        self.end(ends, true);
    }

    /// Removes both ends from the poller. With `reset`, their sockets are closed by a reset.
    fn end(&self, ends: Option<[End; 2]>, reset: bool) {
        for end in ends.iter().flatten() {
            // The socket leaves the poller before its descriptor number can get another owner.
            self.poller.remove(end.token, end.stream.fd());
            if reset {
                sys::reset(end.stream.fd());
            }
        }
    }

    /// Forwards in both directions, and then waits or ends.
    fn step(self: &Arc<Self>, woken: Option<usize>) {
        let mut guard = lock(&self.ends);
        let Some(ends) = guard.as_mut() else { return };
        if let Some(side) = woken {
            ends[side].armed = None;
        }
        let [a, b] = ends;
        let more = pass(a, b).and_then(|x| Ok(x | pass(b, a)?));
        match more {
            Ok(_) if a.closed && b.closed => {
                let ends = guard.take();
                drop(guard);
                self.end(ends, false);
            }
            Ok(true) => {
                drop(guard);
                let me = self.clone();
                self.poller.spawn(Box::new(move || me.step(None)));
            }
            Ok(false) => {
                self.arm(a, b.out.is_empty());
                self.arm(b, a.out.is_empty());
            }
            Err(_) => {
                let ends = guard.take();
                drop(guard);
                self.end(ends, true);
            }
        }
    }

    /// Waits for bytes of an end if the other end has room, and for room if bytes wait.
    fn arm(&self, end: &mut End, room: bool) {
        let wanted = (room && !end.ended, !end.out.is_empty() || end.stream.wants_write());
        if end.armed != Some(wanted) {
            end.armed = Some(wanted);
            let fd: RawFd = end.stream.fd();
            self.poller.arm_for(end.token, fd, wanted.0, wanted.1);
        }
    }
}

/// Forwards the available bytes; returns true if more may be available.
fn pass(from: &mut End, to: &mut End) -> io::Result<bool> {
    for _ in 0..IN_A_ROW {
        while to.at < to.out.len() {
            match to.stream.write(&[&to.out[to.at..]]) {
                Ok(n) => to.at += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        to.out.clear();
        to.at = 0;
        let flushed = to.stream.flush()?;
        if from.ended {
            to.out = Vec::new();
            if flushed && !to.closed {
                to.stream.close();
                to.closed = true;
            }
            return Ok(false);
        }
        match from.stream.read(&mut to.out, CHUNK) {
            Ok(0) => from.ended = true,
            // The sending process has ended: the kernel closed the socket without the end record of TLS.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => from.ended = true,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                // An idle tunnel needs no buffer.
                to.out = Vec::new();
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// One end of a splice as a source of the poller.
struct Ready {
    splice: Arc<Splice>,
    side: usize,
}

impl Source for Ready {
    fn ready(&self, _events: u32) {
        self.splice.step(Some(self.side));
    }
}
