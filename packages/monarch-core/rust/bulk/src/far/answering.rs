//! The owner's side of the streams: answers what is asked, from and into its registered memory.
//!
//! Each on a thread of its own, without the interpreter. What is asked for is bounded by what is registered, and memory that ends while
//! bytes of it are on their way is not sent any further: the reader is notified instead.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use net::lock::lock;

use super::Opened;
use super::line::{Broken, Line, Wait};
use super::traffic::Served;
use crate::answers;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{self, Reply, Request};
use crate::registry::{Id, Registry};

/// Bytes between two looks at whether the memory is still to be read; each such piece is announced by its length, 0 is the end.
const CHUNK: usize = 512 << 10;
/// What taking memory from devices may take.
const DROPPING: Duration = Duration::from_secs(30);
/// What is written to nobody goes through as much.
const WASTE: usize = 64 << 10;
/// A stream on which nothing has moved for so long ends: its other end may be gone without a word. The asking side uses none that has
/// rested for half as long.
pub const SILENCE: Duration = Duration::from_secs(60);
/// Between two looks at whether to go on.
const LOOK: Duration = Duration::from_millis(100);
/// Streams over which others ask.
const STREAMS: usize = 4096;

/// What this process lets those of other hosts have. The threads end when this process does.
pub struct Answering {
    pub registry: Arc<Registry>,
    threads: Arc<AtomicUsize>,
    /// Bytes that each process has got.
    sent: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    served: Arc<Served>,
    silence: Duration,
}

/// What the thread of a stream answers from.
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

    /// Streams on which nothing moves for so long end.
    pub fn with_silence(silence: Duration) -> io::Result<Arc<Answering>> {
        let registry = Registry::new()?;
        Ok(Arc::new(Answering { registry, threads: Arc::default(), sent: Mutex::default(), served: Arc::default(), silence }))
    }

    /// Streams that are served.
    pub fn count(&self) -> usize {
        self.threads.load(Ordering::Acquire)
    }

    /// Answers what comes over a stream, until it ends; `peer` is the process at its other end.
    ///
    /// Or until that process is taken for lost, which `has_ended` says: it gets nothing any more.
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
            // It ends with the other side, with this process, or with nonsense: in either case there is nobody to tell.
            let _ = desk.serve(line, opened.dialled, &has_ended);
            threads.fetch_sub(1, Ordering::AcqRel);
        };
        // Without a thread the other side sees the stream's end.
        if crate::pool::spawn("monarch-far", run).is_err() {
            self.threads.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Bytes that a process has got so far: whether it still gets any.
    pub fn sent(&self, peer: u64) -> u64 {
        lock(&self.sent).get(&peer).map_or(0, |n| n.load(Ordering::Relaxed))
    }
}

impl Desk {
    /// Answers until the stream ends.
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
                        // Where it is, is nobody's business.
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

/// Waits until no device can reach the memory, which takes the owner's interpreter.
fn drop_exported(registry: &Arc<Registry>, id: &Id, asker: u64, who: impl FnOnce() -> String, stop: &dyn Fn() -> bool) -> Outcome<Reply> {
    let (told, ended) = mpsc::channel();
    answers::drop_exported(
        registry,
        id,
        asker,
        who,
        Box::new(move |_| {
            // Who waited may have given up.
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

/// Between two pieces: what is always ready never waits.
fn going_on(wait: Wait<'_>) -> Result<(), Broken> {
    if (wait.stop)() { Err(Broken::Stopped) } else { Ok(()) }
}

/// Sends bytes of a buffer in pieces, and an end.
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
            // A reader that does not read keeps nobody from ending the buffer.
            let stop = || (wait.stop)() || !pin.is_current();
            let within = Wait { stop: &stop, ..wait };
            let mut done = 0;
            while done < pin.range.len && pin.is_current() {
                going_on(wait)?;
                let n = CHUNK.min(pin.range.len - done);
                // SAFETY: a part of registered memory, which the pin keeps. Its owner may write to it meanwhile, as during any one-sided
                // read: the bytes are passed on and not looked at.
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

/// Takes bytes into a buffer; those that nobody may write are taken and thrown away.
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
        // SAFETY: our own buffer.
        unsafe { line.receive(waste.as_mut_ptr(), n, wait) }?;
        left -= n as u64;
    }
    Ok(outcome)
}
