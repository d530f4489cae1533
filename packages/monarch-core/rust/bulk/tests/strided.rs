//! Strided copies: every transport against a copy by single bytes, broken streams, and requests of hostile processes.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bulk::bulk::{Identity, Jobs};
use bulk::frames::{self, MOST_PARTS, Part, Reply, Request};
use bulk::remote::{Opened, RemoteConnection, Wait};
use bulk::transfer::{Job, Op, Operation};
use bulk::{Buffer, Bulk, Failure, Grid, Kind, Path, Range, sys};

mod cable;

use cable::{Cable, keys, pair};

static NEXT: AtomicU64 = AtomicU64::new(1);
const HANG: Duration = Duration::from_secs(20);
const SIZE: usize = 3 << 20;

/// Memory of an owner, and a handle of it at a reader.
struct Setup {
    owner: Arc<Bulk>,
    own: Arc<Buffer>,
    theirs: Arc<Buffer>,
    cable: Arc<Cable>,
    address: usize,
}

impl Setup {
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the memory of `setup`, which is never freed.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, SIZE) }.to_vec()
    }
}

fn member() -> Arc<Bulk> {
    let uid = u64::from(std::process::id()) << 32 | NEXT.fetch_add(1, Ordering::Relaxed);
    Bulk::new(Identity::new(uid, 7, Jobs::default()), 0, HANG).unwrap()
}

fn setup(path: Path, encrypted: bool, readonly: bool) -> Setup {
    let owner = member();
    let reader = if path == Path::Local { owner.clone() } else { member() };
    let address = if path == Path::Shm {
        let block = owner.allocate(SIZE, None).unwrap();
        let address = block.address();
        std::mem::forget(block);
        address
    } else {
        vec![0u8; SIZE].leak().as_mut_ptr() as usize
    };
    for i in 0..SIZE {
        // SAFETY: the memory that was just allocated.
        unsafe { *((address + i) as *mut u8) = (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] };
    }
    let own = owner.register(Range { address, len: SIZE, readonly }, None, Box::new(())).unwrap();
    owner.serve().unwrap();
    if path == Path::Staged {
        reader.refuse_direct();
    }
    let is_remote = path == Path::Tcp;
    let theirs = Buffer::new(reader.clone(), own.id, own.epoch, own.owner, own.size, own.readonly, is_remote);
    let opened = AtomicUsize::new(0);
    let cable = Arc::new(Cable { owner: owner.clone(), encrypted, opened, ended: AtomicBool::new(false), breaks: Mutex::default() });
    reader.reach_by(cable.clone(), 2);
    Setup { owner, own, theirs, cable, address }
}

fn run(ops: Vec<Op>) -> Result<(), Failure> {
    let bulk = ops[0].buffer.bulk.clone();
    let (finished, done) = mpsc::channel();
    let keep: Box<dyn Any + Send> = Box::new(());
    Job::new(Arc::new(ops), sys::deadline(15.0), 64 << 20, keep, Box::new(move |o| finished.send(o).unwrap())).start(&bulk);
    done.recv_timeout(HANG).unwrap()
}

/// Grids of many forms, with the offset in the buffer; all are within `SIZE` bytes of it, and dense in local memory.
fn grids() -> Vec<(u64, Grid)> {
    let dense = |run: u64, counts: [u64; 2], there: [u64; 2]| Grid { run, counts, there, here: [(run * counts[1]) as i64, run as i64] };
    let transposed = Grid { run: 4, counts: [50, 70], there: [280, 4], here: [4, 200] };
    let reversed = Grid { run: 3, counts: [2, 100], there: [5000, 7], here: [300, -3] };
    vec![
        (0, dense(1, [1, 1], [0, 0])),
        (5, dense(1000, [1, 1], [0, 0])),
        (9, dense(1, [1, 5000], [0, 2])),
        (16, dense(2, [3, 700], [5000, 4])),
        (0, dense(8, [300, 100], [2000, 16])),
        (1, dense(16, [300, 100], [2000, 20])),
        (3, dense(100, [100, 10], [2000, 150])),
        (77, dense(2048, [1, 700], [0, 4096])),
        (0, dense(5000, [2, 100], [1_500_000, 10_000])),
        (1, dense(700_000, [2, 2], [1_500_000, 700_001])),
        (11, transposed),
        (64, reversed),
    ]
}

