//! The owner's side of the streams: answers requests about its registered memory.
//!
//! Each stream has a thread of its own, which does not use the interpreter. A request is bounded by its registration. If the memory ends
//! while its bytes are being sent, no more of them are sent, and the reader is notified.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use net::lock::lock;

use super::Opened;
use super::connection::{Broken, RemoteConnection, Wait};
use super::traffic::Served;
use crate::answers;
use crate::copy;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{self, Id, MOST_PARTS, Part, Reply, Request};
use crate::grid::{self, Grid, Row};
use crate::registry::{Pin, Registry};
use crate::spans::{Span, Spans};

/// Bytes between two checks whether the memory may still be read. Each chunk is preceded by its length; 0 is the end.
const CHUNK: usize = 512 << 10;
/// Runs from this size on are sent from where they are, shorter ones are collected: a system call takes longer for many pieces.
const DIRECT: u64 = 2 << 10;
/// The same for encrypted streams: a record of full size costs least.
const RECORD: u64 = 16 << 10;
/// Bytes that are collected, which stay in a cache of the processor.
const SCRATCH: usize = 128 << 10;
/// Most pieces of one chunk.
const RUNS: usize = 512;
/// Time limit for removing memory from devices.
const DROPPING: Duration = Duration::from_secs(30);
/// The size of the buffer for bytes that have no valid target and are dropped.
const WASTE: usize = 64 << 10;
/// Time without traffic after which a stream is closed: its other end may be gone without a report. The requesting side does not use a
/// stream that was idle for half of this time.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of checks whether to continue.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Most streams that are served.
const STREAMS: usize = 4096;

/// Answers processes of other hosts. The threads end with this process.
pub struct RemoteServer {
    pub registry: Arc<Registry>,
    threads: Arc<AtomicUsize>,
    /// Bytes sent to each process.
    sent: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    served: Arc<Served>,
    idle_timeout: Duration,
}

/// The state of the thread of one stream.
struct RequestHandler {
    /// The process at the other end.
    peer: u64,
    registry: Arc<Registry>,
    sent: Arc<AtomicU64>,
    served: Arc<Served>,
    idle_timeout: Duration,
}

impl RemoteServer {
    pub fn new() -> io::Result<Arc<RemoteServer>> {
        RemoteServer::with_idle_timeout(IDLE_TIMEOUT)
    }

    /// As `new`, with another time limit for streams without traffic.
    pub fn with_idle_timeout(idle_timeout: Duration) -> io::Result<Arc<RemoteServer>> {
        let registry = Registry::new()?;
        Ok(Arc::new(RemoteServer { registry, threads: Arc::default(), sent: Mutex::default(), served: Arc::default(), idle_timeout }))
    }

    /// The number of streams that are served.
    pub fn count(&self) -> usize {
        self.threads.load(Ordering::Acquire)
    }

