//! Operations, from submission to outcome.
//!
//! One thread opens the buffers, holds them and cuts the operations into slices. Then this thread and its helpers take slices until none is
//! left. The last of them checks that all used buffers are still valid, and reports the outcome. No thread touches local memory after that,
//! because the threads with a slice are counted.

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use net::lock::lock;

use crate::buffer::{Buffer, Hold, Target};
use crate::bulk::Bulk;
use crate::failure::{Failure, Outcome, Path};
use crate::grid::Grid;
use crate::registry::Completion;
use crate::spans::Span;

/// Bytes that one thread copies between two checks of the deadline: a quarter of a millisecond.
const SLICE: u64 = 4 << 20;
/// Largest copy in the calling thread: waking another thread takes as long as such a copy.
const AT_ONCE: u64 = 1 << 20;
/// Most operations of a slice.
const TOGETHER: usize = 4096;
/// Bytes of operations from another host that are shared among the streams at a time.
const STREAMED: u64 = 64 << 20;
/// Operations between two checks of the deadline while they are prepared.
const CHECKED: usize = 256;

/// The kind of an operation. A write goes from local memory to the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// From the buffer to local memory.
    Read,
    Write,
    /// Adds to a word of the buffer. The previous value goes to local memory.
    FetchAdd {
        add: u64,
    },
    /// Replaces a word of the buffer that has the expected value. The previous value goes to local memory.
    CompareSwap {
        compare: u64,
        swap: u64,
    },
}

/// One operation. The local memory is valid for as long as the job holds its `keep`.
#[derive(Clone)]
pub struct Op {
    pub buffer: Arc<Buffer>,
    pub what: Operation,
    /// The address of the first byte of the grid.
    pub local: usize,
    /// The offset of that byte.
    pub offset: u64,
    pub grid: Grid,
}

impl Op {
    /// A copy of contiguous bytes, or an operation on a word.
    pub fn contiguous(buffer: Arc<Buffer>, what: Operation, local: usize, offset: u64, len: u64) -> Op {
        Op { buffer, what, local, offset, grid: Grid::contiguous(len) }
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.grid.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn span(&self, start: u64, len: u64) -> Span {
        Span { write: self.what == Operation::Write, local: self.local, offset: self.offset, grid: self.grid, start, len }
    }
}

/// A section of one operation, or several operations of one kind that are executed together: on one buffer, or by one remote owner.
struct Slice {
    op: usize,
    start: u64,
    len: u64,
    /// The number of further operations that are executed together with this slice, each as a whole.
    more: usize,
    /// Bytes of all of them.
    bytes: u64,
}

/// The state of one submit. The objects that keep its local memory are dropped at its end.
pub struct Job {
    ops: Arc<Vec<Op>>,
    until: Instant,
    /// Largest size of a slice.
    most: u64,
    slices: OnceLock<Vec<Slice>>,
    next: AtomicUsize,
    active: AtomicUsize,
    moved: AtomicU64,
    stop: AtomicBool,
    failed: Mutex<Option<Failure>>,
    holds: Mutex<Vec<(usize, Hold)>>,
    end: Mutex<Option<(Completion, Box<dyn Any + Send>)>>,
}

impl Job {
    pub fn new(ops: Arc<Vec<Op>>, until: Instant, most: u64, keep: Box<dyn Any + Send>, done: Completion) -> Arc<Job> {
        Arc::new(Job {
            ops,
            until,
            most: most.max(1),
            slices: OnceLock::new(),
            next: AtomicUsize::new(0),
            active: AtomicUsize::new(1),
            moved: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failed: Mutex::new(None),
            holds: Mutex::default(),
            end: Mutex::new(Some((done, keep))),
        })
    }

    /// Runs the job on the threads of the pool.
    pub fn start(self: Arc<Self>, bulk: &Arc<Bulk>) {
        let of = bulk.clone();
        bulk.pool.run(Box::new(move || {
            match of.pool.wait(|| self.prepare()) {
                Ok(slices) => self.spread(&of, slices),
                Err((op, f)) => self.fail(op, f, false),
            }
            self.leave();
        }));
    }