/// The bytes of a grid, in the order of local addresses. The reversed grid begins behind its first runs.
fn locals(grid: &Grid) -> (usize, usize) {
    let last = (grid.counts[1] as i64 - 1) * grid.here[1];
    (grid.len() as usize, last.min(0).unsigned_abs() as usize)
}

/// Copies by single bytes.
fn expected(memory: &[u8], offset: u64, grid: &Grid) -> Vec<u8> {
    let (len, first) = locals(grid);
    let mut found = vec![0u8; len];
    for i in 0..grid.counts[0] {
        for j in 0..grid.counts[1] {
            for b in 0..grid.run {
                let to = first as i64 + i as i64 * grid.here[0] + j as i64 * grid.here[1] + b as i64;
                found[to as usize] = memory[(offset + i * grid.there[0] + j * grid.there[1] + b) as usize];
            }
        }
    }
    found
}

fn paths() -> Vec<(Path, bool)> {
    vec![(Path::Local, false), (Path::Shm, false), (Path::Cma, false), (Path::Staged, false), (Path::Tcp, false), (Path::Tcp, true)]
}

#[test]
fn reads_are_those_of_single_bytes() {
    for (path, encrypted) in paths() {
        let s = setup(path, encrypted, true);
        let memory = s.bytes();
        let mut locals_of: Vec<Vec<u8>> = grids().iter().map(|(_, grid)| vec![0u8; grid.len() as usize]).collect();
        let op = |(offset, grid): &(u64, Grid), local: &mut Vec<u8>| {
            let local = local.as_mut_ptr() as usize + locals(grid).1;
            Op { buffer: s.theirs.clone(), what: Operation::Read, local, offset: *offset, grid: *grid }
        };
        for together in [false, true] {
            locals_of.iter_mut().for_each(|local| local.fill(0));
            let ops: Vec<Op> = grids().iter().zip(&mut locals_of).map(|(grid, local)| op(grid, local)).collect();
            match together {
                true => run(ops).unwrap(),
                false => ops.into_iter().for_each(|op| run(vec![op]).unwrap()),
            }
            assert_eq!(s.theirs.path(), path);
            for ((offset, grid), local) in grids().iter().zip(&locals_of) {
                assert!(*local == expected(&memory, *offset, grid), "{path:?} {grid:?}");
            }
        }
    }
}

#[test]
fn writes_change_the_runs_only() {
    for (path, encrypted) in paths() {
        let s = setup(path, encrypted, false);
        let mut memory = s.bytes();
        let grid = Grid { run: 300, counts: [3, 20], there: [100_000, 400], here: [6000, 300] };
        let local = vec![0xeeu8; grid.len() as usize];
        run(vec![Op { buffer: s.theirs.clone(), what: Operation::Write, local: local.as_ptr() as usize, offset: 5, grid }]).unwrap();
        for i in 0..3 {
            for j in 0..20 {
                memory[5 + i * 100_000 + j * 400..][..300].fill(0xee);
            }
        }
        assert!(s.bytes() == memory, "{path:?}");
    }
}

#[test]
fn thousands_of_parts_arrive_in_order() {
    for encrypted in [false, true] {
        let s = setup(Path::Tcp, encrypted, true);
        let memory = s.bytes();
        let grid = Grid { run: 8, counts: [2, 3], there: [64, 16], here: [24, 8] };
        let mut got = vec![0u8; 5000 * 48];
        let local = got.as_mut_ptr() as usize;
        let op = |i: usize| Op { buffer: s.theirs.clone(), what: Operation::Read, local: local + i * 48, offset: i as u64 * 200, grid };
        run((0..5000).map(op).collect()).unwrap();
        let all: Vec<u8> = (0..5000).flat_map(|i| expected(&memory, i * 200, &grid)).collect();
        assert!(got == all);
    }
}

