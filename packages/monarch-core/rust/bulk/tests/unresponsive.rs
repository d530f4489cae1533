//! Streams without traffic: dead ones are replaced; slow streams and slow owners are given time.

mod cable;

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bulk::bulk::{Identity, Jobs};
use bulk::frames::{Reply, Request};
use bulk::remote::{Fabric, NoStream, Opened, RemoteOwner, RemoteServer};
use bulk::spans::Span;
use bulk::{Buffer, Bulk, Kind, Range};
use cable::{keys, pair};

const HANG: Duration = Duration::from_secs(25);

/// The fault of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// After this many bytes to the requesting side, or from it, the stream transports nothing in either direction.
    Dead {
        answers: usize,
        requests: usize,
    },
    /// As `Dead`, and the owner's end is closed.
    HalfOpen {
        answers: usize,
    },
    /// This many bytes reach the requesting side, twice a second.
    Slow(usize),
    /// The stream is intact, and the owner's answers are counted in `Network::answers`.
    Counted,
}

/// Streams to an owner in this process; the first ones have faults.
struct Network {
    owner: Arc<Bulk>,
    encrypted: bool,
    faults: Mutex<Vec<Fault>>,
    opened: AtomicUsize,
    /// Set when dead streams work again.
    healed: Arc<(Mutex<bool>, Condvar)>,
    /// No stream can be opened.
    is_cut: AtomicBool,
    /// The number of streams that could not be opened.
    refused: AtomicUsize,
    /// The number of the owner's answers on counted streams. Each answer is short and arrives as a whole.
    answers: Arc<AtomicUsize>,
}

fn connected() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near.into(), listener.accept().unwrap().0.into())
}

/// Forwards bytes, and calls `passed` each time. After `most` bytes it waits until the network is healed, or ends if `closes`.
fn pass(
    from: Arc<OwnedFd>,
    to: Arc<OwnedFd>,
    fault: (usize, bool, Option<usize>),
    healed: Arc<(Mutex<bool>, Condvar)>,
    passed: impl Fn() + Send + 'static,
) {
    std::thread::spawn(move || {
        let (most, closes, step) = fault;
        let (mut left, mut buf) = (most, vec![0u8; step.unwrap_or(64 << 10)]);
        loop {
            if left == 0 {
                if closes {
                    unsafe { libc::shutdown(from.as_raw_fd(), libc::SHUT_RDWR) };
                }
                drop(healed.1.wait_while(healed.0.lock().unwrap(), |healed| !*healed).unwrap());
                left = usize::MAX;
            }
            let n = unsafe { libc::recv(from.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len().min(left), 0) };
            if n <= 0 || unsafe { libc::send(to.as_raw_fd(), buf.as_ptr().cast(), n as usize, libc::MSG_NOSIGNAL) } != n {
                break;
            }
            left -= n as usize;
            passed();
            if step.is_some() {
                std::thread::sleep(Duration::from_millis(500)); // sleeps: a slow network
            }
        }
        for fd in [&from, &to] {
            unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
        }
    });
}

impl Network {
    fn new(owner: Arc<Bulk>, encrypted: bool, faults: &[Fault]) -> Arc<Network> {
        let faults = Mutex::new(faults.iter().rev().copied().collect());
        let (opened, healed, is_cut) = (AtomicUsize::new(0), Arc::default(), AtomicBool::new(false));
        let (refused, answers) = (AtomicUsize::new(0), Arc::default());
        Arc::new(Network { owner, encrypted, faults, opened, healed, is_cut, refused, answers })
    }

    fn heal(&self) {
        *self.healed.0.lock().unwrap() = true;
        self.healed.1.notify_all();
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::Acquire)
    }
}