    /// Opens the buffers, holds them, and cuts the operations into slices.
    fn prepare(&self) -> Result<Vec<Slice>, (usize, Failure)> {
        let mut slices = Vec::new();
        let total: u64 = self.ops.iter().map(Op::len).sum();
        if self.ops.len() > 1 {
            open_all(&self.ops, self.until);
        }
        // A buffer is held once, however many operations use it.
        let (mut held, mut last) = (HashSet::new(), std::ptr::null());
        for (i, op) in self.ops.iter().enumerate() {
            if i % CHECKED == 0 && Instant::now() >= self.until {
                return Err((i, Failure::timed_out()));
            }
            let target = op.buffer.resolve(self.until).map_err(|f| (i, f))?;
            if matches!(op.what, Operation::FetchAdd { .. } | Operation::CompareSwap { .. }) {
                slices.push(Slice { op: i, start: 0, len: 8, more: 0, bytes: 8 });
                continue;
            }
            // Zero bytes are no grid.
            if !op.is_empty() {
                op.buffer.admit_grid(op.offset, &op.grid, op.what == Operation::Write).map_err(|f| (i, f))?;
            } else {
                op.buffer.admit(op.offset, 0, op.what == Operation::Write).map_err(|f| (i, f))?;
            }
            let buffer = Arc::as_ptr(&op.buffer);
            if buffer != last && held.insert(buffer) {
                let hold = op.buffer.hold(target).map_err(|f| (i, f))?;
                lock(&self.holds).push((i, hold));
            }
            last = buffer;
            let (most, together) = match target {
                // One slice for each stream. Between two slices a stream waits for one round trip.
                Target::Remote(remote_owner) => {
                    let share = |bytes: u64| bytes.div_ceil(remote_owner.width as u64).max(SLICE).min(self.most);
                    (share(op.len()), share(total.min(STREAMED)))
                }
                // A ring has pieces of its own.
                _ if op.buffer.path() == Path::Staged => (self.most, self.most),
                _ => (SLICE.min(self.most), SLICE.min(self.most)),
            };
            // Zero bytes are no copy.
            if op.is_empty() {
                continue;
            }
            if let Some(before) = slices.last_mut()
                && self.go_together(before, i, together)
            {
                before.more += 1;
                before.bytes += op.len();
                continue;
            }
            let mut start = 0;
            while start < op.len() {
                let len = most.min(op.len() - start);
                slices.push(Slice { op: i, start, len, more: 0, bytes: len });
                start += len;
            }
        }
        Ok(slices)
    }

    /// Whether the operation can be executed together with those of the slice, which has at most this many bytes.
    fn go_together(&self, slice: &Slice, op: usize, most: u64) -> bool {
        let (first, next) = (&self.ops[slice.op], &self.ops[op]);
        let is_same_place = match first.buffer.is_remote {
            true => next.buffer.is_remote && first.buffer.owner == next.buffer.owner,
            false => Arc::ptr_eq(&first.buffer, &next.buffer),
        };
        slice.op + slice.more + 1 == op
            && slice.more + 1 < TOGETHER
            && (slice.more > 0 || slice.len == first.len())
            && slice.bytes + next.len() <= most
            && matches!(first.what, Operation::Read | Operation::Write)
            && first.what == next.what
            && is_same_place
    }

    /// Starts helpers for the slices, and takes slices itself.
    fn spread(self: &Arc<Self>, bulk: &Arc<Bulk>, slices: Vec<Slice>) {
        let bytes: u64 = slices.iter().map(|s| s.bytes).sum();
        let helpers = bulk.pool.width.min(bytes.div_ceil(SLICE) as usize).min(slices.len()).saturating_sub(1);
        let _ = self.slices.set(slices);
        for _ in 0..helpers {
            let job = self.clone();
            bulk.pool.run(Box::new(move || {
                // A helper that starts after the end of the job does nothing.
                if job.join() {
                    job.work();
                    job.leave();
                }
            }));
        }
        self.work();
    }

