//! Pulls of message parts: exact, in order, and with a report of the outcome to each waiting caller.

mod cable;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulk::bulk::{Identity, Jobs};
use bulk::remote::{Fabric, NoStream, Offer, Opened, Pulls};
use bulk::{Bulk, Failure, Kind, Range};
use cable::Cable;
use net::{Arena, Block};

const HANG: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

struct Setup {
    cable: Arc<Cable>,
    pulls: Pulls,
    arena: Arc<Arena>,
    memory: Arc<Vec<u8>>,
    offer: Offer,
}

/// An owner that offers a part of `len` bytes, and `width` streams to it.
fn setup(len: usize, width: usize, encrypted: bool) -> Setup {
    let owner = Bulk::new(Identity::new(10, 1, Jobs::default()), 0, HANG).unwrap();
    let memory = Arc::new((0..len).map(|i| (i % 251) as u8).collect::<Vec<u8>>());
    let range = Range { address: memory.as_ptr() as usize, len, readonly: true };
    let own = owner.register(range, None, Box::new(memory.clone())).unwrap();
    let offer = Offer { id: own.id, epoch: own.epoch };
    let cable = Arc::new(Cable { owner, encrypted, opened: AtomicUsize::new(0), ended: AtomicBool::new(false), breaks: Mutex::default() });
    Setup { pulls: Pulls::new(cable.clone(), width), cable, arena: Arena::new(), memory, offer }
}

impl Setup {
    fn pull(&self, len: usize) -> (Arc<Block>, Receiver<Result<(), Failure>>) {
        let block = Arc::new(self.arena.alloc(len).unwrap());
        let (finished, done) = channel();
        self.pulls.pull(10, self.offer, block.clone(), Box::new(move |o| finished.send(o).unwrap()));
        (block, done)
    }
}

#[test]
fn pulled_bytes_are_exact() {
    for (width, encrypted) in [(1, true), (3, false), (3, true)] {
        for len in [1, 4096, 4 * MIB, 4 * MIB + 1, 30 * MIB + 77] {
            let s = setup(len, width, encrypted);
            let (block, done) = s.pull(len);
            done.recv_timeout(HANG).unwrap().unwrap();
            assert!(block.bytes() == &s.memory[..], "{len} bytes, {width} streams");
            // At most as many streams as there are sections.
            assert!((1..=width).contains(&s.cable.opened.load(Ordering::Acquire)));
        }
    }
}

#[test]
fn many_at_once_share_the_streams() {
    let s = setup(9 * MIB, 3, true);
    let all: Vec<_> = (0..20).map(|n| s.pull((n % 9 + 1) * MIB)).collect();
    for (block, done) in all {
        done.recv_timeout(HANG).unwrap().unwrap();
        assert!(block.bytes() == &s.memory[..block.len()]);
    }
    assert!(s.cable.opened.load(Ordering::Acquire) <= 3);
}

#[test]
fn streams_that_break_are_replaced() {
    let s = setup(24 * MIB, 2, false);
    *s.cable.breaks.lock().unwrap() = VecDeque::from([0, 3 * MIB, 5 * MIB + 123, 1]);
    let (block, done) = s.pull(24 * MIB);
    done.recv_timeout(HANG).unwrap().unwrap();
    assert!(block.bytes() == &s.memory[..]);
}

#[test]
fn pull_fails_after_repeated_breaks_then_recovers() {
    let s = setup(8 * MIB, 2, false);
    *s.cable.breaks.lock().unwrap() = std::iter::repeat_n(1000, 8).collect();
    let (_, done) = s.pull(8 * MIB);
    assert_eq!(done.recv_timeout(HANG).unwrap().unwrap_err().kind, Kind::Transfer);
    s.cable.breaks.lock().unwrap().clear();
    let (block, done) = s.pull(8 * MIB);
    done.recv_timeout(HANG).unwrap().unwrap();
    assert!(block.bytes() == &s.memory[..]);
}

#[test]
fn withdrawn_offer_is_refused() {
    let s = setup(MIB, 1, false);
    s.cable.owner.registry.end(&s.offer.id, "the receiver has pulled it", None);
    let (_, done) = s.pull(MIB);
    assert_eq!(done.recv_timeout(HANG).unwrap().unwrap_err().kind, Kind::Released);
}

#[test]
fn pull_from_an_ended_owner_fails_at_once() {
    let s = setup(MIB, 1, false);
    s.cable.ended.store(true, Ordering::Release);
    let (_, done) = s.pull(MIB);
    assert_eq!(done.recv_timeout(HANG).unwrap().unwrap_err().kind, Kind::PeerLost);
}

#[test]
fn unsupported_transport_is_not_retried() {
    struct NoRoute(AtomicUsize);
    impl Fabric for NoRoute {
        fn open(&self, _: u64, _: Instant) -> Result<Opened, NoStream> {
            self.0.fetch_add(1, Ordering::AcqRel);
            Err(NoStream::Unsupported("its host is behind a gateway".to_owned()))
        }
        fn has_ended(&self, _: u64) -> bool {
            false
        }
    }
    let no_route = Arc::new(NoRoute(AtomicUsize::new(0)));
    let (finished, done) = channel();
    let block = Arc::new(Arena::new().alloc(MIB).unwrap());
    Pulls::new(no_route.clone(), 2).pull(10, Offer { id: [1; 16], epoch: 1 }, block, Box::new(move |o| finished.send(o).unwrap()));
    assert_eq!(done.recv_timeout(HANG).unwrap().unwrap_err().kind, Kind::Unsupported);
    assert_eq!(no_route.0.load(Ordering::Acquire), 1);
}
