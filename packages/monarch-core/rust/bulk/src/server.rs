//! The owner's thread, which answers requests with an id.
//!
//! It never takes the GIL and copies no memory, so it answers at once whatever Python does. A connecting process must have the same user;
//! it first names its jobs, and gets one page of hazards. Copies through a ring have threads of their own (`staging`).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use net::control_socket::{self, ControlSocket};
use net::lock::lock;
use net::sys as base;

use crate::answers;
use crate::failure::{Failure, Kind};
use crate::frames::{self, Reply, Request};
use crate::registry::Registry;
use crate::shared::{HAZARDS, Words};
use crate::staging;
use crate::sys;

/// The epoll token of the listening socket.
const LISTENER: u64 = 0;
/// The epoll token of the wake-up descriptor. Connections have higher tokens.
const WAKE: u64 = 1;
/// Most connections at a time. A process has one to each owner, and some for rings.
const CONNECTIONS: usize = 8192;
/// Most threads that copy through rings.
const RINGS: usize = 32;
/// Messages of one connection that are handled before other connections are served.
const MESSAGES_PER_TURN: usize = 64;
/// Connections accepted in one turn, after the messages of open connections.
const ACCEPTED: usize = 16;

/// The jobs whose processes may have handles of this process: its own job, and those that a service serves. All components of the process
/// share the list.
#[derive(Clone, Default, Debug)]
pub struct Jobs(Arc<Mutex<Vec<u64>>>);

impl Jobs {
    pub fn add(&self, job: u64) {
        let mut jobs = lock(&self.0);
        if !jobs.contains(&job) {
            jobs.push(job);
        }
    }

    /// The last jobs, as many as one message may name.
    pub fn last(&self) -> Vec<u64> {
        let jobs = lock(&self.0);
        jobs[jobs.len().saturating_sub(frames::MOST_JOBS)..].to_vec()
    }

    fn has_any(&self, others: &[u64]) -> bool {
        let jobs = lock(&self.0);
        others.iter().any(|job| jobs.contains(job))
    }
}

/// The identity of this process.
#[derive(Clone, Debug)]
pub struct Identity {
    pub uid: u64,
    pub jobs: Jobs,
}

impl Identity {
    /// The identity of a process of one job. More jobs may be added later.
    pub fn new(uid: u64, job: u64, jobs: Jobs) -> Self {
        jobs.add(job);
        Identity { uid, jobs }
    }
}

/// A connected process: its pid, its uid, and whether its first request was accepted.
struct Connection {
    fd: OwnedFd,
    pid: i32,
    uid: u64,
    is_accepted: bool,
}

/// The handle by which other threads of this process reach the server's thread.
pub struct Server {
    wake: OwnedFd,
    closing: AtomicBool,
    closed: Mutex<bool>,
    has_closed: Condvar,
}

impl Server {
    pub fn start(me: Identity, registry: Arc<Registry>) -> io::Result<Arc<Server>> {
        let listener = ControlSocket::listen(&control_socket::of_buffers(me.uid), control_socket::Kind::Packets)?;
        let (epoll, wake) = (base::epoll_create()?, base::eventfd()?);
        base::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, listener.as_raw_fd(), libc::EPOLLIN as u32, LISTENER)?;
        base::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, wake.as_raw_fd(), libc::EPOLLIN as u32, WAKE)?;
        let server = Arc::new(Server { wake, closing: AtomicBool::new(false), closed: Mutex::new(false), has_closed: Condvar::new() });
        let spare = std::fs::File::open("/dev/null").ok().map(OwnedFd::from);
        let nonce: Box<[u8; 16]> = Box::new(base::random()?);
        let thread = Thread {
            server: server.clone(),
            me,
            registry,
            epoll,
            listener,
            spare,
            nonce,
            connections: HashMap::new(),
            next: WAKE + 1,
            rings: Arc::default(),
        };
        crate::pool::spawn("monarch-bulk", move || thread.run())?;
        Ok(server)
    }

    /// Makes the thread check the leases again.
    pub fn wake(&self) {
        base::eventfd_signal(self.wake.as_raw_fd());
    }

    /// Sends a goodbye to all connected processes; returns when that is done, or at `until`.
    pub fn close(&self, until: Instant) {
        self.closing.store(true, Ordering::Release);
        self.wake();
        let left = until.saturating_duration_since(Instant::now());
        // A thread that does not answer in time is abandoned; the process is exiting.
        drop(self.has_closed.wait_timeout_while(lock(&self.closed), left, |closed| !*closed));
    }
}

