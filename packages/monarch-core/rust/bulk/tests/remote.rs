//! Memory of other hosts: reads, writes and refusals over streams, with and without encryption, and with streams that break.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulk::bulk::{Identity, Jobs};
use bulk::remote::{Fabric, NoStream, Opened};
use bulk::spans::Span;
use bulk::transfer::{Job, Op, Operation};
use bulk::{Buffer, Bulk, Failure, Kind, Path, Range};

mod cable;

use cable::{Cable, keys, pair};

const HANG: Duration = Duration::from_secs(20);

struct Setup {
    reader: Arc<Bulk>,
    cable: Arc<Cable>,
    own: Arc<Buffer>,
    memory: Arc<Vec<u8>>,
}

fn setup(len: usize, readonly: bool, encrypted: bool) -> Setup {
    let bulk = |uid| Bulk::new(Identity::new(uid, 1, Jobs::default()), 0, HANG).unwrap();
    let (owner, reader) = (bulk(10), bulk(7));
    let memory = Arc::new((0..len).map(|i| (i % 251) as u8).collect::<Vec<u8>>());
    let range = Range { address: memory.as_ptr() as usize, len, readonly };
    let own = owner.register(range, None, Box::new(memory.clone())).unwrap();
    let cable = Arc::new(Cable { owner, encrypted, opened: AtomicUsize::new(0), ended: AtomicBool::new(false), breaks: Mutex::default() });
    reader.reach_by(cable.clone(), 2);
    Setup { reader, cable, own, memory }
}

impl Setup {
    fn buffer(&self) -> Arc<Buffer> {
        let own = &self.own;
        Buffer::new(self.reader.clone(), own.id, own.epoch, own.owner, own.size, own.readonly, true)
    }
}

fn run(ops: Vec<Op>, seconds: f64) -> Result<(), Failure> {
    let bulk = ops[0].buffer.bulk.clone();
    let (finished, done) = std::sync::mpsc::channel();
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    Job::new(Arc::new(ops), until, 64 << 20, Box::new(()), Box::new(move |o| finished.send(o).unwrap())).start(&bulk);
    done.recv_timeout(HANG).unwrap()
}

fn op(buffer: &Arc<Buffer>, what: Operation, local: &mut [u8], offset: u64) -> Op {
    Op::contiguous(buffer.clone(), what, local.as_mut_ptr() as usize, offset, local.len() as u64)
}

#[test]
fn reads_and_writes_are_exact() {
    for encrypted in [false, true] {
        for len in [1, 7, 4096, 16 << 10, (16 << 10) + 1, 300_000, 9_000_001] {
            let s = setup(len, false, encrypted);
            let buffer = s.buffer();
            let mut got = vec![0u8; len];
            run(vec![op(&buffer, Operation::Read, &mut got, 0)], 10.0).unwrap();
            assert!(got == *s.memory, "{len} bytes");
            assert_eq!(buffer.path(), Path::Tcp);
            let mut news: Vec<u8> = got.iter().map(|b| b ^ 0xff).collect();
            run(vec![op(&buffer, Operation::Write, &mut news, 0)], 10.0).unwrap();
            run(vec![op(&buffer, Operation::Read, &mut got, 0)], 10.0).unwrap();
            assert!(got == news, "{len} bytes");
        }
    }
}

#[test]
fn many_small_operations_go_together() {
    let s = setup(1 << 20, false, true);
    let buffer = s.buffer();
    let mut locals: Vec<Vec<u8>> = (0..1000).map(|_| vec![0u8; 1000]).collect();
    let ops = locals.iter_mut().enumerate().map(|(i, l)| op(&buffer, Operation::Read, l, 1000 * i as u64)).collect();
    run(ops, 10.0).unwrap();
    assert!(locals.concat() == s.memory[..1_000_000]);
}

