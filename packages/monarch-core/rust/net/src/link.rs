//! A framed, ordered connection to one process.
//!
//! The thread that sends writes the socket itself; only what the socket does not take is queued, and the
//! poller writes it when there is room. A link exists before its socket does: what is sent meanwhile waits.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use wire::control::Control;
use wire::cursor::Cursor;
use wire::frame;
use wire::{BlockId, Frame, ProcUid, Route, Routed};

use crate::arena::Block;
use crate::carrier::{Carrier, LinkDown};
use crate::chunk::{Chunk, Passed, enqueue};
use crate::forked_child;
use crate::lent::Lent;
use crate::lock::lock;
use crate::poller::{Pending, Poller, Source};
use crate::readdressed;
use crate::segment::RecvSegment;
use crate::sys::{self, Descriptors};

/// What a socket is asked to hold; the kernel clamps it.
const SOCKET_BUFFER: libc::c_int = 1 << 20;
const READ_CHUNK: usize = 64 << 10;
/// A buffer that has grown beyond this shrinks when it is empty: pieces of what comes from other hosts fit.
const KEEP: usize = 1 << 20;
/// Reads of one link in a row before others get their turn.
const READS_IN_A_ROW: usize = 8;
/// Released bytes that may wait for the next frame to this peer.
const RELEASE_LAZILY: usize = 8 << 20;
/// Messages closer than this belong together; well below a round trip, so that a caller who waits is never held back.
const BURST: Duration = Duration::from_micros(8);
/// When the kernel is short of what a send needs, it is tried again after this time.
const SHORTAGE: Duration = Duration::from_millis(10);
/// Held-back bytes that go out at once.
const HOLD: usize = 32 << 10;

pub trait LinkHandler: Send + Sync {
    /// One whole frame; descriptors that came with it, or were lost, are at the front of `fds`.
    fn frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors);
    /// A frame on its way to or from another host; its body is the link's.
    fn routed(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        self.frame(link, Frame::Routed(Routed { head: *head, body: body.into() }), &mut Descriptors::new());
    }
    /// The link is finished; called once.
    fn down(&self, link: &Arc<Link>);
}

#[derive(Default)]
struct Out {
    /// From `attach` to `close`. Whoever reads has a share of its own, so a close cannot pull it away.
    fd: Option<Arc<OwnedFd>>,
    queue: VecDeque<Chunk>,
    want_write: bool,
    /// The poller has been asked to flush it.
    held: bool,
    /// And to do so within a moment, whether or not a thread waits.
    soon: bool,
    /// When the last small message was sent.
    last: Option<Instant>,
    down: bool,
    released: Vec<BlockId>,
    released_bytes: usize,
}

#[derive(Default)]
struct In {
    buf: Vec<u8>,
    fds: Descriptors,
    /// Frames under a delay, and when they are handled.
    delayed: VecDeque<(Instant, Frame)>,
}

pub struct Link {
    me: Weak<Link>,
    pub peer: ProcUid,
    token: u64,
    poller: Arc<Poller>,
    handler: Arc<dyn LinkHandler>,
    out: Mutex<Out>,
    input: Mutex<In>,
    lent: Mutex<Lent>,
    segments: Mutex<HashMap<u32, Arc<RecvSegment>>>,
    queued: AtomicUsize,
    is_down: AtomicBool,
    /// Of a process on another host, in the place of a socket.
    carrier: OnceLock<Arc<dyn Carrier>>,
    pub sent: AtomicU64,
    /// Bytes through the socket: each is written below the lock of its direction.
    written: AtomicU64,
    read: AtomicU64,
}

impl Link {
    pub fn new(peer: ProcUid, poller: Arc<Poller>, handler: Arc<dyn LinkHandler>) -> Arc<Self> {
        Arc::new_cyclic(|me| Link {
            me: me.clone(),
            peer,
            token: poller.token(),
            poller,
            handler,
            out: Mutex::default(),
            input: Mutex::default(),
            lent: Mutex::default(),
            segments: Mutex::default(),
            queued: AtomicUsize::new(0),
            is_down: AtomicBool::new(false),
            carrier: OnceLock::new(),
            sent: AtomicU64::new(0),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        })
    }