/// The state of the owner's thread, which only that thread uses.
struct Thread {
    server: Arc<Server>,
    me: Identity,
    registry: Arc<Registry>,
    epoll: OwnedFd,
    listener: ControlSocket,
    /// A descriptor that is closed when no other is left, so that a connection can be accepted and refused.
    spare: Option<OwnedFd>,
    nonce: Box<[u8; 16]>,
    connections: HashMap<u64, Connection>,
    next: u64,
    rings: Arc<AtomicUsize>,
}

impl Thread {
    /// The loop of the thread.
    fn run(mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        self.registry.epochs().live();
        loop {
            let timeout = self.registry.next_lease().map(|at| at.saturating_duration_since(Instant::now()));
            let n = base::epoll_wait(self.epoll.as_raw_fd(), &mut events, timeout).unwrap_or(0);
            let mut has_incoming = false;
            for event in &events[..n] {
                match event.u64 {
                    LISTENER => has_incoming = true,
                    WAKE => base::eventfd_drain(self.server.wake.as_raw_fd()),
                    number => self.ready(number),
                }
            }
            if has_incoming {
                self.accept();
            }
            self.registry.expire(Instant::now());
            if self.server.closing.load(Ordering::Acquire) {
                for c in self.connections.values() {
                    // A process that does not read the goodbye reads the end of the stream.
                    let _ = base::send(c.fd.as_raw_fd(), &[&frames::encode(0, &Reply::Goodbye)], &[]);
                }
                *lock(&self.server.closed) = true;
                self.server.has_closed.notify_all();
                return;
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            match control_socket::accept(self.listener.as_raw_fd()) {
                // A refused process reads the end of the stream, without a reason.
                Ok(fd) => drop(self.admit(fd)),
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) && self.spare.is_some() => {
                    self.spare = None;
                    drop(control_socket::accept(self.listener.as_raw_fd()));
                    self.spare = std::fs::File::open("/dev/null").ok().map(OwnedFd::from);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted || e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    }

    /// Takes a connection of the same user, unless there are too many.
    fn admit(&mut self, fd: OwnedFd) -> io::Result<()> {
        let (pid, user) = sys::peer(fd.as_raw_fd())?;
        if user != base::user() || self.connections.len() >= CONNECTIONS {
            return Ok(());
        }
        let number = self.next;
        self.next += 1;
        base::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), libc::EPOLLIN as u32, number)?;
        self.connections.insert(number, Connection { fd, pid, uid: 0, is_accepted: false });
        Ok(())
    }

    /// Handles the waiting messages of a connection.
    fn ready(&mut self, number: u64) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(c) = self.connections.get(&number) else { return };
            let mut fds = VecDeque::new();
            let message = match sys::receive(c.fd.as_raw_fd(), &mut fds) {
                Ok(message) => message,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.leave(number),
            };
            // A malformed message or an end of the stream ends the connection.
            let Some((n, request)) = frames::decode::<Request>(&message) else { return self.leave(number) };
            if !self.handle(number, n, request) {
                return self.leave(number);
            }
        }
    }

    /// Ends a connection and the hazards of its process.
    fn leave(&mut self, number: u64) {
        if let Some(c) = self.connections.remove(&number) {
            let _ = base::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, c.fd.as_raw_fd(), 0, number);
        }
        self.registry.remove_peer(number);
    }

    /// Handles a request; false ends the connection.
    fn handle(&mut self, number: u64, n: u32, request: Request) -> bool {
        let Some(c) = self.connections.get_mut(&number) else { return false };
        let fd = c.fd.as_raw_fd();
        if !c.is_accepted {
            let Request::Hello { version, jobs, uid } = request else { return false };
            if version != frames::CONTROL_VERSION || !self.me.jobs.has_any(&jobs) {
                let reason =
                    if version == frames::CONTROL_VERSION { "the handle is of another job" } else { "the owner has another version" };
                answer(fd, n, &Reply::refused(&Failure::new(Kind::Access, reason)), &[]);
                return false;
            }
            (c.is_accepted, c.uid) = (true, uid);
            return self.welcome(number, n).unwrap_or(false);
        }
        let (pid, uid) = (c.pid, c.uid);
        let reply = match request {
            // `HazardsReleased` and `Forget` have no answer.
            Request::HazardsReleased => {
                self.registry.release_unused();
                return true;
            }
            Request::Forget { id } => {
                self.registry.forget(&id, number);
                return true;
            }
            Request::Segment { id } => return self.send_segment(fd, n, &id),
            Request::Stage => return self.stage(number, n),
            Request::Drop { id } if self.registry.exports.has(&id) => {
                let Ok(to) = c.fd.try_clone() else { return false };
                // Called by the thread that removes the memory from the devices.
                let done = Box::new(move |_| {
                    answer(to.as_raw_fd(), n, &Reply::Done, &[]);
                });
                match answers::drop_exported(&self.registry, &id, number, || format!("process {pid} ({uid:x})"), done) {
                    Ok(()) => return true,
                    Err(f) => Some(Err(f)),
                }
            }
            request => answers::answer(&self.registry, &request, number, || format!("process {pid} ({uid:x})")),
        };
        let Some(reply) = reply else { return false };
        answer(fd, n, &reply.unwrap_or_else(|f| Reply::refused(&f)), &[])
    }

    /// Answers the first request of a connection, with descriptors of the epochs and of new hazards.
    fn welcome(&mut self, number: u64, n: u32) -> io::Result<bool> {
        let hazards = Arc::new(Words::new(c"monarch-rdma-hazards", HAZARDS)?);
        let epochs = sys::read_only(self.registry.epochs().fd().as_raw_fd())?;
        let canary = self.nonce.as_ptr() as u64;
        let reply = Reply::Welcome { owner: self.me.uid, pid: std::process::id() as i32, canary, nonce: *self.nonce };
        let Some(c) = self.connections.get(&number) else { return Ok(false) };
        let fds = [epochs.as_raw_fd(), hazards.fd().as_raw_fd()];
        self.registry.add_peer(number, hazards.clone());
        Ok(answer(c.fd.as_raw_fd(), n, &reply, &fds))
    }

    fn send_segment(&self, fd: RawFd, n: u32, id: &frames::Id) -> bool {
        let found = self.registry.find(id);
        let reply = found.and_then(|found| {
            let Some(block) = found.memory.block() else {
                return Err(Failure::new(Kind::Unsupported, "the memory was not allocated by allocate()"));
            };
            if !found.range.readonly {
                return Ok((None, found.memory.clone()));
            }
            let copy = sys::read_only(block.fd().as_raw_fd()).map_err(|e| Failure::system("no read-only descriptor", &e))?;
            Ok((Some(copy), found.memory.clone()))
        });
        match reply {
            Ok((copy, memory)) => {
                let own = memory.block().map(|b| b.fd().as_raw_fd());
                let passed = copy.as_ref().map(AsRawFd::as_raw_fd).or(own);
                answer(fd, n, &Reply::Segment, passed.as_slice())
            }
            Err(f) => answer(fd, n, &Reply::refused(&f), &[]),
        }
    }

    /// Hands the connection to a thread that copies. It no longer counts as a connection of this thread.
    fn stage(&mut self, number: u64, n: u32) -> bool {
        let Some(c) = self.connections.get(&number) else { return false };
        if self.rings.fetch_add(1, Ordering::AcqRel) >= RINGS {
            self.rings.fetch_sub(1, Ordering::AcqRel);
            let full = Failure::new(Kind::Transfer, format!("{RINGS} processes copy through rings already"));
            return answer(c.fd.as_raw_fd(), n, &Reply::refused(&full), &[]);
        }
        let rings = self.rings.clone();
        let ring = match staging::Ring::new() {
            Ok(ring) => ring,
            Err(e) => {
                rings.fetch_sub(1, Ordering::AcqRel);
                return answer(c.fd.as_raw_fd(), n, &Reply::refused(&Failure::system("no memory for a ring", &e)), &[]);
            }
        };
        let sent = answer(c.fd.as_raw_fd(), n, &Reply::Ring, &[ring.fd()]);
        let _ = base::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, c.fd.as_raw_fd(), 0, number);
        let taken = self.connections.remove(&number);
        self.registry.remove_peer(number);
        if let (true, Some(c)) = (sent, taken) {
            let (registry, counted) = (self.registry.clone(), rings.clone());
            let run = move || {
                staging::serve(&c.fd, &ring, &registry);
                counted.fetch_sub(1, Ordering::AcqRel);
            };
            if crate::pool::spawn("monarch-ring", run).is_ok() {
                return true;
            }
        }
        rings.fetch_sub(1, Ordering::AcqRel);
        true
    }
}

fn answer(fd: RawFd, number: u32, reply: &Reply, fds: &[RawFd]) -> bool {
    // The thread does not wait for a process that does not read its answers.
    base::send(fd, &[&frames::encode(number, reply)], fds).is_ok()
}