    /// Answers requests on a stream until it ends; `peer` is the process at its other end.
    ///
    /// The stream also ends when that process is declared lost, which `has_ended` reports: it gets no more bytes.
    pub fn answer(&self, peer: u64, opened: Opened, has_ended: impl Fn() -> bool + Send + 'static) {
        let Some(connection) = RemoteConnection::new(opened.fd, opened.keys.as_ref(), opened.paused) else { return };
        if self.threads.fetch_add(1, Ordering::AcqRel) >= STREAMS {
            self.threads.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let threads = self.threads.clone();
        let sent = lock(&self.sent).entry(peer).or_default().clone();
        let handler =
            RequestHandler { peer, registry: self.registry.clone(), sent, served: self.served.clone(), idle_timeout: self.idle_timeout };
        let run = move || {
            // The stream ends with the other side, with this process, or with a malformed frame. No process is left to notify.
            let _ = handler.serve(connection, opened.dialled, &has_ended);
            threads.fetch_sub(1, Ordering::AcqRel);
        };
        // If no thread can start, the stream is closed, and the other side reads its end.
        if crate::pool::spawn("monarch-serve", run).is_err() {
            self.threads.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Bytes sent to a process so far, from which a caller sees whether it still gets any.
    pub fn sent(&self, peer: u64) -> u64 {
        lock(&self.sent).get(&peer).map_or(0, |n| n.load(Ordering::Relaxed))
    }
}

impl RequestHandler {
    /// Answers requests until the stream ends.
    fn serve(&self, mut connection: RemoteConnection, dialled: bool, has_ended: &dyn Fn() -> bool) -> Result<(), Broken> {
        let (registry, peer) = (&self.registry, self.peer);
        // Connections of this host have small numbers.
        let requester = peer | 1 << 63;
        let traffic = connection.traffic.clone();
        let stop = || traffic.is_abandoned() || has_ended();
        let is_dead = |idle| idle >= self.idle_timeout;
        let wait = Wait { until: None, stop: &stop, is_dead: &is_dead };
        let connection = &mut connection;
        connection.begin(dialled, wait)?;
        let malformed = || Broken::Failed("the other side sent a malformed frame".to_owned());
        let mut serving = None;
        let mut scratch = Vec::new();
        loop {
            let (number, request) = frames::decode::<Request>(&connection.receive_frame(wait)?).ok_or_else(malformed)?;
            let reply = match request {
                Request::Numbered { number } => {
                    serving.get_or_insert_with(|| self.served.begin(peer, number, &traffic));
                    continue;
                }
                Request::Forget { id } => {
                    registry.forget(&id, requester);
                    continue;
                }
                Request::Progress { number } => {
                    let found = self.served.find(peer, number);
                    let (sent, received) = found.as_ref().map_or((0, 0), |t| t.totals());
                    Ok(Reply::Progress { is_served: found.is_some(), sent, received })
                }
                Request::Abandon { numbers } => {
                    if !self.served.abandon(peer, &numbers, &stop) {
                        return Err(Broken::Stopped);
                    }
                    Ok(Reply::Done)
                }
                Request::Copy { id, epoch, offset, len, write: false } => {
                    send(connection, registry, (&id, epoch), (offset, len), &self.sent, wait)?
                }
                Request::Gather { id, epoch, skip, len, parts } => {
                    let of = Gathered { buffer: (&id, epoch), parts: &parts, skip, len };
                    gather(connection, registry, &of, &mut scratch, &self.sent, wait)?
                }
                Request::Copy { id, epoch, offset, len, write: true } => take(connection, registry, (&id, epoch), offset, len, wait)?,
                Request::Drop { id } if registry.exports.has(&id) => drop_exported(registry, &id, requester, || peer_name(peer), &stop),
                request => {
                    let peer_name = || peer_name(peer);
                    let answer = answers::answer(registry, &request, requester, peer_name).ok_or_else(malformed)?;
                    answer.map(|reply| match reply {
                        // The address and the segment concern only this process.
                        Reply::Opened { slot, epoch, len, readonly, .. } => {
                            Reply::Opened { slot, epoch, address: 0, len, readonly, segment: None }
                        }
                        reply => reply,
                    })
                }
            };
            connection.send_frame(&frames::encode(number, &reply.unwrap_or_else(|f| Reply::refused(&f))), wait)?;
        }
    }
}

fn peer_name(peer: u64) -> String {
    format!("process {peer:x} of another host")
}

/// Drops memory and waits until no device can reach it, for which the owner's interpreter must run.
fn drop_exported(
    registry: &Arc<Registry>,
    id: &Id,
    requester: u64,
    peer_name: impl FnOnce() -> String,
    stop: &dyn Fn() -> bool,
) -> Outcome<Reply> {
    let (finished, ended) = mpsc::channel();
    answers::drop_exported(
        registry,
        id,
        requester,
        peer_name,
        Box::new(move |_| {
            // The receiver may have given up.
            let _ = finished.send(());
        }),
    )?;
    let until = Instant::now() + DROPPING;
    while Instant::now() < until && !stop() {
        match ended.recv_timeout(CHECK_INTERVAL) {
            Ok(()) => return Ok(Reply::Done),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    Err(Failure::new(Kind::Transfer, "it was dropped, but devices can still reach it: the owner's Python is busy"))
}

fn pin(registry: &Arc<Registry>, (id, epoch): (&Id, u64), offset: u64, len: u64, write: bool) -> Outcome<Pin> {
    let pin = registry.pin(id, offset, len, write)?;
    if pin.epoch() != epoch {
        return Err(Failure::new(Kind::Access, "the handle has another epoch than the buffer"));
    }
    Ok(pin)
}

/// Checks between two chunks whether to continue: a stream that is always ready never waits.
fn check_stopped(wait: Wait<'_>) -> Result<(), Broken> {
    if (wait.stop)() { Err(Broken::Stopped) } else { Ok(()) }
}

/// Sends bytes of a buffer in chunks, and an end mark.
fn send(
    connection: &mut RemoteConnection,
    registry: &Arc<Registry>,
    buffer: (&Id, u64),
    (offset, len): (u64, u64),
    sent: &AtomicU64,
    wait: Wait<'_>,
) -> Result<Outcome<Reply>, Broken> {
    let outcome = match pin(registry, buffer, offset, len, false) {
        Err(f) => Err(f),
        Ok(pin) => {
            // A reader that does not read must not prevent the end of the buffer.
            let stop = || (wait.stop)() || !pin.is_current();
            let within = Wait { stop: &stop, ..wait };
            let mut done = 0;
            while done < pin.range.len && pin.is_current() {
                check_stopped(wait)?;
                let n = CHUNK.min(pin.range.len - done);
                // SAFETY: a part of registered memory, which the pin keeps. Its owner may write to it meanwhile, as during any one-sided
                // read: the bytes are sent without being interpreted.
                let bytes = unsafe { std::slice::from_raw_parts((pin.range.address + done) as *const u8, n) };
                connection.send(&[&(n as u32).to_le_bytes(), bytes], within)?;
                done += n;
                sent.fetch_add(n as u64, Ordering::Relaxed);
            }
            if pin.is_current() { Ok(Reply::Done) } else { Err(Failure::new(Kind::Released, registry.why(buffer.0))) }
        }
    };
    connection.send(&[&0u32.to_le_bytes()], wait)?;
    Ok(outcome)
}

/// A read of parts of a buffer.
struct Gathered<'a> {
    buffer: (&'a Id, u64),
    parts: &'a [Part],
    skip: u64,
    len: u64,
}

impl Gathered<'_> {
    /// The pinned memory, and the sections of it, by their addresses.
    fn admit(&self, registry: &Arc<Registry>) -> Outcome<(Pin, Spans)> {
        if self.parts.len() > MOST_PARTS {
            let count = self.parts.len();
            return Err(Failure::new(Kind::Access, format!("a copy of {count} parts: at most {MOST_PARTS} are read together")));
        }
        let (low, range) = grid::admitted(self.parts, self.skip, self.len)?;
        let pin = pin(registry, self.buffer, low, range, false)?;
        let (mut skip, mut left) = (self.skip, self.len);
        let mut spans = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            let grid = Grid::of_part(part);
            let (start, bytes) = (skip.min(grid.len()), left.min(grid.len().saturating_sub(skip)));
            (skip, left) = (skip - start, left - bytes);
            if bytes > 0 {
                let offset = pin.range.address as u64 + (part.offset - low);
                spans.push(Span { write: false, local: 0, offset, grid, start, len: bytes });
            }
        }
        Ok((pin, Spans::new(spans)))
    }
}

/// Sends the bytes of parts in chunks, and an end mark. Long runs are sent from where they are, short ones are collected in `scratch`.
fn gather(
    connection: &mut RemoteConnection,
    registry: &Arc<Registry>,
    of: &Gathered<'_>,
    scratch: &mut Vec<u8>,
    sent: &AtomicU64,
    wait: Wait<'_>,
) -> Result<Outcome<Reply>, Broken> {
    let outcome = match of.admit(registry) {
        Err(f) => Err(f),
        Ok((pin, mut spans)) => {
            let stop = || (wait.stop)() || !pin.is_current();
            let within = Wait { stop: &stop, ..wait };
            let direct = if connection.is_encrypted() { RECORD } else { DIRECT };
            scratch.resize(SCRATCH, 0);
            while spans.left() > 0 && pin.is_current() {
                check_stopped(wait)?;
                // SAFETY: `admit` has found that the spans are inside the pinned range.
                let (pieces, bytes) = unsafe { next_chunk(&spans, direct, scratch) };
                let head = (bytes as u32).to_le_bytes();
                let mut slices: Vec<&[u8]> = vec![&head];
                // SAFETY: memory of `scratch`, and registered memory, which the pin keeps. Its owner may write to the latter meanwhile, as
                // during any one-sided read: the bytes are sent without being interpreted.
                slices.extend(pieces.iter().map(|(from, n)| unsafe { std::slice::from_raw_parts(*from as *const u8, *n) }));
                connection.send(&slices, within)?;
                spans.advance(bytes);
                sent.fetch_add(bytes, Ordering::Relaxed);
            }
            if pin.is_current() { Ok(Reply::Done) } else { Err(Failure::new(Kind::Released, registry.why(of.buffer.0))) }
        }
    };
    connection.send(&[&0u32.to_le_bytes()], wait)?;
    Ok(outcome)
}

/// The next bytes of the spans, as address and length of contiguous pieces; and their number. Runs shorter than `direct` are copied to
/// `scratch`.
///
/// # Safety
/// The offsets of the spans are addresses of valid memory.
unsafe fn next_chunk(spans: &Spans, direct: u64, scratch: &mut [u8]) -> (Vec<(usize, usize)>, u64) {
    let mut pieces: Vec<(usize, usize)> = Vec::new();
    let (base, mut used, mut bytes) = (scratch.as_mut_ptr() as usize, 0, 0);
    for (span, row) in spans.rows() {
        let (first, left) = ((span.offset + row.there) as usize, CHUNK as u64 - bytes);
        if row.run < direct {
            let room = left.min((scratch.len() - used) as u64);
            if room == 0 {
                break;
            }
            // A run that is cut off is a row of its own.
            let part =
                if room < row.run { Row { run: room, count: 1, ..row } } else { Row { count: row.count.min(room / row.run), ..row } };
            let n = (part.run * part.count) as usize;
            // SAFETY: the caller's guarantee, and there is room for `n` bytes.
            unsafe { copy::gather(first, &part, base + used) };
            match pieces.last_mut() {
                Some((from, len)) if *from + *len == base + used => *len += n,
                _ => pieces.push((base + used, n)),
            }
            (used, bytes) = (used + n, bytes + n as u64);
            if (n as u64) < row.run * row.count {
                break;
            }
            continue;
        }
        for i in 0..row.count {
            let n = row.run.min(CHUNK as u64 - bytes);
            if n == 0 || pieces.len() == RUNS {
                return (pieces, bytes);
            }
            pieces.push((first + (i * row.there_step) as usize, n as usize));
            bytes += n;
        }
    }
    (pieces, bytes)
}

/// Receives bytes into a buffer. Bytes that may not be written are received and dropped.
fn take(
    connection: &mut RemoteConnection,
    registry: &Arc<Registry>,
    buffer: (&Id, u64),
    offset: u64,
    len: u64,
    wait: Wait<'_>,
) -> Result<Outcome<Reply>, Broken> {
    let mut left = len;
    let outcome = match pin(registry, buffer, offset, len, true) {
        Err(f) => Err(f),
        Ok(pin) => {
            let stop = || (wait.stop)() || !pin.is_current();
            let within = Wait { stop: &stop, ..wait };
            while left > 0 && pin.is_current() {
                check_stopped(wait)?;
                let n = (CHUNK as u64).min(left) as usize;
                let to = pin.range.address + (len - left) as usize;
                // SAFETY: a part of registered, writable memory, which the pin keeps.
                unsafe { connection.receive(to as *mut u8, n, within) }?;
                left -= n as u64;
            }
            if pin.is_current() { Ok(Reply::Done) } else { Err(Failure::new(Kind::Released, registry.why(buffer.0))) }
        }
    };
    let mut waste = if left > 0 { vec![0u8; WASTE] } else { Vec::new() };
    while left > 0 {
        let n = (waste.len() as u64).min(left) as usize;
        // SAFETY: a local buffer.
        unsafe { connection.receive(waste.as_mut_ptr(), n, wait) }?;
        left -= n as u64;
    }
    Ok(outcome)
}
