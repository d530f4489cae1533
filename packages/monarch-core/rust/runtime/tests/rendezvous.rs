//! Rendezvous transfers: which large parts are offered to their receiver, when an offer ends, and when the part is sent through the agents
//! instead.
#![cfg(not(feature = "shuttle"))]

mod hosts;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hosts::{CLIENT, Cluster, Process, bytes, host_id};
use net::Block;
use runtime::SystemEvent;
use runtime::transfers::offers::{Exchange, PullDone, PullError, UNDECIDED};
use wire::{CallId, Control, ProcUid};

/// More than the number of parts in this process: numbers begin at 0 and are counted for the whole process.
const PARTS: u64 = 256;
/// Parts of this size and more are offered.
const OFFERED_FROM: usize = 1 << 20;

/// The receiver's action for an offered part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pull {
    Now,
    /// The pull waits for `Memory::go_on`.
    Later,
    Fails(PullError),
}

/// A pull that waits: its record, the receiver's block, and the callback for its end.
type Paused = (Vec<u8>, Arc<Block>, PullDone);

/// The memory of all processes of a test. A record is the number of a block in it.
#[derive(Default)]
struct Memory {
    blocks: Mutex<HashMap<u64, Arc<Block>>>,
    /// The number of blocks that have been offered.
    offered: Mutex<u64>,
    pulls: Mutex<Vec<Pull>>,
    paused: Mutex<Vec<Paused>>,
}

impl Memory {
    fn is_empty(&self) -> bool {
        self.blocks.lock().unwrap().is_empty()
    }

    fn times_offered(&self) -> u64 {
        *self.offered.lock().unwrap()
    }

    /// Sets the actions for the next pulls. Later pulls are carried out at once.
    fn pulls(&self, pulls: &[Pull]) {
        *self.pulls.lock().unwrap() = pulls.to_vec();
    }

    fn go_on(&self) {
        for (record, block, done) in std::mem::take(&mut *self.paused.lock().unwrap()) {
            self.copy(&record, &block);
            done(Ok(()));
        }
    }

    fn copy(&self, record: &[u8], block: &Block) {
        let number = u64::from_le_bytes(record.try_into().unwrap());
        let source = self.blocks.lock().unwrap()[&number].clone();
        // SAFETY: no other thread has the receiver's block yet, and it is as long as the sender's.
        unsafe { std::ptr::copy_nonoverlapping(source.bytes().as_ptr(), block.bytes().as_ptr().cast_mut(), block.len()) };
    }
}

/// The access of one process to that memory.
struct Shared(Arc<Memory>);

impl Exchange for Shared {
    fn offer(&self, block: &Arc<Block>) -> Option<Vec<u8>> {
        let mut offered = self.0.offered.lock().unwrap();
        *offered += 1;
        self.0.blocks.lock().unwrap().insert(*offered, block.clone());
        Some(offered.to_le_bytes().to_vec())
    }

    fn withdraw(&self, record: &[u8]) {
        let number = u64::from_le_bytes(record.try_into().unwrap());
        assert!(self.0.blocks.lock().unwrap().remove(&number).is_some(), "a block was taken back twice");
    }

    fn sent(&self, _to: ProcUid) -> u64 {
        0
    }

    fn pull(&self, _from: ProcUid, record: &[u8], block: Arc<Block>, done: PullDone) {
        let mut pulls = self.0.pulls.lock().unwrap();
        match if pulls.is_empty() { Pull::Now } else { pulls.remove(0) } {
            Pull::Now => {
                self.0.copy(record, &block);
                done(Ok(()));
            }
            Pull::Later => self.0.paused.lock().unwrap().push((record.to_vec(), block, done)),
            Pull::Fails(why) => done(Err(why)),
        }
    }
}

/// A proc of the client's host that offers parts, and a proc of a worker that pulls them.
struct Pair {
    memory: Arc<Memory>,
    sender: Process,
    receiver: Process,
    cluster: Cluster,
}

impl Pair {
    fn new() -> Pair {
        let pair = Pair::without_exchange_at_the_receiver();
        pair.receiver.node.offers.set_exchange(Box::new(Shared(pair.memory.clone())));
        pair
    }

