//! External processes: of the same user, and not started by this agent.
//!
//! A handle that was pickled outside a message may be unpickled by any process. That process finds the agent by its control socket, which
//! is named after the agent's uid and which only processes of the same user can reach. From then on it is a peer like a proc: it asks the
//! agent for links to procs. `monarch ps` uses the same socket.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use net::control_socket::{self, ControlSocket, Kind};
use net::lock::lock;
use net::{Poller, Source, sys};
use wire::ProcUid;
use wire::exit::{ExitReason, ProcEnd};

use crate::node::Node;

/// Version and uid, little-endian.
const GREETING: usize = 12;
/// External processes that have connected and not sent their greeting. When one more comes, the oldest goes.
const HALF_OPEN: usize = 64;
/// A greeting is sent with the connection, so this is far more than it takes.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two connections of a process to an agent that ends them.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);
/// Connections accepted in one turn of the control socket.
const BATCH: usize = 8;

/// Of the names of control sockets of agents.
const PREFIX: &str = "monarch-";

fn name(agent: ProcUid) -> String {
    format!("{PREFIX}{:016x}", agent.0)
}

/// The agents that listen on this machine; where they have abstract names, also those of other users.
pub fn agents() -> Vec<ProcUid> {
    let uid = |name: &str| name.strip_prefix(PREFIX).filter(|hex| hex.len() == 16).and_then(|hex| u64::from_str_radix(hex, 16).ok());
    control_socket::names(PREFIX).iter().filter_map(|name| uid(name)).map(ProcUid).collect()
}

/// Connects to the agent; the stream is ready to be a link.
pub fn dial(agent: ProcUid, me: ProcUid) -> io::Result<OwnedFd> {
    greet(me, GREETING_TIMEOUT, || control_socket::connect(&name(agent), Kind::Stream, GREETING_TIMEOUT))
}

/// Sends the greeting over a connection. An agent to which many connect at once may end a connection before its greeting has come;
/// another connection takes its place until `timeout` is over.
fn greet(me: ProcUid, timeout: Duration, connect: impl Fn() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let until = Instant::now() + timeout;
    let mut greeting = wire::VERSION.to_le_bytes().to_vec();
    greeting.extend_from_slice(&me.0.to_le_bytes());
    loop {
        let mut stream = UnixStream::from(connect()?);
        stream.set_nonblocking(false)?;
        match stream.write_all(&greeting) {
            Ok(()) => return Ok(stream.into()),
            Err(e) if !matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) || Instant::now() >= until => {
                return Err(e);
            }
            Err(_) => std::thread::sleep(BETWEEN_ATTEMPTS),
        }
    }
}

/// The process that has the agent's control socket, also while it does not answer.
pub fn pid(agent: ProcUid) -> io::Result<i32> {
    sys::peer_pid(control_socket::connect(&name(agent), Kind::Stream, GREETING_TIMEOUT)?.as_raw_fd())
}

/// The control socket of an agent: where external processes come in. Closed when it is dropped.
pub struct Door {
    accepting: Arc<Accepting>,
    poller: Arc<Poller>,
    token: u64,
}

impl Door {
    pub fn open(node: &Arc<Node>) -> io::Result<Door> {
        control_socket::sweep();
        let socket = ControlSocket::listen(&name(node.uid), Kind::Stream)?;
        let (fd, token) = (socket.as_raw_fd(), node.poller.stranger_token());
        let accepting = Arc::new(Accepting { socket, node: Arc::downgrade(node), half_open: Arc::default() });
        node.poller.add(token, fd, accepting.clone())?;
        Ok(Door { accepting, poller: node.poller.clone(), token })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.poller.remove(self.token, self.accepting.socket.as_raw_fd());
    }
}

type HalfOpen = Mutex<VecDeque<Arc<Guest>>>;

struct Accepting {
    socket: ControlSocket,
    node: Weak<Node>,
    half_open: Arc<HalfOpen>,
}

impl Accepting {
    fn admit(&self, stream: UnixStream) -> io::Result<()> {
        // The file system keeps other users away from a file, and nothing keeps them from an abstract name.
        if self.socket.is_open_to_all() && sys::peer_user(stream.as_raw_fd())? != sys::user() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let Some(node) = self.node.upgrade() else { return Ok(()) };
        let (fd, token) = (stream.as_raw_fd(), node.poller.stranger_token());
        let state = Mutex::new(Some((stream, Vec::with_capacity(GREETING))));
        let guest = Arc::new(Guest { state, token, node: self.node.clone(), half_open: self.half_open.clone() });
        node.poller.add(token, fd, guest.clone())?;
        let oldest = {
            let mut half_open = lock(&self.half_open);
            half_open.push_back(guest.clone());
            if half_open.len() > HALF_OPEN { half_open.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            oldest.give_up();
        }
        let late = Arc::downgrade(&guest);
        let task = move || {
            if let Some(guest) = late.upgrade() {
                guest.give_up();
            }
        };
        node.poller.later(GREETING_TIMEOUT, Box::new(task));
        // The greeting came with the connection, usually.
        guest.ready(0);
        Ok(())
    }
}

impl Source for Accepting {
    fn ready(&self, _events: u32) {
        for _ in 0..BATCH {
            match control_socket::accept(self.socket.as_raw_fd()) {
                // A refused process sees the end of the stream, and no more.
                Ok(fd) => drop(self.admit(fd.into())),
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // Without descriptors the listener would be ready for ever.
                    lock(&self.half_open).drain(..).collect::<Vec<_>>().iter().for_each(|guest| guest.give_up());
                    return;
                }
                Err(_) => return,
            }
        }
    }
}

