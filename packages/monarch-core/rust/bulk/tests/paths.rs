//! Two members of a job in one process: every transport, ends of buffers during copies, and forged handles.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bulk::bulk::{Identity, Jobs};
use bulk::failure::Outcome;
use bulk::transfer::{Job, Op, Operation, at_once};
use bulk::{Buffer, Bulk, Kind, Path, Range, sys};

static NEXT: AtomicU64 = AtomicU64::new(1);
const OPENING: Duration = Duration::from_secs(30);

fn member(job: u64) -> Arc<Bulk> {
    let uid = u64::from(std::process::id()) << 32 | NEXT.fetch_add(1, Ordering::Relaxed);
    Bulk::new(Identity::new(uid, job, Jobs::default()), 0, OPENING).unwrap()
}

/// Registered memory, and a handle of it at the other member.
struct Shared {
    owner: Arc<Bulk>,
    reader: Arc<Bulk>,
    own: Arc<Buffer>,
    theirs: Arc<Buffer>,
}

fn share(bytes: &mut [u8], readonly: bool, staged: bool) -> Shared {
    let (owner, reader) = (member(7), member(7));
    if staged {
        reader.refuse_direct();
    }
    let range = Range { address: bytes.as_mut_ptr() as usize, len: bytes.len(), readonly };
    let own = owner.register(range, None, Box::new(())).unwrap();
    owner.serve().unwrap();
    let theirs = handle(&reader, &own);
    Shared { owner, reader, own, theirs }
}

fn handle(at: &Arc<Bulk>, own: &Arc<Buffer>) -> Arc<Buffer> {
    Buffer::new(at.clone(), own.id, own.epoch, own.owner, own.size, own.readonly, false)
}