    fn without_exchange_at_the_receiver() -> Pair {
        let cluster = Cluster::of(1);
        let (memory, sender, receiver) = (Arc::new(Memory::default()), cluster.client.proc(101), cluster.proc(0, 201));
        sender.node.peers.route(receiver.uid(), host_id(0), CLIENT);
        sender.node.peers.route(host_id(0), host_id(0), CLIENT);
        sender.node.offers.set_exchange(Box::new(Shared(memory.clone())));
        sender.node.offers.set_min_size(OFFERED_FROM);
        Pair { memory, sender, receiver, cluster }
    }

    fn send(&self, part: &[u8]) {
        self.sender.send(self.receiver.uid(), CallId::NONE, &[part]);
    }

    fn received(&self) -> Vec<u8> {
        bytes(&self.receiver.actor().next().parts)
    }

    fn offered(&self) -> usize {
        self.sender.node.offers.offered()
    }

    /// Waits until the sender has handled all answers of the receiver.
    fn settle(&self) {
        self.receiver.settle(&self.sender);
        self.sender.settle(&self.receiver);
    }
}

fn large(seed: u32) -> Vec<u8> {
    (0..OFFERED_FROM as u32 + seed).map(|i| (i.wrapping_mul(seed) >> 7) as u8).collect()
}

#[test]
fn offer_of_a_pulled_part_is_withdrawn() {
    let pair = Pair::new();
    pair.send(&large(3));
    assert!(pair.received() == large(3));
    pair.settle();
    assert_eq!((pair.memory.times_offered(), pair.offered()), (1, 0));
    assert!(pair.memory.is_empty());
}

#[test]
fn small_parts_are_not_offered() {
    let pair = Pair::new();
    let part = &large(3)[..OFFERED_FROM - 1];
    pair.send(part);
    assert!(pair.received() == part);
    assert_eq!(pair.memory.times_offered(), 0);
}

#[test]
fn nothing_is_offered_before_the_size_is_set() {
    let pair = Pair::new();
    pair.sender.node.offers.set_min_size(UNDECIDED);
    pair.send(&large(3));
    assert!(pair.received() == large(3));
    assert_eq!(pair.memory.times_offered(), 0);
}

#[test]
fn nothing_is_offered_on_the_same_host() {
    let pair = Pair::new();
    let neighbour = pair.cluster.client.proc(102);
    pair.sender.send(neighbour.uid(), CallId::NONE, &[&large(3)]);
    assert!(bytes(&neighbour.actor().next().parts) == large(3));
    assert_eq!(pair.memory.times_offered(), 0);
}

/// The messages of one sender are handled in order, whichever of them is pulled first.
#[test]
fn messages_behind_a_part_wait_for_it() {
    let pair = Pair::new();
    pair.memory.pulls(&[Pull::Later]);
    pair.send(&large(3));
    pair.send(&large(5));
    pair.send(b"small");
    pair.receiver.settle(&pair.cluster.client.process);
    pair.sender.settle(&pair.cluster.client.process);
    let actor = pair.receiver.actor();
    assert!(actor.is_idle());
    // The mark follows the messages of the sender.
    pair.sender.node.replies.send_system(pair.receiver.uid(), 78, CallId::NONE, vec![]);
    while pair.memory.paused.lock().unwrap().is_empty() {
        pair.receiver.settle(&pair.cluster.client.process);
    }
    pair.memory.go_on();
    assert!(bytes(&actor.next().parts) == large(3));
    assert!(bytes(&actor.next().parts) == large(5));
    assert_eq!(bytes(&actor.next().parts), b"small");
    pair.receiver.expect(|e| matches!(e, SystemEvent::Request { kind: 78, .. }).then_some(()));
}

// ---- a failed pull is no error of a call

#[test]
fn part_that_cannot_be_pulled_is_sent() {
    let pair = Pair::new();
    pair.memory.pulls(&[Pull::Fails(PullError::Failed)]);
    pair.send(&large(3));
    assert!(pair.received() == large(3));
    pair.settle();
    assert!(pair.memory.is_empty());
    // The next part may be pulled.
    pair.send(&large(5));
    assert!(pair.received() == large(5));
    assert_eq!(pair.memory.times_offered(), 2);
}

#[test]
fn receiver_without_a_connection_gets_no_further_offer() {
    let pair = Pair::new();
    pair.memory.pulls(&[Pull::Fails(PullError::Unreachable)]);
    for seed in [3, 5] {
        pair.send(&large(seed));
        assert!(pair.received() == large(seed));
        pair.settle();
    }
    assert_eq!((pair.memory.times_offered(), pair.offered()), (1, 0));
    assert!(pair.memory.is_empty());
}

