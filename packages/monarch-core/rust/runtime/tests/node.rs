//! Two nodes in one process, connected by a socket pair: messages, replies, credit, and the end of a peer.
#![cfg(not(feature = "shuttle"))]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::{RecvPart, WaitEnd, sys};
use runtime::calls::pending_call::Watcher;
use runtime::mailboxes::credit::{OVERHEAD, WINDOW};
use runtime::mailboxes::mailbox::{Consumer, Delivery};
use runtime::peers::peer::{Head, Sent};
use runtime::system::UNDELIVERABLE;
use runtime::transfers::payload::{OutPart, SHARED_FROM};
use runtime::{Incoming, Mailbox, Mode, Node, Payload, PendingCall, SystemEvent};
use wire::exit::ProcEnd;
use wire::frame::{RETURN, TO_PORT};
use wire::{BlockId, CallId, ExitReason, Frame, MailboxId, Message, Part, ProcUid, Reply, Status};

const HANG: Duration = Duration::from_secs(30);
const BOX: MailboxId = MailboxId(10);

/// A node, and the waiter of its system queue.
struct Running(Arc<Node>, Arc<net::Waiter>);

impl Running {
    fn new(uid: u64) -> Self {
        let node = Node::start(ProcUid(uid), ProcUid(1)).unwrap();
        let waiter = node.poller.waiter();
        node.system.set_waiter(waiter.clone());
        Running(node, waiter)
    }

    fn connect(&self, other: &Running) {
        let (x, y) = sys::socketpair().unwrap();
        self.0.peers.peer_unlinked(other.0.uid).0.link.attach(x).unwrap();
        other.0.peers.peer_unlinked(self.0.uid).0.link.attach(y).unwrap();
    }

    fn head(&self, call_id: CallId, rank: u32, flags: u8) -> Head<'static> {
        Head { dest: BOX, sender: MailboxId(5), call_id, rank, flags, method: b"go", ..Head::default() }
    }

    fn send_as(&self, to: &Running, head: &Head<'_>, bytes: &[u8], queue: bool) -> Sent {
        let peer = self.0.peers.peer(to.0.uid);
        self.0.messages.send(&peer, head, &Payload::small(bytes), || vec![OutPart { bytes, readonly: true }], queue)
    }

    fn send(&self, to: &Running, call_id: CallId, bytes: &[u8]) -> Sent {
        self.send_as(to, &self.head(call_id, 0, 0), bytes, true)
    }

    fn call(&self, to: &Running) -> Arc<PendingCall> {
        self.0.calls.start(Mode::FirstError, 1, Arc::from([(to.0.uid, BOX)]))
    }

    fn answer(&self, cell: &PendingCall) -> Arc<runtime::Outcome> {
        self.until(|w| cell.add_waiter(w), || cell.is_done(0));
        cell.outcome(0).expect("an answer of rank 0")
    }

    fn until(&self, register: impl FnOnce(&Arc<net::Waiter>), ready: impl FnMut() -> bool) {
        let w = self.0.poller.waiter();
        register(&w);
        assert_eq!(self.0.poller.wait(&w, Some(Instant::now() + HANG), ready), WaitEnd::Ready);
    }

    /// Waits until this node has handled all frames that `from` has sent: a system request follows them. Returns the events before it.
    fn settle(&self, from: &Running) -> Vec<SystemEvent> {
        from.0.replies.send_system(self.0.uid, 77, CallId::NONE, vec![]);
        let mut before = Vec::new();
        loop {
            match self.event() {
                SystemEvent::Request { kind: 77, .. } => return before,
                e => before.push(e),
            }
        }
    }

    fn event(&self) -> SystemEvent {
        let ready = || !self.0.system.is_empty();
        assert_eq!(self.0.poller.wait(&self.1, Some(Instant::now() + HANG), ready), WaitEnd::Ready);
        self.0.system.pop().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.peers.all().iter().for_each(|p| p.link.close());
        self.0.poller.stop();
    }
}

fn two() -> (Running, Running) {
    let (a, b) = (Running::new(1), Running::new(2));
    a.connect(&b);
    (a, b)
}

struct Actor {
    node: Arc<Node>,
    mailbox: Arc<Mailbox>,
    waiter: Arc<net::Waiter>,
}

