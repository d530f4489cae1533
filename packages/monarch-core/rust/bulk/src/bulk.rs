//! The registry, the server and the transfers of one process.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use net::lock::lock;

use crate::arena::{Arena, Block};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::deadline_lock::DeadlineLock;
use crate::failure::{Failure, Kind, Outcome};
use crate::pool::Pool;
use crate::registry::{Memory, Range, Registry};
use crate::remote::{Fabric, Opened, RemoteOwner, RemoteServer};
use crate::server::Server;
pub use crate::server::{Identity, Jobs};
use crate::sys;

/// How long `close` waits for the thread that sends the goodbyes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Most streams to one owner by default: more of them bring no more throughput.
const WIDEST: usize = 4;

/// Interval of checks whether a test still cuts off a host.
const PAUSE_CHECK: Duration = Duration::from_millis(5);

/// The state of an owner since its first use: not yet known, connected, or ended.
#[derive(Default)]
struct Peer {
    open_lock: DeadlineLock,
    outcome: Mutex<Option<Outcome<Arc<Connection>>>>,
}

/// The default number of streams to one owner: half of the cores, as each end uses one core per stream, and at most `WIDEST`.
pub fn width() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    (cores / 2).clamp(1, WIDEST)
}

/// The bulk copies of one process: its registered memory, and its connections to owners. A process has one.
pub struct Bulk {
    pub me: Identity,
    pub registry: Arc<Registry>,
    pub arena: Arc<Arena>,
    pub pool: Arc<Pool>,
    server: OnceLock<io::Result<Arc<Server>>>,
    peers: Mutex<HashMap<u64, Arc<Peer>>>,
    /// Owners on other hosts.
    remote_owners: Mutex<HashMap<u64, Arc<RemoteOwner>>>,
    fabric: OnceLock<Arc<dyn Fabric>>,
    /// Most streams to one owner.
    streams: AtomicUsize,
    /// Answers requests of processes of other hosts.
    remote_server: Arc<RemoteServer>,
    /// Copies by the kernel between two processes may be used.
    direct: AtomicBool,
    /// The process that must be named to Yama so that it may read this memory; 0 for none.
    tracer: i32,
    /// Time limit for opening a connection.
    open_timeout: Duration,
}

impl Bulk {
    /// The bulk copies of a new process. `tracer` is the process to name to Yama (0 for none); `open_timeout` limits the opening of a
    /// connection.
    pub fn new(me: Identity, tracer: i32, open_timeout: Duration) -> io::Result<Arc<Bulk>> {
        Ok(Bulk::with(RemoteServer::new()?, me, tracer, open_timeout))
    }

    /// With an existing component that answers other hosts; its registry becomes the registry of this process.
    pub fn with(remote_server: Arc<RemoteServer>, me: Identity, tracer: i32, open_timeout: Duration) -> Arc<Bulk> {
        Arc::new(Bulk {
            me,
            registry: remote_server.registry.clone(),
            arena: Arena::new(),
            pool: Pool::new(),
            server: OnceLock::new(),
            peers: Mutex::default(),
            remote_owners: Mutex::default(),
            fabric: OnceLock::new(),
            streams: AtomicUsize::new(1),
            remote_server,
            direct: AtomicBool::new(true),
            tracer,
            open_timeout,
        })
    }

    /// Makes later connections copy through rings.
    pub fn refuse_direct(&self) {
        self.direct.store(false, Ordering::Release);
    }

    /// Starts to answer other processes of this host.
    pub fn serve(&self) -> Outcome<()> {
        let started = self.server.get_or_init(|| {
            if self.tracer != 0 && sys::yama_scope() == 1 {
                sys::name_tracer(self.tracer);
            }
            Server::start(self.me.clone(), self.registry.clone())
        });
        match started {
            Ok(_) => Ok(()),
            Err(e) => Err(Failure::new(Kind::Init, format!("cannot listen for other processes: {e}"))),
        }
    }

    /// Registers memory. `keep` keeps it valid until the registration is no longer used.
    pub fn register(self: &Arc<Self>, range: Range, lease: Option<Instant>, keep: Box<dyn Any + Send + Sync>) -> Outcome<Arc<Buffer>> {
        let memory = Memory::new(keep, self.arena.find(range.address, range.len));
        let (id, epoch) = self.registry.register(range, memory, lease)?;
        if lease.is_some() {
            self.serve().inspect_err(|_| self.registry.end(&id, "its registration has failed", None))?;
            if let Some(Ok(server)) = self.server.get() {
                server.wake();
            }
        }
        Ok(Buffer::new(self.clone(), id, epoch, self.me.uid, range.len as u64, range.readonly, false))
    }

    pub fn allocate(&self, len: usize, huge: Option<bool>) -> io::Result<Arc<Block>> {
        self.arena.allocate(len, huge)
    }