    /// From now on frames go by the carrier; what was sent before goes first.
    pub fn carry_by(&self, carrier: Arc<dyn Carrier>) {
        let mut out = lock(&self.out);
        let queue = std::mem::take(&mut out.queue);
        self.queued.store(0, Ordering::Relaxed);
        // Nobody has seen what was to be lent.
        let lent = std::mem::take(&mut *lock(&self.lent));
        for chunk in queue {
            let _ = readdressed::carry(&*carrier, self.peer, &chunk.bytes, |id| lent.block(id));
        }
        let _ = self.carrier.set(carrier);
    }

    /// The process is on another host: shared memory does not reach it.
    pub fn is_carried(&self) -> bool {
        self.carrier.get().is_some()
    }

    /// That host.
    pub fn carried_to(&self) -> Option<ProcUid> {
        self.carrier.get().map(|c| c.host())
    }

    /// Gives the link its socket; what was sent before goes out first.
    pub fn attach(self: &Arc<Self>, fd: OwnedFd) -> io::Result<()> {
        let fd = Arc::new(fd);
        let raw = fd.as_raw_fd();
        sys::set_nonblocking(raw)?;
        sys::set_buffer_sizes(raw, SOCKET_BUFFER);
        {
            let mut out = lock(&self.out);
            if out.down || out.fd.is_some() {
                return Ok(());
            }
            out.fd = Some(fd.clone());
            self.flush(&mut out, raw);
        }
        events::link_up(self.peer.0);
        self.poller.add(self.token, raw, Arc::new(LinkSource(self.clone(), fd.clone())))?;
        let out = lock(&self.out);
        if out.down {
            // Closed meanwhile, by somebody who found nothing to remove.
            self.poller.remove(self.token, raw);
        } else if out.want_write {
            // What could not be written needs the interest that `add` has just replaced.
            self.poller.want_write(self.token, raw, true);
        }
        Ok(())
    }

    /// It has its socket.
    pub fn is_attached(&self) -> bool {
        lock(&self.out).fd.is_some()
    }

    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    /// Bytes that were written to the socket, and read from it.
    pub fn traffic(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// Bytes that wait for the socket.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Sends the pieces as one contiguous run of whole frames. Blocks that the frames name must be lent first.
    pub fn send(&self, pieces: &[&[u8]], fds: Vec<OwnedFd>) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        self.send_locked(&mut out, pieces, fds.into_iter().map(Passed::Own).collect())
    }

    /// Sends a frame to a link without a socket ahead of what waits for that; a link that has one sends it like any other.
    pub fn send_first(&self, frame: &[u8]) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        if out.fd.is_some() || out.down || self.carrier.get().is_some() {
            return self.send_locked(&mut out, &[frame], Vec::new());
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        let mut queue = VecDeque::new();
        enqueue(&mut queue, &self.queued, &[], &[frame], 0, Vec::new(), None);
        queue.append(&mut out.queue);
        out.queue = queue;
        Ok(())
    }

    /// As `send`, but a small message that follows another one closely is held back for those that follow it: one
    /// system call and one wake-up for all of them. It goes out before this thread waits, or by the I/O thread, at once.
    pub fn send_soon(&self, pieces: &[&[u8]]) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        let now = Instant::now();
        let burst = out.last.is_some_and(|last| now.duration_since(last) < BURST);
        out.last = Some(now);
        let small = pieces.iter().map(|p| p.len()).sum::<usize>() < HOLD / 4;
        if !burst || !small || out.down || out.fd.is_none() || out.want_write || self.poller.delay.get().is_some() {
            return self.send_locked(&mut out, pieces, Vec::new());
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        let release = take_release(&mut out);
        enqueue(&mut out.queue, &self.queued, &release, pieces, 0, Vec::new(), None);
        if self.queued() >= HOLD {
            self.flush_out(&mut out);
        } else {
            self.hold(&mut out, true);
        }
        Ok(())
    }

    fn hold(&self, out: &mut Out, soon: bool) {
        if !out.held
            && let Some(me) = self.me.upgrade()
        {
            out.held = true;
            self.poller.hold(me);
        }
        if soon && !std::mem::replace(&mut out.soon, true) {
            self.poller.flush_soon();
        }
    }

