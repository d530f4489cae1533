//! External processes: of the same user, and not started by this agent.
//!
//! A handle that was pickled outside a message may be unpickled by any process. That process finds the client of the job by its control
//! socket, which is named after the client's uid and which only processes of the same user can reach. From then on it is a peer like a
//! proc of the client: it asks the client for links to procs, the client forwards its frames to other hosts, and what it has spawned ends
//! with it. `monarch ps` uses the same socket.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use net::control_socket::{self, ControlSocket, Kind};
use net::lock::lock;
use net::{Poller, Source, sys};
use wire::exit::{ExitReason, ProcEnd};
use wire::{Control, ProcUid};

use crate::agent::Agent;
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
pub(crate) const CLIENT_ENDED: &str = "it has ended";
const NOT_BEHIND: &str = "it is reached by way of another client, and its own procs and hosts are not";

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
    /// Makes processes of another client's job reachable, of each its host. This process is an external process of that client from then
    /// on: procs of the client's own host get links to it, and the client forwards frames to and from its other hosts.
    pub fn join(&self, client: ProcUid, places: &[(ProcUid, ProcUid)]) {
        if !self.is_foreign_agent(client) && self.peer_unlinked(client).0.link.is_carried() {
            // It takes part in the job of this process, which reaches it by way of other hosts, and nothing else of its own job.
            let end = client_end(0, NOT_BEHIND);
            return self.procs_ended(places.iter().filter(|(proc, _)| *proc != client).map(|(proc, _)| (*proc, end.clone())).collect());
        }
        let joined = if self.is_foreign_agent(client) { Ok(()) } else { self.join_client(client) };
        {
            let mut foreign = self.foreign.write().unwrap_or_else(PoisonError::into_inner);
            let own = places.iter().filter(|(proc, host)| *host == client && *proc != client);
            foreign.extend(own.map(|(proc, _)| (*proc, client)));
        }
        for (proc, host) in places.iter().filter(|(_, host)| *host != client) {
            self.route(*host, *host, client);
            self.route(*proc, *host, client);
        }
        match joined {
            Err(why) => self.foreign_agent_lost(client, &why),
            // What is known of it from now on is lost with it.
            Ok(()) if self.end_of(client).is_some() => self.foreign_agent_lost(client, CLIENT_ENDED),
            Ok(()) => {}
        }
    }

    /// A client that has got in touch with this process already has a link to it.
    fn join_client(&self, client: ProcUid) -> Result<(), String> {
        let peer = self.peer_unlinked(client).0;
        self.foreign.write().unwrap_or_else(PoisonError::into_inner).insert(client, client);
        if !peer.link.is_attached() {
            let link = dial(client, self.uid).and_then(|fd| peer.link.attach(fd));
            link.map_err(|e| format!("no client of this user answers for it on this machine: {e}"))?;
        }
        peer.send_control(Control::Hello { version: wire::VERSION, uid: self.uid, pid: std::process::id() });
        Ok(())
    }

    /// The client whose external process this one is has gone, and with it all processes that are reached through it.
    pub(crate) fn foreign_agent_lost(&self, client: ProcUid, why: &str) {
        self.procs_ended(vec![(client, client_end(0, why))]);
    }

    pub(crate) fn foreign_procs(&self, client: ProcUid) -> Vec<ProcUid> {
        let foreign = self.foreign.read().unwrap_or_else(PoisonError::into_inner);
        foreign.iter().filter(|(_, c)| **c == client).map(|(proc, _)| *proc).collect()
    }

    pub(crate) fn is_foreign_agent(&self, uid: ProcUid) -> bool {
        self.foreign.read().unwrap_or_else(PoisonError::into_inner).get(&uid) == Some(&uid)
    }
}

/// The end of a client, or of what was reached through it.
pub(crate) fn client_end(pid: u32, why: &str) -> ProcEnd {
    let reason = ExitReason::ClientLost(why.to_owned());
    ProcEnd { pid, started: true, host: String::new(), reason, cleaning: vec![], output: vec![], recent: vec![] }
}

impl Agent {
    /// A process that is none of this agent's procs takes part in this client's job: it may address all processes of the job, and spawn.
    pub(crate) fn admit_guest(&self, uid: ProcUid, pid: u32) {
        let Some(node) = self.node() else { return };
        let mut state = lock(&self.state);
        // By a link, and not by way of another host.
        if node.end_of(uid).is_none() && node.known_peer(uid).is_some_and(|p| p.link.is_attached()) {
            state.guests.insert(uid, pid);
        }
    }

    /// The link of an external process has ended, and so has the process: what it has spawned ends too.
    pub(crate) fn guest_ended(&self, uid: ProcUid) {
        let Some(node) = self.node() else { return };
        let Some(pid) = lock(&self.state).guests.get(&uid).copied() else { return };
        self.ended(vec![(uid, client_end(pid, CLIENT_ENDED), node.uid)]);
    }

    /// Asks the procs to end that external processes have spawned.
    pub fn stop_procs_of_guests(&self, grace: Duration, reason: &str) {
        let theirs: Vec<ProcUid> = {
            let state = lock(&self.state);
            state.procs.iter().filter(|(_, p)| state.guests.contains_key(&p.owner)).map(|(uid, _)| *uid).collect()
        };
        theirs.into_iter().for_each(|uid| self.stop_proc(uid, grace, reason));
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
