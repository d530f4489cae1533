//! Bulk pipes: a replacement for bulk streams where no connection can be opened. The bytes travel in ordinary messages to the other
//! process.
//!
//! Each end is a socket pair. One socket is handed out as the stream; two threads forward bytes between the other socket and the messages.
//! A sender sends no more than the receiver has room for, so a slow reader delays the writer, and agents hold few bytes.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use net::lock::lock;
use wire::control::PipeFrame;
use wire::{Control, ProcUid};

use super::BulkStream;
use crate::peers::Peers;
use crate::threads::spawn_joinable;

/// `WINDOW` bounds the bytes in transit in one direction, and `CHUNK` the bytes of one message.
const WINDOW: usize = 4 << 20;
const CHUNK: usize = 128 << 10;

/// The other process, the number of the pipe, and whether this process assigned the number.
type Key = (ProcUid, u64, bool);

/// The bulk pipes of this process.
pub(super) struct Pipes {
    peers: Arc<Peers>,
    me: Weak<Pipes>,
    next: AtomicU64,
    pipes: Mutex<HashMap<Key, Arc<Pipe>>>,
}

/// One end of a bulk pipe. Its two threads keep it alive; the peer's end is another `Pipe`.
struct Pipe {
    owner: Weak<Pipes>,
    /// Identifies the pipe; the other end has the same number.
    key: Key,
    fd: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

/// The flow control of a pipe, and the bytes that have arrived.
struct State {
    incoming: VecDeque<Vec<u8>>,
    /// The number of bytes in `incoming`.
    waiting: usize,
    /// The number of bytes that the other side has room for.
    room: usize,
    /// The other side has closed the pipe, and this side has closed it.
    ended: bool,
    over: bool,
}

impl Pipe {
    /// Sends a control frame to the other end.
    fn send(&self, what: PipeFrame) {
        if let Some(owner) = self.owner.upgrade() {
            let (peer, number, by_sender) = self.key;
            owner.peers.peer(peer).send_control(Control::BulkPipe { number, by_sender, what });
        }
    }

    /// Sends the bytes that arrive on the socket as messages.
    fn read(&self) {
        let mut buf = vec![0u8; CHUNK];
        loop {
            let most = {
                let mut state = lock(&self.state);
                while state.room == 0 && !state.over {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if state.over {
                    return;
                }
                state.room.min(CHUNK)
            };
            // SAFETY: `buf` is valid for at least `most` bytes.
            let n = unsafe { libc::read(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), most) };
            if n < 0 && io::Error::last_os_error().kind() == ErrorKind::Interrupted {
                continue;
            }
            if n <= 0 {
                return self.end(true);
            }
            lock(&self.state).room -= n as usize;
            self.send(PipeFrame::Bytes(buf[..n as usize].to_vec()));
        }
    }

    /// Writes the bytes of received messages to the socket.
    fn write(&self) {
        loop {
            let bytes = {
                let mut state = lock(&self.state);
                loop {
                    if let Some(bytes) = state.incoming.pop_front() {
                        state.waiting -= bytes.len();
                        break bytes;
                    }
                    if state.ended || state.over {
                        drop(state);
                        return self.end(false);
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let mut left = &bytes[..];
            while !left.is_empty() {
                // SAFETY: `left` is valid for its length; MSG_NOSIGNAL prevents SIGPIPE.
                let n = unsafe { libc::send(self.fd.as_raw_fd(), left.as_ptr().cast(), left.len(), libc::MSG_NOSIGNAL) };
                if n < 0 && io::Error::last_os_error().kind() == ErrorKind::Interrupted {
                    continue;
                }
                if n <= 0 {
                    return self.end(true);
                }
                left = &left[n as usize..];
            }
            self.send(PipeFrame::Credit(bytes.len() as u32));
        }
    }

    /// Ends the pipe: the holder of the stream reads EOF. With `notify`, the other side is notified too.
    fn end(&self, notify: bool) {
        if std::mem::replace(&mut lock(&self.state).over, true) {
            return;
        }
        self.changed.notify_all();
        // The thread that reads from the socket now reads EOF.
        net::sys::shutdown(self.fd.as_raw_fd());
        if let Some(owner) = self.owner.upgrade() {
            lock(&owner.pipes).remove(&self.key);
        }
        if notify {
            self.send(PipeFrame::Close);
        }
    }
}

impl Pipes {
    pub fn new(peers: &Arc<Peers>) -> Arc<Self> {
        Arc::new_cyclic(|me| Pipes { peers: peers.clone(), me: me.clone(), next: AtomicU64::new(0), pipes: Mutex::default() })
    }

    /// Opens a pipe to a process that only messages can reach.
    pub fn open(&self, to: ProcUid) -> io::Result<BulkStream> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (pipe, stream) = self.make((to, number, true))?;
        pipe.send(PipeFrame::Open);
        Ok(stream)
    }

    /// Makes one end of a pipe, and starts its threads.
    fn make(&self, key: Key) -> io::Result<(Arc<Pipe>, BulkStream)> {
        let mut fds = [-1; 2];
        // SAFETY: `fds` has room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned these descriptors, which have no other owner.
        let [fd, theirs] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let state = State { incoming: VecDeque::new(), waiting: 0, room: WINDOW, ended: false, over: false };
        let pipe = Arc::new(Pipe { owner: self.me.clone(), key, fd, state: Mutex::new(state), changed: Condvar::new() });
        let (reads, writes) = (pipe.clone(), pipe.clone());
        lock(&self.pipes).insert(key, pipe.clone());
        let started = spawn_joinable("monarch-routed", move || reads.read()).and(spawn_joinable("monarch-routed", move || writes.write()));
        if let Err(e) = started {
            pipe.end(false);
            return Err(e);
        }
        Ok((pipe, BulkStream { is_routed: true, ..BulkStream::new(theirs, None, key.2) }))
    }

    /// Takes a control frame of the other end. `by_sender` is true if the sender has opened the pipe. Returns the stream of a new pipe,
    /// which is refused unless `accepts`.
    pub fn on_frame(&self, from: ProcUid, number: u64, by_sender: bool, what: PipeFrame, accepts: bool) -> Option<BulkStream> {
        let key = (from, number, !by_sender);
        let found = lock(&self.pipes).get(&key).cloned();
        let Some(pipe) = found else {
            if !matches!(what, PipeFrame::Open) || !by_sender {
                return None;
            }
            let made = accepts.then(|| self.make(key)).and_then(Result::ok).map(|(_, stream)| stream);
            if made.is_none() {
                self.peers.peer(from).send_control(Control::BulkPipe { number, by_sender: false, what: PipeFrame::Close });
            }
            return made;
        };
        let mut state = lock(&pipe.state);
        match what {
            PipeFrame::Open => {}
            PipeFrame::Bytes(bytes) => {
                state.waiting += bytes.len();
                if state.waiting > WINDOW {
                    // The other side has sent more than its window.
                    drop(state);
                    pipe.end(true);
                    return None;
                }
                state.incoming.push_back(bytes);
            }
            PipeFrame::Credit(n) => state.room = (state.room + n as usize).min(WINDOW),
            PipeFrame::Close => state.ended = true,
        }
        drop(state);
        pipe.changed.notify_all();
        None
    }

    /// Ends the pipes to processes that have ended.
    pub fn end(&self, gone: impl Fn(ProcUid) -> bool) {
        let ended: Vec<Arc<Pipe>> = lock(&self.pipes).values().filter(|p| gone(p.key.0)).cloned().collect();
        ended.iter().for_each(|p| p.end(false));
    }
}