    /// The allocation that contains this memory: address, bytes, and a number that no other allocation ever has. The exports report its
    /// end.
    pub fn allocation(&self, address: usize, len: usize) -> Option<(usize, usize, u64)> {
        let block = self.arena.find(address, len)?;
        let exports = self.registry.exports.clone();
        let serial = block.watched(move |address, len| exports.note_freed(address, len));
        Some((block.address(), block.len(), serial))
    }

    /// Sets how processes of other hosts are reached. `streams`: most streams to each of them; 1 chooses a number by the cores.
    pub fn reach_by(&self, fabric: Arc<dyn Fabric>, streams: usize) {
        self.streams.store(if streams > 1 { streams } else { width() }, Ordering::Release);
        let _ = self.fabric.set(fabric);
    }

    /// An owner on another host.
    pub fn remote_owner(&self, owner: u64) -> Outcome<Arc<RemoteOwner>> {
        let Some(fabric) = self.fabric.get() else {
            return Err(Failure::new(Kind::Unsupported, "this process reaches no other hosts"));
        };
        let width = self.streams.load(Ordering::Acquire);
        Ok(lock(&self.remote_owners).entry(owner).or_insert_with(|| RemoteOwner::new(owner, fabric.clone(), width)).clone())
    }

    /// The deadline of an owner for its first answer.
    pub fn open_deadline(&self, until: Instant) -> Instant {
        Instant::now().checked_add(self.open_timeout).map_or(until, |bound| until.min(bound))
    }

    /// Answers requests on a stream until it ends; `peer` is the process at its other end.
    pub fn answer(&self, peer: u64, opened: Opened) {
        let fabric = self.fabric.get().cloned();
        self.remote_server.answer(peer, opened, move || fabric.as_ref().is_some_and(|f| f.has_ended(peer)));
    }

    /// The connection to an owner, opened if there is none.
    pub fn connection(&self, owner: u64, until: Instant) -> Outcome<Arc<Connection>> {
        let until = self.open_deadline(until);
        let paused = self.fabric.get().map(|f| f.paused(owner)).unwrap_or_default();
        self.await_unpaused(owner, &paused, until)?;
        let peer = lock(&self.peers).entry(owner).or_default().clone();
        if let Some(outcome) = lock(&peer.outcome).clone() {
            return outcome;
        }
        let _in = peer.open_lock.acquire(until).ok_or_else(Failure::timed_out)?;
        if let Some(outcome) = lock(&peer.outcome).clone() {
            return outcome;
        }
        let opened = Connection::open(owner, self.me.clone(), self.direct.load(Ordering::Acquire), paused, until);
        match &opened {
            // Other failures may not occur at the next attempt.
            Err(f) if !is_final(f) => {}
            _ => *lock(&peer.outcome) = Some(opened.clone()),
        }
        opened
    }

    /// Waits while a test cuts off the owner's host. In tests, several hosts may share the memory of one machine.
    #[inline]
    pub fn await_unpaused(&self, owner: u64, paused: &AtomicBool, until: Instant) -> Outcome<()> {
        if paused.load(Ordering::Relaxed) { self.wait_while_paused(owner, paused, until) } else { Ok(()) }
    }

    #[cold]
    fn wait_while_paused(&self, owner: u64, paused: &AtomicBool, until: Instant) -> Outcome<()> {
        while paused.load(Ordering::Relaxed) {
            if Instant::now() >= until {
                return Err(Failure::timed_out());
            }
            if self.fabric.get().is_some_and(|f| f.has_ended(owner)) {
                return Err(Failure::lost());
            }
            std::thread::sleep(PAUSE_CHECK);
        }
        Ok(())
    }

    /// The connection to an owner, if it is open.
    pub fn open_connection(&self, owner: u64) -> Option<Arc<Connection>> {
        let peer = lock(&self.peers).get(&owner)?.clone();
        let outcome = lock(&peer.outcome).clone();
        outcome?.ok()
    }

    /// Records the end of an owner, and drops its connection.
    pub fn note_failure(&self, owner: u64, failure: &Failure) {
        let has_ended = failure.kind == Kind::PeerLost || failure.exited;
        if let (true, Some(peer)) = (has_ended, lock(&self.peers).get(&owner)) {
            *lock(&peer.outcome) = Some(Err(failure.clone()));
        }
    }

    /// Ends all buffers of this process, and notifies all connected processes.
    pub fn close(&self) {
        self.registry.end_all("its process exits");
        if let Some(Ok(server)) = self.server.get() {
            server.close(Instant::now() + CLOSE_TIMEOUT);
        }
    }
}

/// Whether the failure remains, so that no other attempt is made.
fn is_final(f: &Failure) -> bool {
    matches!(f.kind, Kind::PeerLost | Kind::Access)
}