    fn flush_out(&self, out: &mut Out) {
        if let Some(raw) = out.fd.as_ref().map(|fd| fd.as_raw_fd()) {
            self.flush(out, raw);
        }
    }

    /// As `send` of a link that is carried, with the parts that go ahead and the number of the first.
    pub fn send_behind(&self, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
        let out = lock(&self.out);
        let carrier = self.carrier.get().filter(|_| !out.down).ok_or(LinkDown)?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        carrier.carry(self.peer, pieces, blocks, first)
    }

    /// As `send`, with the blocks that the frames name: segments the peer does not know are announced first.
    pub fn send_with_blocks(&self, pieces: &[&[u8]], blocks: &[Arc<Block>]) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        if out.down {
            return Err(LinkDown);
        }
        if let Some(carrier) = self.carrier.get() {
            // Since just now.
            self.sent.fetch_add(1, Ordering::Relaxed);
            let lent = |id| blocks.iter().find(|b| b.id() == id).cloned();
            return readdressed::carry(&**carrier, self.peer, &pieces.concat(), lent);
        }
        let fresh = lock(&self.lent).lend(blocks);
        for s in fresh {
            let control = Control::Segment { segment: s.id, len: s.len };
            self.send_locked(&mut out, &[&Frame::Control(control).encode()], vec![Passed::Segment(s)])?;
        }
        self.send_locked(&mut out, pieces, Vec::new())
    }

    fn send_locked(&self, out: &mut Out, pieces: &[&[u8]], fds: Vec<Passed>) -> Result<(), LinkDown> {
        if out.down {
            return Err(LinkDown);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        if let Some(carrier) = self.carrier.get() {
            return carrier.carry(self.peer, pieces, &[], 0);
        }
        let release = take_release(out);
        let Some(raw) = out.fd.as_ref().map(|fd| fd.as_raw_fd()) else {
            enqueue(&mut out.queue, &self.queued, &release, pieces, 0, fds, None);
            return Ok(());
        };
        let delay = self.poller.delay.get();
        if !out.queue.is_empty() || delay.is_some() {
            let due = delay.map(|d| self.later(d, |link| link.flush_out(&mut lock(&link.out))));
            enqueue(&mut out.queue, &self.queued, &release, pieces, 0, fds, due);
            if !out.want_write {
                self.flush(out, raw);
            }
            return Ok(());
        }
        let mut gather: [&[u8]; 16] = [&[]; 16];
        gather[0] = &release;
        let count = pieces.len().min(15);
        gather[1..=count].copy_from_slice(&pieces[..count]);
        let first = if release.is_empty() { 1 } else { 0 };
        let raw_fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let total = release.len() + pieces.iter().map(|p| p.len()).sum::<usize>();
        let mut wrote = 0;
        // More pieces than one gather write takes, or descriptors, go through the queue after the first write.
        if pieces.len() <= 15 {
            match sys::send(raw, &gather[first..=count], &raw_fds) {
                Ok(n) => wrote = add(&self.written, n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || sys::is_short(&e) => {}
                Err(_) => return Err(LinkDown),
            }
            if wrote == total {
                return Ok(());
            }
        }
        let fds = if wrote > 0 { Vec::new() } else { fds };
        enqueue(&mut out.queue, &self.queued, &release, pieces, wrote, fds, None);
        self.flush(out, raw);
        Ok(())
    }

    /// Does something to this link when the delay is over; gives the time.
    fn later(&self, delay: Duration, f: impl FnOnce(&Arc<Link>) + Send + 'static) -> Instant {
        let (due, me) = (Instant::now() + delay, self.me.clone());
        let task = move || {
            if let Some(link) = me.upgrade() {
                f(&link);
            }
        };
        self.poller.later(delay, Box::new(task));
        due
    }

    fn flush(&self, out: &mut Out, raw: RawFd) {
        while let Some(chunk) = out.queue.front_mut().filter(|c| c.is_due()) {
            let raw_fds: Vec<RawFd> = chunk.fds.iter().map(AsRawFd::as_raw_fd).collect();
            match sys::send(raw, &[&chunk.bytes[chunk.at..]], &raw_fds) {
                Ok(n) => {
                    chunk.fds.clear();
                    chunk.at += add(&self.written, n);
                    self.queued.fetch_sub(n, Ordering::Relaxed);
                    if chunk.at == chunk.bytes.len() {
                        out.queue.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The socket lives, and nobody tells when there is more: what is not sent is not lost.
                Err(e) if sys::is_short(&e) => {
                    chunk.due = Some(self.later(SHORTAGE, |link| link.flush_out(&mut lock(&link.out))));
                    break;
                }
                // The reading side sees the end of the stream and reports it.
                Err(_) => {
                    out.queue.clear();
                    self.queued.store(0, Ordering::Relaxed);
                    break;
                }
            }
        }
        let want = out.queue.front().is_some_and(Chunk::is_due);
        if want != out.want_write {
            out.want_write = want;
            self.poller.want_write(self.token, raw, want);
        }
    }

    /// The receiver lets a block go; told with the next frame, or soon.
    pub fn release(&self, block: BlockId, len: usize) {
        if forked_child::is_child() {
            return;
        }
        let mut out = lock(&self.out);
        if out.down {
            return;
        }
        out.released.push(block);
        out.released_bytes += len;
        if out.released_bytes > RELEASE_LAZILY {
            let _ = self.send_locked(&mut out, &[], Vec::new());
        } else {
            self.hold(&mut out, false);
        }
    }

    pub fn segment(&self, id: u32) -> Option<Arc<RecvSegment>> {
        lock(&self.segments).get(&id).cloned()
    }

    /// Handles what concerns only this link; gives back all other frames.
    fn own_frame(&self, f: Frame, fds: &mut Descriptors) -> Option<Frame> {
        match f {
            Frame::Control(Control::Segment { segment, len }) => {
                match fds.pop_front().flatten() {
                    Some(fd) => drop(lock(&self.segments).insert(segment, Arc::new(RecvSegment::new(fd, len)))),
                    // Messages that name it already are incomplete; later ones come behind a new announcement.
                    None => drop(self.send(&[&Frame::Control(Control::SegmentLost { segment }).encode()], Vec::new())),
                }
                None
            }
            Frame::Control(Control::SegmentLost { segment }) => {
                lock(&self.lent).forget(segment);
                None
            }
            Frame::Control(Control::SegmentGone { segment }) => {
                lock(&self.segments).remove(&segment);
                None
            }
            Frame::Control(Control::Release { blocks }) => {
                self.returned(&blocks);
                None
            }
            other => Some(other),
        }
    }

    fn returned(&self, blocks: &[BlockId]) {
        let freed = lock(&self.lent).take_back(blocks);
        drop(freed);
        let gone = lock(&self.lent).sweep();
        for segment in gone {
            let _ = self.send(&[&Frame::Control(Control::SegmentGone { segment }).encode()], Vec::new());
        }
    }

    fn on_ready(self: &Arc<Self>, events: u32, raw: RawFd) {
        if events & libc::EPOLLOUT as u32 != 0 {
            let mut out = lock(&self.out);
            if !out.down {
                self.flush(&mut out, raw);
            }
        }
        if events & !(libc::EPOLLOUT as u32) != 0 {
            let mut input = lock(&self.input);
            if !self.read_all(&mut input, raw, READS_IN_A_ROW) {
                self.handle_delayed(&mut input, None);
                drop(input);
                self.close();
            } else if self.is_down() {
                // Closed by what it has read.
                *input = In::default();
            }
        }
    }

    /// The peer is gone: handles what it sent before. Not if this thread, or another, is reading the link just now.
    pub fn drain(self: &Arc<Self>) {
        let Some(fd) = lock(&self.out).fd.clone() else { return };
        if let Ok(mut input) = self.input.try_lock() {
            self.read_all(&mut input, fd.as_raw_fd(), usize::MAX);
            self.handle_delayed(&mut input, None);
        }
    }

    /// Handles what has been held back until `now`; without it, all of that.
    fn handle_delayed(self: &Arc<Self>, input: &mut In, now: Option<Instant>) {
        while !self.is_down() && input.delayed.front().is_some_and(|(due, _)| now.is_none_or(|now| *due <= now)) {
            if let Some((_, f)) = input.delayed.pop_front() {
                self.handle(f, &mut input.fds);
            }
        }
    }

    fn handle(self: &Arc<Self>, f: Frame, fds: &mut Descriptors) {
        if let Some(f) = self.own_frame(f, fds) {
            self.handler.frame(self, f, fds);
        }
    }

    /// Reads and handles what is there, in at most so many reads; false at the end of the stream.
    fn read_all(self: &Arc<Self>, input: &mut In, raw: RawFd, reads: usize) -> bool {
        for _ in 0..reads {
            let want = frame::missing(&input.buf).max(READ_CHUNK);
            input.buf.reserve(want);
            let room = input.buf.capacity() - input.buf.len();
            let n = match sys::recv_into(raw, &mut input.buf, &mut input.fds, libc::MSG_DONTWAIT) {
                Ok(0) => {
                    // The link stays, as long as its process is remembered.
                    input.buf = Vec::new();
                    return false;
                }
                Ok(n) => add(&self.read, n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            let mut at = 0;
            while let Some(body) = frame::whole(&input.buf[at..]) {
                let frame = &input.buf[at + 4..at + 4 + body];
                at += 4 + body;
                if frame.first() == Some(&frame::ROUTED) && input.delayed.is_empty() && self.poller.delay.get().is_none() {
                    let mut c = Cursor::new(&frame[1..]);
                    let Ok(head) = Route::read(&mut c) else { return false };
                    self.handler.routed(self, &head, &frame[1 + Route::LEN..]);
                    continue;
                }
                let Ok(f) = Frame::decode(frame) else { return false };
                match (self.poller.delay.get(), input.delayed.back()) {
                    (None, None) => self.handle(f, &mut input.fds),
                    // Behind the last one, which the delay left.
                    (None, Some((due, _))) => input.delayed.push_back((*due, f)),
                    (Some(d), _) => {
                        let due = self.later(d, |link| link.handle_delayed(&mut lock(&link.input), Some(Instant::now())));
                        input.delayed.push_back((due, f));
                    }
                }
            }
            input.buf.drain(..at);
            if input.buf.capacity() > KEEP && input.buf.len() < READ_CHUNK {
                input.buf.shrink_to(2 * READ_CHUNK);
            }
            if n < room && reads == READS_IN_A_ROW {
                return true;
            }
        }
        true
    }

    /// Ends the link from this side, or notes that it has ended.
    pub fn close(self: &Arc<Self>) {
        if forked_child::is_child() {
            return;
        }
        let fd = {
            let mut out = lock(&self.out);
            if out.down {
                return;
            }
            out.down = true;
            out.queue = VecDeque::new();
            self.queued.store(0, Ordering::Relaxed);
            out.fd.take()
        };
        self.is_down.store(true, Ordering::Release);
        if let Some(fd) = fd {
            self.poller.remove(self.token, fd.as_raw_fd());
            sys::shutdown(fd.as_raw_fd());
        }
        // A link is kept as long as its process is remembered; what it holds of the kernel's is not.
        *lock(&self.lent) = Lent::default();
        lock(&self.segments).clear();
        // Whoever is reading right now finds the end by itself.
        if let Ok(mut input) = self.input.try_lock() {
            *input = In::default();
        }
        self.handler.down(self);
    }
}

impl Pending for Link {
    fn flush(&self) {
        let mut out = lock(&self.out);
        (out.held, out.soon) = (false, false);
        if out.down {
            return;
        }
        if !out.released.is_empty() {
            let _ = self.send_locked(&mut out, &[], Vec::new());
        } else if !out.want_write {
            self.flush_out(&mut out);
        }
    }
}

struct LinkSource(Arc<Link>, Arc<OwnedFd>);

impl Source for LinkSource {
    fn ready(&self, events: u32) {
        self.0.on_ready(events, self.1.as_raw_fd());
    }
}

/// Adds to a count that no other thread writes to now; gives what was added.
fn add(count: &AtomicU64, n: usize) -> usize {
    count.store(count.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
    n
}

fn take_release(out: &mut Out) -> Vec<u8> {
    if out.released.is_empty() {
        return Vec::new();
    }
    out.released_bytes = 0;
    Frame::Control(Control::Release { blocks: std::mem::take(&mut out.released) }).encode()
}
