//! Copies through a ring, where the kernel refuses direct ones.
//!
//! The ring is memory that both sides map. One side fills a piece of it and reports that, the other side empties it and reports that. With
//! several pieces both copy at the same time. On the owner's side, each ring has a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use net::sys::{self as base, Share};

use crate::connection::ControlChannel;
use crate::copy;
use crate::failure::{Failure, Kind, Outcome};
use crate::frames::{self, Id, Reply, Request};
use crate::grid::{self, Grid};
use crate::registry::{Pin, Registry};
use crate::spans::Span;
use crate::sys;

/// Bytes of a piece of the ring.
const PIECE: usize = 1 << 20;
/// Pieces of the ring: enough that both sides copy at the same time.
const PIECES: usize = 4;

/// The shared memory of one ring, as either side maps it.
pub struct Ring {
    fd: OwnedFd,
    base: *mut u8,
}

// SAFETY: a shared mapping, which exists as long as the value. The messages decide which side owns each piece.
unsafe impl Send for Ring {}
unsafe impl Sync for Ring {}

impl Ring {
    pub fn new() -> io::Result<Ring> {
        Ring::of(sys::sealed_memfd(c"monarch-rdma-ring", (PIECE * PIECES) as u64, false)?)
    }

    fn of(fd: OwnedFd) -> io::Result<Ring> {
        if !sys::is_sealed(fd.as_raw_fd(), (PIECE * PIECES) as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a ring that could shrink"));
        }
        let base = base::map(fd.as_raw_fd(), 0, PIECE * PIECES, &Share::Shared)?;
        Ok(Ring { fd, base })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn piece(&self, number: usize) -> usize {
        self.base as usize + number % PIECES * PIECE
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { base::unmap(self.base, PIECE * PIECES) };
    }
}

/// The length of the piece `number` of a copy of `len` bytes.
fn piece_len(len: u64, number: usize) -> usize {
    (len - (number * PIECE) as u64).min(PIECE as u64) as usize
}

fn pieces(len: u64) -> usize {
    len.div_ceil(PIECE as u64) as usize
}

fn malformed() -> Failure {
    Failure::new(Kind::Transfer, "the other side of a ring sent a malformed message")
}

/// The end of a ring in the process that reads or writes the buffer.
pub struct Stage {
    control: ControlChannel,
    ring: Ring,
}

impl Stage {
    pub fn new(control: ControlChannel, fd: OwnedFd) -> io::Result<Stage> {
        Ok(Stage { control, ring: Ring::of(fd)? })
    }

