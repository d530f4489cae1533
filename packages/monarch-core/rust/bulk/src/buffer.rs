//! The memory of any owner, by its id.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::bulk::Bulk;
use crate::connection::{Connection, Hazard, STAGES, View};
use crate::copy;
use crate::failure::{Failure, Kind, Outcome, Path};
use crate::frames::{Id, MOST_PARTS, Reply, Request};
use crate::grid::Grid;
use crate::registry::{Pin, compare_swap, fetch_add};
use crate::remote::{Piece, RemoteOwner};
use crate::spans::{Span, Spans};
use crate::sys;

/// More attempts than rings are kept, so at least one of them uses a new ring.
const RINGS_TRIED: usize = STAGES + 2;

/// A buffer as this process sees it. Its location is requested on first use.
pub struct Buffer {
    pub bulk: Arc<Bulk>,
    pub id: Id,
    pub epoch: u64,
    pub owner: u64,
    pub size: u64,
    pub readonly: bool,
    /// The owner is on another host.
    pub is_remote: bool,
    target: OnceLock<Target>,
    /// This process has dropped the buffer.
    dropped: AtomicBool,
}

/// Memory of another process of this host.
pub struct PeerMemory {
    pub connection: Arc<Connection>,
    slot: u32,
    epoch: u64,
    address: u64,
    /// The mapping of its segment into this process, and its offset there.
    view: Option<(Arc<View>, u64)>,
}

/// The location of a buffer, as its owner has reported it.
pub enum Target {
    /// Memory of this process, at this address.
    Local(usize),
    /// Memory of another process of this host.
    Peer(PeerMemory),
    /// Memory of a process of another host.
    Remote(Arc<RemoteOwner>),
}

/// Keeps a buffer in place while bytes move.
pub enum Hold {
    /// Memory of this process is pinned.
    Local(Pin),
    /// A hazard names the memory of another process of this host.
    Peer(Hazard),
    /// The owner checks the buffer itself.
    Remote,
}

impl Hold {
    pub fn is_current(&self) -> bool {
        match self {
            Hold::Local(pin) => pin.is_current(),
            Hold::Peer(hazard) => hazard.is_current(),
            Hold::Remote => true,
        }
    }
}

