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
use super::connection::{Broken, Line, Wait};
use super::traffic::Served;
use crate::answers;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{self, Reply, Request};
use crate::registry::{Id, Registry};

/// Bytes between two checks whether the memory may still be read. Each chunk is preceded by its length; 0 is the end.
const CHUNK: usize = 512 << 10;
/// Time limit for removing memory from devices.
const DROPPING: Duration = Duration::from_secs(30);
/// The size of the buffer for bytes that have no valid target and are dropped.
const WASTE: usize = 64 << 10;
/// Time without traffic after which a stream is closed: its other end may be gone without a report. The requesting side does not use a
/// stream that was idle for half of this time.
pub const SILENCE: Duration = Duration::from_secs(60);
/// Interval of checks whether to continue.
const LOOK: Duration = Duration::from_millis(100);
/// Most streams that are served.
const STREAMS: usize = 4096;

/// Answers processes of other hosts. The threads end with this process.
pub struct Answering {
    pub registry: Arc<Registry>,
    threads: Arc<AtomicUsize>,
    /// Bytes sent to each process.
    sent: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    served: Arc<Served>,
    silence: Duration,
}

/// What the thread of one stream needs.
struct Desk {
    /// The process at the other end.
    peer: u64,
    registry: Arc<Registry>,
    sent: Arc<AtomicU64>,
    served: Arc<Served>,
    silence: Duration,
}

impl Answering {
    pub fn new() -> io::Result<Arc<Answering>> {
        Answering::with_silence(SILENCE)
    }

    /// As `new`, with another time limit for streams without traffic.
    pub fn with_silence(silence: Duration) -> io::Result<Arc<Answering>> {
        let registry = Registry::new()?;
        Ok(Arc::new(Answering { registry, threads: Arc::default(), sent: Mutex::default(), served: Arc::default(), silence }))
    }

    /// The number of streams that are served.
    pub fn count(&self) -> usize {
        self.threads.load(Ordering::Acquire)
    }