fn run(buffer: &Arc<Buffer>, what: Operation, local: &mut [u8], offset: u64, seconds: f64) -> Outcome<()> {
    let op = Op::contiguous(buffer.clone(), what, local.as_mut_ptr() as usize, offset, local.len() as u64);
    let (send, receive) = mpsc::channel();
    let keep: Box<dyn Any + Send> = Box::new(());
    let job = Job::new(Arc::new(vec![op]), sys::deadline(seconds), 64 << 20, keep, Box::new(move |r| send.send(r).unwrap()));
    job.start(&buffer.bulk);
    receive.recv().unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn there_and_back(staged: bool, path: Path) {
    for len in [1, 7, 4096, 1 << 20, (5 << 20) + 3, 33 << 20] {
        let wanted = pattern(len);
        let mut memory = wanted.clone();
        let s = share(&mut memory, false, staged);
        let mut got = vec![0; len];
        run(&s.theirs, Operation::Read, &mut got, 0, 30.0).unwrap();
        assert!(got == wanted, "{len}");
        assert_eq!(s.theirs.path(), path);
        got.reverse();
        run(&s.theirs, Operation::Write, &mut got.clone(), 0, 30.0).unwrap();
        assert!(memory == got, "{len}");
        let tail = len.div_ceil(3);
        let mut part = vec![0; tail];
        run(&s.theirs, Operation::Read, &mut part, (len - tail) as u64, 30.0).unwrap();
        assert!(part == memory[len - tail..], "{len}");
    }
}

#[test]
fn copies_use_process_memory_directly() {
    there_and_back(false, Path::Cma);
}

#[test]
fn staged_copies_use_a_ring() {
    there_and_back(true, Path::Staged);
}

#[test]
fn allocated_memory_is_copied() {
    for len in [100, 4 << 20] {
        let (owner, reader) = (member(7), member(7));
        let block = owner.allocate(len, None).unwrap();
        let range = Range { address: block.address(), len, readonly: true };
        let own = owner.register(range, None, Box::new(block.clone())).unwrap();
        owner.serve().unwrap();
        let theirs = handle(&reader, &own);
        // SAFETY: a local block that no other thread uses.
        unsafe { std::slice::from_raw_parts_mut(block.address() as *mut u8, len) }.copy_from_slice(&pattern(len));
        let mut got = vec![0; len];
        run(&theirs, Operation::Read, &mut got, 0, 30.0).unwrap();
        assert_eq!((got, theirs.path()), (pattern(len), Path::Shm));
        let mapped = theirs.map(sys::deadline(5.0)).unwrap();
        assert!(mapped.readonly);
        // SAFETY: mapped memory that no thread writes.
        assert!(unsafe { std::slice::from_raw_parts(mapped.address as *const u8, len) } == pattern(len));
        owner.registry.end(&own.id, "dropped", None);
        // A mapping keeps the memory.
        assert_eq!(owner.registry.counts(), (0, 1));
        drop(mapped);
        settled(&owner, (0, 0));
    }
}

/// Waits until the owner's thread has handled the notice of the other side.
fn settled(owner: &Arc<Bulk>, wanted: (usize, usize)) {
    for _ in 0..1_000_000 {
        if owner.registry.counts() == wanted {
            return;
        }
        std::thread::yield_now();
    }
    assert_eq!(owner.registry.counts(), wanted);
}

#[test]
fn dropped_is_dropped() {
    for staged in [false, true] {
        let mut memory = pattern(4096);
        let s = share(&mut memory, false, staged);
        let mut got = vec![0; 4096];
        run(&s.theirs, Operation::Read, &mut got, 0, 30.0).unwrap();
        let (send, receive) = mpsc::channel();
        s.owner.registry.end(&s.own.id, "dropped by a test", Some(Box::new(move |r| send.send(r).unwrap())));
        receive.recv().unwrap().unwrap();
        assert_eq!(s.owner.registry.counts(), (0, 0));
        let mut untouched = vec![1; 4096];
        for what in [Operation::Read, Operation::Write] {
            let f = run(&s.theirs, what, &mut untouched, 0, 30.0).unwrap_err();
            assert_eq!(f.kind, Kind::Released, "{f:?}");
            assert!(f.detail.starts_with("dropped by a test"), "{f:?}");
        }
        assert!(untouched.iter().all(|b| *b == 1));
        assert!(memory == pattern(4096));
    }
}

#[test]
fn dropped_by_the_other_side() {
    let mut memory = pattern(64);
    let s = share(&mut memory, false, false);
    s.theirs.end(sys::deadline(5.0)).unwrap();
    assert_eq!(s.owner.registry.counts(), (0, 0));
    assert_eq!(run(&s.own, Operation::Read, &mut [0; 64], 0, 5.0).unwrap_err().kind, Kind::Released);
    // A second end has no effect.
    handle(&s.reader, &s.own).end(sys::deadline(5.0)).unwrap();
}

#[test]
fn memory_in_use_is_held_back() {
    let mut memory = pattern(64);
    let s = share(&mut memory, false, false);
    let target = s.theirs.resolve(sys::deadline(5.0)).unwrap();
    let hold = s.theirs.hold(target).unwrap();
    let (send, receive) = mpsc::channel();
    s.owner.registry.end(&s.own.id, "dropped", Some(Box::new(move |r| send.send(r).unwrap())));
    assert!(!hold.is_current());
    assert!(receive.try_recv().is_err());
    assert_eq!(s.owner.registry.counts(), (0, 1));
    drop(hold);
    receive.recv().unwrap().unwrap();
    settled(&s.owner, (0, 0));
}

#[test]
fn leases_end() {
    let owner = member(7);
    let mut memory = pattern(64);
    let range = Range { address: memory.as_mut_ptr() as usize, len: 64, readonly: false };
    let own = owner.register(range, Some(sys::deadline(0.02)), Box::new(())).unwrap();
    settled(&owner, (0, 0));
    assert!(owner.registry.why(&own.id).starts_with("its lease ended"));
}

#[test]
fn operations_beyond_a_handle_are_refused() {
    let mut memory = pattern(4096);
    let s = share(&mut memory, true, false);
    let read = |buffer: &Arc<Buffer>, len: usize, offset: u64| run(buffer, Operation::Read, &mut vec![0; len], offset, 5.0);
    let denied = |outcome: Outcome<()>, kind: Kind| assert_eq!(outcome.unwrap_err().kind, kind);
    denied(run(&s.theirs, Operation::Write, &mut [0; 8], 0, 5.0), Kind::Access);
    denied(read(&s.theirs, 8, 4090), Kind::Access);
    denied(read(&s.theirs, 8, u64::MAX - 3), Kind::Access);
    assert_eq!(s.theirs.end(sys::deadline(5.0)).unwrap_err().kind, Kind::Access);
    // Handles that claim more than their owner has granted.
    let forged = |id, epoch, size, readonly| Buffer::new(s.reader.clone(), id, epoch, s.own.owner, size, readonly, false);
    denied(run(&forged(s.own.id, s.own.epoch, 4096, false), Operation::Write, &mut [0; 8], 0, 5.0), Kind::Access);
    denied(read(&forged(s.own.id, s.own.epoch, 1 << 40, true), 8, 0), Kind::Access);
    denied(read(&forged(s.own.id, s.own.epoch + 2, 4096, true), 8, 0), Kind::Access);
    denied(read(&forged([9; 16], 1, 4096, true), 8, 0), Kind::Released);
    // A handle of another job.
    let of_other_job = member(8);
    denied(read(&handle(&of_other_job, &s.own), 8, 0), Kind::Access);
    assert!(memory == pattern(4096));
}

#[test]
fn parts() {
    let mut memory = pattern(4096);
    let s = share(&mut memory, false, false);
    let until = || sys::deadline(5.0);
    let part = s.theirs.restrict(100, 50, true, until()).unwrap();
    let mut got = vec![0; 50];
    run(&part, Operation::Read, &mut got, 0, 5.0).unwrap();
    assert!(got == memory[100..150]);
    assert_eq!(run(&part, Operation::Write, &mut got, 0, 5.0).unwrap_err().kind, Kind::Access);
    assert_eq!(part.restrict(0, 10, false, until()).err().unwrap().kind, Kind::Access);
    assert_eq!(s.theirs.restrict(4090, 7, true, until()).err().unwrap().kind, Kind::Access);
    assert_eq!(s.theirs.restrict(u64::MAX, 2, true, until()).err().unwrap().kind, Kind::Access);
    part.forget();
    settled(&s.owner, (1, 0));
    let other = s.theirs.restrict(0, 8, false, until()).unwrap();
    s.owner.registry.end(&s.own.id, "dropped", None);
    assert_eq!(run(&other, Operation::Read, &mut [0; 8], 0, 5.0).unwrap_err().kind, Kind::Released);
    assert_eq!(s.owner.registry.counts(), (0, 0));
}

#[test]
fn atomic_operations_change_words() {
    let mut memory = vec![0u64; 2];
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), 16) };
    let s = share(bytes, false, false);
    for buffer in [&s.own, &s.theirs] {
        let mut was = [0u8; 8];
        for i in 0..10u64 {
            run(buffer, Operation::FetchAdd { add: 3 }, &mut was, 0, 5.0).unwrap();
            assert_eq!(u64::from_le_bytes(was) % 30, i * 3);
        }
        let f = run(buffer, Operation::FetchAdd { add: 3 }, &mut was, 3, 5.0).unwrap_err();
        assert_eq!(f.kind, Kind::Unsupported);
        assert_eq!(run(buffer, Operation::FetchAdd { add: 3 }, &mut was, 16, 5.0).unwrap_err().kind, Kind::Access);
    }
    let mut was = [0u8; 8];
    run(&s.theirs, Operation::CompareSwap { compare: 60, swap: 5 }, &mut was, 0, 5.0).unwrap();
    run(&s.theirs, Operation::CompareSwap { compare: 60, swap: 6 }, &mut was, 0, 5.0).unwrap();
    assert_eq!((u64::from_le_bytes(was), memory[0]), (5, 5));
}