#[test]
fn broken_streams_are_continued() {
    for encrypted in [false, true] {
        for (run_len, steps) in [(8, [4000, 16]), (3000, [1_500_000, 4000])] {
            let s = setup(Path::Tcp, encrypted, true);
            s.cable.breaks.lock().unwrap().extend([200_000, 5, 400_000]);
            let counts = if run_len == 8 { [700, 240] } else { [2, 300] };
            let grid = Grid { run: run_len, counts, there: steps, here: [(run_len * counts[1]) as i64, run_len as i64] };
            let mut got = vec![0u8; grid.len() as usize];
            let local = got.as_mut_ptr() as usize;
            run(vec![Op { buffer: s.theirs.clone(), what: Operation::Read, local, offset: 3, grid }]).unwrap();
            assert!(got == expected(&s.bytes(), 3, &grid));
            assert_eq!(s.cable.opened.load(Ordering::Acquire), 4);
        }
    }
}

#[test]
fn reader_refuses_what_is_not_in_the_buffer() {
    for (path, encrypted) in paths() {
        let s = setup(path, encrypted, true);
        let mut local = vec![0u8; 64];
        for (offset, counts, there) in [
            (0, [1, 2], [0, SIZE as u64]),
            (0, [2, 1], [u64::MAX, 0]),
            (SIZE as u64 - 8, [1, 2], [0, 8]),
            (u64::MAX, [1, 2], [0, 8]),
            (0, [1, 2], [0, 4]),
            (0, [2, 1], [0, 0]),
        ] {
            let grid = Grid { run: 8, counts, there, here: [16, 8] };
            let op = Op { buffer: s.theirs.clone(), what: Operation::Read, local: local.as_mut_ptr() as usize, offset, grid };
            assert_eq!(run(vec![op]).unwrap_err().kind, Kind::Access, "{path:?} {grid:?}");
        }
        assert!(local == [0; 64]);
    }
}

/// A stream to the owner, for requests that no reader of this crate sends.
fn stream(s: &Setup, encrypted: bool) -> RemoteConnection {
    let ((near, far), (ours, theirs)) = (pair(), keys());
    let paused = Arc::<AtomicBool>::default;
    let keys = encrypted.then_some(theirs);
    s.owner.answer(7, Opened { fd: far, keys, dialled: false, is_routed: false, paused: paused() });
    let mut connection = RemoteConnection::new(near, encrypted.then_some(&ours), paused()).unwrap();
    connection.begin(true, wait()).unwrap();
    connection
}

fn wait() -> Wait<'static> {
    Wait::without_idle_limit(Some(Instant::now() + HANG), &|| false)
}

/// The bytes that the owner sends, and its answer.
fn asked(connection: &mut RemoteConnection, request: &Request) -> (u64, Reply) {
    connection.send_frame(&frames::encode(1, request), wait()).unwrap();
    let mut bytes = 0;
    loop {
        let n = connection.receive_number(wait()).unwrap() as usize;
        if n == 0 {
            break;
        }
        let mut chunk = vec![0u8; n];
        // SAFETY: local memory of that length.
        unsafe { connection.receive(chunk.as_mut_ptr(), n, wait()) }.unwrap();
        bytes += n as u64;
    }
    (bytes, frames::decode::<Reply>(&connection.receive_frame(wait()).unwrap()).unwrap().1)
}

