//! The requesting side: one owner of another host, and the streams to it.
//!
//! A broken stream is replaced, and the operation continues where it was: three times, unless the owner is known to have ended. A stream
//! without traffic is replaced when the owner reports over another one that it is dead, any number of times. A requesting thread has a
//! stream to itself; there are as many streams as increase the throughput.

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use net::lock::lock;

use super::connection::{Broken, RemoteConnection, Wait};
use super::fabric::{Fabric, NoStream};
use super::probe::{PROBE_TIMEOUT, Probe};
use super::serving;
use crate::copy;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{self, Id, Reply, Request};
use crate::grid::Row;
use crate::spans::Spans;

/// The pauses before further attempts. They also give the report of the owner's end time to arrive.
const PAUSES: [Duration; 3] = [Duration::from_millis(3), Duration::from_millis(15), Duration::from_millis(40)];
/// The failure of a stream that the other side has closed.
const CLOSED: &str = "the stream was closed";
/// How long to wait for the report of the owner's end: a killed owner closes its streams at once, and the report may be late on a busy
/// machine.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks for the report of the owner's end.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Most pending requests on one stream.
const WINDOW: usize = 64;
/// Most parts of copies in pending requests: their frames fit into the buffers of a stream.
const PENDING: usize = 2 * frames::MOST_PARTS;
/// Runs from this size on are received where they belong; shorter ones are received together, and copied.
const DIRECT: u64 = 2 << 10;
/// Bytes that are received together, which stay in a cache of the processor.
const SCRATCH: usize = 128 << 10;
/// Most runs that one system call receives.
const RUNS: usize = 256;
/// Most bytes of a small operation.
const SMALL: u64 = 64 << 10;
/// A stream that was idle for longer is not used again: the owner may be about to close it.
const MAX_IDLE: Duration = Duration::from_secs(serving::IDLE_TIMEOUT.as_secs() / 2);
/// A stream that was idle for longer is tested before a request that cannot be repeated.
const FRESH: Duration = Duration::from_secs(1);
/// Most given-up streams whose numbers are kept for the owner.
const MAX_ABANDONED: usize = 128;

/// The number of streams that this process has opened.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A copy between local memory and a buffer by one request: a read of spans, whose bytes arrive one after another, or a write of one span
/// of contiguous bytes.
pub struct Piece {
    pub id: Id,
    pub epoch: u64,
    pub write: bool,
    pub spans: Spans,
}

/// The next bytes of a read: runs that are received where they belong, or short ones that are received together.
#[derive(Default)]
struct Batch<'a> {
    runs: Vec<IoSliceMut<'a>>,
    /// Rows, with the address of their first runs.
    rows: Vec<(usize, Row)>,
    bytes: u64,
}

impl Batch<'_> {
    /// At most `len` bytes. Runs from `direct` bytes on are received where they belong.
    ///
    /// # Safety
    /// The local memory is valid for writing, and not used otherwise while the batch exists.
    unsafe fn next<'a>(spans: &Spans, len: u64, direct: u64) -> Batch<'a> {
        let mut batch = Batch::default();
        for (span, row) in spans.rows() {
            let (first, left) = (span.local_of(&row), len - batch.bytes);
            if row.run < direct {
                if !batch.runs.is_empty() {
                    break;
                }
                let room = left.min(SCRATCH as u64 - batch.bytes);
                if room == 0 {
                    break;
                }
                // A run that is cut off is a row of its own.
                let part =
                    if room < row.run { Row { run: room, count: 1, ..row } } else { Row { count: row.count.min(room / row.run), ..row } };
                batch.rows.push((first, part));
                batch.bytes += part.run * part.count;
                if part.run * part.count < row.run * row.count {
                    break;
                }
                continue;
            }
            if !batch.rows.is_empty() {
                break;
            }
            for i in 0..row.count {
                let n = row.run.min(len - batch.bytes);
                if n == 0 || batch.runs.len() == RUNS {
                    return batch;
                }
                let to = first.wrapping_add_signed((i as i64).wrapping_mul(row.here_step) as isize);
                // SAFETY: the caller's guarantee.
                batch.runs.push(IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(to as *mut u8, n as usize) }));
                batch.bytes += n;
            }
        }
        batch
    }
}