impl Fabric for Network {
    fn open(&self, _: u64, until: Instant) -> Result<Opened, NoStream> {
        if self.is_cut.load(Ordering::Acquire) {
            // Like an agent, which dials until the deadline or until the network works again.
            let left = until.saturating_duration_since(Instant::now());
            drop(self.healed.1.wait_timeout_while(self.healed.0.lock().unwrap(), left, |healed| !*healed).unwrap());
            self.refused.fetch_add(1, Ordering::AcqRel);
            return Err(NoStream::TimedOut);
        }
        self.opened.fetch_add(1, Ordering::AcqRel);
        let (near, far) = match self.faults.lock().unwrap().pop().unwrap_or(Fault::None) {
            Fault::None => pair(),
            fault => {
                let ((near, a), (b, far)) = (connected(), pair());
                let (a, b) = (Arc::new(a), Arc::new(b));
                let (answers, requests) = match fault {
                    Fault::Dead { answers, requests } => ((answers, false, None), (requests, false, None)),
                    Fault::HalfOpen { answers } => ((answers, true, None), (usize::MAX, false, None)),
                    Fault::Slow(bytes) => ((usize::MAX, false, Some(bytes)), (usize::MAX, false, None)),
                    Fault::Counted => ((usize::MAX, false, None), (usize::MAX, false, None)),
                    Fault::None => unreachable!(),
                };
                let counted = (fault == Fault::Counted).then(|| self.answers.clone());
                let count = move || {
                    if let Some(n) = &counted {
                        n.fetch_add(1, Ordering::AcqRel);
                    }
                };
                pass(b.clone(), a.clone(), answers, self.healed.clone(), count);
                pass(a, b, requests, self.healed.clone(), || ());
                (near, far)
            }
        };
        let (ours, theirs) = keys();
        let keys = |k| if self.encrypted { Some(k) } else { None };
        self.owner.answer(7, Opened { fd: far, keys: keys(theirs), dialled: false, is_routed: false, paused: Arc::default() });
        Ok(Opened { fd: near, keys: keys(ours), dialled: true, is_routed: false, paused: Arc::default() })
    }

    fn has_ended(&self, _: u64) -> bool {
        false
    }
}

struct Setup {
    network: Arc<Network>,
    remote_owner: Arc<RemoteOwner>,
    own: Arc<Buffer>,
    memory: Arc<Vec<u8>>,
    server: Arc<RemoteServer>,
}

fn setup_with(server: Arc<RemoteServer>, len: usize, encrypted: bool, faults: &[Fault]) -> Setup {
    let owner = Bulk::with(server.clone(), Identity::new(10, 1, Jobs::default()), 0, HANG);
    let memory = Arc::new((0..len).map(|i| (i % 251) as u8).collect::<Vec<u8>>());
    let range = Range { address: memory.as_ptr() as usize, len, readonly: false };
    let own = owner.register(range, None, Box::new(memory.clone())).unwrap();
    let network = Network::new(owner, encrypted, faults);
    Setup { remote_owner: RemoteOwner::new(10, network.clone(), 2), network, own, memory, server }
}

fn setup(len: usize, encrypted: bool, faults: &[Fault]) -> Setup {
    setup_with(RemoteServer::new().unwrap(), len, encrypted, faults)
}

impl Setup {
    fn copy(&self, write: bool, local: &mut [u8]) -> Result<(), bulk::Failure> {
        let mut pieces = self.own.pieces(&[Span::contiguous(write, local.as_mut_ptr() as usize, 0, local.len() as u64)]);
        unsafe { self.remote_owner.copy(&mut pieces, Instant::now() + HANG, |_| ()) }
    }
}

fn wait_until(what: impl Fn() -> bool) {
    let until = Instant::now() + HANG;
    while !what() {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
}

#[test]
fn dead_streams_are_replaced_and_reads_go_on() {
    for encrypted in [false, true] {
        let faults = [Fault::HalfOpen { answers: 700_000 }, Fault::Dead { answers: 900_000, requests: usize::MAX }];
        let s = setup(3_000_000, encrypted, &faults);
        let mut local = vec![0u8; 3_000_000];
        s.copy(false, &mut local).unwrap();
        assert!(local == *s.memory);
        s.network.heal();
    }
}

#[test]
fn write_over_dead_stream_cannot_come_later() {
    for encrypted in [false, true] {
        let s = setup(3_000_000, encrypted, &[Fault::Dead { answers: usize::MAX, requests: 1_000_000 }]);
        s.copy(true, &mut vec![1u8; 3_000_000]).unwrap();
        assert!(s.memory.iter().all(|b| *b == 1));
        s.copy(true, &mut vec![2u8; 3_000_000]).unwrap();
        // The bytes of the first attempt that the network has held arrive now.
        s.network.heal();
        wait_until(|| s.server.count() == 1);
        assert!(s.memory.iter().all(|b| *b == 2));
    }
}

#[test]
fn slow_stream_is_kept() {
    // The kernel wakes the reader after 256 KiB, which takes longer than the owner's second answer would.
    let s = setup(300_000, false, &[Fault::Slow(22_000)]);
    let mut local = vec![0u8; 300_000];
    s.copy(false, &mut local).unwrap();
    assert!(local == *s.memory);
    assert_eq!(s.network.opened(), 1);
}

#[test]
fn stream_is_kept_while_no_other_opens() {
    let s = setup(1_000_000, true, &[Fault::Dead { answers: 300_000, requests: usize::MAX }]);
    let mut local = vec![0u8; 1_000_000];
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| s.copy(false, &mut local));
        wait_until(|| s.network.opened() == 1);
        s.network.is_cut.store(true, Ordering::Release);
        // The probe has failed to reach the owner twice.
        wait_until(|| s.network.refused.load(Ordering::Acquire) == 2);
        assert!(!reading.is_finished());
        s.network.heal();
        reading.join().unwrap().unwrap();
    });
    assert!(local == *s.memory);
    assert_eq!(s.network.opened(), 1);
}

