//! A session between two agents, or between a client and an agent: a channel for frames, and a heartbeat stream.
//!
//! The session outlives its connections. It exists before the first one is open, and frames that are sent meanwhile wait; when a connection
//! breaks, the dialling side opens another, and frames that were in flight are sent again. The sending thread writes to the connection
//! itself.
//!
//! A connection that is replaced is reset. A process that ends closes all of its connections in the usual way, and so does a proxy in
//! between that ends: the other side dials again to learn which of them ended.

mod heartbeat;
mod pause;
mod routed;

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use wire::greeting::Heartbeat;
use wire::{ProcUid, Route, frame, part_fragment};

use crate::channel::{ACK, Disagree, Inbox, Outbox};
use crate::forwarder::LinkDown;
use crate::heartbeat_stream::HeartbeatStream;
use crate::lock::lock;
use crate::pause::Pause;
use crate::poller::{Pending, Poller, Source};
use crate::segment::RecvPart;
use crate::send_queues::SendQueues;
use crate::stream::Stream;
use crate::sys;
use crate::traffic::Traffic;

/// The numbers of a session's channel for frames, and of its heartbeat stream.
pub const FRAMES: u8 = 0;
/// The number of the heartbeat stream.
pub const HEARTBEAT: u8 = 255;

/// Bytes of one read: at most one fragment of a large part with its head, or the rest of a fragment. No received byte has to be moved then.
const READ: usize = part_fragment::SIZE + READ_LEAST;
/// Least bytes of one read.
const READ_LEAST: usize = 4 << 10;
/// A larger read buffer is freed when it is empty.
const KEPT_BUFFER: usize = 1 << 20;
/// Reads in a row before the poller serves other sockets.
const READS_IN_A_ROW: usize = 4;
/// Frames with a shorter gap are sent together, up to `BATCH_BYTES` bytes; the values are those of links.
const BURST: Duration = Duration::from_micros(8);
/// Most bytes of frames that are held to be sent together.
const BATCH_BYTES: usize = 32 << 10;
/// Most slices of one gather write.
const MAX_SLICES: usize = 16;
/// Most unwritten bytes in the channel while send queues still wait. Frames that overtake the queues wait for no more than this.
const UNWRITTEN_LIMIT: usize = 512 << 10;
/// Most unacknowledged bytes while large parts are sent, so that frames which overtake them do not wait for full socket buffers of two
/// kernels. 4 MiB allow 20 GB/s at a round trip of 200 us.
const WINDOW: usize = 4 << 20;
/// Bytes written in a row before the poller serves other sockets.
const WRITE_IN_A_ROW: usize = 512 << 10;

/// The offset of the body in a routed frame.
const BODY: usize = 5 + Route::LEN;

/// How a stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// The other side, or a proxy in between, has closed it; or the other process has ended.
    Closed,
    /// The other side's kernel does not know the connection.
    Reset,
    /// A frame was malformed.
    Garbage,
    /// An error of the network or of this side.
    Failed,
}

impl StreamEnd {
    pub(crate) fn of(e: &io::Error) -> StreamEnd {
        match e.kind() {
            // An end without an announcement, as after a kill of the process. A write fails with `BrokenPipe` after the end has arrived.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => StreamEnd::Closed,
            io::ErrorKind::ConnectionReset => StreamEnd::Reset,
            io::ErrorKind::InvalidData => StreamEnd::Garbage,
            _ => StreamEnd::Failed,
        }
    }
}

/// Receives the frames, the heartbeats and the ends of streams of a session. The gateway implements it.
pub trait SessionHandler: Send + Sync {
    /// Handles a whole frame, its kind and its body. Frames arrive in order and once each.
    fn frame(&self, session: &Arc<Session>, frame: &[u8]);
    /// Handles a heartbeat message.
    fn heartbeat(&self, session: &Arc<Session>, heartbeat: Heartbeat);
    /// Reports that bytes have arrived, whatever they are: the other side is alive.
    fn bytes_received(&self, session: &Arc<Session>);
    /// Reports that the stream of the channel `number` has ended.
    fn broken(&self, session: &Arc<Session>, number: u8, end: StreamEnd);
    /// Reports that the kernel does not watch a connection that the session was given: it lacks memory or watches. The session has no such
    /// connection now.
    fn unwatched(&self, session: &Arc<Session>, why: io::Error);
    /// Sends bytes of a routed session to the other side. Other sessions forward them and keep their order. Called under the session's
    /// lock.
    fn forward_bytes(&self, _session: &Session, _bytes: Vec<u8>) {}
    /// Sends a heartbeat message of a routed session, as `forward_bytes`.
    fn forward_heartbeat(&self, _session: &Session, _heartbeat: &Heartbeat) {}
}