    /// Counts a helper; false if the job has already ended.
    fn join(&self) -> bool {
        self.active.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n > 0).then_some(n + 1)).is_ok()
    }

    /// Takes slices until none is left or one has failed.
    fn work(&self) {
        let slices = self.slices.get().map_or(&[][..], Vec::as_slice);
        while !self.stop.load(Ordering::Acquire) {
            let Some(slice) = slices.get(self.next.fetch_add(1, Ordering::AcqRel)) else { return };
            if Instant::now() >= self.until {
                return self.fail(slice.op, Failure::timed_out(), true);
            }
            if let Err(f) = self.run(slice) {
                return self.fail(slice.op, f, true);
            }
        }
    }

    fn run(&self, slice: &Slice) -> Outcome<()> {
        let op = &self.ops[slice.op];
        let pool = &op.buffer.bulk.pool;
        // An owner that takes part may delay this thread, and other work needs threads meanwhile.
        let word = match op.what {
            Operation::FetchAdd { add } => pool.wait(|| op.buffer.fetch_add(op.offset, add, self.until))?,
            Operation::CompareSwap { compare, swap } => pool.wait(|| op.buffer.compare_swap(op.offset, compare, swap, self.until))?,
            Operation::Read | Operation::Write => {
                let target = op.buffer.resolve(self.until)?;
                let moved = |n: usize| {
                    self.moved.fetch_add(n as u64, Ordering::AcqRel);
                };
                let ops = &self.ops[slice.op..=slice.op + slice.more];
                if let (Target::Remote(remote_owner), true) = (target, slice.more > 0) {
                    let of_buffer = ops.chunk_by(|a, b| Arc::ptr_eq(&a.buffer, &b.buffer));
                    let mut pieces: Vec<_> = of_buffer.flat_map(|part| part[0].buffer.pieces(&spans(part))).collect();
                    // SAFETY: the local memory of the operations, which the submitter keeps valid.
                    return pool.wait(|| unsafe { remote_owner.copy(&mut pieces, self.until, moved) });
                }
                let all = if slice.more == 0 { vec![op.span(slice.start, slice.len)] } else { spans(ops) };
                // SAFETY: local memory of the operations, which the submitter keeps valid; the buffer is held by `prepare`.
                let copy = || unsafe { op.buffer.copy(target, &all, self.until, moved) };
                return if matches!(op.buffer.path(), Path::Staged | Path::Tcp | Path::Routed) { pool.wait(copy) } else { copy() };
            }
        };
        // SAFETY: eight bytes of local memory, of any alignment, which the submitter keeps valid.
        unsafe { (op.local as *mut u64).write_unaligned(word) };
        self.moved.fetch_add(8, Ordering::AcqRel);
        Ok(())
    }

    /// Records a failure; only the first one is reported.
    fn fail(&self, op: usize, mut failure: Failure, opened: bool) {
        self.stop.store(true, Ordering::Release);
        let buffer = &self.ops[op].buffer;
        buffer.bulk.note_failure(buffer.owner, &failure);
        (failure.path, failure.opened, failure.owner, failure.pid) = (buffer.path(), opened, buffer.owner, buffer.pid());
        lock(&self.failed).get_or_insert(failure);
    }

    /// Counts a thread that is done. The last one checks the holds and reports the outcome.
    fn leave(&self) {
        if self.active.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let holds = std::mem::take(&mut *lock(&self.holds));
        if lock(&self.failed).is_none() {
            for (i, hold) in &holds {
                let buffer = &self.ops[*i].buffer;
                if let Some(Err(f)) = buffer.target().map(|t| buffer.check(t, hold)) {
                    self.fail(*i, f, true);
                    break;
                }
            }
        }
        drop(holds);
        let Some((done, keep)) = lock(&self.end).take() else { return };
        let failed = lock(&self.failed).take().map(|mut f| {
            (f.done, f.asked) = (self.moved.load(Ordering::Acquire), self.ops.iter().map(Op::len).sum());
            f
        });
        drop(keep);
        done(failed.map_or(Ok(()), Err));
    }
}

