//! Clients that are external processes of each other, each with its control socket.
#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::{Poller, WaitEnd};
use runtime::node::external_process::ControlSocketListener;
use runtime::{Node, SystemEvent};
use wire::{CallId, ProcUid};

/// Limit of every wait: a test that waits longer has failed.
const HANG: Duration = Duration::from_secs(30);

struct Client {
    node: Arc<Node>,
    events: Arc<net::Waiter>,
    io: Option<std::thread::JoinHandle<()>>,
    _socket: ControlSocketListener,
}

impl Client {
    /// A client that reads no socket before `start`.
    fn new(number: u64) -> Client {
        // Other tests of the same user have control sockets too.
        let uid = ProcUid(u64::from(std::process::id()) << 16 | number);
        let node = Node::on(Poller::new().unwrap(), uid, uid);
        let events = node.poller.waiter();
        node.system.set_waiter(events.clone());
        let socket = ControlSocketListener::open(&node).unwrap();
        Client { node, events, io: None, _socket: socket }
    }

    fn start(&mut self) {
        let poller = self.node.poller.clone();
        self.io = Some(std::thread::spawn(move || poller.run()));
    }

    /// Waits for a request of the other client. An end of that client would precede it.
    fn gets_request_of(&self, other: &Client) {
        other.node.send_system(self.node.uid, 77, CallId::NONE, vec![]);
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
        self.node.peers().iter().for_each(|p| p.link.close());
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
    a.node.join(b.node.uid, &[]);
    b.node.join(a.node.uid, &[]);
    a.start();
    b.start();
    for _ in 0..3 {
        a.gets_request_of(&b);
        b.gets_request_of(&a);
    }
    assert!(a.node.end_of(b.node.uid).is_none() && b.node.end_of(a.node.uid).is_none());
}
