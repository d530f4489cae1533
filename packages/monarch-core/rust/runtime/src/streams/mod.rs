//! Bulk streams between two processes of different hosts, for bytes that go from memory to memory.
//!
//! Processes do not listen on ports. The agents open and authenticate a bulk stream like every connection between hosts, and hand the
//! socket and the keys of its TLS session to the two processes. The bytes do not pass through an agent. Where no connection can be opened,
//! `pipes` sends the bytes in messages. This component needs the peers and their routes. Each request gets one answer, or times out.

mod pipes;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use net::lock::lock;
use net::records::Keys;
use wire::control::PipeFrame;
use wire::exit::ProcEnd;
use wire::{Control, Frame, ProcUid};

use self::pipes::Pipes;
use crate::peers::Peers;
use crate::peers::routes::Place;

/// The error for a process whose route this process does not know.
pub(crate) const UNKNOWN: &str = "it is not known on which host the process is";

/// A bulk stream that the agents have handed to this process.
pub struct BulkStream {
    pub fd: OwnedFd,
    /// The keys of its TLS session; `None` if streams are not encrypted.
    pub keys: Option<Keys>,
    /// This side has opened the stream, and sends first.
    pub dialled: bool,
    /// The stream is a pipe: its bytes travel in messages.
    pub is_routed: bool,
    /// A test has paused the stream: no byte is read or written, because the host at its other end is cut off.
    pub paused: Arc<AtomicBool>,
}

impl BulkStream {
    pub(crate) fn new(fd: OwnedFd, keys: Option<Keys>, dialled: bool) -> BulkStream {
        BulkStream { fd, keys, dialled, is_routed: false, paused: Arc::default() }
    }
}

/// The reason why a bulk stream could not be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BulkError {
    /// The process has ended, or its host is lost.
    Ended,
    TimedOut,
    /// No stream can be opened to the host of the process.
    Unreachable(String),
}

/// The outcome of a request for a stream.
type Answer = Result<BulkStream, BulkError>;
/// Receives the streams that other processes have opened to this one.
pub type StreamReceiver = Box<dyn Fn(ProcUid, BulkStream) + Send + Sync>;

/// The bulk streams of this process that are being opened.
pub struct Streams {
    peers: Arc<Peers>,
    pipes: Arc<Pipes>,
    next: AtomicU64,
    /// The requests that wait for an answer of the agent, by number.
    waiting: Mutex<HashMap<u64, SyncSender<Answer>>>,
    /// The receiver of streams that other processes open.
    receiver: OnceLock<StreamReceiver>,
    /// For tests: whether each host is cut off.
    paused: Mutex<HashMap<ProcUid, Arc<AtomicBool>>>,
}

impl Streams {
    pub(crate) fn new(peers: &Arc<Peers>) -> Arc<Self> {
        Arc::new(Streams {
            peers: peers.clone(),
            pipes: Pipes::new(peers),
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            receiver: OnceLock::new(),
            paused: Mutex::default(),
        })
    }

    /// Sets the receiver of the streams that other processes open.
    pub fn set_receiver(&self, receiver: StreamReceiver) {
        let _ = self.receiver.set(receiver);
    }

    /// For tests: pauses the streams to and from these hosts, and resumes those of all other hosts.
    pub fn cut_off(&self, hosts: &HashSet<ProcUid>) {
        let mut paused = lock(&self.paused);
        hosts.iter().for_each(|host| paused.entry(*host).or_default().store(true, Ordering::Relaxed));
        paused.iter().for_each(|(host, paused)| paused.store(hosts.contains(host), Ordering::Relaxed));
    }

    /// Answers a request for a stream.
    fn answer(&self, number: u64, answer: Answer) {
        if let Some(waiting) = lock(&self.waiting).remove(&number) {
            // A receiver that has stopped waiting drops the stream.
            let _ = waiting.try_send(answer);
        }
    }