/// The copies of the operations, each as a whole.
fn spans(ops: &[Op]) -> Vec<Span> {
    ops.iter().map(|op| op.span(0, op.len())).collect()
}

/// Opens each buffer once, in the order of the operations.
fn open_all(ops: &[Op], until: Instant) {
    let mut seen = HashSet::new();
    let buffers: Vec<Arc<Buffer>> = ops.iter().map(|op| &op.buffer).filter(|r| seen.insert(Arc::as_ptr(r))).cloned().collect();
    Buffer::resolve_all(&buffers, until);
}

/// Does a small copy to or from an open buffer in the calling thread; `None` for any other operation.
///
/// # Safety
/// The local range is valid, and for writing if it is a read.
pub unsafe fn at_once(op: &Op) -> Option<Outcome<()>> {
    let write = match op.what {
        Operation::Read => false,
        Operation::Write => true,
        _ => return None,
    };
    let target = op.buffer.target()?;
    if op.len() > AT_ONCE || !matches!(op.buffer.path(), Path::Local | Path::Shm | Path::Cma) {
        return None;
    }
    let moved = AtomicU64::new(0);
    let run = || {
        op.buffer.admit(op.offset, op.len(), write)?;
        let hold = op.buffer.hold(target)?;
        let until = crate::sys::deadline(60.0);
        let count = |n: usize| {
            moved.fetch_add(n as u64, Ordering::Relaxed);
        };
        // SAFETY: the caller's guarantee; the buffer is held.
        unsafe { op.buffer.copy(target, &[op.span(0, op.len())], until, count) }?;
        op.buffer.check(target, &hold)
    };
    Some(run().map_err(|mut f| {
        (f.path, f.opened, f.owner, f.pid) = (op.buffer.path(), true, op.buffer.owner, op.buffer.pid());
        (f.done, f.asked) = (moved.load(Ordering::Relaxed), op.len());
        f
    }))
}

/// A submit that waits: its deadline, its largest slice, the keeper of its memory, and its callback.
type Submission = (Instant, u64, Box<dyn Any + Send>, Completion);

/// Operations that can be submitted repeatedly; one submit runs after the other.
pub struct Plan {
    bulk: Arc<Bulk>,
    pub ops: Arc<Vec<Op>>,
    /// `None` while no submit runs; otherwise the waiting submits.
    queue: Mutex<Option<VecDeque<Submission>>>,
}

impl Plan {
    pub fn new(bulk: Arc<Bulk>, ops: Vec<Op>) -> Arc<Plan> {
        Arc::new(Plan { bulk, ops: Arc::new(ops), queue: Mutex::new(None) })
    }

    pub fn in_flight(&self) -> bool {
        lock(&self.queue).is_some()
    }

    /// Opens the buffers that can be opened now. The others fail when they are submitted.
    pub fn open(&self, until: Instant) {
        open_all(&self.ops, until);
    }

    /// Runs all operations once, after earlier submits.
    pub fn submit(self: &Arc<Self>, until: Instant, most: u64, keep: Box<dyn Any + Send>, done: Completion) {
        let submission = (until, most, keep, done);
        match &mut *lock(&self.queue) {
            Some(waiting) => return waiting.push_back(submission),
            none => *none = Some(VecDeque::new()),
        }
        self.start(submission);
    }

    fn start(self: &Arc<Self>, (until, most, keep, done): Submission) {
        let plan = self.clone();
        let ended = Box::new(move |outcome| {
            let next = {
                let mut queue = lock(&plan.queue);
                let next = queue.as_mut().and_then(VecDeque::pop_front);
                if next.is_none() {
                    *queue = None;
                }
                next
            };
            done(outcome);
            if let Some(next) = next {
                plan.start(next);
            }
        });
        Job::new(self.ops.clone(), until, most, keep, ended).start(&self.bulk);
    }
}
