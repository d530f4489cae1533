//! The requesting side: one owner of another host, and the streams to it.
//!
//! A broken stream is replaced, and the operation continues where it was: three times, unless the owner is known to have ended. A stream
//! without traffic is replaced when the owner reports over another one that it is dead, any number of times. A requesting thread has a
//! stream to itself; there are as many streams as increase the throughput.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use net::lock::lock;

use super::connection::{Broken, Line, Wait};
use super::fabric::{Fabric, NoStream};
use super::probe::{Inquiry, SILENCE};
use super::serving;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{self, Reply, Request};
use crate::registry::Id;

/// The pauses before further attempts. They also give the report of the owner's end time to arrive.
const PAUSES: [Duration; 3] = [Duration::from_millis(3), Duration::from_millis(15), Duration::from_millis(40)];
/// The failure of a stream that the other side has closed.
const CLOSED: &str = "the stream was closed";
/// How long to wait for the report of the owner's end: a killed owner closes its streams at once, and the report may be late on a busy
/// machine.
const NEWS: Duration = Duration::from_secs(2);
/// Interval of checks for the report of the owner's end.
const LOOK: Duration = Duration::from_millis(5);
/// Most pending requests on one stream.
const WINDOW: usize = 64;
/// Most bytes of a small operation.
const SMALL: usize = 64 << 10;
/// A stream that was idle for longer is not used again: the owner may be about to close it.
const REST: Duration = Duration::from_secs(serving::SILENCE.as_secs() / 2);
/// A stream that was idle for longer is tested before a request that cannot be repeated.
const FRESH: Duration = Duration::from_secs(1);
/// Most given-up streams whose numbers are kept for the owner.
const GIVEN_UP: usize = 128;

/// The number of streams that this process has opened.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A copy between local memory and a buffer.
pub struct Piece {
    pub id: Id,
    pub epoch: u64,
    pub write: bool,
    /// The offset in the buffer.
    pub offset: u64,
    /// The address of the local memory.
    pub local: usize,
    pub len: usize,
    /// The number of bytes already copied.
    pub done: usize,
}

impl Piece {
    fn request(&self) -> Request {
        let (offset, len) = (self.offset + self.done as u64, (self.len - self.done) as u64);
        Request::Copy { id: self.id, epoch: self.epoch, offset, len, write: self.write }
    }
}

/// The streams to one owner.
#[derive(Default)]
struct Lines {
    idle: Vec<Line>,
    open: usize,
    /// The number of streams with a large operation.
    large: usize,
    /// Numbers of closed streams that the owner may still serve.
    given_up: Vec<u64>,
}

/// An owner on another host, with the streams to it.
pub struct Far {
    pub owner: u64,
    fabric: Arc<dyn Fabric>,
    /// Most streams for large operations at a time.
    pub width: usize,
    lines: Mutex<Lines>,
    freed: Condvar,
    is_routed: AtomicBool,
}

/// The cause of the end of an attempt: the stream, or the operation itself.
enum Ended {
    Line(Broken),
    /// True: the stream is usable, because no other answer is pending on it.
    Operation(Failure, bool),
}

impl From<Broken> for Ended {
    fn from(b: Broken) -> Ended {
        Ended::Line(b)
    }
}

impl Far {
    pub fn new(owner: u64, fabric: Arc<dyn Fabric>, width: usize) -> Arc<Far> {
        Arc::new(Far {
            owner,
            fabric,
            width: width.max(1),
            lines: Mutex::default(),
            freed: Condvar::new(),
            is_routed: AtomicBool::new(false),
        })
    }

    /// Whether the last used stream is a bulk pipe over messages.
    pub fn is_routed(&self) -> bool {
        self.is_routed.load(Ordering::Acquire)
    }

    pub fn has_ended(&self) -> bool {
        self.fabric.has_ended(self.owner)
    }

    /// Closes the idle streams.
    pub fn close_idle(&self) {
        let mut lines = lock(&self.lines);
        lines.open -= lines.idle.len();
        let idle = std::mem::take(&mut lines.idle);
        drop(lines);
        drop(idle);
    }

