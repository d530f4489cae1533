//! A framed, ordered connection to one process.
//!
//! The sending thread writes to the socket itself. Bytes that the socket does not take are queued, and the poller writes them when there is
//! room. A link exists before its socket does: frames that are sent meanwhile wait in the queue.

mod own_frames;
mod second_socket;

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
use crate::chunk::{Chunk, Passed, enqueue};
use crate::forked_child;
use crate::forwarder::{Forwarder, LinkDown};
use crate::link::second_socket::SecondSocket;
use crate::lock::lock;
use crate::poller::{Pending, Poller, Source};
use crate::rerouted;
use crate::segment::RecvSegment;
use crate::shared_blocks::SharedBlocks;
use crate::sys::{self, Descriptors};

/// Requested size of the socket's buffers; the kernel limits it.
const SOCKET_BUFFER: libc::c_int = 1 << 20;
/// Least bytes for which a read of the socket has room.
const READ_CHUNK: usize = 64 << 10;
/// A larger read buffer shrinks when it is empty. Fragments of large parts from other hosts fit into this size.
const KEPT_BUFFER: usize = 1 << 20;
/// Reads of one link in a row before the poller serves other links.
const READS_IN_A_ROW: usize = 8;
/// Bytes of released blocks that may wait for the next frame to this peer. Beyond them the release is sent at once.
const RELEASE_LAZILY: usize = 8 << 20;
/// Messages with a shorter gap are sent together. The time is well below a round trip, so a caller that waits for each answer is never
/// delayed.
const BURST: Duration = Duration::from_micros(8);
/// Delay before a send is repeated that failed because the kernel lacked memory or had too many descriptors in flight.
const SHORTAGE: Duration = Duration::from_millis(10);
/// Delayed messages of this total size are written at once.
const BATCH_BYTES: usize = 32 << 10;

/// Receives the frames and the end of a link. The node of a process implements it, and the agent for its zygote.
pub trait LinkHandler: Send + Sync {
    /// Handles one complete frame. Descriptors that arrived with it are at the front of `fds`; a lost descriptor is `None` there.
    fn frame(&self, link: &Arc<Link>, frame: Frame, fds: &mut Descriptors);
    /// Handles a frame from or to another host. Its body lies in the link's read buffer.
    fn routed(&self, link: &Arc<Link>, head: &Route, body: &[u8]) {
        self.frame(link, Frame::Routed(Routed { head: *head, body: body.into() }), &mut Descriptors::new());
    }
    /// Reports that the link has ended; called once.
    fn down(&self, link: &Arc<Link>);
}

/// The sending side of a link, under its lock.
#[derive(Default)]
struct Out {
    /// Set from `attach` to `close`. A reading thread holds its own reference, so `close` cannot end the descriptor under it.
    fd: Option<Arc<OwnedFd>>,
    queue: VecDeque<Chunk>,
    want_write: bool,
    /// The poller is to flush the link before its thread waits.
    held: bool,
    /// The poller is to flush the link at once, even if no thread waits.
    soon: bool,
    /// When the last small message was sent.
    last: Option<Instant>,
    down: bool,
    released: Vec<BlockId>,
    released_bytes: usize,
}

/// The receiving side of a link, under its lock.
#[derive(Default)]
struct In {
    buf: Vec<u8>,
    fds: Descriptors,
    /// Frames that a test delays, with the times when they are handled.
    delayed: VecDeque<(Instant, Frame)>,
}