#[test]
fn owner_refuses_hostile_parts() {
    let end = SIZE as u64;
    let part = |offset, run, counts, steps| Part { offset, run, counts, steps };
    let whole = part(0, 8, [2, 2], [64, 16]);
    let hostile: Vec<(u64, u64, Vec<Part>)> = vec![
        (0, 8, vec![]),
        (0, 0, vec![whole]),
        (0, 33, vec![whole]),
        (32, 1, vec![whole]),
        (u64::MAX, 32, vec![whole]),
        (1, u64::MAX, vec![whole]),
        (0, 8, vec![part(0, 0, [1, 1], [0, 0])]),
        (0, 8, vec![part(0, 8, [0, 1], [0, 0])]),
        (0, 8, vec![part(0, 8, [1, 0], [0, 0])]),
        (0, 8, vec![part(end, 8, [1, 1], [0, 0])]),
        (0, 8, vec![part(end - 7, 8, [1, 1], [0, 0])]),
        (0, 8, vec![part(u64::MAX, 8, [1, 1], [0, 0])]),
        (0, 8, vec![part(0, end + 1, [1, 1], [0, 0])]),
        (0, 8, vec![part(0, u64::MAX, [1, 1], [0, 0])]),
        (0, 8, vec![part(0, 8, [1, 1 << 60], [0, 16])]),
        (0, 8, vec![part(0, 1 << 32, [1 << 32, 1], [1 << 32, 0])]),
        // Runs that overlap could make a few requested bytes into any number of sent ones.
        (0, 8, vec![part(0, 8, [1, u64::MAX], [0, 0])]),
        (0, 8, vec![part(0, 8, [u64::MAX, 1], [0, 0])]),
        (0, 8, vec![part(0, 8, [2, 3], [16, 8])]),
        (0, 8, vec![whole, part(end - 16, 8, [1, 2], [0, 16])]),
        (0, 8, vec![whole; MOST_PARTS + 1]),
    ];
    for encrypted in [false, true] {
        let s = setup(Path::Tcp, encrypted, true);
        let mut connection = stream(&s, encrypted);
        let of = |id, epoch, skip, len, parts: &[Part]| Request::Gather { id, epoch, skip, len, parts: parts.to_vec() };
        let (id, epoch) = (s.own.id, s.own.epoch);
        for (skip, len, parts) in &hostile {
            let (bytes, reply) = asked(&mut connection, &of(id, epoch, *skip, *len, parts));
            assert_eq!(bytes, 0, "{parts:?}");
            assert!(matches!(reply, Reply::Refused { kind, .. } if kind == Kind::Access as u8), "{parts:?}: {reply:?}");
        }
        let refused = |reply: Reply, kind: Kind| matches!(reply, Reply::Refused { kind: k, .. } if k == kind as u8);
        assert!(refused(asked(&mut connection, &of([9; 16], epoch, 0, 32, &[whole])).1, Kind::Released));
        assert!(refused(asked(&mut connection, &of(id, epoch + 2, 0, 32, &[whole])).1, Kind::Access));
        // The stream is usable after all that.
        assert_eq!(asked(&mut connection, &of(id, epoch, 3, 20, &[whole])), (20, Reply::Done));
        assert_eq!(asked(&mut connection, &of(id, epoch, 0, 32 * 256, &[whole; MOST_PARTS])), (32 * 256, Reply::Done));
    }
}

#[test]
fn reader_that_stops_does_not_delay_the_end() {
    let s = setup(Path::Tcp, false, true);
    let mut connection = stream(&s, false);
    let part = Part { offset: 0, run: 8, counts: [1, (SIZE / 16) as u64], steps: [0, 16] };
    let request = Request::Gather { id: s.own.id, epoch: s.own.epoch, skip: 0, len: SIZE as u64 / 2, parts: vec![part] };
    connection.send_frame(&frames::encode(1, &request), wait()).unwrap();
    assert!(connection.receive_number(wait()).unwrap() > 0);
    let (finished, done) = mpsc::channel();
    s.owner.registry.end(&s.own.id, "dropped", Some(Box::new(move |o| finished.send(o).unwrap())));
    done.recv_timeout(HANG).unwrap().unwrap();
}

#[test]
fn ended_owner_is_lost() {
    let s = setup(Path::Tcp, false, true);
    let grid = Grid { run: 8, counts: [700, 240], there: [4000, 16], here: [1920, 8] };
    let mut got = vec![0u8; grid.len() as usize];
    s.cable.breaks.lock().unwrap().extend([500_000]);
    let buffer = s.theirs.clone();
    buffer.resolve(sys::deadline(5.0)).unwrap();
    s.cable.ended.store(true, Ordering::Release);
    let op = Op { buffer, what: Operation::Read, local: got.as_mut_ptr() as usize, offset: 0, grid };
    assert_eq!(run(vec![op]).unwrap_err().kind, Kind::PeerLost);
}
