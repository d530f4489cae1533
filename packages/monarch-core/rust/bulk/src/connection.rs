//! The connection to one owner of this host.
//!
//! It is opened on first use, by one round trip. Later it transports requests about memory, reports the owner's end, and keeps the shared
//! words mapped.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use net::control_socket;
use net::lock::lock;
use net::sys::{self as base, Share};

use crate::deadline_lock::DeadlineLock;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{self, Id, Place, Reply, Request};
use crate::server::Identity;
use crate::shared::{self, EPOCHS, HAZARDS, Words};
use crate::staging::Stage;
use crate::sys;

/// Time that a message without an answer may wait for room in the socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of checks of the owner's life word during a wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Most pending requests: the answers to all of them fit into a socket.
const WINDOW: usize = 64;
/// Rings that are kept for later copies.
pub const STAGES: usize = 4;

/// Time limit for the owner to accept a connection while many other processes connect.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The socket, and the process at its other end.
pub struct ControlChannel {
    fd: OwnedFd,
    pub pid: i32,
    pidfd: Option<OwnedFd>,
    call_lock: DeadlineLock,
    number: AtomicU32,
    /// The owner has announced its exit.
    goodbye: AtomicBool,
    /// The owner's shared words, which show its end first.
    owner: OnceLock<Arc<Words>>,
}

impl ControlChannel {
    /// Connects to the owner with this uid.
    fn dial(uid: u64) -> Outcome<ControlChannel> {
        let fd =
            control_socket::connect(&control_socket::of_buffers(uid), control_socket::Kind::Packets, ACCEPT_TIMEOUT).map_err(
                |e| match e.kind() {
                    io::ErrorKind::ConnectionRefused => Failure::lost(),
                    io::ErrorKind::WouldBlock => Failure::new(Kind::Transfer, "too many processes connect to the owner at once"),
                    _ => Failure::system("cannot connect to the owner", &e),
                },
            )?;
        let (pid, user) = sys::peer(fd.as_raw_fd()).map_err(|e| Failure::system("cannot read the owner's credentials", &e))?;
        if user != base::user() {
            return Err(Failure::new(Kind::Access, "the owner is a process of another user"));
        }
        // A process in another PID namespace has no number here; only its socket shows its end.
        let pidfd = match pid {
            0 => None,
            _ => Some(sys::pidfd(pid).map_err(|e| match e.raw_os_error() {
                Some(libc::ESRCH) => Failure::lost(),
                _ => Failure::system("cannot watch the owner", &e),
            })?),
        };
        Ok(ControlChannel {
            fd,
            pid,
            pidfd,
            call_lock: DeadlineLock::default(),
            number: AtomicU32::new(1),
            goodbye: AtomicBool::new(false),
            owner: OnceLock::new(),
        })
    }

    fn has_ended(&self) -> bool {
        self.owner.get().is_some_and(|words| words.has_ended())
    }

    /// The failure for the end of the owner, with or without a goodbye.
    fn ended(&self) -> Failure {
        match self.goodbye.load(Ordering::Acquire) {
            true => Failure::exited(),
            false => Failure::lost(),
        }
    }