/// The memory of a buffer, mapped into this process.
pub struct Mapping {
    pub address: usize,
    pub len: usize,
    pub readonly: bool,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Buffer {
    pub fn new(bulk: Arc<Bulk>, id: Id, epoch: u64, owner: u64, size: u64, readonly: bool, is_remote: bool) -> Arc<Buffer> {
        let is_remote = is_remote && owner != bulk.me.uid;
        Arc::new(Buffer { bulk, id, epoch, owner, size, readonly, is_remote, target: OnceLock::new(), dropped: AtomicBool::new(false) })
    }

    /// The location of the buffer; the owner is asked on the first call.
    pub fn resolve(&self, until: Instant) -> Outcome<&Target> {
        if let Some(target) = self.target.get() {
            return Ok(target);
        }
        let target = match self.is_local() {
            true => Target::Local(self.find()?),
            false if self.is_remote => Target::Remote(self.open_remote(until)?),
            false => Target::Peer(self.open_peer(until)?),
        };
        Ok(self.target.get_or_init(|| target))
    }

    /// The address of memory of this process.
    fn find(&self) -> Outcome<usize> {
        let found = self.bulk.registry.find(&self.id)?;
        self.compare(found.epoch, found.range.len as u64, found.range.readonly)?;
        Ok(found.range.address)
    }

    /// Checks the facts in a handle against the owner's.
    fn compare(&self, epoch: u64, len: u64, readonly: bool) -> Outcome<()> {
        if epoch != self.epoch || len != self.size || readonly && !self.readonly {
            return Err(Failure::new(Kind::Access, "the handle's epoch, length or access differs from the owner's record"));
        }
        Ok(())
    }

    /// Asks an owner on this host for the location.
    fn open_peer(&self, until: Instant) -> Outcome<PeerMemory> {
        let connection = self.bulk.connection(self.owner, until)?;
        let reply = connection.call(&self.open_request(), until);
        let reply = reply.inspect_err(|f| self.bulk.note_failure(self.owner, f))?;
        self.accept_peer(connection, reply, until)
    }

    /// Asks an owner on another host whether it has the buffer.
    fn open_remote(&self, until: Instant) -> Outcome<Arc<RemoteOwner>> {
        let remote_owner = self.bulk.remote_owner(self.owner)?;
        let reply = remote_owner.call(&self.open_request(), self.bulk.open_deadline(until))?;
        self.accept_remote(remote_owner, reply)
    }

    fn accept_remote(&self, remote_owner: Arc<RemoteOwner>, reply: Reply) -> Outcome<Arc<RemoteOwner>> {
        let Reply::Opened { epoch, len, readonly, .. } = reply else {
            return Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer"));
        };
        self.compare(epoch, len, readonly)?;
        Ok(remote_owner)
    }

    /// Sends a request to the owner.
    fn call(&self, request: &Request, until: Instant) -> Outcome<Reply> {
        match self.is_remote {
            true => self.bulk.remote_owner(self.owner)?.call(request, until),
            false => self.bulk.connection(self.owner, until)?.call(request, until),
        }
    }

    /// The request for the location.
    fn open_request(&self) -> Request {
        Request::Open { id: self.id, epoch: self.epoch }
    }

    fn accept_peer(&self, connection: Arc<Connection>, reply: Reply, until: Instant) -> Outcome<PeerMemory> {
        let Reply::Opened { slot, epoch, address, len, readonly, segment } = reply else {
            return Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer"));
        };
        self.compare(epoch, len, readonly)?;
        let view = match segment.filter(|p| p.offset.checked_add(len).is_some_and(|end| end <= p.len)) {
            Some(place) => Some((connection.view(&self.id, place, !self.readonly, until)?, place.offset)),
            None => None,
        };
        Ok(PeerMemory { connection, slot, epoch, address, view })
    }

    /// Opens all buffers of each owner at once. A buffer that cannot be opened fails when it is used.
    pub fn resolve_all(buffers: &[Arc<Buffer>], until: Instant) {
        let mut by_owner: HashMap<u64, Vec<&Arc<Buffer>>> = HashMap::new();
        for buffer in buffers.iter().filter(|r| !r.is_local() && r.target().is_none()) {
            by_owner.entry(buffer.owner).or_default().push(buffer);
        }
        for (owner, of_owner) in by_owner {
            let requests: Vec<Request> = of_owner.iter().map(|r| r.open_request()).collect();
            if of_owner[0].is_remote {
                let Ok(remote_owner) = of_owner[0].bulk.remote_owner(owner) else { continue };
                let Ok(replies) = remote_owner.call_many(&requests, of_owner[0].bulk.open_deadline(until)) else { continue };
                for (buffer, reply) in of_owner.into_iter().zip(replies) {
                    if let Ok(target) = reply.and_then(|reply| buffer.accept_remote(remote_owner.clone(), reply)) {
                        buffer.target.get_or_init(|| Target::Remote(target));
                    }
                }
                continue;
            }
            let Ok(connection) = of_owner[0].bulk.connection(owner, until) else { continue };
            let Ok(replies) = connection.call_many(&requests, until) else { continue };
            for (buffer, reply) in of_owner.into_iter().zip(replies) {
                if let Ok(target) = reply.and_then(|reply| buffer.accept_peer(connection.clone(), reply, until)) {
                    buffer.target.get_or_init(|| Target::Peer(target));
                }
            }
        }
    }

    /// The location of the buffer, if it is known.
    pub fn target(&self) -> Option<&Target> {
        self.target.get()
    }

    pub fn path(&self) -> Path {
        match self.target() {
            None => Path::None,
            Some(Target::Local(_)) => Path::Local,
            Some(Target::Peer(t)) if t.view.is_some() => Path::Shm,
            Some(Target::Peer(t)) if t.connection.is_direct() => Path::Cma,
            Some(Target::Peer(_)) => Path::Staged,
            Some(Target::Remote(remote_owner)) if remote_owner.is_routed() => Path::Routed,
            Some(Target::Remote(_)) => Path::Tcp,
        }
    }

    /// The pid of the owner; 0 if it is not known.
    pub fn pid(&self) -> i32 {
        match self.target() {
            Some(Target::Local(_)) => std::process::id() as i32,
            Some(Target::Peer(t)) => t.connection.pid(),
            // The pid is of another host and would name another process here.
            Some(Target::Remote(_)) | None => 0,
        }
    }

    /// Fails if the runs of this grid may not be read, or written.
    pub fn admit_grid(&self, offset: u64, grid: &Grid, write: bool) -> Outcome<()> {
        let Some(span) = grid.span() else {
            return Err(Failure::new(Kind::Access, format!("the runs of a strided copy from {offset} overlap, or there are none")));
        };
        self.admit(offset, span, write)
    }

    /// Fails if these bytes may not be read, or written.
    pub fn admit(&self, offset: u64, len: u64, write: bool) -> Outcome<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(Failure::new(Kind::Access, format!("{len} bytes from {offset} are outside of the buffer of {}", self.size)));
        }
        if write && self.readonly {
            return Err(Failure::new(Kind::Access, "the handle is read-only"));
        }
        Ok(())
    }

    /// Keeps the memory in place while the result exists.
    pub fn hold(&self, target: &Target) -> Outcome<Hold> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(self.ended(target));
        }
        match target {
            Target::Local(_) => self.bulk.registry.pin(&self.id, 0, self.size, false).map(Hold::Local),
            Target::Peer(t) => match t.connection.claim(t.slot, t.epoch, false)? {
                Some(hazard) => Ok(Hold::Peer(hazard)),
                None => Err(self.ended(target)),
            },
            Target::Remote(_) => Ok(Hold::Remote),
        }
    }

    /// The reason for the end of the registration.
    fn ended(&self, target: &Target) -> Failure {
        match target {
            _ if self.dropped.load(Ordering::Acquire) => Failure::new(Kind::Released, "it was dropped by this process"),
            Target::Local(_) => Failure::new(Kind::Released, self.bulk.registry.why(&self.id)),
            Target::Peer(t) => t.connection.why(&self.id, sys::deadline(1.0)),
            Target::Remote(_) => Failure::new(Kind::Released, "it was dropped"),
        }
    }

    /// Copies bytes of a buffer that is held, and whose grids were admitted; all spans are reads, or all writes. `moved` receives their
    /// number as they move.
    ///
    /// # Safety
    /// The spans are valid in local memory, and for writing unless they are writes.
    pub unsafe fn copy(&self, target: &Target, spans: &[Span], until: Instant, mut moved: impl FnMut(usize)) -> Outcome<()> {
        if let Target::Peer(t) = target {
            self.bulk.await_unpaused(self.owner, &t.connection.paused, until)?;
            // Checked for each slice: the pid of an ended process may soon name another one.
            t.connection.check()?;
        }
        if let Target::Remote(remote_owner) = target {
            // SAFETY: the caller's guarantee.
            return unsafe { remote_owner.copy(&mut self.pieces(spans), until, moved) };
        }
        for span in spans {
            // SAFETY: the caller's guarantee.
            unsafe { self.copy_here(target, span, until, &mut moved) }?;
        }
        Ok(())
    }

    /// Copies a span from or to memory of this host.
    ///
    /// # Safety
    /// As for `copy`.
    unsafe fn copy_here(&self, target: &Target, span: &Span, until: Instant, moved: &mut impl FnMut(usize)) -> Outcome<()> {
        let Span { write, local, offset, grid, start, len } = *span;
        let within = |first: usize| {
            let there = first + offset as usize;
            // SAFETY: the caller's guarantee, and a part of a checked and held range, writable if bytes are written to it.
            unsafe { copy::section(&grid, (there, local), write, start, len) };
        };
        match target {
            Target::Local(address) => within(*address),
            Target::Peer(PeerMemory { view: Some((view, at)), .. }) => within(view.address(*at)),
            Target::Peer(t) if t.connection.is_direct() => {
                let (pid, there, has_ended) = (t.connection.pid(), t.address + offset, || t.connection.has_ended());
                let copied = if grid.is_contiguous() {
                    // SAFETY: the caller's guarantee.
                    unsafe { copy::process(pid, write, local + start as usize, there + start, len as usize, has_ended) }
                } else {
                    // SAFETY: the caller's guarantee.
                    unsafe { copy::process_section(pid, write, &grid, (there, local), (start, len), has_ended) }
                };
                match copied {
                    Ok(()) => {}
                    Err((_, e)) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                        t.connection.not_direct();
                        // SAFETY: the caller's guarantee. The whole copy is repeated, including the bytes that were already copied.
                        return unsafe { self.copy_here(target, span, until, moved) };
                    }
                    Err((_, e)) if e.raw_os_error() == Some(libc::ESRCH) => {
                        t.connection.check()?;
                        return Err(Failure::lost());
                    }
                    Err((done, e)) => {
                        moved(done);
                        // An exiting process loses its memory first, so the error may mean its end.
                        t.connection.check()?;
                        return Err(Failure::system(&format!("at byte {}", offset + start + done as u64), &e));
                    }
                }
            }
            Target::Peer(t) => {
                let mut copy_run = |span: &Span| {
                    let mut done = 0;
                    let staged = || {
                        let stage = t.connection.stage(until)?;
                        done = 0;
                        // SAFETY: the caller's guarantee.
                        unsafe { stage.copy((self.id, t.epoch), span, until, |n| done += n) }?;
                        t.connection.return_stage(stage);
                        Ok(())
                    };
                    let outcome = again(&t.connection, staged);
                    moved(done);
                    outcome
                };
                // A ring gathers reads; writes to several runs are several copies.
                return if write { span.runs().try_for_each(|run| copy_run(&run)) } else { copy_run(span) };
            }
            Target::Remote(_) => return Err(Failure::new(Kind::Unsupported, "the memory is of another host")),
        }
        moved(len as usize);
        Ok(())
    }

    /// Copies as the streams of a remote owner need them: reads of several parts, or writes of contiguous bytes. All are of the same kind.
    pub fn pieces(&self, spans: &[Span]) -> Vec<Piece> {
        let write = spans.first().is_some_and(|span| span.write);
        let piece = |spans: Vec<Span>| Piece { id: self.id, epoch: self.epoch, write, spans: Spans::new(spans) };
        if write {
            return spans.iter().flat_map(|span| span.runs()).map(|run| piece(vec![run])).collect();
        }
        let mut pieces: Vec<Vec<Span>> = Vec::new();
        for span in spans {
            match pieces.last_mut() {
                Some(last) if last.len() < MOST_PARTS && last.iter().rev().take(1).chain([span]).all(Span::is_whole) => last.push(*span),
                _ => pieces.push(vec![*span]),
            }
        }
        pieces.into_iter().map(piece).collect()
    }

    /// Checks after a copy that the buffer has not ended meanwhile and the owner is alive.
    pub fn check(&self, target: &Target, hold: &Hold) -> Outcome<()> {
        if let Target::Peer(t) = target {
            t.connection.check().inspect_err(|f| self.bulk.note_failure(self.owner, f))?;
        }
        if hold.is_current() { Ok(()) } else { Err(self.ended(target)) }
    }

    pub fn fetch_add(&self, offset: u64, add: u64, until: Instant) -> Outcome<u64> {
        match self.resolve(until)? {
            Target::Local(_) => self.bulk.registry.atomic(&self.id, offset, fetch_add(add)),
            Target::Peer(_) | Target::Remote(_) => value(self.call(&Request::FetchAdd { id: self.id, offset, add }, until)?),
        }
    }

    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64, until: Instant) -> Outcome<u64> {
        match self.resolve(until)? {
            Target::Local(_) => self.bulk.registry.atomic(&self.id, offset, compare_swap(compare, swap)),
            Target::Peer(_) | Target::Remote(_) => value(self.call(&Request::CompareSwap { id: self.id, offset, compare, swap }, until)?),
        }
    }

    /// A handle of a part of the buffer.
    pub fn restrict(&self, offset: u64, len: u64, readonly: bool, until: Instant) -> Outcome<Arc<Buffer>> {
        let (id, epoch) = match self.is_local() {
            true => self.bulk.registry.restrict(&self.id, offset, len, readonly, 0)?,
            false => match self.call(&Request::Restrict { id: self.id, offset, len, readonly }, until)? {
                Reply::Restricted { id, epoch } => (id, epoch),
                _ => return Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer")),
            },
        };
        Ok(Buffer::new(self.bulk.clone(), id, epoch, self.owner, len, readonly, self.is_remote))
    }

    /// Ends the buffer for all processes: for this one at once, for all others when the call returns. The end of the owner has already
    /// ended it.
    pub fn end(&self, until: Instant) -> Outcome<()> {
        self.mark_dropped();
        match self.call(&Request::Drop { id: self.id }, until) {
            Ok(_) => Ok(()),
            Err(f) if matches!(f.kind, Kind::PeerLost | Kind::Released) => Ok(()),
            Err(f) => Err(f),
        }
    }

    /// Ends the buffer for this process; false if it had ended before.
    pub fn mark_dropped(&self) -> bool {
        !self.dropped.swap(true, Ordering::AcqRel)
    }

    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    pub fn is_local(&self) -> bool {
        self.owner == self.bulk.me.uid
    }

    /// Ends a part that this process had requested and whose only handle is gone.
    pub fn forget(&self) {
        if self.is_local() {
            self.bulk.registry.end(&self.id, "its handle is gone", None);
        } else if self.is_remote {
            // On another thread, because the thread that drops the handle may hold the interpreter.
            let (bulk, owner, id) = (self.bulk.clone(), self.owner, self.id);
            self.bulk.pool.run(Box::new(move || {
                if let Ok(remote_owner) = bulk.remote_owner(owner) {
                    bulk.pool.wait(|| remote_owner.notify(&Request::Forget { id }, sys::deadline(5.0)));
                }
            }));
        } else if let Some(c) = self.bulk.open_connection(self.owner) {
            c.notify(&Request::Forget { id: self.id });
        }
    }

    /// Maps the memory of the buffer, without a copy.
    pub fn map(&self, until: Instant) -> Outcome<Mapping> {
        let target = self.resolve(until)?;
        if self.dropped.load(Ordering::Acquire) {
            return Err(self.ended(target));
        }
        let (len, readonly) = (self.size as usize, self.readonly);
        match target {
            Target::Local(_) => {
                let found = self.bulk.registry.find(&self.id)?;
                if found.memory.block().is_none() {
                    return Err(not_of_an_arena());
                }
                let keep: Box<dyn Any + Send + Sync> = Box::new(found.memory);
                Ok(Mapping { address: found.range.address, len, readonly, _keep: keep })
            }
            Target::Peer(PeerMemory { connection, slot, epoch, view: Some((view, at)), .. }) => {
                connection.check()?;
                let Some(hazard) = connection.claim(*slot, *epoch, true)? else { return Err(self.ended(target)) };
                let address = view.address(*at);
                Ok(Mapping { address, len, readonly, _keep: Box::new((view.clone(), hazard)) })
            }
            Target::Peer(_) => Err(not_of_an_arena()),
            Target::Remote(_) => Err(Failure::new(Kind::Unsupported, "the memory is of another host, so it cannot be mapped")),
        }
    }
}

/// Repeats a copy whose ring has ended. The owner closes a ring when a buffer ends in the middle of a copy, so this is not the owner's end.
fn again(connection: &Arc<Connection>, mut staged: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    for _ in 0..RINGS_TRIED {
        match staged() {
            Err(f) if matches!(f.kind, Kind::PeerLost) => connection.check()?,
            outcome => return outcome,
        }
    }
    Err(Failure::new(Kind::Transfer, format!("{RINGS_TRIED} rings ended, one after the other")))
}

fn value(reply: Reply) -> Outcome<u64> {
    match reply {
        Reply::Value(v) => Ok(v),
        _ => Err(Failure::new(Kind::Transfer, "the owner sent a malformed answer")),
    }
}

fn not_of_an_arena() -> Failure {
    Failure::new(Kind::Unsupported, "the memory was not allocated by allocate(), so it cannot be mapped")
}