#[test]
fn words_change_at_the_owner() {
    let s = setup(64, false, true);
    let before = u64::from_le_bytes(s.memory[8..16].try_into().unwrap());
    let buffer = s.buffer();
    let until = || Instant::now() + HANG;
    assert_eq!(buffer.fetch_add(8, 5, until()).unwrap(), before);
    assert_eq!(buffer.compare_swap(8, before + 5, 3, until()).unwrap(), before + 5);
    assert_eq!(buffer.fetch_add(8, 0, until()).unwrap(), 3);
    assert_eq!(buffer.fetch_add(9, 1, until()).unwrap_err().kind, Kind::Unsupported);
    assert_eq!(s.cable.opened.load(Ordering::Acquire), 1, "streams are used again");
}

#[test]
fn refusals_keep_the_stream() {
    let s = setup(4096, true, true);
    let buffer = s.buffer();
    let mut local = vec![0u8; 4096];
    let forged = |id, epoch, size, readonly| Buffer::new(s.reader.clone(), id, epoch, s.own.owner, size, readonly, true);
    let kinds = [
        (buffer.clone(), Operation::Write, Kind::Access),
        (forged([9; 16], s.own.epoch, 4096, true), Operation::Read, Kind::Released),
        (forged(s.own.id, s.own.epoch + 2, 4096, true), Operation::Read, Kind::Access),
        (forged(s.own.id, s.own.epoch, 1 << 40, true), Operation::Read, Kind::Access),
        (forged(s.own.id, s.own.epoch, 4096, false), Operation::Write, Kind::Access),
    ];
    for (buffer, what, kind) in kinds {
        assert_eq!(run(vec![op(&buffer, what, &mut local, 0)], 5.0).unwrap_err().kind, kind);
    }
    run(vec![op(&buffer, Operation::Read, &mut local, 0)], 5.0).unwrap();
    assert!(local == *s.memory);
    assert_eq!(s.cable.opened.load(Ordering::Acquire), 1);
}

#[test]
fn dropped_buffer_is_not_read() {
    let s = setup(1 << 20, false, false);
    let buffer = s.buffer();
    let mut local = vec![0u8; 1 << 20];
    run(vec![op(&buffer, Operation::Read, &mut local, 0)], 5.0).unwrap();
    s.own.bulk.registry.end(&s.own.id, "dropped by a test", None);
    let f = run(vec![op(&buffer, Operation::Read, &mut local, 0)], 5.0).unwrap_err();
    assert_eq!(f.kind, Kind::Released);
    assert!(f.detail.starts_with("dropped by a test"), "{}", f.detail);
    let part = s.buffer().restrict(0, 1, true, Instant::now() + HANG).err().unwrap();
    assert_eq!(part.kind, Kind::Released);
}

#[test]
fn parts_and_drops_of_others() {
    let s = setup(1 << 16, false, true);
    let part = s.buffer().restrict(100, 50, true, Instant::now() + HANG).unwrap();
    let mut local = vec![0u8; 50];
    run(vec![op(&part, Operation::Read, &mut local, 0)], 5.0).unwrap();
    assert!(local == s.memory[100..150]);
    assert_eq!(part.admit(0, 1, true).unwrap_err().kind, Kind::Access);
    s.buffer().end(Instant::now() + HANG).unwrap();
    assert_eq!(run(vec![op(&part, Operation::Read, &mut local, 0)], 5.0).unwrap_err().kind, Kind::Released);
    assert_eq!(s.own.bulk.registry.counts(), (0, 0));
}

#[test]
fn copy_continues_after_broken_streams() {
    for encrypted in [false, true] {
        let s = setup(3_000_000, false, encrypted);
        s.cable.breaks.lock().unwrap().extend([700_000, 5, 1_500_000]);
        let mut local = vec![0u8; 3_000_000];
        run(vec![op(&s.buffer(), Operation::Read, &mut local, 0)], 10.0).unwrap();
        assert!(local == *s.memory);
        assert_eq!(s.cable.opened.load(Ordering::Acquire), 4);
    }
}

