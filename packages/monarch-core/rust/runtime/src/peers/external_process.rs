//! External processes: processes of the same user that this agent has not started.
//!
//! A handle that was pickled outside a message may be unpickled by any process. That process finds the client of the job by its control
//! socket, which is named after the client's uid and which only processes of the same user can reach. From then on the process is a peer of
//! the client like a proc: it requests links to procs from the client, and the client forwards its frames to other hosts. Processes that
//! it has spawned end with it. `monarch ps` uses the same socket.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use net::control_socket::{self, ControlSocket, Kind};
use net::lock::lock;
use net::{Poller, Source, sys};
use wire::{Frame, ProcUid};

use super::Peers;

/// The length of a greeting: version and uid, little-endian.
const GREETING: usize = 12;
/// The limit of external processes that have connected and not sent their greeting. A further one replaces the oldest.
const HALF_OPEN: usize = 64;
/// The time for a greeting. A process sends it right after it connects, so this is far more than it takes.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait between two attempts of a process to connect to an agent that ends its connections.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);
/// The number of connections accepted in one turn of the control socket.
const BATCH: usize = 8;
/// The reason of the loss when a client or an external process has ended.
pub(crate) const CLIENT_ENDED: &str = "it has ended";

/// The start of the frame that answers a greeting of another version, the same in all versions. The version of this side follows,
/// little-endian.
const OTHER_VERSION: &[u8] = b"protocol version ";

/// The prefix of the names of agents' control sockets.
const PREFIX: &str = "monarch-";

fn name(agent: ProcUid) -> String {
    format!("{PREFIX}{:016x}", agent.0)
}

/// The agents that listen on this machine. With abstract names, agents of other users are included.
pub fn agents() -> Vec<ProcUid> {
    let uid = |name: &str| name.strip_prefix(PREFIX).filter(|hex| hex.len() == 16).and_then(|hex| u64::from_str_radix(hex, 16).ok());
    control_socket::names(PREFIX).iter().filter_map(|name| uid(name)).map(ProcUid).collect()
}

/// Connects to the agent. The returned stream is ready to be a link.
pub fn dial(agent: ProcUid, me: ProcUid) -> io::Result<OwnedFd> {
    greet(me, GREETING_TIMEOUT, || control_socket::connect(&name(agent), Kind::Stream, GREETING_TIMEOUT))
}

/// Sends the greeting over a connection. An agent to which many processes connect at once may end a connection before the greeting has
/// arrived; then another connection is tried until `timeout` is over.
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

/// The reason in a frame that answers a greeting of another version; `None` for other frames.
pub fn other_version(frame: &Frame) -> Option<String> {
    let Frame::Raw(body) = frame else { return None };
    let theirs = u32::from_le_bytes(body.strip_prefix(OTHER_VERSION)?.try_into().ok()?);
    Some(format!("it has version {theirs} of the protocol, and this process has version {}", wire::VERSION))
}

/// The pid of the process that owns the agent's control socket, also while that process does not answer.
pub fn pid(agent: ProcUid) -> io::Result<i32> {
    sys::peer_pid(control_socket::connect(&name(agent), Kind::Stream, GREETING_TIMEOUT)?.as_raw_fd())
}

/// The control socket of an agent, which accepts external processes. It is closed when it is dropped.
pub struct ControlSocketListener {
    accepting: Arc<Accepting>,
    poller: Arc<Poller>,
    token: u64,
}

impl ControlSocketListener {
    /// Opens the control socket of an agent.
    pub fn open(peers: &Arc<Peers>) -> io::Result<ControlSocketListener> {
        control_socket::sweep();
        let socket = ControlSocket::listen(&name(peers.uid), Kind::Stream)?;
        let (fd, token) = (socket.as_raw_fd(), peers.poller.unauthenticated_token());
        let accepting = Arc::new(Accepting { socket, peers: Arc::downgrade(peers), half_open: Arc::default() });
        peers.poller.add(token, fd, accepting.clone())?;
        Ok(ControlSocketListener { accepting, poller: peers.poller.clone(), token })
    }
}

impl Drop for ControlSocketListener {
    fn drop(&mut self) {
        self.poller.remove(self.token, self.accepting.socket.as_raw_fd());
    }
}

/// The connections that have not sent their greeting, oldest first.
type HalfOpen = Mutex<VecDeque<Arc<ExternalProcess>>>;