#[test]
fn zero_timeout_moves_no_bytes() {
    let mut memory = pattern(64);
    let s = share(&mut memory, false, false);
    let f = run(&s.theirs, Operation::Read, &mut [0; 64], 0, 0.0).unwrap_err();
    assert_eq!((f.kind, f.opened, f.done, f.asked), (Kind::TimedOut, false, 0, 64));
}

#[test]
fn unknown_owner_is_lost() {
    let reader = member(7);
    let unused = Buffer::new(reader, [1; 16], 1, 1, 64, false, false);
    assert_eq!(run(&unused, Operation::Read, &mut [0; 64], 0, 5.0).unwrap_err().kind, Kind::PeerLost);
}

#[test]
fn memory_of_an_exited_owner_is_released() {
    let mut memory = pattern(64);
    let s = share(&mut memory, false, false);
    run(&s.theirs, Operation::Read, &mut [0; 64], 0, 5.0).unwrap();
    s.owner.close();
    let f = run(&s.theirs, Operation::Read, &mut [0; 64], 0, 5.0).unwrap_err();
    assert_eq!((f.kind, f.exited, f.detail.as_str()), (Kind::Released, true, "its process has exited"));
}

#[test]
fn small_copies_at_once() {
    let mut memory = pattern(4096);
    let s = share(&mut memory, false, false);
    let mut got = vec![0; 4096];
    let op = Op::contiguous(s.theirs.clone(), Operation::Read, got.as_mut_ptr() as usize, 0, 4096);
    // SAFETY: `got` outlives the calls.
    assert!(unsafe { at_once(&op) }.is_none());
    s.theirs.resolve(sys::deadline(5.0)).unwrap();
    // SAFETY: `got` outlives the call.
    unsafe { at_once(&op) }.unwrap().unwrap();
    assert!(got == memory);
    s.owner.registry.end(&s.own.id, "dropped", None);
    // SAFETY: `got` outlives the call.
    assert_eq!(unsafe { at_once(&op) }.unwrap().unwrap_err().kind, Kind::Released);
}

#[test]
fn memory_that_is_not_there() {
    let (owner, reader) = (member(7), member(7));
    let page = net::sys::page();
    let fd = net::sys::memfd(2 * page as u64).unwrap();
    let base = net::sys::map(std::os::fd::AsRawFd::as_raw_fd(&fd), 0, 2 * page, &net::sys::Share::Shared).unwrap();
    // SAFETY: the second page of a local mapping, which is not used any more.
    unsafe { net::sys::unmap(base.wrapping_add(page), page) };
    let range = Range { address: base as usize, len: 2 * page, readonly: false };
    let own = owner.register(range, None, Box::new(())).unwrap();
    owner.serve().unwrap();
    let f = run(&handle(&reader, &own), Operation::Read, &mut vec![0; 2 * page], 0, 5.0).unwrap_err();
    assert_eq!((f.kind, f.done, f.asked, f.path), (Kind::Transfer, page as u64, 2 * page as u64, Path::Cma));
    assert!(f.detail.starts_with(&format!("at byte {page}: ")), "{f:?}");
    run(&handle(&reader, &own), Operation::Read, &mut vec![0; page], 0, 5.0).unwrap();
    // SAFETY: the first page of a local mapping.
    unsafe { net::sys::unmap(base, page) };
}