#[test]
fn endless_stream_breaks_are_an_error_with_progress() {
    let s = setup(3_000_000, false, false);
    s.cable.breaks.lock().unwrap().extend([1_000_000; 1].into_iter().chain([10; 100]));
    let mut local = vec![0u8; 3_000_000];
    let f = run(vec![op(&s.buffer(), Operation::Read, &mut local, 0)], 10.0).unwrap_err();
    assert_eq!((f.kind, f.path), (Kind::Transfer, Path::Tcp));
    assert!(f.done > 0 && f.done < 1_000_000, "{}", f.done);
}

#[test]
fn ended_owner_is_lost() {
    let s = setup(3_000_000, false, false);
    let buffer = s.buffer();
    let mut local = vec![0u8; 3_000_000];
    // The owner ends in the middle of a read: a connection without a break could carry all of it before the reader looks.
    s.cable.breaks.lock().unwrap().extend([1_500_000]);
    s.cable.ended.store(true, Ordering::Release);
    assert_eq!(run(vec![op(&buffer, Operation::Read, &mut local, 0)], 10.0).unwrap_err().kind, Kind::PeerLost);
}

#[test]
fn timeout_of_a_reader_frees_the_owner() {
    struct Unresponsive;
    impl Fabric for Unresponsive {
        fn open(&self, _: u64, _: Instant) -> Result<Opened, NoStream> {
            let (near, far) = pair();
            // The stream is open, and no process answers.
            std::mem::forget(far);
            Ok(Opened { fd: near, keys: None, dialled: true, is_routed: false, paused: Arc::default() })
        }
        fn has_ended(&self, _: u64) -> bool {
            false
        }
    }
    let reader = Bulk::new(Identity::new(7, 1, Jobs::default()), 0, HANG).unwrap();
    reader.reach_by(Arc::new(Unresponsive), 1);
    let buffer = Buffer::new(reader, [1; 16], 1, 10, 64, false, true);
    let mut local = vec![0u8; 64];
    let f = run(vec![op(&buffer, Operation::Read, &mut local, 0)], 0.2).unwrap_err();
    assert_eq!((f.kind, f.opened), (Kind::TimedOut, false));
}

#[test]
fn reader_without_progress_does_not_delay_buffer_end() {
    let s = setup(64 << 20, false, false);
    // The reader requests all bytes and reads none.
    let (near, far) = pair();
    s.own.bulk.answer(7, Opened { fd: far, keys: None, dialled: false, is_routed: false, paused: Arc::default() });
    let mut connection = bulk::remote::RemoteConnection::new(near, None, Arc::default()).unwrap();
    let wait = bulk::remote::Wait::without_idle_limit(Some(Instant::now() + HANG), &|| false);
    connection.begin(true, wait).unwrap();
    let request = bulk::frames::Request::Copy { id: s.own.id, epoch: s.own.epoch, offset: 0, len: 64 << 20, write: false };
    connection.send_frame(&bulk::frames::encode(1, &request), wait).unwrap();
    // The owner has begun to send.
    assert!(connection.receive_number(wait).unwrap() > 0);
    let (finished, done) = std::sync::mpsc::channel();
    s.own.bulk.registry.end(&s.own.id, "dropped", Some(Box::new(move |o| finished.send(o).unwrap())));
    done.recv_timeout(HANG).unwrap().unwrap();
}