    fn send(&self, message: &[u8], until: Instant) -> Outcome<()> {
        loop {
            match base::send(self.fd.as_raw_fd(), &[message], &[]) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => match self.poll(libc::POLLOUT, until)? {
                    Some(true) => {}
                    Some(false) => return Err(self.ended()),
                    None => return Err(Failure::timed_out()),
                },
                Err(_) => {
                    // An unread goodbye may be in the socket.
                    if let Some(_in) = self.call_lock.acquire(Instant::now()) {
                        while let Ok(Some(_)) = self.take(&mut VecDeque::new()) {}
                    }
                    return Err(self.ended());
                }
            }
        }
    }

    /// Waits for the socket. True: it is ready. False: only the end of the process was reported. `None` at the deadline.
    fn poll(&self, events: libc::c_short, until: Instant) -> Outcome<Option<bool>> {
        let mut fds: Vec<(RawFd, libc::c_short)> = vec![(self.fd.as_raw_fd(), events)];
        fds.extend(self.pidfd.as_ref().map(|p| (p.as_raw_fd(), libc::POLLIN)));
        loop {
            let now = Instant::now();
            let seen = sys::poll(&fds, Some(until.min(now + CHECK_INTERVAL))).map_err(|e| Failure::system("cannot wait", &e))?;
            match seen.first() {
                None if self.has_ended() => return Ok(Some(false)),
                None if now < until => {}
                _ => return Ok(seen.first().map(|socket| *socket != 0)),
            }
        }
    }

    /// The next message, if one has arrived; an error at the end of the stream.
    fn take(&self, fds: &mut VecDeque<OwnedFd>) -> Outcome<Option<(u32, Reply)>> {
        match sys::receive(self.fd.as_raw_fd(), fds) {
            Ok(message) => match frames::decode::<Reply>(&message) {
                Some((_, Reply::Goodbye)) => {
                    self.goodbye.store(true, Ordering::Release);
                    Ok(None)
                }
                Some(frame) => Ok(Some(frame)),
                None if message.is_empty() => Err(self.ended()),
                None => Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer")),
            },
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Err(self.ended()),
            Err(e) => Err(Failure::system("cannot read from the owner", &e)),
        }
    }

    /// The next message. Only one thread may call this at a time.
    pub fn receive(&self, fds: &mut VecDeque<OwnedFd>, until: Instant) -> Outcome<(u32, Reply)> {
        loop {
            match self.poll(libc::POLLIN, until)? {
                Some(true) => {
                    if let Some(frame) = self.take(fds)? {
                        return Ok(frame);
                    }
                }
                Some(false) => return Err(self.ended()),
                None => return Err(Failure::timed_out()),
            }
        }
    }

    /// Sends a request and waits for its answer, which may have descriptors.
    pub fn call(&self, request: &Request, until: Instant) -> Outcome<(Reply, VecDeque<OwnedFd>)> {
        let _in = self.call_lock.acquire(until).ok_or_else(Failure::timed_out)?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        self.send(&frames::encode(number, request), until)?;
        let mut fds = VecDeque::new();
        loop {
            let (answered, reply) = self.receive(&mut fds, until)?;
            if answered != number {
                // The answer to a call that timed out.
                fds.clear();
                continue;
            }
            return match reply {
                Reply::Refused { kind, detail } => Err(frames::refusal(kind, detail)),
                reply => Ok((reply, fds)),
            };
        }
    }

    /// Sends several requests at once, so that one wake-up of the owner serves many of them. The requests fail independently.
    pub fn call_many(&self, requests: &[Request], until: Instant) -> Outcome<Vec<Outcome<Reply>>> {
        let _in = self.call_lock.acquire(until).ok_or_else(Failure::timed_out)?;
        let mut replies = Vec::with_capacity(requests.len());
        for batch in requests.chunks(WINDOW) {
            let first = self.number.fetch_add(batch.len() as u32, Ordering::Relaxed);
            for (i, request) in batch.iter().enumerate() {
                self.send(&frames::encode(first.wrapping_add(i as u32), request), until)?;
            }
            let mut answered = 0;
            while answered < batch.len() {
                let (number, reply) = self.receive(&mut VecDeque::new(), until)?;
                // Answers arrive in order. Any other number belongs to a call that timed out.
                if number == first.wrapping_add(answered as u32) {
                    answered += 1;
                    replies.push(match reply {
                        Reply::Refused { kind, detail } => Err(frames::refusal(kind, detail)),
                        reply => Ok(reply),
                    });
                }
            }
        }
        Ok(replies)
    }

    pub fn send_reply(&self, reply: &Reply, until: Instant) -> Outcome<()> {
        self.send(&frames::encode(0, reply), until)
    }

    pub fn send_request(&self, request: &Request, until: Instant) -> Outcome<()> {
        self.send(&frames::encode(0, request), until)
    }

    /// Fails if the owner has ended; takes a pending goodbye from the socket.
    fn check(&self) -> Outcome<()> {
        let now = Instant::now();
        match self.poll(libc::POLLIN, now)? {
            None => return Ok(()),
            Some(false) => return Err(self.ended()),
            Some(true) => {}
        }
        if let Some(_in) = self.call_lock.acquire(now) {
            while self.take(&mut VecDeque::new())?.is_some() {}
        }
        // Another thread may be reading; it finds the end itself. Or the message was a late answer.
        match &self.pidfd {
            Some(p) => match sys::poll(&[(p.as_raw_fd(), libc::POLLIN)], Some(now)) {
                Ok(seen) if seen.is_empty() && !self.goodbye.load(Ordering::Acquire) && !self.has_ended() => Ok(()),
                _ => Err(self.ended()),
            },
            None if self.goodbye.load(Ordering::Acquire) || self.has_ended() => Err(self.ended()),
            None => Ok(()),
        }
    }
}