    /// Answers requests on a stream until it ends; `peer` is the process at its other end.
    ///
    /// The stream also ends when that process is declared lost, which `has_ended` reports: it gets no more bytes.
    pub fn answer(&self, peer: u64, opened: Opened, has_ended: impl Fn() -> bool + Send + 'static) {
        let Some(line) = Line::new(opened.fd, opened.keys.as_ref(), opened.still) else { return };
        if self.threads.fetch_add(1, Ordering::AcqRel) >= STREAMS {
            self.threads.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let threads = self.threads.clone();
        let sent = lock(&self.sent).entry(peer).or_default().clone();
        let desk = Desk { peer, registry: self.registry.clone(), sent, served: self.served.clone(), silence: self.silence };
        let run = move || {
            // The stream ends with the other side, with this process, or with a malformed frame. No process is left to notify.
            let _ = desk.serve(line, opened.dialled, &has_ended);
            threads.fetch_sub(1, Ordering::AcqRel);
        };
        // If no thread can start, the stream is closed, and the other side reads its end.
        if crate::pool::spawn("monarch-far", run).is_err() {
            self.threads.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Bytes sent to a process so far, from which a caller sees whether it still gets any.
    pub fn sent(&self, peer: u64) -> u64 {
        lock(&self.sent).get(&peer).map_or(0, |n| n.load(Ordering::Relaxed))
    }
}

impl Desk {
    /// Answers requests until the stream ends.
    fn serve(&self, mut line: Line, dialled: bool, has_ended: &dyn Fn() -> bool) -> Result<(), Broken> {
        let (registry, peer) = (&self.registry, self.peer);
        // Connections of this host have small numbers.
        let asker = peer | 1 << 63;
        let traffic = line.traffic.clone();
        let stop = || traffic.is_given_up() || has_ended();
        let is_dead = |silence| silence >= self.silence;
        let wait = Wait { until: None, stop: &stop, is_dead: &is_dead };
        let line = &mut line;
        line.begin(dialled, wait)?;
        let nonsense = || Broken::Failed("a malformed frame came".to_owned());
        let mut serving = None;
        loop {
            let (number, request) = frames::decode::<Request>(&line.receive_frame(wait)?).ok_or_else(nonsense)?;
            let reply = match request {
                Request::Numbered { number } => {
                    serving.get_or_insert_with(|| self.served.begin(peer, number, &traffic));
                    continue;
                }
                Request::Forget { id } => {
                    registry.forget(&id, asker);
                    continue;
                }
                Request::HowFar { number } => {
                    let found = self.served.find(peer, number);
                    let (sent, received) = found.as_ref().map_or((0, 0), |t| t.so_far());
                    Ok(Reply::SoFar { is_served: found.is_some(), sent, received })
                }
                Request::GiveUp { numbers } => {
                    if !self.served.give_up(peer, &numbers, &stop) {
                        return Err(Broken::Stopped);
                    }
                    Ok(Reply::Done)
                }
                Request::Copy { id, epoch, offset, len, write: false } => {
                    send(line, registry, (&id, epoch), (offset, len), &self.sent, wait)?
                }
                Request::Copy { id, epoch, offset, len, write: true } => take(line, registry, (&id, epoch), offset, len, wait)?,
                Request::Drop { id } if registry.exports.has(&id) => drop_exported(registry, &id, asker, || who(peer), &stop),
                request => {
                    let who = || who(peer);
                    let answer = answers::answer(registry, &request, asker, who).ok_or_else(nonsense)?;
                    answer.map(|reply| match reply {
                        // The address and the segment concern only this process.
                        Reply::Opened { slot, epoch, len, readonly, .. } => {
                            Reply::Opened { slot, epoch, address: 0, len, readonly, segment: None }
                        }
                        reply => reply,
                    })
                }
            };
            line.send_frame(&frames::encode(number, &reply.unwrap_or_else(|f| Reply::refused(&f))), wait)?;
        }
    }
}

fn who(peer: u64) -> String {
    format!("process {peer:x} of another host")
}

/// Drops memory and waits until no device can reach it, for which the owner's interpreter must run.
fn drop_exported(registry: &Arc<Registry>, id: &Id, asker: u64, who: impl FnOnce() -> String, stop: &dyn Fn() -> bool) -> Outcome<Reply> {
    let (told, ended) = mpsc::channel();
    answers::drop_exported(
        registry,
        id,
        asker,
        who,
        Box::new(move |_| {
            // The receiver may have given up.
            let _ = told.send(());
        }),
    )?;
    let until = Instant::now() + DROPPING;
    while Instant::now() < until && !stop() {
        match ended.recv_timeout(LOOK) {
            Ok(()) => return Ok(Reply::Done),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    Err(Failure::new(Kind::Transfer, "it was dropped, but devices can still reach it: the owner's Python is busy"))
}

fn pin(registry: &Arc<Registry>, (id, epoch): (&Id, u64), offset: u64, len: u64, write: bool) -> Outcome<crate::registry::Pin> {
    let pin = registry.pin(id, offset, len, write)?;
    if pin.epoch() != epoch {
        return Err(Failure::new(Kind::Access, "the handle has another epoch than the buffer"));
    }
    Ok(pin)
}

/// Checks between two chunks whether to continue: a stream that is always ready never waits.
fn going_on(wait: Wait<'_>) -> Result<(), Broken> {
    if (wait.stop)() { Err(Broken::Stopped) } else { Ok(()) }
}

/// Sends bytes of a buffer in chunks, and an end mark.
fn send(
    line: &mut Line,
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
                going_on(wait)?;
                let n = CHUNK.min(pin.range.len - done);
                // SAFETY: a part of registered memory, which the pin keeps. Its owner may write to it meanwhile, as during any one-sided
                // read: the bytes are sent without being interpreted.
                let bytes = unsafe { std::slice::from_raw_parts((pin.range.address + done) as *const u8, n) };
                line.send(&[&(n as u32).to_le_bytes(), bytes], within)?;
                done += n;
                sent.fetch_add(n as u64, Ordering::Relaxed);
            }
            if pin.is_current() { Ok(Reply::Done) } else { Err(Failure::new(Kind::Released, registry.why(buffer.0))) }
        }
    };
    line.send(&[&0u32.to_le_bytes()], wait)?;
    Ok(outcome)
}

/// Receives bytes into a buffer. Bytes that may not be written are received and dropped.
fn take(
    line: &mut Line,
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
                going_on(wait)?;
                let n = (CHUNK as u64).min(left) as usize;
                let to = pin.range.address + (len - left) as usize;
                // SAFETY: a part of registered, writable memory, which the pin keeps.
                unsafe { line.receive(to as *mut u8, n, within) }?;
                left -= n as u64;
            }
            if pin.is_current() { Ok(Reply::Done) } else { Err(Failure::new(Kind::Released, registry.why(buffer.0))) }
        }
    };
    let mut waste = if left > 0 { vec![0u8; WASTE] } else { Vec::new() };
    while left > 0 {
        let n = (waste.len() as u64).min(left) as usize;
        // SAFETY: a local buffer.
        unsafe { line.receive(waste.as_mut_ptr(), n, wait) }?;
        left -= n as u64;
    }
    Ok(outcome)
}