#[test]
fn small_copy_does_not_wait_for_large_one() {
    /// A fabric whose first stream is not answered; later ones are.
    struct First(Arc<Bulk>, Mutex<Vec<std::os::fd::OwnedFd>>);
    impl Fabric for First {
        fn open(&self, _: u64, _: Instant) -> Result<Opened, NoStream> {
            let (near, far) = pair();
            let mut unresponsive = self.1.lock().unwrap();
            if unresponsive.is_empty() {
                unresponsive.push(far);
            } else {
                self.0.answer(7, Opened { fd: far, keys: None, dialled: false, is_routed: false, paused: Arc::default() });
            }
            Ok(Opened { fd: near, keys: None, dialled: true, is_routed: false, paused: Arc::default() })
        }
        fn has_ended(&self, _: u64) -> bool {
            false
        }
    }
    let s = setup(1 << 20, false, false);
    let fabric = Arc::new(First(s.cable.owner.clone(), Mutex::default()));
    let remote_owner = bulk::remote::RemoteOwner::new(s.own.owner, fabric.clone(), 1);
    let (stop, mut memory) = (Instant::now() + HANG, vec![0u8; 1 << 20]);
    let mut pieces = s.own.pieces(&[Span::contiguous(false, memory.as_mut_ptr() as usize, 0, 1 << 20)]);
    std::thread::scope(|scope| {
        let large = scope.spawn(|| unsafe { remote_owner.copy(&mut pieces, stop, |_| ()) });
        while fabric.1.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        let asked = remote_owner.call(&bulk::frames::Request::Open { id: s.own.id, epoch: s.own.epoch }, stop);
        assert!(matches!(asked, Ok(bulk::frames::Reply::Opened { len: 1_048_576, .. })));
        assert!(!large.is_finished());
        // The stream of the large copy ends, and the copy continues on the other stream.
        fabric.1.lock().unwrap().truncate(0);
        fabric.1.lock().unwrap().push(pair().0);
        large.join().unwrap().unwrap();
    });
    assert!(memory == *s.memory);
}

#[test]
fn lost_reader_gets_no_more_answers() {
    let s = setup(1 << 20, false, false);
    // The owner's side is also notified of ends.
    s.own.bulk.reach_by(s.cable.clone(), 1);
    let (near, far) = pair();
    s.own.bulk.answer(7, Opened { fd: far, keys: None, dialled: false, is_routed: false, paused: Arc::default() });
    let mut connection = bulk::remote::RemoteConnection::new(near, None, Arc::default()).unwrap();
    let wait = bulk::remote::Wait::without_idle_limit(Some(Instant::now() + HANG), &|| false);
    connection.begin(true, wait).unwrap();
    let open = bulk::frames::encode(1, &bulk::frames::Request::Open { id: s.own.id, epoch: s.own.epoch });
    connection.send_frame(&open, wait).unwrap();
    connection.receive_frame(wait).unwrap();
    s.cable.ended.store(true, Ordering::Release);
    assert_eq!(connection.receive_number(wait), Err(bulk::remote::Broken::Ended));
}

#[test]
fn paused_connection_moves_no_bytes() {
    for encrypted in [false, true] {
        let ((near, far), (ours, theirs), paused) = (pair(), keys(), Arc::new(AtomicBool::new(false)));
        let mut here = bulk::remote::RemoteConnection::new(near, encrypted.then_some(&ours), paused.clone()).unwrap();
        let mut there = bulk::remote::RemoteConnection::new(far, encrypted.then_some(&theirs), Arc::default()).unwrap();
        let wait = |ms| bulk::remote::Wait::without_idle_limit(Some(Instant::now() + Duration::from_millis(ms)), &|| false);
        there.send_frame(b"before", wait(10_000)).unwrap();
        paused.store(true, Ordering::Relaxed);
        assert_eq!(here.receive_number(wait(20)), Err(bulk::remote::Broken::TimedOut));
        assert_eq!(here.send_frame(b"late", wait(20)), Err(bulk::remote::Broken::TimedOut));
        let stopped = bulk::remote::Wait::without_idle_limit(None, &|| true);
        assert_eq!(here.receive_number(stopped), Err(bulk::remote::Broken::Stopped));
        assert_eq!(there.receive_number(wait(20)), Err(bulk::remote::Broken::TimedOut));
        assert!(!here.is_stale());
        paused.store(false, Ordering::Relaxed);
        assert_eq!(here.receive_frame(wait(10_000)).unwrap(), b"before");
        if !encrypted {
            here.send_frame(b"now", wait(10_000)).unwrap();
            assert_eq!(there.receive_frame(wait(10_000)).unwrap(), b"now");
        }
    }
}