impl Actor {
    fn start(r: &Running) -> Self {
        let (mailbox, waiter) = (r.0.mailboxes.get(BOX).unwrap(), r.0.poller.waiter());
        mailbox.set_consumer(Consumer::Thread(waiter.clone()));
        Actor { node: r.0.clone(), mailbox, waiter }
    }

    fn next(&self) -> Incoming {
        loop {
            match self.mailbox.pop() {
                Some(Delivery::Message(m)) => return m,
                Some(Delivery::Event(_)) => panic!("an event"),
                None => {
                    let end = self.node.poller.wait(&self.waiter, Some(Instant::now() + HANG), || !self.mailbox.is_empty());
                    assert_eq!(end, WaitEnd::Ready);
                }
            }
        }
    }

    fn handle(&self) -> Vec<u8> {
        let m = self.next();
        self.node.messages.handled(&self.mailbox, m.from, m.cost());
        bytes(&m.parts)
    }
}

fn bytes(parts: &[RecvPart]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.bytes().unwrap().iter().copied()).collect()
}

fn end(reason: ExitReason) -> ProcEnd {
    ProcEnd { pid: 9, started: true, host: "here".into(), reason, cleaning: vec![], output: vec!["bye".into()], recent: vec![] }
}

#[test]
fn call_is_answered() {
    let (a, b) = two();
    let actor = Actor::start(&b);
    let cell = a.call(&b);
    assert_eq!(a.send(&b, cell.call_id, b"question"), Sent::Yes);
    let m = actor.next();
    assert_eq!((m.from, m.sender, m.dest, &*m.method), (ProcUid(1), MailboxId(5), BOX, &b"go"[..]));
    assert_eq!(bytes(&m.parts), b"question");
    b.0.replies.send_bytes(m.from, m.call_id, m.rank, Status::Ok, b"answer");
    let got = a.answer(&cell);
    assert_eq!((got.status, bytes(&got.parts)), (Status::Ok, b"answer".to_vec()));
    // The waiters of a call are notified before it is forgotten.
    while a.0.calls.in_flight() > 0 {
        std::thread::yield_now();
    }
    b.0.replies.send_bytes(m.from, m.call_id, m.rank, Status::Ok, b"again");
    a.settle(&b);
    assert_eq!(a.0.calls.dropped_replies(), 1);
}

#[test]
fn call_within_the_process_is_answered() {
    let a = Running::new(1);
    let actor = Actor::start(&a);
    let cell = a.call(&a);
    a.send(&a, cell.call_id, b"q");
    let m = actor.next();
    a.0.replies.send_bytes(m.from, m.call_id, 0, Status::Error, &bytes(&m.parts));
    let got = a.answer(&cell);
    assert_eq!((got.status, bytes(&got.parts)), (Status::Error, b"q".to_vec()));
}

#[test]
fn large_parts_travel_through_shared_memory() {
    let (a, b) = two();
    let actor = Actor::start(&b);
    let large: Vec<u8> = (0..3 * SHARED_FROM as u32).map(|i| (i % 253) as u8).collect();
    let parts = [&large[..], b"small", &large[..SHARED_FROM]].map(|bytes| OutPart { bytes, readonly: false });
    let payload = Payload::new(&a.0.arena, parts).unwrap();
    let peer = a.0.peers.peer(ProcUid(2));
    assert_eq!(a.0.messages.send(&peer, &a.head(CallId::NONE, 0, 0), &payload, Vec::new, true), Sent::Yes);
    let m = actor.next();
    assert_eq!(m.cost(), payload.len() + OVERHEAD);
    assert!(matches!(m.parts[..], [RecvPart::Shared { .. }, RecvPart::Inline { .. }, RecvPart::Shared { .. }]));
    assert!(bytes(&m.parts) == [&large[..], b"small", &large[..SHARED_FROM]].concat());
    let id = a.0.arena.alloc(1).unwrap().id();
    drop((payload, m));
    b.0.poller.flush_pending();
    a.settle(&b);
    assert!(a.0.arena.alloc(1).unwrap().id().offset < id.offset);
}