    /// Opens a bulk stream to a process on another host; with `by_messages` a pipe, where no stream can be opened. Must not be called on
    /// the I/O thread.
    pub fn open(&self, to: ProcUid, until: Instant, by_messages: bool) -> Answer {
        if self.peers.has_ended(to) {
            return Err(BulkError::Ended);
        }
        let Some(place) = self.peers.routes.place(to) else { return Err(BulkError::Unreachable(UNKNOWN.to_owned())) };
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = sync_channel(1);
        lock(&self.waiting).insert(number, answer);
        self.peers.to_agent_beside(place.here, Control::BulkDial { number, from: self.peers.uid, to, to_host: place.host });
        let got = answered.recv_timeout(until.saturating_duration_since(Instant::now()));
        lock(&self.waiting).remove(&number);
        match got {
            Ok(Err(_)) if self.peers.has_ended(to) => Err(BulkError::Ended),
            Ok(Err(BulkError::Unreachable(why))) if by_messages => {
                self.pipes.open(to).map_err(|e| BulkError::Unreachable(format!("{why}; by messages: {e}")))
            }
            Ok(answer) => answer,
            Err(_) => Err(if self.peers.has_ended(to) { BulkError::Ended } else { BulkError::TimedOut }),
        }
    }

    /// The flag that a test sets to pause the streams to the host of that process.
    pub fn paused(&self, uid: ProcUid) -> Arc<AtomicBool> {
        let place = self.peers.routes.place(uid);
        place.map(|place| lock(&self.paused).entry(place.host).or_default().clone()).unwrap_or_default()
    }

    /// Takes a stream that the agent has opened.
    pub(crate) fn on_stream(
        &self,
        number: u64,
        (peer, place): (ProcUid, Place),
        (serves, dialled): (bool, bool),
        keys: &[u8],
        fd: Option<OwnedFd>,
    ) {
        // The route lets this process receive the end of that host.
        self.peers.route(peer, place.host, place.here);
        let (Some(fd), keys) = (fd, Keys::from_bytes(keys)) else {
            return self.answer(number, Err(BulkError::Unreachable("no descriptors are left".to_owned())));
        };
        self.take(number, peer, serves, BulkStream::new(fd, keys, dialled));
    }

    /// Takes a control frame of the other end of a pipe.
    pub(crate) fn on_pipe(&self, from: ProcUid, number: u64, by_sender: bool, what: PipeFrame) {
        if let Some(stream) = self.pipes.on_frame(from, number, by_sender, what, self.receiver.get().is_some()) {
            self.take(0, from, false, stream);
        }
    }

    /// Takes the ends of processes: the pipes to them end. Streams end with their connections.
    pub(crate) fn procs_ended(&self, ends: &[(ProcUid, ProcEnd)]) {
        self.pipes.end(|uid| ends.iter().any(|(gone, _)| *gone == uid));
    }

    /// Takes a stream: `serves` is true if this process has requested it.
    fn take(&self, number: u64, peer: ProcUid, serves: bool, mut stream: BulkStream) {
        // Messages pause by themselves.
        if !stream.is_routed {
            stream.paused = self.paused(peer);
        }
        if serves {
            self.answer(number, Ok(stream));
        } else if let Some(receiver) = self.receiver.get() {
            receiver(peer, stream);
        }
    }

    /// Takes the agent's report that no stream could be opened.
    pub(crate) fn on_refused(&self, number: u64, why: String) {
        self.answer(number, Err(BulkError::Unreachable(why)));
    }

    /// Hands a stream to a process of this host, or to this process.
    pub(crate) fn hand(&self, to: ProcUid, number: u64, peer: ProcUid, serves: bool, stream: BulkStream) {
        if to == self.peers.uid {
            return self.take(number, peer, serves, stream);
        }
        let Some(Place { host, here }) = self.peers.routes.place(peer) else { return };
        let keys = stream.keys.map_or(vec![], |k| k.to_bytes());
        let frame = Frame::Control(Control::BulkStream { number, peer, host, here, serves, dialled: stream.dialled, keys }).encode();
        let _ = self.peers.peer_unlinked(to).0.link.send(&[&frame], vec![stream.fd]);
    }

    /// Notifies a process of any host that no stream could be opened.
    pub(crate) fn refuse(&self, to: ProcUid, number: u64, why: String) {
        if to == self.peers.uid {
            self.on_refused(number, why)
        } else {
            self.peers.peer(to).send_control(Control::BulkRefused { number, why })
        }
    }
}