/// The sending side of a session, under its lock.
#[derive(Default)]
struct Pipe {
    /// The stream for frames and its token.
    stream: Option<(Stream, u64)>,
    /// The session is routed: other sessions forward its bytes.
    routed: bool,
    outbox: Outbox,
    queues: SendQueues,
    want_write: bool,
    /// The poller is to flush the session before its thread waits.
    held: bool,
    /// The time of the last frame.
    last: Option<Instant>,
    closed: bool,
}

/// The receiving side of a session, under its lock.
#[derive(Default)]
struct In {
    buf: Vec<u8>,
    inbox: Inbox,
}

/// A session with another host. The gateway holds it as long as the host is in the job.
pub struct Session {
    me: Weak<Session>,
    /// The other side, this side, and the job, by the ids of hosts in that job.
    pub host: ProcUid,
    pub local_host: ProcUid,
    pub job: ProcUid,
    poller: Arc<Poller>,
    handler: Arc<dyn SessionHandler>,
    pipe: Mutex<Pipe>,
    input: Mutex<In>,
    heartbeat: Mutex<Option<HeartbeatStream>>,
    is_closed: AtomicBool,
    pause: Pause,
    /// The number of sent frames.
    pub sent: AtomicU64,
}

impl Session {
    pub fn new(job: ProcUid, local_host: ProcUid, host: ProcUid, poller: Arc<Poller>, handler: Arc<dyn SessionHandler>) -> Arc<Self> {
        Arc::new_cyclic(|me| Session {
            me: me.clone(),
            host,
            local_host,
            job,
            poller,
            handler,
            pipe: Mutex::default(),
            input: Mutex::default(),
            heartbeat: Mutex::default(),
            is_closed: AtomicBool::new(false),
            pause: Pause::default(),
            sent: AtomicU64::new(0),
        })
    }

    /// The number of received frames, which the handshake of a new stream reports.
    pub fn received(&self) -> u64 {
        lock(&self.input).inbox.received
    }