/// Connects and exchanges the first request and its answer.
fn handshake(owner: u64, me: &Identity, until: Instant) -> Outcome<(ControlChannel, Reply, VecDeque<OwnedFd>)> {
    let control = ControlChannel::dial(owner)?;
    let (reply, fds) = control.call(&Request::Hello { version: frames::CONTROL_VERSION, jobs: me.jobs.last(), uid: me.uid }, until)?;
    Ok((control, reply, fds))
}

/// The free hazard words, lowest first: the owner reads all words up to the highest one ever used.
#[derive(Default)]
struct FreeWords {
    free: BinaryHeap<Reverse<usize>>,
    high: usize,
}

/// A segment of the owner, mapped into this process.
pub struct View {
    base: *mut u8,
    len: usize,
}

// SAFETY: a shared mapping, which exists as long as the value.
unsafe impl Send for View {}
unsafe impl Sync for View {}

impl View {
    pub fn address(&self, offset: u64) -> usize {
        self.base as usize + offset as usize
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and its users hold the view.
        unsafe { base::unmap(self.base, self.len) };
    }
}

/// An open connection to an owner of this host, shared by all buffers of that owner.
pub struct Connection {
    pub owner: u64,
    me: Identity,
    control: ControlChannel,
    epochs: Arc<Words>,
    hazards: Words,
    free_words: Mutex<FreeWords>,
    /// The kernel permits copies between this process and the owner.
    direct: AtomicBool,
    views: Mutex<HashMap<(u64, bool), Weak<View>>>,
    stages: Mutex<Vec<Stage>>,
    /// Set while a test cuts off the owner's host.
    pub paused: Arc<AtomicBool>,
}

/// Keeps the owner's memory in place while it exists.
pub struct Hazard {
    connection: Arc<Connection>,
    word: usize,
    slot: u32,
    epoch: u64,
}

impl Hazard {
    pub fn is_current(&self) -> bool {
        self.connection.epochs.load(self.slot as usize) == self.epoch
    }
}

impl Drop for Hazard {
    fn drop(&mut self) {
        // The parent may still use the memory.
        if net::forked_child::is_child() {
            return;
        }
        let c = &self.connection;
        c.hazards.store(self.word, 0);
        lock(&c.free_words).free.push(Reverse(self.word));
        if !self.is_current() {
            // The owner may wait for the end of this hazard. If the owner has ended, the message is lost without harm.
            let _ = c.control.send_request(&Request::HazardsReleased, Instant::now() + SEND_TIMEOUT);
        }
    }
}

impl Connection {
    /// Opens a connection to the process with this uid. `direct`: copies by the kernel may be used where it permits them.
    pub fn open(owner: u64, me: Identity, direct: bool, paused: Arc<AtomicBool>, until: Instant) -> Outcome<Arc<Connection>> {
        let (control, reply, mut fds) = handshake(owner, &me, until)?;
        let Reply::Welcome { owner: reported, pid, canary, nonce } = reply else {
            return Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer"));
        };
        let (Some(epochs), Some(hazards), true) = (fds.pop_front(), fds.pop_front(), reported == owner) else {
            return Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer"));
        };
        let map =
            |fd, count, writable| Words::received(fd, count, writable).map_err(|e| Failure::system("cannot map the owner's words", &e));
        let (epochs, hazards) = (Arc::new(map(epochs, EPOCHS, false)?), map(hazards, HAZARDS, true)?);
        let _ = control.owner.set(epochs.clone());
        // A process id of another namespace could name another process here, whose memory would be read.
        let direct = direct && pid == control.pid && pid != 0 && Connection::may_copy(pid, canary, nonce);
        Ok(Arc::new(Connection {
            owner,
            me,
            control,
            epochs,
            hazards,
            free_words: Mutex::default(),
            direct: AtomicBool::new(direct),
            views: Mutex::default(),
            stages: Mutex::default(),
            paused,
        }))
    }

    /// Whether the kernel permits direct copies: reads a nonce of the owner and compares it.
    fn may_copy(pid: i32, canary: u64, nonce: [u8; 16]) -> bool {
        let mut seen = [0u8; 16];
        // SAFETY: `seen` is a local buffer of 16 bytes.
        let copied = unsafe { sys::process_vm(pid, false, seen.as_mut_ptr() as usize, canary, seen.len()) };
        copied.is_ok_and(|n| n == seen.len()) && seen == nonce
    }