#[test]
fn slow_owner_is_waited_for() {
    let s = setup(4096, true, &[Fault::None, Fault::Counted]);
    // A device can reach the memory until the test releases it, and the drop waits for that.
    let registry = &s.own.bulk.registry;
    registry.export(&s.own.id, s.own.epoch).unwrap();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| s.remote_owner.call(&Request::Drop { id: s.own.id }, Instant::now() + HANG));
        // The owner has answered twice over a second stream that the request is in progress.
        wait_until(|| s.network.answers.load(Ordering::Acquire) == 2);
        assert!(!dropping.is_finished());
        registry.exports.let_go(&s.own.id);
        assert_eq!(dropping.join().unwrap().unwrap(), Reply::Done);
    });
    assert_eq!(s.network.opened(), 2);
}

#[test]
fn atomic_change_is_not_repeated() {
    let s = setup(64, true, &[Fault::Dead { answers: 0, requests: usize::MAX }]);
    let add = Request::FetchAdd { id: s.own.id, offset: 0, add: 1 };
    let before = s.memory[0];
    assert_eq!(s.remote_owner.call(&add, Instant::now() + HANG).unwrap_err().kind, Kind::Transfer);
    wait_until(|| s.memory[0] == before + 1);
    s.remote_owner.call(&add, Instant::now() + HANG).unwrap();
    assert_eq!(s.memory[0], before + 2);
}

#[test]
fn dead_idle_streams_are_not_tried_in_turn() {
    // Each stream dies after its first answer.
    let s = setup(4096, false, &[Fault::HalfOpen { answers: 100 }; 3]);
    let mut locals = vec![vec![0u8; 4096]; 3];
    std::thread::scope(|scope| locals.iter_mut().for_each(|local| drop(scope.spawn(|| s.copy(false, local).unwrap()))));
    assert!(locals.iter().all(|local| *local == *s.memory));
}

#[test]
fn owner_closes_idle_streams() {
    let s = setup_with(RemoteServer::with_idle_timeout(Duration::from_millis(500)).unwrap(), 64 << 20, false, &[]);
    let (near, far) = pair();
    s.network.owner.answer(7, Opened { fd: far, keys: None, dialled: false, is_routed: false, paused: Arc::default() });
    // A requesting side that has requested all bytes and vanishes without a notice.
    let mut connection = bulk::remote::RemoteConnection::new(near, None, Arc::default()).unwrap();
    let wait = bulk::remote::Wait::without_idle_limit(Some(Instant::now() + HANG), &|| false);
    connection.begin(true, wait).unwrap();
    let request = Request::Copy { id: s.own.id, epoch: s.own.epoch, offset: 0, len: 64 << 20, write: false };
    connection.send_frame(&bulk::frames::encode(1, &request), wait).unwrap();
    wait_until(|| s.server.count() == 0);
    // No request keeps the memory.
    let (finished, done) = std::sync::mpsc::channel();
    s.own.bulk.registry.end(&s.own.id, "dropped", Some(Box::new(move |o| finished.send(o).unwrap())));
    done.recv_timeout(HANG).unwrap().unwrap();
}