impl Piece {
    /// The request for what is not copied yet.
    fn request(&self) -> Request {
        let (id, epoch) = (self.id, self.epoch);
        let (rest, within) = self.spans.rest();
        match rest {
            [span] if span.grid.is_contiguous() => {
                Request::Copy { id, epoch, offset: span.offset + span.start + within, len: span.len - within, write: self.write }
            }
            _ => {
                let skip = rest.first().map_or(0, |span| span.start) + within;
                let parts = rest.iter().map(|span| span.grid.part(span.offset)).collect();
                Request::Gather { id, epoch, skip, len: self.spans.left(), parts }
            }
        }
    }

    /// The bytes of a write that are not copied yet.
    ///
    /// # Safety
    /// The local memory is valid.
    unsafe fn bytes(&self) -> &[u8] {
        let (&[span, ..], within) = self.spans.rest() else { return &[] };
        let from = span.local + (span.start + within) as usize;
        // SAFETY: the caller's guarantee; a write is contiguous.
        unsafe { std::slice::from_raw_parts(from as *const u8, (span.len - within) as usize) }
    }

    /// Receives the next `len` bytes, which are no more than are left. `scratch` is for short runs.
    ///
    /// # Safety
    /// The local memory is valid for writing.
    unsafe fn receive(
        &mut self,
        connection: &mut RemoteConnection,
        mut len: u64,
        scratch: &mut Vec<u8>,
        wait: Wait<'_>,
        moved: &mut impl FnMut(usize),
    ) -> Result<(), Broken> {
        // Encrypted bytes are copied in any case.
        let direct = if connection.is_encrypted() { DIRECT / 8 } else { DIRECT };
        while len > 0 {
            // SAFETY: the caller's guarantee.
            let mut batch = unsafe { Batch::next(&self.spans, len, direct) };
            let mut count = 0;
            let received = if batch.rows.is_empty() {
                connection.receive_runs(&mut batch.runs, wait, &mut count)
            } else {
                scratch.resize(SCRATCH, 0);
                // SAFETY: a local buffer, and no batch of rows is larger.
                let received = unsafe { connection.receive(scratch.as_mut_ptr(), batch.bytes as usize, wait) };
                if received.is_ok() {
                    let mut from = scratch.as_ptr() as usize;
                    for (first, row) in &batch.rows {
                        // SAFETY: the caller's guarantee; the bytes of all rows have arrived.
                        unsafe { copy::scatter(from, *first, row) };
                        from += (row.run * row.count) as usize;
                    }
                    count = batch.bytes as usize;
                }
                received
            };
            self.spans.advance(count as u64);
            moved(count);
            received?;
            len -= batch.bytes;
        }
        Ok(())
    }
}

/// The streams to one owner.
#[derive(Default)]
struct ConnectionPool {
    idle: Vec<RemoteConnection>,
    open: usize,
    /// The number of streams with a large operation.
    large: usize,
    /// Numbers of closed streams that the owner may still serve.
    abandoned: Vec<u64>,
}

/// An owner on another host, with the streams to it.
pub struct RemoteOwner {
    pub owner: u64,
    fabric: Arc<dyn Fabric>,
    /// Most streams for large operations at a time.
    pub width: usize,
    pool: Mutex<ConnectionPool>,
    freed: Condvar,
    is_routed: AtomicBool,
}

/// The cause of the end of an attempt: the stream, or the operation itself.
enum Ended {
    Connection(Broken),
    /// True: the stream is usable, because no other answer is pending on it.
    Operation(Failure, bool),
}

impl From<Broken> for Ended {
    fn from(b: Broken) -> Ended {
        Ended::Connection(b)
    }
}

