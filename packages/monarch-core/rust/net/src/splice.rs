//! Two streams whose bytes are passed on from each to the other: a tunnel, in the middle.
//!
//! What has been read from one end is written to the other before more is read, so that a slow reader slows its writer down, and a
//! splice holds little. The end of one direction is passed on as such, and the other goes on; a failure or a reset of either end resets
//! the other, which is then seen there as it would be without a tunnel.

use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::poller::{Poller, Source};
use crate::stream::Stream;
use crate::sys;

/// Read at once, and so held for each direction at most (an encrypted stream holds some more).
const CHUNK: usize = 64 << 10;
/// Reads in a row before others get their turn.
const IN_A_ROW: usize = 8;

struct End {
    stream: Stream,
    token: u64,
    /// What its descriptor is watched for.
    armed: Option<(bool, bool)>,
    /// Nothing more comes from it.
    ended: bool,
    /// Nothing more goes to it.
    closed: bool,
    /// What goes to it, from `at`.
    out: Vec<u8>,
    at: usize,
}

pub struct Splice {
    poller: Arc<Poller>,
    ends: Mutex<Option<[End; 2]>>,
}

impl Splice {
    /// Goes on until both ends have ended or one has failed, or `close`.
    pub fn start(poller: &Arc<Poller>, a: Stream, b: Stream) -> io::Result<Arc<Splice>> {
        let end = |stream| End { stream, token: poller.token(), armed: None, ended: false, closed: false, out: Vec::new(), at: 0 };
        let ends = [end(a), end(b)];
        let places = [0, 1].map(|i| (ends[i].token, ends[i].stream.fd()));
        let me = Arc::new(Splice { poller: poller.clone(), ends: Mutex::new(Some(ends)) });
        for (side, (token, fd)) in places.into_iter().enumerate() {
            if let Err(e) = poller.add_once(token, fd, Arc::new(Ready { splice: me.clone(), side })) {
                me.close();
                return Err(e);
            }
        }
        // What a stream has decrypted already does not show at its descriptor.
        let first = me.clone();
        poller.spawn(Box::new(move || first.step(None)));
        Ok(me)
    }

    pub fn is_over(&self) -> bool {
        lock(&self.ends).is_none()
    }

    /// Nothing more comes from the first end: it may have been closed, or only for one direction.
    pub fn has_first_ended(&self) -> bool {
        lock(&self.ends).as_ref().is_none_or(|ends| ends[0].ended)
    }

    /// Resets both ends.
    pub fn close(&self) {
        let ends = lock(&self.ends).take();
        self.end(ends, true);
    }

    fn end(&self, ends: Option<[End; 2]>, reset: bool) {
        for end in ends.iter().flatten() {
            // Before the descriptor belongs to somebody else.
            self.poller.remove(end.token, end.stream.fd());
            if reset {
                sys::reset(end.stream.fd());
            }
        }
    }

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

    fn arm(&self, end: &mut End, room: bool) {
        let wanted = (room && !end.ended, !end.out.is_empty() || end.stream.wants_write());
        if end.armed != Some(wanted) {
            end.armed = Some(wanted);
            let fd: RawFd = end.stream.fd();
            self.poller.arm_for(end.token, fd, wanted.0, wanted.1);
        }
    }
}

/// Passes on what there is; true if there may be more.
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
            // Its process has ended: the kernel closes without the last word of the encryption.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => from.ended = true,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                // A quiet tunnel needs no memory.
                to.out = Vec::new();
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

struct Ready {
    splice: Arc<Splice>,
    side: usize,
}

impl Source for Ready {
    fn ready(&self, _events: u32) {
        self.splice.step(Some(self.side));
    }
}