    /// Whether frames can be sent now: the session has a stream or a route.
    pub fn is_up(&self) -> bool {
        let pipe = lock(&self.pipe);
        pipe.stream.is_some() || pipe.routed
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Bytes that wait for a stream, and bytes that are kept until they are acknowledged.
    pub fn waiting(&self) -> (usize, usize) {
        let pipe = lock(&self.pipe);
        (pipe.outbox.unwritten() + pipe.queues.bytes(), pipe.outbox.kept() + pipe.queues.bytes())
    }

    /// The kernel's counters of the current stream; `None` without one.
    pub fn traffic(&self) -> Option<Traffic> {
        lock(&self.pipe).stream.as_ref().map(|(stream, _)| Traffic::of(stream.fd()))
    }

    /// Whether a new stream can replace the current one, if the other side has received `peer_received` frames.
    pub fn can_resume(&self, peer_received: u64) -> Result<(), Disagree> {
        lock(&self.pipe).outbox.can_resume(peer_received)
    }

    /// The number of frames that were sent or wait to be sent.
    pub fn count(&self) -> u64 {
        lock(&self.pipe).outbox.count()
    }

    /// Takes the stream for frames away. When the call returns, all received frames are counted.
    pub fn detach(&self) {
        let _input = lock(&self.input);
        let mut pipe = lock(&self.pipe);
        pipe.routed = false;
        if let Some((old, token)) = pipe.stream.take() {
            self.poller.remove(token, old.fd());
            Traffic::note_end(&old, self.host, "replaced");
            sys::reset(old.fd());
        }
    }

    /// Gives the session a stream for its frames, and replaces the one that it may have. `received` is the number of frames that this side
    /// has reported; the other side sends the later ones. `peer_received` is the number that the other side has reported. `prologue` is
    /// sent first: the answer to a greeting. `early` are bytes that arrived behind such an answer.
    ///
    /// `Stale` if more frames have arrived since this side reported: the other side would send them again, and they would count twice.
    pub fn attach(
        self: &Arc<Self>,
        stream: Stream,
        received: u64,
        peer_received: u64,
        prologue: &[u8],
        early: Vec<u8>,
    ) -> Result<(), Disagree> {
        let mut input = lock(&self.input);
        let mut pipe = lock(&self.pipe);
        if pipe.closed || self.is_paused() {
            return Ok(());
        }
        // Checked while the old stream still exists: a stale claim changes nothing.
        if input.inbox.received != received {
            return Err(Disagree::Stale);
        }
        pipe.outbox.can_resume(peer_received)?;
        let (fd, token) = (stream.fd(), self.poller.token());
        if !self.watch(fd, token, Arc::new(FrameSource(self.clone(), token))) {
            return Ok(());
        }
        if let Some((old, token)) = pipe.stream.take() {
            self.poller.remove(token, old.fd());
            Traffic::note_end(&old, self.host, "replaced");
            sys::reset(old.fd());
        }
        pipe.outbox.resume(peer_received)?;
        input.buf = early;
        input.inbox.acknowledged();
        pipe.outbox.prologue(prologue);
        (pipe.stream, pipe.routed) = (Some((stream, token)), false);
        pipe.want_write = false;
        self.flush(&mut pipe);
        drop(pipe);
        drop(input);
        // Bytes that the stream has already decrypted cause no event at the descriptor.
        let me = self.clone();
        self.poller.spawn(Box::new(move || me.begin(token)));
        Ok(())
    }

    /// Adds a connection to the poller. If that fails, the connection is reset and the handler is notified: no event would ever report its
    /// bytes or its end.
    fn watch(self: &Arc<Self>, fd: RawFd, token: u64, source: Arc<dyn Source>) -> bool {
        let Err(why) = self.poller.add(token, fd, source) else { return true };
        sys::reset(fd);
        let me = self.clone();
        // The caller holds locks that the handler may need.
        self.poller.spawn(Box::new(move || me.handler.unwatched(&me, why)));
        false
    }

    /// Sends one frame, ahead of all waiting parts. The pieces begin with its length and kind.
    pub fn send(&self, pieces: &[&[u8]]) -> Result<(), LinkDown> {
        self.send_frame(pieces.concat().into(), None)
    }

    /// Sends a routed frame. It stays behind what the same process sent before, as far as the order matters, and behind everything that the
    /// processes in `ended` have sent.
    pub fn send_behind(&self, route: &Route, ended: &[ProcUid], pieces: &[&[u8]]) -> Result<(), LinkDown> {
        self.send_frame(pieces.concat().into(), Some((route, ended)))
    }

    fn send_frame(&self, frame: Box<[u8]>, behind: Option<(&Route, &[ProcUid])>) -> Result<(), LinkDown> {
        let mut pipe = lock(&self.pipe);
        if pipe.closed {
            return Err(LinkDown);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        if let Some((route, ended)) = behind.filter(|(route, ended)| pipe.queues.is_behind(route, ended, &frame[BODY..])) {
            // The frame waits for the parts before it.
            pipe.queues.put_frame(route, ended, frame, BODY);
            return Ok(());
        }
        let small = frame.len() < BATCH_BYTES / 4;
        pipe.outbox.push(frame);
        if pipe.stream.is_none() && !pipe.routed || pipe.want_write {
            return Ok(());
        }
        let now = Instant::now();
        let burst = pipe.last.is_some_and(|last| now.duration_since(last) < BURST);
        pipe.last = Some(now);
        if burst && small && pipe.outbox.unwritten() < BATCH_BYTES {
            if !pipe.held
                && let Some(me) = self.me.upgrade()
            {
                pipe.held = true;
                self.poller.hold(me);
                self.poller.flush_soon();
            }
            return Ok(());
        }
        self.flush(&mut pipe);
        Ok(())
    }

    /// Sends a large part in fragments, without a copy. The part is kept until the other side has acknowledged it.
    pub fn send_part(&self, route: &Route, number: u64, part: RecvPart) -> Result<(), LinkDown> {
        let mut pipe = lock(&self.pipe);
        if pipe.closed {
            return Err(LinkDown);
        }
        pipe.queues.put_part(route, number, Arc::new(part));
        if !pipe.want_write {
            self.flush(&mut pipe);
        }
        Ok(())
    }

    /// Writes frames and fragments until the socket is full, the queues are empty, or the turn is over.
    fn flush(&self, pipe: &mut Pipe) {
        if pipe.routed {
            return self.flush_routed(pipe);
        }
        let Some((stream, token)) = pipe.stream.as_mut().filter(|_| !self.is_paused()) else { return };
        let mut written = 0;
        while written < WRITE_IN_A_ROW {
            while pipe.outbox.unwritten() < UNWRITTEN_LIMIT
                && may_queue_parts(&pipe.queues, &pipe.outbox)
                && pipe.queues.next(&mut pipe.outbox)
            {}
            let pieces = pipe.outbox.pieces(MAX_SLICES);
            if pieces.is_empty() {
                break;
            }
            match stream.write(&pieces) {
                Ok(n) => {
                    pipe.outbox.wrote(n);
                    written += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The reader gets any other error too, and reports it.
                Err(_) => break,
            }
        }
        // The reader also reports errors of this call.
        let flushed = stream.flush().unwrap_or(true);
        let want = !flushed || !pipe.outbox.is_written() || may_queue_parts(&pipe.queues, &pipe.outbox);
        if want != pipe.want_write {
            pipe.want_write = want;
            self.poller.want_write(*token, stream.fd(), want);
        }
    }

    /// Handles the bytes that arrived with the handshake.
    fn begin(self: &Arc<Self>, token: u64) {
        let mut input = lock(&self.input);
        let current = lock(&self.pipe).stream.as_ref().is_some_and(|(_, t)| *t == token);
        let is_valid = !current || input.buf.is_empty() || self.frames(&mut input);
        drop(input);
        if is_valid { self.read(token) } else { self.lost_stream(token, StreamEnd::Garbage) }
    }

    fn read(self: &Arc<Self>, token: u64) {
        let mut input = lock(&self.input);
        for turn in 0.. {
            if turn == READS_IN_A_ROW {
                let me = self.clone();
                return self.poller.spawn(Box::new(move || me.read(token)));
            }
            let limit = if input.buf.is_empty() { READ } else { frame::missing(&input.buf).clamp(READ_LEAST, READ) };
            let got = {
                let mut pipe = lock(&self.pipe);
                match pipe.stream.as_mut() {
                    Some((stream, current)) if *current == token && !self.is_paused() => {
                        let got = stream.read(&mut input.buf, limit);
                        if got.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
                            stream.wait_for(if input.buf.is_empty() { 1 } else { frame::missing(&input.buf) });
                        }
                        got
                    }
                    _ => return,
                }
            };
            let end = match got {
                Ok(0) => StreamEnd::Closed,
                Ok(_) if self.frames(&mut input) => continue,
                Ok(_) => StreamEnd::Garbage,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => StreamEnd::of(&e),
            };
            drop(input);
            return self.lost_stream(token, end);
        }
    }

    /// Handles the complete frames in the buffer; returns false on a malformed frame.
    fn frames(self: &Arc<Self>, input: &mut In) -> bool {
        self.handler.bytes_received(self);
        let mut at = 0;
        let mut acknowledge = false;
        while let Some(len) = input.buf.get(at..at + 4).and_then(|b| b.try_into().ok()).map(|b| u32::from_le_bytes(b) as usize) {
            if len == 0 {
                return false;
            }
            let Some(frame) = input.buf.get(at + 4..at + 4 + len) else {
                let missing = at + 4 + len - input.buf.len();
                input.buf.reserve(missing.min(64 * READ));
                break;
            };
            if frame[0] == ACK {
                let Ok(count) = frame[1..].try_into().map(u64::from_le_bytes) else { return false };
                if self.acked(count).is_err() {
                    return false;
                }
            } else {
                acknowledge |= input.inbox.took(len + 4);
                self.handler.frame(self, frame);
                if self.is_closed() {
                    input.buf = Vec::new();
                    return true;
                }
            }
            at += 4 + len;
        }
        input.buf.drain(..at);
        if input.buf.is_empty() && input.buf.capacity() > KEPT_BUFFER {
            input.buf = Vec::new();
        }
        if acknowledge {
            self.acknowledge(input);
        }
        true
    }

    fn acknowledge(&self, input: &mut In) {
        input.inbox.acknowledged();
        let mut pipe = lock(&self.pipe);
        pipe.outbox.acknowledge(input.inbox.received);
        if !pipe.want_write {
            self.flush(&mut pipe);
        }
    }

    /// Counts an acknowledgement. A claim on the heartbeat stream may disagree because it belongs to a frame stream that has ended.
    pub fn acked(&self, received: u64) -> Result<(), Disagree> {
        let mut pipe = lock(&self.pipe);
        pipe.outbox.acked(received)?;
        if !pipe.want_write && may_queue_parts(&pipe.queues, &pipe.outbox) {
            self.flush(&mut pipe);
        }
        Ok(())
    }

    /// Whether all sent frames are acknowledged.
    pub fn is_settled(&self) -> bool {
        let pipe = lock(&self.pipe);
        pipe.outbox.kept() == 0 && pipe.queues.is_empty()
    }

    /// Removes a stream that has ended, and notifies the handler.
    fn lost_stream(self: &Arc<Self>, token: u64, end: StreamEnd) {
        {
            let mut pipe = lock(&self.pipe);
            match pipe.stream.take() {
                Some((stream, current)) if current == token => {
                    self.poller.remove(token, stream.fd());
                    Traffic::note_end(&stream, self.host, end.name());
                    sys::reset(stream.fd());
                    pipe.want_write = false;
                }
                other => {
                    pipe.stream = other;
                    return;
                }
            }
        }
        self.handler.broken(self, FRAMES, end);
    }

    /// Ends the session from this side, as the end of the process would; the handler is not notified. Queued frames are sent if the socket
    /// has room.
    pub fn close(&self) {
        let mut pipe = lock(&self.pipe);
        if !pipe.want_write {
            self.flush(&mut pipe);
        }
        drop(pipe);
        self.end(Stream::close);
    }

    /// Ends the session without looking like the end of this process: its connections are reset.
    pub fn give_up(&self) {
        self.end(|stream| sys::reset(stream.fd()));
    }

    /// Ends the session and closes its streams with `how`.
    fn end(&self, how: fn(&mut Stream)) {
        self.is_closed.store(true, Ordering::Release);
        let stream = {
            let mut pipe = lock(&self.pipe);
            (pipe.closed, pipe.routed) = (true, false);
            pipe.outbox = Outbox::default();
            pipe.queues = SendQueues::default();
            pipe.stream.take()
        };
        if let Some((stream, _)) = &stream {
            Traffic::note_end(stream, self.host, "ended");
        }
        let heartbeat = lock(&self.heartbeat).take().map(|h| (h.stream, h.token));
        for (mut stream, token) in stream.into_iter().chain(heartbeat) {
            self.poller.remove(token, stream.fd());
            if self.is_paused() {
                self.pause.keep_open(stream);
            } else {
                how(&mut stream);
            }
        }
    }
}

/// Whether more of the large parts may enter the channel.
fn may_queue_parts(queues: &SendQueues, outbox: &Outbox) -> bool {
    !queues.is_empty() && outbox.kept() < WINDOW
}

impl Pending for Session {
    fn flush(&self) {
        let mut pipe = lock(&self.pipe);
        pipe.held = false;
        if !pipe.want_write {
            self.flush(&mut pipe);
        }
    }
}

/// The stream for frames as a source of the poller; the number is the token of the stream.
struct FrameSource(Arc<Session>, u64);

impl Source for FrameSource {
    fn ready(&self, events: u32) {
        if events & libc::EPOLLOUT as u32 != 0 {
            let mut pipe = lock(&self.0.pipe);
            if pipe.stream.as_ref().is_some_and(|(_, token)| *token == self.1) {
                self.0.flush(&mut pipe);
            }
        }
        if events & !(libc::EPOLLOUT as u32) != 0 {
            self.0.read(self.1);
        }
    }
}
