//! Processes of the same user that were not started by this agent and want to talk to its procs.
//!
//! A handle that was pickled outside a message may be unpickled by any process. It finds the agent at an abstract unix
//! address made of the agent's uid, which is random, and is let in if the kernel says that it belongs to the same user.
//! From then on it is a peer like a proc: it asks the agent for links to others. Whoever only looks in comes the same way: the
//! names of all agents are in the kernel's list of sockets.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use net::{Source, sys};
use wire::ProcUid;
use wire::exit::{ExitReason, ProcEnd};

use crate::node::Node;

/// Version and uid, little-endian.
const GREETING: usize = 12;
/// Guests that have connected and not yet said who they are.
const HALF_OPEN: usize = 64;

fn address(agent: ProcUid) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("monarch-{:016x}", agent.0))
}

fn same_user(stream: &UnixStream) -> io::Result<()> {
    if sys::peer_user(stream.as_raw_fd())? == sys::user() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the process at the other end belongs to another user"))
    }
}

/// Connects to the agent; the stream is ready to be a link.
pub fn dial(agent: ProcUid, me: ProcUid) -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect_addr(&address(agent)?)?;
    same_user(&stream)?;
    let mut greeting = wire::VERSION.to_le_bytes().to_vec();
    greeting.extend_from_slice(&me.0.to_le_bytes());
    stream.write_all(&greeting)?;
    Ok(stream.into())
}

/// Where guests come in.
pub struct Door {
    listener: UnixListener,
    node: Weak<Node>,
    half_open: Arc<AtomicUsize>,
}

impl Door {
    pub fn open(node: &Arc<Node>) -> io::Result<()> {
        let listener = UnixListener::bind_addr(&address(node.uid)?)?;
        listener.set_nonblocking(true)?;
        let fd = listener.as_raw_fd();
        let door = Door { listener, node: Arc::downgrade(node), half_open: Arc::default() };
        node.poller.add(node.poller.token(), fd, Arc::new(door))
    }

    fn admit(&self, stream: UnixStream) -> io::Result<()> {
        same_user(&stream)?;
        stream.set_nonblocking(true)?;
        let Some(node) = self.node.upgrade() else { return Ok(()) };
        if self.half_open.fetch_add(1, Ordering::AcqRel) >= HALF_OPEN {
            self.half_open.fetch_sub(1, Ordering::AcqRel);
            return Err(io::Error::other("too many guests that have not said who they are"));
        }
        let (fd, token) = (stream.as_raw_fd(), node.poller.token());
        let state = Mutex::new(Some((stream, Vec::with_capacity(GREETING))));
        node.poller.add(token, fd, Arc::new(Guest { state, token, node: self.node.clone(), half_open: self.half_open.clone() }))
    }
}

impl Source for Door {
    fn ready(&self, _events: u32) {
        while let Ok((stream, _)) = self.listener.accept() {
            // Who is refused sees the end of the stream, and no more.
            let _ = self.admit(stream);
        }
    }
}

/// One that has not said who it is.
struct Guest {
    state: Mutex<Option<(UnixStream, Vec<u8>)>>,
    token: u64,
    node: Weak<Node>,
    half_open: Arc<AtomicUsize>,
}

impl Source for Guest {
    fn ready(&self, _events: u32) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((stream, said)) = state.as_mut() else { return };
        let mut rest = [0; GREETING];
        let end = match stream.read(&mut rest[said.len()..]) {
            Ok(0) => true,
            Ok(n) => {
                let from = said.len();
                said.extend_from_slice(&rest[from..from + n]);
                said.len() == GREETING
            }
            Err(e) => e.kind() != io::ErrorKind::WouldBlock && e.kind() != io::ErrorKind::Interrupted,
        };
        if !end {
            return;
        }
        let (Some((stream, said)), Some(node)) = (state.take(), self.node.upgrade()) else { return };
        self.half_open.fetch_sub(1, Ordering::AcqRel);
        node.poller.remove(self.token, stream.as_raw_fd());
        if said.len() == GREETING && said[..4] == wire::VERSION.to_le_bytes() {
            let uid = said[4..].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
            // Fails only if no more can be watched; the guest sees the end of the stream then.
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
        let end = ProcEnd { pid: 0, started: true, host: String::new(), reason: ExitReason::HostLost(why.to_owned()), output: vec![] };
        self.procs_ended(all.into_iter().map(|uid| (uid, end.clone())).collect());
    }

    pub(crate) fn is_foreign_agent(&self, uid: ProcUid) -> bool {
        self.foreign.read().unwrap_or_else(PoisonError::into_inner).get(&uid) == Some(&uid)
    }
}
