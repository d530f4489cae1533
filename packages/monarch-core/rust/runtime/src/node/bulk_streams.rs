//! Bulk streams between two processes of different hosts, for bytes that go from memory to memory.
//!
//! Processes do not listen on ports. The agents open and authenticate a bulk stream like every connection between hosts, and hand the
//! socket and the keys of its TLS session to the two processes. The bytes do not pass through an agent.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use net::lock::lock;
use net::records::Keys;
use wire::{Control, Frame, ProcUid};

use crate::node::Node;
use crate::node::routes::Place;

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

/// The bulk streams of this process that are being opened. The node owns it.
#[derive(Default)]
pub struct BulkStreams {
    next: AtomicU64,
    /// The requests that wait for an answer of the agent, by number.
    waiting: Mutex<HashMap<u64, SyncSender<Answer>>>,
    /// The receiver of streams that other processes open.
    receiver: OnceLock<StreamReceiver>,
    /// For tests: whether each host is cut off.
    paused: Mutex<HashMap<ProcUid, Arc<AtomicBool>>>,
}

impl BulkStreams {
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

    /// The flag of a host.
    fn paused(&self, host: ProcUid) -> Arc<AtomicBool> {
        lock(&self.paused).entry(host).or_default().clone()
    }

    /// Answers a request for a stream.
    fn answer(&self, number: u64, answer: Answer) {
        if let Some(waiting) = lock(&self.waiting).remove(&number) {
            // A receiver that has stopped waiting drops the stream.
            let _ = waiting.try_send(answer);
        }
    }
}

impl Node {
    /// Opens a bulk stream to a process on another host; with `by_messages` a pipe, where no stream can be opened. Must not be called on
    /// the I/O thread.
    pub fn open_bulk(&self, to: ProcUid, until: Instant, by_messages: bool) -> Answer {
        if self.has_ended(to) {
            return Err(BulkError::Ended);
        }
        let Some(place) = self.routes.place(to) else { return Err(BulkError::Unreachable(UNKNOWN.to_owned())) };
        let number = self.bulk_streams.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = sync_channel(1);
        lock(&self.bulk_streams.waiting).insert(number, answer);
        self.to_agent_beside(place.here, Control::BulkDial { number, from: self.uid, to, to_host: place.host });
        let got = answered.recv_timeout(until.saturating_duration_since(Instant::now()));
        lock(&self.bulk_streams.waiting).remove(&number);
        match got {
            Ok(Err(_)) if self.has_ended(to) => Err(BulkError::Ended),
            Ok(Err(BulkError::Unreachable(why))) if by_messages => {
                self.open_pipe(to).map_err(|e| BulkError::Unreachable(format!("{why}; by messages: {e}")))
            }
            Ok(answer) => answer,
            Err(_) => Err(if self.has_ended(to) { BulkError::Ended } else { BulkError::TimedOut }),
        }
    }

    /// Handles a process's request for a stream, in its agent.
    pub(crate) fn bulk_dial(self: &Arc<Self>, by: ProcUid, number: u64, from: ProcUid, to: (ProcUid, ProcUid)) {
        match self.gateway() {
            Some(gateway) => gateway.bulk_dial(by, number, from, to),
            None => self.refuse_bulk(from, number, UNKNOWN.to_owned()),
        }
    }

    /// The flag that a test sets to pause the streams to the host of that process.
    pub fn paused(&self, uid: ProcUid) -> Arc<AtomicBool> {
        self.routes.place(uid).map(|place| self.bulk_streams.paused(place.host)).unwrap_or_default()
    }

    /// True if this process knows that the other one has ended.
    pub fn has_ended(&self, uid: ProcUid) -> bool {
        self.routes.place(uid).is_some_and(|place| self.routes.lost(place).is_some())
            || self.known_peer(uid).is_some_and(|p| p.ended().is_some())
    }

    /// Takes a stream that the agent has opened.
    pub(crate) fn on_bulk_stream(
        &self,
        number: u64,
        (peer, place): (ProcUid, Place),
        (serves, dialled): (bool, bool),
        keys: &[u8],
        fd: Option<OwnedFd>,
    ) {
        // The route lets this process receive the end of that host.
        self.route(peer, place.host, place.here);
        let (Some(fd), keys) = (fd, Keys::from_bytes(keys)) else {
            return self.bulk_streams.answer(number, Err(BulkError::Unreachable("no descriptors are left".to_owned())));
        };
        self.take_bulk(number, peer, serves, BulkStream::new(fd, keys, dialled));
    }

    /// True if this process takes streams of other processes.
    pub(crate) fn has_bulk(&self) -> bool {
        self.bulk_streams.receiver.get().is_some()
    }

    /// Takes a stream: `serves` is true if this process has requested it.
    pub(crate) fn take_bulk(&self, number: u64, peer: ProcUid, serves: bool, mut stream: BulkStream) {
        // Messages pause by themselves.
        if !stream.is_routed {
            stream.paused = self.paused(peer);
        }
        if serves {
            self.bulk_streams.answer(number, Ok(stream));
        } else if let Some(receiver) = self.bulk_streams.receiver.get() {
            receiver(peer, stream);
        }
    }

    /// Takes the agent's report that no stream could be opened.
    pub(crate) fn on_bulk_refused(&self, number: u64, why: String) {
        self.bulk_streams.answer(number, Err(BulkError::Unreachable(why)));
    }

    /// Hands a stream to a process of this host, or to this process.
    pub(crate) fn hand_bulk(&self, to: ProcUid, number: u64, peer: ProcUid, serves: bool, stream: BulkStream) {
        if to == self.uid {
            return self.take_bulk(number, peer, serves, stream);
        }
        let Some(Place { host, here }) = self.routes.place(peer) else { return };
        let keys = stream.keys.map_or(vec![], |k| k.to_bytes());
        let frame = Frame::Control(Control::BulkStream { number, peer, host, here, serves, dialled: stream.dialled, keys }).encode();
        let _ = self.peer_unlinked(to).0.link.send(&[&frame], vec![stream.fd]);
    }

    /// Notifies a process of any host that no stream could be opened.
    pub(crate) fn refuse_bulk(self: &Arc<Self>, to: ProcUid, number: u64, why: String) {
        if to == self.uid { self.on_bulk_refused(number, why) } else { self.peer(to).send_control(Control::BulkRefused { number, why }) }
    }
}
