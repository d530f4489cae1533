//! Clients that are external processes of each other, each with its control socket.
#![cfg(not(feature = "shuttle"))]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::control_socket::{self, ControlSocket, Kind};
use net::{Poller, WaitEnd};
use runtime::peers::external_process::{ControlSocketListener, other_version};
use runtime::{Node, SystemEvent};
use wire::{CallId, ExitReason, Frame, ProcUid};

/// Limit of every wait: a test that waits longer has failed.
const HANG: Duration = Duration::from_secs(30);

/// Other tests of the same user have control sockets too.
fn uid(number: u64) -> ProcUid {
    ProcUid(u64::from(std::process::id()) << 16 | number)
}

struct Client {
    node: Arc<Node>,
    events: Arc<net::Waiter>,
    io: Option<std::thread::JoinHandle<()>>,
    _socket: ControlSocketListener,
}

impl Client {
    /// A client that reads no socket before `start`.
    fn new(number: u64) -> Client {
        let uid = uid(number);
        let node = Node::on(Poller::new().unwrap(), uid, uid);
        let events = node.poller.waiter();
        node.system.set_waiter(events.clone());
        let socket = ControlSocketListener::open(&node.peers).unwrap();
        Client { node, events, io: None, _socket: socket }
    }

    fn start(&mut self) {
        let poller = self.node.poller.clone();
        self.io = Some(std::thread::spawn(move || poller.run()));
    }

    /// Waits for the reason of the end of another client.
    fn loses(&self, other: ProcUid) -> String {
        let ready = || self.node.peers.end_of(other).is_some();
        assert_eq!(self.node.poller.wait(&self.events, Some(Instant::now() + HANG), ready), WaitEnd::Ready);
        match &self.node.peers.end_of(other).unwrap().end.reason {
            ExitReason::ClientLost(why) => why.clone(),
            other => panic!("another reason: {other:?}"),
        }
    }

    /// Waits for a request of the other client. An end of that client would precede it.
    fn gets_request_of(&self, other: &Client) {
        other.node.replies.send_system(self.node.uid, 77, CallId::NONE, vec![]);
        let ready = || !self.node.system.is_empty();
        assert_eq!(self.node.poller.wait(&self.events, Some(Instant::now() + HANG), ready), WaitEnd::Ready);
        match self.node.system.pop() {
            Some(SystemEvent::Request { from, kind: 77, .. }) => assert_eq!(from, other.node.uid),
            Some(SystemEvent::ProcsEnded { ends }) => panic!("lost: {ends:?}"),
            _ => panic!("another event"),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.node.peers.all().iter().for_each(|p| p.link.close());
        self.node.poller.stop();
        if let Some(io) = self.io.take() {
            io.join().unwrap();
        }
    }
}

/// Each client dials the other one before it accepts the connection of the other one.
#[test]
fn clients_that_dial_each_other_stay_connected() {
    let (mut a, mut b) = (Client::new(1), Client::new(2));
    a.node.ends.join(b.node.uid, &[]);
    b.node.ends.join(a.node.uid, &[]);
    a.start();
    b.start();
    for _ in 0..3 {
        a.gets_request_of(&b);
        b.gets_request_of(&a);
    }
    assert!(a.node.peers.end_of(b.node.uid).is_none() && b.node.peers.end_of(a.node.uid).is_none());
}

#[test]
fn client_that_does_not_exist_has_ended() {
    let a = Client::new(3);
    a.node.ends.join(uid(4), &[]);
    let why = a.loses(uid(4));
    assert!(why.starts_with("no client of this user answers for it on this machine: ") && !why.contains("os error"), "{why}");
}

/// The answer of another version is the answer of this one, with another number.
#[test]
fn client_of_another_version_is_named() {
    let mut a = Client::new(5);
    a.start();
    let name = |number| format!("monarch-{:016x}", uid(number).0);
    let mut old = UnixStream::from(control_socket::connect(&name(5), Kind::Stream, HANG).unwrap());
    old.set_nonblocking(false).unwrap();
    old.write_all(&[[9; 4].as_slice(), &[1; 8]].concat()).unwrap();
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).unwrap();
    let ours = wire::VERSION;
    let text = |theirs| format!("it has version {theirs} of the protocol, and this process has version {ours}");
    assert_eq!(other_version(&Frame::decode(&answer[4..]).unwrap()), Some(text(ours)));

    let other = ControlSocket::listen(&name(6), Kind::Stream).unwrap();
    a.node.ends.join(uid(6), &[]);
    let mut stream = UnixStream::from(control_socket::accept(std::os::fd::AsRawFd::as_raw_fd(&other)).unwrap());
    let end = answer.len();
    answer[end - 4..].copy_from_slice(&77_u32.to_le_bytes());
    stream.write_all(&answer).unwrap();
    assert_eq!(a.loses(uid(6)), text(77));
}