    /// Copies. After an error the stage is unusable. `moved` is called for each piece. A write is contiguous.
    ///
    /// # Safety
    /// The section is valid in local memory, and for writing unless the copy is a write.
    pub unsafe fn copy(&self, (id, epoch): (Id, u64), span: &Span, until: Instant, mut moved: impl FnMut(usize)) -> Outcome<()> {
        let Span { write, local, offset, grid, start, len } = *span;
        let request = if grid.is_contiguous() {
            Request::Copy { id, epoch, offset: offset + start, len, write }
        } else {
            Request::Gather { id, epoch, skip: start, len, parts: vec![grid.part(offset)] }
        };
        self.control.call(&request, until)?;
        let (count, mut filled, mut emptied) = (pieces(len), 0, 0);
        while emptied < count {
            if write && filled < count && filled - emptied < PIECES {
                let n = piece_len(len, filled);
                // SAFETY: the caller's guarantee; this side owns the piece until it reports it as full.
                unsafe { copy::memory(local + start as usize + filled * PIECE, self.ring.piece(filled), n) };
                self.control.send_reply(&Reply::Value(n as u64), until)?;
                filled += 1;
                continue;
            }
            let n = piece_len(len, emptied);
            match self.control.receive(&mut VecDeque::new(), until)?.1 {
                Reply::Value(reported) if reported == n as u64 => {}
                Reply::Refused { kind, detail } => return Err(frames::refusal(kind, detail)),
                _ => return Err(malformed()),
            }
            if !write {
                let mut from = self.ring.piece(emptied);
                for r in grid.rows(start + (emptied * PIECE) as u64, n as u64) {
                    // SAFETY: the caller's guarantee; the owner has filled the piece and waits until this side reports it as empty.
                    unsafe { copy::scatter(from, local.wrapping_add_signed(r.here as isize), &r) };
                    from += (r.run * r.count) as usize;
                }
                self.control.send_reply(&Reply::Value(n as u64), until)?;
            }
            emptied += 1;
            moved(n);
        }
        Ok(())
    }
}

/// Serves the owner's end of a ring until the other side closes it.
pub fn serve(fd: &OwnedFd, ring: &Ring, registry: &Arc<Registry>) {
    while let Some(message) = next(fd) {
        let (number, id, epoch, write, pinned) = match frames::decode(&message) {
            Some((number, Request::Copy { id, epoch, offset, len, write })) => {
                let pinned = registry.pin(&id, offset, len, write).map(|pin| (pin, Grid::contiguous(len), 0, len));
                (number, id, epoch, write, pinned)
            }
            Some((number, Request::Gather { id, epoch, skip, len, parts })) if parts.len() == 1 => {
                let pinned = grid::admitted(&parts, skip, len).and_then(|(low, range)| registry.pin(&id, low, range, false));
                (number, id, epoch, false, pinned.map(|pin| (pin, Grid::of_part(&parts[0]), skip, len)))
            }
            _ => return,
        };
        let pinned = pinned.and_then(|copy| match copy.0.epoch() == epoch {
            true => Ok(copy),
            false => Err(Failure::new(Kind::Access, "the handle has another epoch than the buffer")),
        });
        let served = match pinned {
            Ok((pin, grid, start, len)) => {
                send_message(fd, number, &Reply::Done) && copy(fd, ring, &pin, (grid, start, len), write, || registry.why(&id))
            }
            Err(f) => send_message(fd, number, &Reply::refused(&f)),
        };
        if !served {
            return;
        }
    }
}

fn copy(fd: &OwnedFd, ring: &Ring, pin: &Pin, (grid, start, len): (Grid, u64, u64), write: bool, why: impl Fn() -> String) -> bool {
    let (count, mut filled, mut emptied) = (pieces(len), 0, 0);
    while emptied < count {
        // A filled piece belongs to the reader, which checks itself whether the buffer has ended.
        if (write || filled < count) && !pin.is_current() {
            send_message(fd, 0, &Reply::refused(&Failure::new(Kind::Released, why())));
            return false;
        }
        let memory = pin.range.address;
        if !write && filled < count && filled - emptied < PIECES {
            let n = piece_len(len, filled);
            let mut to = ring.piece(filled);
            for r in grid.rows(start + (filled * PIECE) as u64, n as u64) {
                // SAFETY: pinned memory, in range; this side owns the piece until it reports it as full.
                unsafe { copy::gather(memory + r.there as usize, &r, to) };
                to += (r.run * r.count) as usize;
            }
            if !send_message(fd, 0, &Reply::Value(n as u64)) {
                return false;
            }
            filled += 1;
            continue;
        }
        let n = piece_len(len, emptied);
        let Some((_, Reply::Value(reported))) = next(fd).and_then(|m| frames::decode::<Reply>(&m)) else { return false };
        if reported != n as u64 {
            return false;
        }
        if write {
            // SAFETY: pinned memory, in range and writable; the other side waits until this side reports the piece as empty.
            unsafe { copy::memory(ring.piece(emptied), memory + emptied * PIECE, n) };
            if !send_message(fd, 0, &Reply::Value(n as u64)) {
                return false;
            }
        }
        emptied += 1;
    }
    true
}

fn send_message(fd: &OwnedFd, number: u32, reply: &Reply) -> bool {
    // The socket always has room: at most one message for each piece is pending.
    base::send(fd.as_raw_fd(), &[&frames::encode(number, reply)], &[]).is_ok()
}

/// The next message; `None` at the end of the stream.
fn next(fd: &OwnedFd) -> Option<Vec<u8>> {
    loop {
        match sys::receive(fd.as_raw_fd(), &mut VecDeque::new()) {
            Ok(message) => return (!message.is_empty()).then_some(message),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => drop(sys::poll(&[(fd.as_raw_fd(), libc::POLLIN)], None).ok()?),
            Err(_) => return None,
        }
    }
}