    /// An idle stream or a new one. Waits if as many as possible are in use.
    fn take(&self, until: Instant, is_small: bool) -> Outcome<Line> {
        {
            let mut lines = lock(&self.lines);
            loop {
                let may = is_small || lines.large < self.width;
                while let Some(line) = if may { lines.idle.pop() } else { None } {
                    if line.rests.elapsed() < REST && !line.is_stale() {
                        lines.large += usize::from(!is_small);
                        return Ok(line);
                    }
                    lines.open -= 1;
                }
                // There is one stream more than large operations may use.
                if lines.open <= self.width && may {
                    break;
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Failure::timed_out());
                }
                lines = self.freed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            lines.open += 1;
            lines.large += usize::from(!is_small);
        }
        let line = self.open(until);
        if line.is_err() {
            self.leave(None, is_small);
        }
        line
    }

    /// Opens a new stream, which is not counted.
    pub(super) fn open(&self, until: Instant) -> Outcome<Line> {
        let mut patience = SILENCE;
        loop {
            let opened = self.fabric.open(self.owner, until).map_err(|why| match why {
                NoStream::Ended => Failure::lost(),
                NoStream::TimedOut => Failure::timed_out(),
                NoStream::NoWay(why) => Failure::new(Kind::Unsupported, why),
                NoStream::Unreachable(why) => Failure::new(Kind::Transfer, format!("no stream to the owner: {why}")),
            })?;
            let none = || Failure::new(Kind::Transfer, "the stream is no stream");
            let mut line = Line::new(opened.fd, opened.keys.as_ref(), opened.still).ok_or_else(none)?;
            (line.number, line.is_routed) = (NUMBER.fetch_add(1, Ordering::Relaxed) + 1, opened.is_routed);
            let stop = || self.has_ended();
            let is_dead = |silence| silence >= patience;
            let wait = Wait { until: Some(until), stop: &stop, is_dead: &is_dead };
            let numbered = frames::encode(0, &Request::Numbered { number: line.number });
            match line.begin(opened.dialled, wait).and_then(|()| line.send_frame(&numbered, wait)) {
                Ok(()) => return Ok(line),
                // The owner's end of the stream may have been lost on its way to the owner, or the owner is frozen.
                Err(Broken::Silent) => patience *= 2,
                Err(broken) => return Err(failure(broken)),
            }
        }
    }

    /// Returns a stream to the idle ones, or counts it as closed.
    fn leave(&self, line: Option<Line>, is_small: bool) {
        let mut lines = lock(&self.lines);
        lines.large -= usize::from(!is_small);
        match line.filter(|line| !line.needs_replacement()) {
            Some(mut line) => {
                line.rests = Instant::now();
                lines.idle.push(line);
            }
            None => lines.open -= 1,
        }
        drop(lines);
        self.freed.notify_all();
    }

    /// Closes a broken stream and all idle ones, which most likely are broken too.
    fn give_up(&self, line: Line) {
        let number = line.number;
        // Dropped first, so that the owner can notice the end.
        drop(line);
        let mut lines = lock(&self.lines);
        let idle = std::mem::take(&mut lines.idle);
        lines.open -= idle.len();
        lines.given_up.extend(idle.iter().map(|line| line.number).chain([number]));
        let excess = lines.given_up.len().saturating_sub(GIVEN_UP);
        lines.given_up.drain(..excess);
        drop(lines);
        drop(idle);
        self.freed.notify_all();
    }

    /// Makes the owner end its work for closed streams. After its answer, it no longer touches memory on their behalf.
    fn settle(&self, line: &mut Line, wait: Wait<'_>) -> Result<(), Ended> {
        let numbers = lock(&self.lines).given_up.clone();
        if numbers.is_empty() {
            return Ok(());
        }
        line.send_frame(&frames::encode(0, &Request::GiveUp { numbers: numbers.clone() }), wait)?;
        reply(line, wait)?.map_err(|f| Ended::Operation(f, true))?;
        lock(&self.lines).given_up.retain(|number| !numbers.contains(number));
        Ok(())
    }