    pub fn pid(&self) -> i32 {
        self.control.pid
    }

    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Acquire)
    }

    /// Whether the owner has ended or is about to end.
    pub fn has_ended(&self) -> bool {
        self.epochs.has_ended()
    }

    /// Stops direct copies, because the kernel has refused one.
    pub fn not_direct(&self) {
        self.direct.store(false, Ordering::Release);
    }

    pub fn call(&self, request: &Request, until: Instant) -> Outcome<Reply> {
        self.control.call(request, until).map(|(reply, _)| reply)
    }

    pub fn call_many(&self, requests: &[Request], until: Instant) -> Outcome<Vec<Outcome<Reply>>> {
        self.control.call_many(requests, until)
    }

    /// Sends a request that has no answer.
    pub fn notify(&self, request: &Request) {
        // Used only for requests that do not matter once the owner has ended.
        let _ = self.control.send_request(request, Instant::now() + SEND_TIMEOUT);
    }

    /// Fails if the owner has ended, as far as the kernel reports it.
    pub fn check(&self) -> Outcome<()> {
        self.control.check()
    }

    /// The owner's reason for the end of a registration.
    pub fn why(&self, id: &Id, until: Instant) -> Failure {
        match self.call(&Request::Why { id: *id }, until.min(Instant::now() + SEND_TIMEOUT)) {
            Err(f) if f.kind != Kind::TimedOut => f,
            _ => Failure::new(Kind::Released, "it was dropped"),
        }
    }

    /// Claims a registration for use; `None` if it has ended.
    pub fn claim(self: &Arc<Self>, slot: u32, epoch: u64, mapped: bool) -> Outcome<Option<Hazard>> {
        let word = {
            let mut free_words = lock(&self.free_words);
            match free_words.free.pop() {
                Some(Reverse(word)) => word,
                None if free_words.high + 1 < HAZARDS => {
                    free_words.high += 1;
                    self.hazards.store(0, free_words.high as u64);
                    free_words.high
                }
                None => return Err(Failure::new(Kind::Transfer, format!("{} buffers of one owner are in use here already", HAZARDS - 1))),
            }
        };
        self.hazards.store(word, shared::hazard(slot, mapped));
        let hazard = Hazard { connection: self.clone(), word, slot, epoch };
        Ok(hazard.is_current().then_some(hazard))
    }

    /// Maps the segment that contains a buffer, once for all buffers in it.
    pub fn view(&self, id: &Id, place: Place, writable: bool, until: Instant) -> Outcome<Arc<View>> {
        if let Some(view) = lock(&self.views).get(&(place.segment, writable)).and_then(Weak::upgrade) {
            return Ok(view);
        }
        let (reply, mut fds) = self.control.call(&Request::Segment { id: *id }, until)?;
        let (Reply::Segment, Some(fd)) = (reply, fds.pop_front()) else {
            return Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer"));
        };
        if !sys::is_sealed(fd.as_raw_fd(), place.len) {
            return Err(Failure::new(Kind::Transfer, "the owner's segment could shrink"));
        }
        let share = if writable { Share::Shared } else { Share::SharedReadOnly };
        let len = place.len as usize;
        let base = base::map(fd.as_raw_fd(), 0, len, &share).map_err(|e| Failure::system("cannot map the owner's memory", &e))?;
        let view = Arc::new(View { base, len });
        let mut views = lock(&self.views);
        views.retain(|_, v| v.strong_count() > 0);
        views.insert((place.segment, writable), Arc::downgrade(&view));
        Ok(view)
    }

    /// A ring to copy through.
    pub fn stage(&self, until: Instant) -> Outcome<Stage> {
        if let Some(stage) = lock(&self.stages).pop() {
            return Ok(stage);
        }
        let (control, _, _) = handshake(self.owner, &self.me, until)?;
        let _ = control.owner.set(self.epochs.clone());
        let (reply, mut fds) = control.call(&Request::Stage, until)?;
        match (reply, fds.pop_front()) {
            (Reply::Ring, Some(fd)) => Stage::new(control, fd).map_err(|e| Failure::system("cannot map the owner's ring", &e)),
            _ => Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer")),
        }
    }

    /// Keeps a ring for a later copy.
    pub fn return_stage(&self, stage: Stage) {
        let mut stages = lock(&self.stages);
        if stages.len() < STAGES {
            stages.push(stage);
        }
    }
}