#[test]
fn early_messages_wait_for_their_actor() {
    let (a, b) = two();
    (0..10u8).for_each(|n| assert_eq!(a.send(&b, CallId::NONE, &[n]), Sent::Yes));
    b.settle(&a);
    assert_eq!(b.0.mailboxes.known(BOX).unwrap().len(), 10);
    let actor = Actor::start(&b);
    (0..10u8).for_each(|n| assert_eq!(actor.handle(), [n]));
}

#[test]
fn message_to_an_unknown_port_is_refused() {
    let (a, b) = two();
    let cell = a.call(&b);
    a.send_as(&b, &a.head(cell.call_id, 0, TO_PORT), b"x", true);
    let got = a.answer(&cell);
    assert_eq!((got.status, bytes(&got.parts)), (Status::Failed, vec![]));
    assert!(b.0.mailboxes.known(BOX).is_none());
}

/// The receiver was dropped: its senders go on, with all their credit.
#[test]
fn messages_to_a_closed_port_are_counted() {
    let (a, b) = two();
    let head = a.head(CallId::NONE, 0, TO_PORT | RETURN);
    b.0.mailboxes.get(BOX).unwrap();
    a.send_as(&b, &head, b"before", true);
    b.settle(&a);
    b.0.messages.close_port(BOX);
    for _ in 0..3 {
        while a.send_as(&b, &head, &vec![0; WINDOW as usize], false) == Sent::Full {
            let peer = a.0.peers.peer(ProcUid(2));
            a.until(|w| peer.wait_for_credit(w), || peer.has_credit(BOX));
        }
    }
    b.settle(&a);
    assert_eq!(b.0.messages.dropped_items.load(std::sync::atomic::Ordering::Relaxed), 4);
    assert!(a.settle(&b).is_empty());
}

#[test]
fn ended_actor_refuses_queued_and_new_messages() {
    let (a, b) = two();
    let queued = a.call(&b);
    a.send(&b, queued.call_id, b"x");
    a.send_as(&b, &a.head(CallId::NONE, 0, RETURN), b"y", true);
    b.settle(&a);
    b.0.messages.close_actor(BOX, b"dead");
    let late = a.call(&b);
    a.send(&b, late.call_id, b"z");
    for cell in [queued, late] {
        let got = a.answer(&cell);
        assert_eq!((got.status, bytes(&got.parts)), (Status::Failed, b"dead".to_vec()));
    }
    assert!(b.0.mailboxes.get(BOX).is_none());
    // A message without a call id comes back too: sender, receiver, reason.
    let events = a.settle(&b);
    let [SystemEvent::Request { kind: UNDELIVERABLE, body, .. }] = &events[..] else { panic!("{} events", events.len()) };
    assert_eq!(*body, [&5u64.to_le_bytes()[..], &BOX.0.to_le_bytes(), b"dead"].concat());
}

/// Sends a frame that names a block which its sender has never passed by reference.
fn names_nothing(from: &Running, to: &Running, frame: impl FnOnce(Vec<Part>) -> Frame) {
    let part = Part::Shared { block: BlockId { segment: 99, offset: 0 }, len: 1 << 20, readonly: true };
    let small = Part::Inline { data: vec![1, 2, 3].into(), readonly: true };
    from.0.peers.peer(to.0.uid).link.send(&[&frame(vec![small, part]).encode()], vec![]).unwrap();
}

fn message(call_id: CallId, flags: u8, parts: Vec<Part>) -> Frame {
    Frame::Message(Message { dest: BOX, sender: MailboxId(5), call_id, flags, method: b"go"[..].into(), parts, ..Message::default() })
}

#[test]
fn message_without_its_parts_fails_its_call() {
    let (a, b) = two();
    let actor = Actor::start(&b);
    let cell = a.call(&b);
    names_nothing(&a, &b, |parts| message(cell.call_id, 0, parts));
    let got = a.answer(&cell);
    assert_eq!((got.status, bytes(&got.parts)), (Status::Undelivered, b"parts of it were lost on the way".to_vec()));
    // The same with an answer.
    let cell = a.call(&b);
    names_nothing(&b, &a, |parts| Frame::Reply(Reply { call_id: cell.call_id, rank: 0, status: Status::Ok, parts }));
    let got = a.answer(&cell);
    assert_eq!((got.status, bytes(&got.parts)), (Status::Undelivered, b"parts of the answer were lost on the way".to_vec()));
    // Without a call, the sending actor is notified, or its process.
    names_nothing(&a, &b, |parts| message(CallId::NONE, RETURN, parts));
    names_nothing(&a, &b, |parts| message(CallId::NONE, 0, parts));
    for sender in [5u64, 0] {
        let SystemEvent::Request { kind: UNDELIVERABLE, body, .. } = a.event() else { panic!("not that it came back") };
        assert_eq!(body, [&sender.to_le_bytes()[..], &BOX.0.to_le_bytes(), b"parts of it were lost on the way"].concat());
    }
    // The next message arrives, and the sender has all its credit.
    a.send(&b, CallId::NONE, b"next");
    assert_eq!(bytes(&actor.next().parts), b"next");
    b.settle(&a);
    assert!(a.0.peers.peer(ProcUid(2)).has_credit(BOX));
}