    /// Tests a stream that was idle for longer than `FRESH`.
    fn check(line: &mut Line, wait: Wait<'_>) -> Result<(), Ended> {
        if line.rests.elapsed() < FRESH {
            return Ok(());
        }
        line.send_frame(&frames::encode(0, &Request::HowFar { number: line.number }), wait)?;
        reply(line, wait)?.map(drop).map_err(|f| Ended::Operation(f, true))
    }

    /// Runs an operation on a stream. If the stream breaks, runs it again on another one, provided that a repetition is harmless. Small
    /// operations have one stream more, so that they do not wait for large ones.
    fn with<T>(
        &self,
        until: Instant,
        (is_small, again): (bool, bool),
        mut run: impl FnMut(&mut Line, Wait<'_>) -> Result<T, Ended>,
    ) -> Outcome<T> {
        let mut pauses = PAUSES.iter();
        let mut fresh: Option<Line> = None;
        loop {
            let (broken, again) = match fresh.take().map_or_else(|| self.take(until, is_small), Ok) {
                Err(f) if f.kind == Kind::Transfer => (f.detail, true),
                Err(f) => return Err(f),
                Ok(mut line) => {
                    self.is_routed.store(line.is_routed, Ordering::Release);
                    let inquiry = Inquiry::new(self, &line, until);
                    let (stop, is_dead) = (|| self.has_ended(), |silence| inquiry.is_dead(silence));
                    let wait = Wait { until: Some(until), stop: &stop, is_dead: &is_dead };
                    let before = self.settle(&mut line, wait).and_then(|()| if again { Ok(()) } else { Far::check(&mut line, wait) });
                    let again = again || before.is_err();
                    match before.and_then(|()| run(&mut line, wait)) {
                        Ok(value) => {
                            self.leave(Some(line), is_small);
                            return Ok(value);
                        }
                        Err(Ended::Operation(f, in_step)) => {
                            self.leave(in_step.then_some(line), is_small);
                            return Err(f);
                        }
                        Err(Ended::Line(broken)) => {
                            let was_routed = line.is_routed;
                            self.give_up(line);
                            if broken == Broken::Silent && again {
                                // The new stream replaces the dead one, and this counts as no attempt. A bulk pipe is used only if the old
                                // stream was one.
                                fresh = inquiry.into_fresh().filter(|line| was_routed || !line.is_routed);
                                if fresh.is_none() {
                                    self.leave(None, is_small);
                                }
                                continue;
                            }
                            self.leave(None, is_small);
                            match failure(broken) {
                                f if f.kind == Kind::Transfer => (f.detail, again),
                                f => return Err(f),
                            }
                        }
                    }
                }
            };
            let pause = pauses.next();
            std::thread::sleep(pause.copied().unwrap_or_default().min(until.saturating_duration_since(Instant::now())));
            if self.has_ended() {
                return Err(Failure::lost());
            }
            if Instant::now() >= until {
                return Err(Failure::timed_out());
            }
            if pause.is_none() || !again {
                let ended = broken == CLOSED && self.is_heard_to_have_ended(until);
                return Err(if ended { Failure::lost() } else { Failure::new(Kind::Transfer, broken) });
            }
        }
    }

    /// Waits for the report that the owner has ended.
    fn is_heard_to_have_ended(&self, until: Instant) -> bool {
        let end = until.min(Instant::now() + NEWS);
        while !self.has_ended() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Sends a request and waits for the answer. Requests that are not idempotent are not repeated after a failure.
    pub fn call(&self, request: &Request, until: Instant) -> Outcome<Reply> {
        let again = !matches!(request, Request::FetchAdd { .. } | Request::CompareSwap { .. } | Request::Restrict { .. });
        self.with(until, (true, again), |line, wait| {
            line.send_frame(&frames::encode(0, request), wait)?;
            reply(line, wait)?.map_err(|f| Ended::Operation(f, true))
        })
    }

    /// Sends several requests at once. They fail independently.
    pub fn call_many(&self, requests: &[Request], until: Instant) -> Outcome<Vec<Outcome<Reply>>> {
        let mut replies = Vec::with_capacity(requests.len());
        for batch in requests.chunks(WINDOW) {
            replies.extend(self.with(until, (true, true), |line, wait| {
                batch.iter().try_for_each(|r| line.send_frame(&frames::encode(0, r), wait))?;
                batch.iter().map(|_| Ok(reply(line, wait)?)).collect::<Result<Vec<_>, Ended>>()
            })?);
        }
        Ok(replies)
    }

    /// Sends a request that does not matter once the owner has ended.
    pub fn tell(&self, request: &Request, until: Instant) {
        let _ = self.with(until, (true, true), |line, wait| Ok(line.send_frame(&frames::encode(0, request), wait)?));
    }

    /// Copies pieces, which are all reads or all writes. `moved` receives the number of bytes as they move.
    ///
    /// # Safety
    /// The local ranges are valid, and for writing where bytes are read.
    pub unsafe fn copy(&self, pieces: &mut [Piece], until: Instant, mut moved: impl FnMut(usize)) -> Outcome<()> {
        for batch in pieces.chunks_mut(WINDOW) {
            let is_small = batch.iter().map(|p| p.len).sum::<usize>() <= SMALL;
            self.with(until, (is_small, true), |line, wait| {
                let mut left: Vec<&mut Piece> = batch.iter_mut().filter(|p| p.done < p.len).collect();
                for piece in &left {
                    line.send_frame(&frames::encode(0, &piece.request()), wait)?;
                    if piece.write {
                        // SAFETY: the caller's guarantee.
                        let bytes = unsafe { std::slice::from_raw_parts((piece.local + piece.done) as *const u8, piece.len - piece.done) };
                        line.send(&[bytes], wait)?;
                    }
                }
                let last = left.len().saturating_sub(1);
                for (i, piece) in left.iter_mut().enumerate() {
                    if !piece.write {
                        loop {
                            let n = line.receive_number(wait)? as usize;
                            if n == 0 {
                                break;
                            }
                            if n > piece.len - piece.done {
                                return Err(Broken::Failed("the owner sends more than was asked for".to_owned()).into());
                            }
                            let mut came = 0;
                            // SAFETY: the caller's guarantee; `n` bytes are inside the range.
                            let received = unsafe { line.receive_counted((piece.local + piece.done) as *mut u8, n, wait, &mut came) };
                            piece.done += came;
                            moved(came);
                            received?;
                        }
                    }
                    match reply(line, wait)? {
                        Ok(_) if piece.write => {
                            moved(piece.len - piece.done);
                            piece.done = piece.len;
                        }
                        Ok(_) if piece.done == piece.len => {}
                        Ok(_) => return Err(Broken::Failed("the owner sends less than was asked for".to_owned()).into()),
                        Err(f) => return Err(Ended::Operation(f, i == last)),
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The next answer on a stream.
pub(super) fn reply(line: &mut Line, wait: Wait<'_>) -> Result<Outcome<Reply>, Broken> {
    let Some((_, reply)) = frames::decode::<Reply>(&line.receive_frame(wait)?) else {
        return Err(Broken::Failed("the owner answers nonsense".to_owned()));
    };
    Ok(match reply {
        Reply::Refused { kind, detail } => Err(frames::refusal(kind, detail)),
        reply => Ok(reply),
    })
}

fn failure(broken: Broken) -> Failure {
    match broken {
        Broken::TimedOut => Failure::timed_out(),
        Broken::Stopped => Failure::lost(),
        Broken::Ended => Failure::new(Kind::Transfer, CLOSED),
        Broken::Silent => Failure::new(Kind::Transfer, "nothing came over the stream any more"),
        Broken::Failed(why) => Failure::new(Kind::Transfer, why),
    }
}