impl RemoteOwner {
    pub fn new(owner: u64, fabric: Arc<dyn Fabric>, width: usize) -> Arc<RemoteOwner> {
        Arc::new(RemoteOwner {
            owner,
            fabric,
            width: width.max(1),
            pool: Mutex::default(),
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
        let mut pool = lock(&self.pool);
        pool.open -= pool.idle.len();
        let idle = std::mem::take(&mut pool.idle);
        drop(pool);
        drop(idle);
    }

    /// An idle stream or a new one. Waits if as many as possible are in use.
    fn take(&self, until: Instant, is_small: bool) -> Outcome<RemoteConnection> {
        {
            let mut pool = lock(&self.pool);
            loop {
                let may = is_small || pool.large < self.width;
                while let Some(connection) = if may { pool.idle.pop() } else { None } {
                    if connection.idle_since.elapsed() < MAX_IDLE && !connection.is_stale() {
                        pool.large += usize::from(!is_small);
                        return Ok(connection);
                    }
                    pool.open -= 1;
                }
                // There is one stream more than large operations may use.
                if pool.open <= self.width && may {
                    break;
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Failure::timed_out());
                }
                pool = self.freed.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            pool.open += 1;
            pool.large += usize::from(!is_small);
        }
        let connection = self.open(until);
        if connection.is_err() {
            self.release(None, is_small);
        }
        connection
    }

    /// Opens a new stream, which is not counted.
    pub(super) fn open(&self, until: Instant) -> Outcome<RemoteConnection> {
        let mut begin_timeout = PROBE_TIMEOUT;
        loop {
            let opened = self.fabric.open(self.owner, until).map_err(|why| match why {
                NoStream::Ended => Failure::lost(),
                NoStream::TimedOut => Failure::timed_out(),
                NoStream::Unsupported(why) => Failure::new(Kind::Unsupported, why),
                NoStream::Unreachable(why) => Failure::new(Kind::Transfer, format!("no stream to the owner: {why}")),
            })?;
            let none = || Failure::new(Kind::Transfer, "the keys of the stream are invalid");
            let mut connection = RemoteConnection::new(opened.fd, opened.keys.as_ref(), opened.paused).ok_or_else(none)?;
            (connection.number, connection.is_routed) = (NUMBER.fetch_add(1, Ordering::Relaxed) + 1, opened.is_routed);
            let stop = || self.has_ended();
            let is_dead = |idle| idle >= begin_timeout;
            let wait = Wait { until: Some(until), stop: &stop, is_dead: &is_dead };
            let numbered = frames::encode(0, &Request::Numbered { number: connection.number });
            match connection.begin(opened.dialled, wait).and_then(|()| connection.send_frame(&numbered, wait)) {
                Ok(()) => return Ok(connection),
                // The owner's end of the stream may have been lost on its way to the owner, or the owner is frozen.
                Err(Broken::Unresponsive) => begin_timeout *= 2,
                Err(broken) => return Err(failure(broken)),
            }
        }
    }

    /// Returns a stream to the idle ones, or counts it as closed.
    fn release(&self, connection: Option<RemoteConnection>, is_small: bool) {
        let mut pool = lock(&self.pool);
        pool.large -= usize::from(!is_small);
        match connection.filter(|connection| !connection.needs_replacement()) {
            Some(mut connection) => {
                connection.idle_since = Instant::now();
                pool.idle.push(connection);
            }
            None => pool.open -= 1,
        }
        drop(pool);
        self.freed.notify_all();
    }

    /// Closes a broken stream and all idle ones, which most likely are broken too.
    fn abandon(&self, connection: RemoteConnection) {
        let number = connection.number;
        // Dropped first, so that the owner can notice the end.
        drop(connection);
        let mut pool = lock(&self.pool);
        let idle = std::mem::take(&mut pool.idle);
        pool.open -= idle.len();
        pool.abandoned.extend(idle.iter().map(|connection| connection.number).chain([number]));
        let excess = pool.abandoned.len().saturating_sub(MAX_ABANDONED);
        pool.abandoned.drain(..excess);
        drop(pool);
        drop(idle);
        self.freed.notify_all();
    }

    /// Makes the owner end its work for closed streams. After its answer, it no longer touches memory on their behalf.
    fn await_abandoned(&self, connection: &mut RemoteConnection, wait: Wait<'_>) -> Result<(), Ended> {
        let numbers = lock(&self.pool).abandoned.clone();
        if numbers.is_empty() {
            return Ok(());
        }
        connection.send_frame(&frames::encode(0, &Request::Abandon { numbers: numbers.clone() }), wait)?;
        reply(connection, wait)?.map_err(|f| Ended::Operation(f, true))?;
        lock(&self.pool).abandoned.retain(|number| !numbers.contains(number));
        Ok(())
    }

    /// Tests a stream that was idle for longer than `FRESH`.
    fn check(connection: &mut RemoteConnection, wait: Wait<'_>) -> Result<(), Ended> {
        if connection.idle_since.elapsed() < FRESH {
            return Ok(());
        }
        connection.send_frame(&frames::encode(0, &Request::Progress { number: connection.number }), wait)?;
        reply(connection, wait)?.map(drop).map_err(|f| Ended::Operation(f, true))
    }

    /// Runs an operation on a stream. If the stream breaks, runs it again on another one, provided that a repetition is harmless. Small
    /// operations have one stream more, so that they do not wait for large ones.
    fn with<T>(
        &self,
        until: Instant,
        (is_small, again): (bool, bool),
        mut run: impl FnMut(&mut RemoteConnection, Wait<'_>) -> Result<T, Ended>,
    ) -> Outcome<T> {
        let mut pauses = PAUSES.iter();
        let mut fresh: Option<RemoteConnection> = None;
        loop {
            let (broken, again) = match fresh.take().map_or_else(|| self.take(until, is_small), Ok) {
                Err(f) if f.kind == Kind::Transfer => (f.detail, true),
                Err(f) => return Err(f),
                Ok(mut connection) => {
                    self.is_routed.store(connection.is_routed, Ordering::Release);
                    let probe = Probe::new(self, &connection, until);
                    let (stop, is_dead) = (|| self.has_ended(), |idle| probe.is_dead(idle));
                    let wait = Wait { until: Some(until), stop: &stop, is_dead: &is_dead };
                    let before = self
                        .await_abandoned(&mut connection, wait)
                        .and_then(|()| if again { Ok(()) } else { RemoteOwner::check(&mut connection, wait) });
                    let again = again || before.is_err();
                    match before.and_then(|()| run(&mut connection, wait)) {
                        Ok(value) => {
                            self.release(Some(connection), is_small);
                            return Ok(value);
                        }
                        Err(Ended::Operation(f, in_step)) => {
                            self.release(in_step.then_some(connection), is_small);
                            return Err(f);
                        }
                        Err(Ended::Connection(broken)) => {
                            let was_routed = connection.is_routed;
                            self.abandon(connection);
                            if broken == Broken::Unresponsive && again {
                                // The new stream replaces the dead one, and this counts as no attempt. A bulk pipe is used only if the old
                                // stream was one.
                                fresh = probe.into_fresh().filter(|connection| was_routed || !connection.is_routed);
                                if fresh.is_none() {
                                    self.release(None, is_small);
                                }
                                continue;
                            }
                            self.release(None, is_small);
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
                let ended = broken == CLOSED && self.is_reported_ended(until);
                return Err(if ended { Failure::lost() } else { Failure::new(Kind::Transfer, broken) });
            }
        }
    }

    /// Waits for the report that the owner has ended.
    fn is_reported_ended(&self, until: Instant) -> bool {
        let end = until.min(Instant::now() + END_REPORT_TIMEOUT);
        while !self.has_ended() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        true
    }

    /// Sends a request and waits for the answer. Requests that are not idempotent are not repeated after a failure.
    pub fn call(&self, request: &Request, until: Instant) -> Outcome<Reply> {
        let again = !matches!(request, Request::FetchAdd { .. } | Request::CompareSwap { .. } | Request::Restrict { .. });
        self.with(until, (true, again), |connection, wait| {
            connection.send_frame(&frames::encode(0, request), wait)?;
            reply(connection, wait)?.map_err(|f| Ended::Operation(f, true))
        })
    }

    /// Sends several requests at once. They fail independently.
    pub fn call_many(&self, requests: &[Request], until: Instant) -> Outcome<Vec<Outcome<Reply>>> {
        let mut replies = Vec::with_capacity(requests.len());
        for batch in requests.chunks(WINDOW) {
            replies.extend(self.with(until, (true, true), |connection, wait| {
                batch.iter().try_for_each(|r| connection.send_frame(&frames::encode(0, r), wait))?;
                batch.iter().map(|_| Ok(reply(connection, wait)?)).collect::<Result<Vec<_>, Ended>>()
            })?);
        }
        Ok(replies)
    }

    /// Sends a request that does not matter once the owner has ended.
    pub fn notify(&self, request: &Request, until: Instant) {
        let _ = self.with(until, (true, true), |connection, wait| Ok(connection.send_frame(&frames::encode(0, request), wait)?));
    }

    /// Copies pieces, which are all reads or all writes. `moved` receives the number of bytes as they move.
    ///
    /// # Safety
    /// The local memory is valid, and for writing where bytes are read.
    pub unsafe fn copy(&self, pieces: &mut [Piece], until: Instant, mut moved: impl FnMut(usize)) -> Outcome<()> {
        let is_small = pieces.iter().map(|piece| piece.spans.left()).sum::<u64>() <= SMALL;
        let mut scratch = Vec::new();
        self.with(until, (is_small, true), |connection, wait| {
            let mut left: Vec<&mut Piece> = pieces.iter_mut().filter(|piece| piece.spans.left() > 0).collect();
            // Requests are sent ahead, as many as the buffers of a stream have room for.
            let (mut asked, mut pending) = (0, 0);
            for i in 0..left.len() {
                while asked < left.len() && (asked == i || asked - i < WINDOW && pending + left[asked].spans.count() <= PENDING) {
                    let piece = &left[asked];
                    connection.send_frame(&frames::encode(0, &piece.request()), wait)?;
                    if piece.write {
                        // SAFETY: the caller's guarantee.
                        connection.send(&[unsafe { piece.bytes() }], wait)?;
                    }
                    pending += piece.spans.count();
                    asked += 1;
                }
                let piece = &mut *left[i];
                pending -= piece.spans.count();
                if !piece.write {
                    loop {
                        let n = u64::from(connection.receive_number(wait)?);
                        if n == 0 {
                            break;
                        }
                        if n > piece.spans.left() {
                            return Err(Broken::Failed("the owner sends more than was asked for".to_owned()).into());
                        }
                        // SAFETY: the caller's guarantee; `n` bytes are left.
                        unsafe { piece.receive(connection, n, &mut scratch, wait, &mut moved) }?;
                    }
                }
                match reply(connection, wait)? {
                    Ok(_) if piece.write => {
                        let n = piece.spans.left();
                        piece.spans.advance(n);
                        moved(n as usize);
                    }
                    Ok(_) if piece.spans.left() == 0 => {}
                    Ok(_) => return Err(Broken::Failed("the owner sends less than was asked for".to_owned()).into()),
                    Err(f) => return Err(Ended::Operation(f, i + 1 == asked)),
                }
            }
            Ok(())
        })
    }
}

/// The next answer on a stream.
pub(super) fn reply(connection: &mut RemoteConnection, wait: Wait<'_>) -> Result<Outcome<Reply>, Broken> {
    let Some((_, reply)) = frames::decode::<Reply>(&connection.receive_frame(wait)?) else {
        return Err(Broken::Failed("the owner sent a malformed answer".to_owned()));
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
        Broken::Unresponsive => Failure::new(Kind::Transfer, "the stream is dead: the owner does not serve it"),
        Broken::Failed(why) => Failure::new(Kind::Transfer, why),
    }
}