/// An external process that has not sent its greeting.
struct Guest {
    state: Mutex<Option<(UnixStream, Vec<u8>)>>,
    token: u64,
    node: Weak<Node>,
    half_open: Arc<HalfOpen>,
}

impl Guest {
    /// Takes it off the poller, and out of the list of the half open.
    fn leave(&self) -> Option<(UnixStream, Vec<u8>)> {
        let taken = lock(&self.state).take();
        if let (Some((stream, _)), Some(node)) = (&taken, self.node.upgrade()) {
            node.poller.remove(self.token, stream.as_raw_fd());
        }
        lock(&self.half_open).retain(|other| other.token != self.token);
        taken
    }

    /// Ends the connection, unless its greeting has come meanwhile.
    fn give_up(&self) {
        self.ready(0);
        drop(self.leave());
    }

    /// Whether nothing more is to come before it is known what the process is.
    fn read(&self) -> bool {
        let mut state = lock(&self.state);
        let Some((stream, greeting)) = state.as_mut() else { return false };
        let mut rest = [0; GREETING];
        match stream.read(&mut rest[greeting.len()..]) {
            Ok(0) => true,
            Ok(n) => {
                let from = greeting.len();
                greeting.extend_from_slice(&rest[from..from + n]);
                greeting.len() == GREETING
            }
            Err(e) => e.kind() != io::ErrorKind::WouldBlock && e.kind() != io::ErrorKind::Interrupted,
        }
    }
}

impl Source for Guest {
    fn ready(&self, _events: u32) {
        if !self.read() {
            return;
        }
        let (Some((stream, greeting)), Some(node)) = (self.leave(), self.node.upgrade()) else { return };
        if greeting.len() == GREETING && greeting[..4] == wire::VERSION.to_le_bytes() {
            let uid = greeting[4..].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
            // Fails only if no more can be watched; the process sees the end of the stream then.
            let _ = node.peer_unlinked(ProcUid(uid)).0.link.attach(stream.into());
        }
    }
}

impl Node {
    /// Makes procs of another agent reachable, as a guest of that agent.
    pub fn join(&self, agent: ProcUid, procs: &[ProcUid]) {
        {
            let mut foreign = self.foreign.write().unwrap_or_else(PoisonError::into_inner);
            let known = foreign.insert(agent, agent).is_some();
            for p in procs.iter().filter(|p| **p != agent) {
                foreign.insert(*p, agent);
            }
            if known {
                return;
            }
        }
        let joined = dial(agent, self.uid).and_then(|fd| self.peer_unlinked(agent).0.link.attach(fd));
        if let Err(e) = joined {
            self.foreign_agent_lost(agent, &format!("its client does not answer: {e}"));
        }
    }

    /// The agent that we are a guest of is gone, and all its procs with it.
    pub(crate) fn foreign_agent_lost(&self, agent: ProcUid, why: &str) {
        let all: Vec<ProcUid> =
            self.foreign.read().unwrap_or_else(PoisonError::into_inner).iter().filter(|(_, a)| **a == agent).map(|(p, _)| *p).collect();
        let end = ProcEnd {
            pid: 0,
            started: true,
            host: String::new(),
            reason: ExitReason::HostLost(why.to_owned()),
            cleaning: vec![],
            output: vec![],
            recent: vec![],
        };
        self.procs_ended(all.into_iter().map(|uid| (uid, end.clone())).collect());
    }

    pub(crate) fn is_foreign_agent(&self, uid: ProcUid) -> bool {
        self.foreign.read().unwrap_or_else(PoisonError::into_inner).get(&uid) == Some(&uid)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Connections whose other ends are gone, `count` of them, and then one whose other end is given too.
    fn connections(count: usize) -> (RefCell<Vec<OwnedFd>>, UnixStream) {
        let (good, other) = UnixStream::pair().unwrap();
        let mut all = vec![OwnedFd::from(good)];
        all.extend((0..count).map(|_| OwnedFd::from(UnixStream::pair().unwrap().0)));
        (RefCell::new(all), other)
    }

    #[test]
    fn another_connection_takes_the_place_of_one_that_was_ended() {
        let (left, mut other) = connections(3);
        let made = greet(ProcUid(7), GREETING_TIMEOUT, || Ok(left.borrow_mut().pop().unwrap())).unwrap();
        let mut greeting = [0; GREETING];
        other.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[4..], 7u64.to_le_bytes());
        drop(made);
    }

    #[test]
    fn agent_that_ends_all_connections_fails_the_dial() {
        let (left, _other) = connections(1000);
        let why = greet(ProcUid(7), Duration::from_millis(5), || Ok(left.borrow_mut().pop().unwrap())).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::BrokenPipe);
    }
}