#[test]
fn credit_of_an_ended_actor_is_returned() {
    let (a, b) = two();
    let body = vec![0; 10_000];
    while a.send_as(&b, &a.head(CallId::NONE, 0, 0), &body, false) == Sent::Yes {}
    b.settle(&a);
    b.0.messages.close_actor(BOX, b"dead");
    a.settle(&b);
    let peer = a.0.peers.peer(ProcUid(2));
    let mut sent = 0;
    // A whole window fits again.
    while sent < WINDOW && peer.has_credit(BOX) {
        assert_eq!(a.send_as(&b, &a.head(CallId::NONE, 0, 0), &body, false), Sent::Yes);
        sent += body.len() as u64 + OVERHEAD;
    }
    assert!(sent >= WINDOW);
}

#[test]
fn credit_pauses_and_resumes_a_fast_sender() {
    let (a, b) = two();
    let actor = Actor::start(&b);
    let peer = a.0.peers.peer(ProcUid(2));
    let body = |n: u32| {
        let mut out = vec![0; 40_000];
        out[..4].copy_from_slice(&n.to_le_bytes());
        out
    };
    let head = a.head(CallId::NONE, 0, 0);
    let mut sent = 0;
    while a.send_as(&b, &head, &body(sent), false) == Sent::Yes {
        sent += 1;
    }
    assert_eq!(u64::from(sent), WINDOW.div_ceil(40_000 + OVERHEAD));
    assert!(!peer.has_credit(BOX));
    // A message that may not wait is queued, and stays behind the messages sent before.
    (sent..sent + 3).for_each(|n| assert_eq!(a.send_as(&b, &head, &body(n), true), Sent::Yes));
    sent += 3;
    let (x, y) = (sent, b.0.clone());
    let receiver = std::thread::spawn(move || {
        for n in 0..x + 500 {
            assert_eq!(actor.handle()[..4], n.to_le_bytes());
        }
        y
    });
    for n in sent..sent + 500 {
        while a.send_as(&b, &head, &body(n), false) == Sent::Full {
            a.until(|w| peer.wait_for_credit(w), || peer.has_credit(BOX));
        }
    }
    receiver.join().unwrap();
}

/// Credit releases several local messages. A message that is sent while the first one arrives must not overtake the second one.
#[test]
fn local_messages_do_not_overtake_queued_ones() {
    struct SendsOn(Arc<Running>);
    impl Watcher for SendsOn {
        fn done(&self, _token: u64) {
            self.0.send(&self.0, CallId::NONE, b"3");
        }
    }
    let a = Arc::new(Running::new(1));
    let actor = Actor::start(&a);
    a.send(&a, CallId::NONE, &vec![0; WINDOW as usize]);
    a.send(&a, CallId::NONE, b"1");
    a.send(&a, CallId::NONE, b"2");
    let first = actor.next();
    let cell = a.call(&a);
    cell.watch(0, Arc::new(SendsOn(a.clone())), 0);
    assert!(actor.mailbox.take_into(&cell).is_none());
    a.0.messages.handled(&actor.mailbox, first.from, first.cost());
    assert_eq!(bytes(&cell.outcome(0).unwrap().parts), b"1");
    assert_eq!([actor.handle(), actor.handle()], [b"2", b"3"]);
}