#[test]
fn receiver_without_bulk_transport_gets_parts_by_agents() {
    let pair = Pair::without_exchange_at_the_receiver();
    for seed in [3, 5] {
        pair.send(&large(seed));
        assert!(pair.received() == large(seed));
        pair.settle();
    }
    assert_eq!(pair.memory.times_offered(), 1, "the second part is sent at once");
    assert!(pair.memory.is_empty());
}

#[test]
fn offer_to_an_ended_receiver_is_withdrawn() {
    let pair = Pair::new();
    pair.memory.pulls(&[Pull::Later]);
    pair.send(&large(3));
    assert_eq!(pair.offered(), 1);
    pair.cluster.workers[0].agent.kill(pair.receiver.uid());
    pair.sender.end_of(pair.receiver.uid());
    assert_eq!(pair.offered(), 0);
    assert!(pair.memory.is_empty());
}

/// The answer is about a part that is not offered any more, or that was offered to another process.
#[test]
fn stale_and_foreign_answers_withdraw_nothing() {
    let pair = Pair::new();
    let other_proc = pair.cluster.proc(0, 202);
    pair.memory.pulls(&[Pull::Later]);
    pair.send(&large(3));
    while pair.memory.paused.lock().unwrap().is_empty() {
        pair.receiver.settle(&pair.cluster.client.process);
    }
    for number in 0..PARTS {
        other_proc.node.peers.route(pair.sender.uid(), CLIENT, host_id(0));
        other_proc.node.peers.peer(pair.sender.uid()).send_control(Control::PartPulled { number });
        other_proc.node.peers.peer(pair.sender.uid()).send_control(Control::PartRefused { number, unavailable: false });
    }
    pair.sender.settle(&other_proc);
    assert_eq!(pair.offered(), 1);
    pair.memory.go_on();
    assert!(pair.received() == large(3));
    pair.settle();
    assert_eq!(pair.offered(), 0);
    // The same answer again, after the one that counted.
    (0..PARTS).for_each(|number| pair.receiver.node.peers.peer(pair.sender.uid()).send_control(Control::PartPulled { number }));
    pair.settle();
    assert!(pair.memory.is_empty());
}

// ---- frames to the agent of the receiver's host

/// A stop must not overtake the frames sent before it: it waits for the parts that other processes of that host have not pulled.
#[test]
fn frame_to_an_agent_waits_for_offered_parts() {
    let pair = Pair::new();
    pair.memory.pulls(&[Pull::Later]);
    pair.send(&large(3));
    let stop = Control::StopProc { uid: pair.receiver.uid(), grace_ms: 60_000, drain: None, reason: "enough".to_owned() };
    pair.sender.node.peers.peer(host_id(0)).send_control(stop);
    while pair.memory.paused.lock().unwrap().is_empty() {
        pair.receiver.settle(&pair.cluster.client.process);
    }
    assert_eq!(pair.sender.node.offers.progress(), (1, 0));
    let is_stop = |e: &SystemEvent| matches!(e, SystemEvent::StopProc { .. });
    assert!(!pair.receiver.settle(&pair.cluster.client.process).iter().any(is_stop));
    pair.memory.go_on();
    assert!(pair.received() == large(3));
    pair.receiver.expect(|e| is_stop(&e).then_some(()));
}

#[test]
fn frame_to_an_agent_outlives_the_receiver() {
    let pair = Pair::new();
    let second = pair.cluster.proc(0, 202);
    pair.memory.pulls(&[Pull::Later]);
    pair.send(&large(3));
    let stop = Control::StopProc { uid: second.uid(), grace_ms: 60_000, drain: None, reason: "enough".to_owned() };
    pair.sender.node.peers.peer(host_id(0)).send_control(stop);
    pair.cluster.workers[0].agent.kill(pair.receiver.uid());
    second.expect(|e| matches!(e, SystemEvent::StopProc { .. }).then_some(()));
}

#[test]
fn threshold_of_a_new_process_is_undecided() {
    let pair = Pair::new();
    assert_eq!(pair.receiver.node.offers.min_size(), UNDECIDED);
    assert_eq!(pair.sender.node.offers.progress(), (0, 0));
}
