//! Large parts from another host, of which fragments have arrived. It does no I/O.
//!
//! The fragments are put together in memory that can be passed to the receiving process by reference. Fragments of one part arrive in
//! order, and a process sends another one part after another.

use std::collections::HashMap;
use std::sync::Arc;

use net::{Arena, Block, RecvPart};
use wire::ProcUid;
use wire::part_fragment::PartFragment;

use crate::local::room;
use crate::transfers::MAX_REMOTE_MESSAGE;

/// The large parts from one host of which fragments are missing, by the sending and the receiving process. The host owns it.
#[derive(Default)]
pub(super) struct PartialParts(HashMap<(ProcUid, ProcUid), PartialPart>);

impl PartialParts {
    /// Takes a fragment. Returns the part with its last fragment. A fragment that does not fit is dropped: its sender, a member of the job,
    /// is at fault.
    pub fn take(&mut self, pair: (ProcUid, ProcUid), fragment: &PartFragment<'_>, arena: &Arc<Arena>) -> Option<RecvPart> {
        let PartFragment { number, left, bytes } = *fragment;
        let fresh = || PartialPart::new(number, bytes.len().checked_add(usize::try_from(left).ok()?)?, arena);
        let mut part = self.0.remove(&pair).filter(|p| p.number == number).or_else(fresh)?;
        if part.len - part.at != bytes.len().saturating_add(left as usize) {
            return None;
        }
        part.take(bytes);
        if left == 0 {
            return Some(part.whole());
        }
        self.0.insert(pair, part);
        None
    }

    /// The host has ended: no further fragments arrive.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// A large part of which fragments are missing. `at` is the number of bytes that have arrived, out of `len`.
struct PartialPart {
    number: u64,
    memory: Memory,
    at: usize,
    len: usize,
}

/// The memory in which the fragments are put together.
enum Memory {
    Shared(Block),
    /// Memory of this process, if the arena has no block, probably because of the limit of open files.
    Own(Vec<u8>),
    /// Without memory: the part is lost, and its bytes are dropped.
    None,
}

impl PartialPart {
    fn new(number: u64, len: usize, arena: &Arc<Arena>) -> Option<PartialPart> {
        if len as u64 > MAX_REMOTE_MESSAGE {
            return None;
        }
        let memory = match arena.alloc(len) {
            // The sender has reported the part as lost: a lost part has no bytes.
            _ if len == 0 => Memory::None,
            Ok(block) => Memory::Shared(block),
            Err(_) => room(len).map_or(Memory::None, Memory::Own),
        };
        Some(PartialPart { number, memory, at: 0, len })
    }

    fn take(&mut self, bytes: &[u8]) {
        match &mut self.memory {
            Memory::Shared(block) => block.fill_at(self.at, bytes),
            Memory::Own(own) => own.extend_from_slice(bytes),
            Memory::None => {}
        }
        self.at += bytes.len();
    }

    fn whole(self) -> RecvPart {
        match self.memory {
            Memory::Shared(block) => RecvPart::Own { block: Arc::new(block), readonly: true },
            Memory::Own(bytes) => RecvPart::Inline { data: bytes.into(), readonly: true },
            Memory::None => RecvPart::lost(),
        }
    }
}

/// A part with a copy of these bytes; none if it is too large.
pub(super) fn copied(bytes: &[u8], arena: &Arc<Arena>) -> Option<RecvPart> {
    let mut part = PartialPart::new(0, bytes.len(), arena)?;
    part.take(bytes);
    Some(part.whole())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: (ProcUid, ProcUid) = (ProcUid(1), ProcUid(2));

    fn fragment(number: u64, left: u64, bytes: &[u8]) -> PartFragment<'_> {
        PartFragment { number, left, bytes }
    }

    #[test]
    fn part_is_whole_with_its_last_fragment() {
        let (mut parts, arena) = (PartialParts::default(), Arena::new());
        assert!(parts.take(PAIR, &fragment(7, 3, b"abc"), &arena).is_none());
        let whole = parts.take(PAIR, &fragment(7, 0, b"def"), &arena).unwrap();
        assert_eq!(whole.bytes().unwrap(), b"abcdef");
    }

    #[test]
    fn fragment_that_does_not_fit_is_dropped() {
        let (mut parts, arena) = (PartialParts::default(), Arena::new());
        assert!(parts.take(PAIR, &fragment(7, 3, b"abc"), &arena).is_none());
        assert!(parts.take(PAIR, &fragment(7, 0, b"longer"), &arena).is_none());
        // The next part is not affected.
        assert_eq!(parts.take(PAIR, &fragment(8, 0, b"next"), &arena).unwrap().bytes().unwrap(), b"next");
    }

    #[test]
    fn part_beyond_the_limit_is_dropped() {
        let (mut parts, arena) = (PartialParts::default(), Arena::new());
        assert!(parts.take(PAIR, &fragment(7, MAX_REMOTE_MESSAGE, b"abc"), &arena).is_none());
        assert!(parts.take(PAIR, &fragment(7, u64::MAX, b"abc"), &arena).is_none());
        assert!(parts.0.is_empty());
    }
}