/// The listening socket of a control socket, as a source of the poller.
struct Accepting {
    socket: ControlSocket,
    peers: Weak<Peers>,
    half_open: Arc<HalfOpen>,
}

impl Accepting {
    /// Accepts a connection of the same user, and waits for its greeting.
    fn admit(&self, stream: UnixStream) -> io::Result<()> {
        // File permissions keep other users away from a socket file, but not from an abstract name.
        if self.socket.is_open_to_all() && sys::peer_user(stream.as_raw_fd())? != sys::user() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let Some(peers) = self.peers.upgrade() else { return Ok(()) };
        let (fd, token) = (stream.as_raw_fd(), peers.poller.unauthenticated_token());
        let state = Mutex::new(Some((stream, Vec::with_capacity(GREETING))));
        let process = Arc::new(ExternalProcess { state, token, peers: self.peers.clone(), half_open: self.half_open.clone() });
        peers.poller.add(token, fd, process.clone())?;
        let oldest = {
            let mut half_open = lock(&self.half_open);
            half_open.push_back(process.clone());
            if half_open.len() > HALF_OPEN { half_open.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            oldest.give_up();
        }
        let late = Arc::downgrade(&process);
        let task = move || {
            if let Some(process) = late.upgrade() {
                process.give_up();
            }
        };
        peers.poller.later(GREETING_TIMEOUT, Box::new(task));
        // Usually the greeting has arrived with the connection.
        process.ready(0);
        Ok(())
    }
}

impl Source for Accepting {
    fn ready(&self, _events: u32) {
        for _ in 0..BATCH {
            match control_socket::accept(self.socket.as_raw_fd()) {
                // A refused process reads EOF, and gets no message.
                Ok(fd) => drop(self.admit(fd.into())),
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // Without free descriptors the listener would stay ready for ever.
                    lock(&self.half_open).drain(..).collect::<Vec<_>>().iter().for_each(|process| process.give_up());
                    return;
                }
                Err(_) => return,
            }
        }
    }
}

/// An external process that has not sent its greeting yet.
struct ExternalProcess {
    state: Mutex<Option<(UnixStream, Vec<u8>)>>,
    token: u64,
    peers: Weak<Peers>,
    half_open: Arc<HalfOpen>,
}

impl ExternalProcess {
    /// Removes the process from the poller and from the list of half-open connections.
    fn leave(&self) -> Option<(UnixStream, Vec<u8>)> {
        let taken = lock(&self.state).take();
        if let (Some((stream, _)), Some(peers)) = (&taken, self.peers.upgrade()) {
            peers.poller.remove(self.token, stream.as_raw_fd());
        }
        lock(&self.half_open).retain(|other| other.token != self.token);
        taken
    }

    /// Ends the connection, unless its greeting has arrived meanwhile.
    fn give_up(&self) {
        self.ready(0);
        drop(self.leave());
    }

    /// Reads from the connection; true if the greeting is complete, or cannot be completed.
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

impl Source for ExternalProcess {
    fn ready(&self, _events: u32) {
        if !self.read() {
            return;
        }
        let (Some((mut stream, greeting)), Some(peers)) = (self.leave(), self.peers.upgrade()) else { return };
        if greeting.len() < GREETING {
            return;
        }
        if greeting[..4] != wire::VERSION.to_le_bytes() {
            let body = [OTHER_VERSION, &wire::VERSION.to_le_bytes()].concat();
            // The buffer of the socket takes so small an answer at once.
            let _ = stream.write_all(&Frame::Raw(body.into()).encode());
            return;
        }
        let uid = greeting[4..].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        // The attachment fails only if no more descriptors can be watched; then the process reads EOF.
        let _ = peers.peer_unlinked(ProcUid(uid)).0.link.attach(stream.into());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// `count` connections whose other ends are closed, then one whose other end is returned too.
    fn connections(count: usize) -> (RefCell<Vec<OwnedFd>>, UnixStream) {
        let (good, other) = UnixStream::pair().unwrap();
        let mut all = vec![OwnedFd::from(good)];
        all.extend((0..count).map(|_| OwnedFd::from(UnixStream::pair().unwrap().0)));
        (RefCell::new(all), other)
    }

    #[test]
    fn connection_replaces_one_that_was_ended() {
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