/// Each refused message gives credit for the next one, which is refused too: this must not grow the stack.
#[test]
fn long_local_queue_is_refused_without_recursion() {
    const MESSAGES: usize = 100_000;
    let a = Running::new(1);
    let body = vec![0; 100];
    let head = a.head(CallId::NONE, 0, RETURN);
    for _ in 0..MESSAGES {
        assert_eq!(a.send_as(&a, &head, &body, true), Sent::Yes);
    }
    std::thread::scope(|s| {
        std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(s, || drop(a.0.messages.close_actor(BOX, b"dead"))).unwrap();
    });
    let mut returned = 0;
    while let Some(SystemEvent::Request { kind: UNDELIVERABLE, .. }) = a.0.system.pop() {
        returned += 1;
    }
    assert_eq!(returned, MESSAGES);
}

#[test]
fn proc_end_fails_its_calls() {
    let (a, b) = two();
    let (called, other) = (a.call(&b), a.call(&a));
    a.send(&b, called.call_id, b"x");
    let why = end(ExitReason::Signal { signal: 11, core_dumped: false });
    a.0.ends.procs_ended(vec![(ProcUid(2), why.clone())]);
    let got = a.answer(&called);
    assert_eq!(got.status, Status::ProcEnded);
    assert_eq!(postcard::from_bytes::<ProcEnd>(&bytes(&got.parts)).unwrap(), why);
    assert!(!other.is_done(0));
    assert!(matches!(a.0.system.pop(), Some(SystemEvent::ProcsEnded { ends }) if ends[0].0 == ProcUid(2)));
    // The end is reported once, and no frame is sent from now on.
    a.0.ends.procs_ended(vec![(ProcUid(2), end(ExitReason::Returned))]);
    assert!(a.0.system.pop().is_none());
    let late = a.call(&b);
    assert_eq!(a.send(&b, late.call_id, b"x"), Sent::Ended);
    let peer = a.0.peers.peer(ProcUid(2));
    assert!(peer.has_credit(BOX) && peer.link.is_down());
    a.0.calls.fail_rank(&late, 0, &peer);
    assert_eq!(a.answer(&late).status, Status::ProcEnded);
}

#[test]
fn proc_end_wakes_threads_waiting_for_credit() {
    let (a, b) = two();
    let peer = a.0.peers.peer(ProcUid(2));
    while a.send_as(&b, &a.head(CallId::NONE, 0, 0), &[0; 50_000], false) == Sent::Yes {}
    let node = a.0.clone();
    let ending = std::thread::spawn(move || node.ends.procs_ended(vec![(ProcUid(2), end(ExitReason::Returned))]));
    a.until(|w| peer.wait_for_credit(w), || peer.has_credit(BOX));
    ending.join().unwrap();
}

/// The report of an end overtakes the last answer, which is still in the socket: the answer counts.
#[test]
fn answer_given_before_the_end_counts() {
    struct Blocks(Arc<Node>, Mutex<(Sender<()>, Receiver<()>)>);
    impl Watcher for Blocks {
        fn done(&self, _token: u64) {
            let gate = self.1.lock().unwrap();
            gate.0.send(()).unwrap();
            gate.1.recv().unwrap();
            self.0.ends.procs_ended(vec![(ProcUid(2), end(ExitReason::Returned))]);
            gate.0.send(()).unwrap();
        }
    }
    let (a, b) = two();
    let c = Running::new(3);
    a.connect(&c);
    let (from_b, from_c) = (a.call(&b), a.call(&c));
    let ((enter, entered), (go, wait)) = (channel(), channel());
    from_c.watch(0, Arc::new(Blocks(a.0.clone(), Mutex::new((enter, wait)))), 0);
    // The reader of `a` is blocked in the handling of an answer of `c`.
    c.0.replies.send_bytes(ProcUid(1), from_c.call_id, 0, Status::Ok, b"");
    entered.recv_timeout(HANG).unwrap();
    b.0.replies.send_bytes(ProcUid(1), from_b.call_id, 0, Status::Ok, b"last words");
    go.send(()).unwrap();
    entered.recv_timeout(HANG).unwrap();
    let got = from_b.outcome(0).unwrap();
    assert_eq!((got.status, bytes(&got.parts)), (Status::Ok, b"last words".to_vec()));
}

#[test]
fn proc_notices_that_its_root_is_lost() {
    let (a, b) = two();
    a.0.peers.peer(ProcUid(2)).link.close();
    assert!(matches!(b.event(), SystemEvent::RootLost));
}