/// The connection to one process, by a socket or by a carrier. The node holds it as long as it remembers the process.
pub struct Link {
    me: Weak<Link>,
    pub peer: ProcUid,
    token: u64,
    poller: Arc<Poller>,
    handler: Arc<dyn LinkHandler>,
    out: Mutex<Out>,
    input: Mutex<In>,
    second: Mutex<Vec<Arc<SecondSocket>>>,
    shared: Mutex<SharedBlocks>,
    segments: Mutex<HashMap<u32, Arc<RecvSegment>>>,
    queued: AtomicUsize,
    is_down: AtomicBool,
    /// Set if the process is on another host: sends frames in place of a socket.
    forwarder: OnceLock<Arc<dyn Forwarder>>,
    /// The number of sent frames.
    pub sent: AtomicU64,
    /// Bytes through the socket; each counter is written under the lock of its direction.
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
            second: Mutex::default(),
            shared: Mutex::default(),
            segments: Mutex::default(),
            queued: AtomicUsize::new(0),
            is_down: AtomicBool::new(false),
            forwarder: OnceLock::new(),
            sent: AtomicU64::new(0),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        })
    }

    /// Switches the link to the carrier. Frames that were sent before go first.
    pub fn forward_by(&self, forwarder: Arc<dyn Forwarder>) {
        let mut out = lock(&self.out);
        let queue = std::mem::take(&mut out.queue);
        self.queued.store(0, Ordering::Relaxed);
        // The queue has not been sent, so the peer does not know these blocks yet.
        let shared = std::mem::take(&mut *lock(&self.shared));
        for chunk in queue {
            let _ = rerouted::forward(&*forwarder, self.peer, &chunk.bytes, |id| shared.block(id));
        }
        let _ = self.forwarder.set(forwarder);
    }

    /// Whether the process is on another host, out of reach of shared memory.
    pub fn is_forwarded(&self) -> bool {
        self.forwarder.get().is_some()
    }

    /// The host of the process, if the link is carried.
    pub fn forwarded_to(&self) -> Option<ProcUid> {
        self.forwarder.get().map(|c| c.host())
    }

    /// Gives the link its socket. Frames that were sent before are written first. A further socket is only read.
    pub fn attach(self: &Arc<Self>, fd: OwnedFd) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        sys::set_nonblocking(raw)?;
        sys::set_buffer_sizes(raw, SOCKET_BUFFER);
        let fd = {
            let mut out = lock(&self.out);
            if out.down {
                return Ok(());
            }
            if out.fd.is_some() {
                drop(out);
                return self.attach_second(fd);
            }
            let fd = Arc::new(fd);
            out.fd = Some(fd.clone());
            self.flush(&mut out, raw);
            fd
        };
        events::link_up(self.peer.0);
        if let Err(e) = self.poller.add(self.token, raw, Arc::new(LinkSource(self.clone(), fd.clone()))) {
            // No event would report the frames or the end of the other side, which reads the end of the stream now.
            lock(&self.out).fd = None;
            return Err(e);
        }
        let out = lock(&self.out);
        if out.down {
            // Another thread has closed the link before the socket was in the poller.
            self.poller.remove(self.token, raw);
        } else if out.want_write {
            // `add` has replaced the interest in writing, which the queued bytes need.
            self.poller.want_write(self.token, raw, true);
        }
        Ok(())
    }

    /// Whether the link has a socket.
    pub fn is_attached(&self) -> bool {
        lock(&self.out).fd.is_some()
    }

    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    /// Bytes that were written to the socket, and bytes that were read from it.
    pub fn traffic(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// Bytes that wait for the socket.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Sends the pieces as one contiguous run of whole frames. Frames with blocks go by `send_with_blocks`.
    pub fn send(&self, pieces: &[&[u8]], fds: Vec<OwnedFd>) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        self.send_locked(&mut out, pieces, fds.into_iter().map(Passed::Own).collect())
    }

    /// Sends a frame ahead of the frames that wait for the socket. On a link that has its socket, this is `send`.
    pub fn send_first(&self, frame: &[u8]) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        if out.fd.is_some() || out.down || self.forwarder.get().is_some() {
            return self.send_locked(&mut out, &[frame], Vec::new());
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        let mut queue = VecDeque::new();
        enqueue(&mut queue, &self.queued, &[], &[frame], 0, Vec::new(), None);
        queue.append(&mut out.queue);
        out.queue = queue;
        Ok(())
    }

    /// Sends like `send`, but holds a small message back that follows another one closely, so that one system call and one wake-up serve
    /// several messages. A held message is sent before this thread waits, or by the I/O thread, at once.
    pub fn send_soon(&self, pieces: &[&[u8]]) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        let now = Instant::now();
        let burst = out.last.is_some_and(|last| now.duration_since(last) < BURST);
        out.last = Some(now);
        let small = pieces.iter().map(|p| p.len()).sum::<usize>() < BATCH_BYTES / 4;
        if !burst || !small || out.down || out.fd.is_none() || out.want_write || self.poller.delay.get().is_some() {
            return self.send_locked(&mut out, pieces, Vec::new());
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        let release = take_release(&mut out);
        enqueue(&mut out.queue, &self.queued, &release, pieces, 0, Vec::new(), None);
        if self.queued() >= BATCH_BYTES {
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

    /// Sends frames on a carried link. `blocks` are their out-of-band parts, which are sent first; `first` is the number of the first part.
    pub fn send_behind(&self, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
        let out = lock(&self.out);
        let forwarder = self.forwarder.get().filter(|_| !out.down).ok_or(LinkDown)?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        forwarder.forward(self.peer, pieces, blocks, first)
    }

    /// Sends frames that name blocks. Segments that the peer does not know are announced first.
    pub fn send_with_blocks(&self, pieces: &[&[u8]], blocks: &[Arc<Block>]) -> Result<(), LinkDown> {
        let mut out = lock(&self.out);
        if out.down {
            return Err(LinkDown);
        }
        if let Some(forwarder) = self.forwarder.get() {
            // The link has become a carried one since the caller looked.
            self.sent.fetch_add(1, Ordering::Relaxed);
            let shared = |id| blocks.iter().find(|b| b.id() == id).cloned();
            return rerouted::forward(&**forwarder, self.peer, &pieces.concat(), shared);
        }
        let fresh = lock(&self.shared).share(blocks);
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
        if let Some(forwarder) = self.forwarder.get() {
            return forwarder.forward(self.peer, pieces, &[], 0);
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
        // Frames with more pieces than one gather write takes go through the queue; so does what the first write has left.
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

    /// Calls `f` with this link after the delay; returns the time of the call.
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
                // The socket is usable, but no event reports when the kernel has resources again. The chunk stays queued, and a timer sends
                // it.
                Err(e) if sys::is_short(&e) => {
                    chunk.due = Some(self.later(SHORTAGE, |link| link.flush_out(&mut lock(&link.out))));
                    break;
                }
                // The reading side receives the end of the stream and reports it.
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

    /// Releases a received block. The sender is notified with the next frame, or soon.
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
                self.drain_second();
                self.close();
            } else if self.is_down() {
                // A frame that was just handled has closed the link.
                *input = In::default();
            }
        }
    }

    /// Handles the frames of an ended peer that are still in the socket. Does nothing if a thread is reading the link now.
    pub fn drain(self: &Arc<Self>) {
        let Some(fd) = lock(&self.out).fd.clone() else { return };
        if let Ok(mut input) = self.input.try_lock() {
            self.read_all(&mut input, fd.as_raw_fd(), usize::MAX);
            self.handle_delayed(&mut input, None);
        }
        self.drain_second();
    }

    /// Handles the delayed frames that are due at `now`, or all of them.
    fn handle_delayed(self: &Arc<Self>, input: &mut In, now: Option<Instant>) {
        while !self.is_down() && input.delayed.front().is_some_and(|(due, _)| now.is_none_or(|now| *due <= now)) {
            if let Some((_, f)) = input.delayed.pop_front() {
                self.handle(f, &mut input.fds);
            }
        }
    }

    fn handle_all_delayed(self: &Arc<Self>, now: Option<Instant>) {
        self.handle_delayed(&mut lock(&self.input), now);
        let all = lock(&self.second).clone();
        all.iter().for_each(|second| self.handle_delayed(&mut lock(&second.input), now));
    }

    fn handle(self: &Arc<Self>, f: Frame, fds: &mut Descriptors) {
        if let Some(f) = self.own_frame(f, fds) {
            self.handler.frame(self, f, fds);
        }
    }

    /// Reads and handles the available frames, with at most `reads` reads; returns false at the end of the stream.
    fn read_all(self: &Arc<Self>, input: &mut In, raw: RawFd, reads: usize) -> bool {
        for _ in 0..reads {
            let want = frame::missing(&input.buf).max(READ_CHUNK);
            input.buf.reserve(want);
            let room = input.buf.capacity() - input.buf.len();
            let n = match sys::recv_into(raw, &mut input.buf, &mut input.fds, libc::MSG_DONTWAIT) {
                Ok(0) => {
                    // The link exists as long as its process is remembered; its buffer is not needed.
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
                    // The delay has ended, but earlier frames are still held: the frame stays behind them.
                    (None, Some((due, _))) => input.delayed.push_back((*due, f)),
                    (Some(d), _) => {
                        let due = self.later(d, |link| link.handle_all_delayed(Some(Instant::now())));
                        input.delayed.push_back((due, f));
                    }
                }
            }
            input.buf.drain(..at);
            if input.buf.capacity() > KEPT_BUFFER && input.buf.len() < READ_CHUNK {
                input.buf.shrink_to(2 * READ_CHUNK);
            }
            if n < room && reads == READS_IN_A_ROW {
                return true;
            }
        }
        true
    }

    /// Closes the link. Later calls have no effect.
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
        self.close_second();
        // The link exists as long as its process is remembered; the kernel's resources are released now.
        *lock(&self.shared) = SharedBlocks::default();
        lock(&self.segments).clear();
        // A thread that is reading now finds the end by itself.
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

/// The socket of a link as a source of the poller.
struct LinkSource(Arc<Link>, Arc<OwnedFd>);

impl Source for LinkSource {
    fn ready(&self, events: u32) {
        self.0.on_ready(events, self.1.as_raw_fd());
    }
}

/// Adds to a counter that only this thread writes at the moment; returns what was added.
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
