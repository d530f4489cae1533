//! The payloads of one message that has other values for each receiver.
//!
//! The values are cut into pieces. A receiver's message has the parts of its pieces, and then the parts that are common to all receivers.
//! Each piece is prepared once, however many receivers get it: their messages name the same blocks of the arena. It is prepared for its
//! first receiver and released after its last one, so that blocks that receivers have released are used again for the next pieces.

use std::io;
use std::sync::Arc;

use net::Arena;
use wire::values::Piece;
use wire::{Part, Values};

use super::payload::{OutPart, Payload, SHARED_FROM};

/// The limit of all values of a cast: 16 children of the root (`cast::fan_out`) then get about 1 MiB each, the limit of common parts.
/// Larger values are sent directly to each target.
const MAX_CAST_VALUES: u64 = 16 << 20;

/// The parts of a value, and their payload while receivers of it remain.
struct Own<'a> {
    parts: Vec<OutPart<'a>>,
    len: u64,
    payload: Option<Payload<'a>>,
    /// The number of receivers that have not got the piece.
    remaining: usize,
}

/// The payloads of a message, by rank.
pub struct RankPayloads<'a> {
    arena: Arc<Arena>,
    common: Payload<'a>,
    pieces: Vec<Own<'a>>,
    /// The places in `pieces`, `each` for a rank.
    places: Vec<u32>,
    each: usize,
}

impl<'a> RankPayloads<'a> {
    /// All `places` are places in `pieces`, `each` for a rank.
    pub fn new(arena: &Arc<Arena>, common: Payload<'a>, pieces: Vec<Vec<OutPart<'a>>>, places: Vec<u32>, each: usize) -> Self {
        let own = |parts: Vec<OutPart<'a>>| {
            let len = parts.iter().map(|part| part.bytes.len() as u64).sum();
            Own { parts, len, payload: None, remaining: 0 }
        };
        let mut pieces: Vec<Own<'a>> = pieces.into_iter().map(own).collect();
        places.iter().for_each(|place| pieces[*place as usize].remaining += 1);
        RankPayloads { arena: arena.clone(), common, pieces, places, each }
    }

    /// The parts that all receivers get.
    pub fn common(&self) -> &Payload<'a> {
        &self.common
    }

    fn places(&self, rank: usize) -> &[u32] {
        self.places.get(rank * self.each..(rank + 1) * self.each).unwrap_or_default()
    }

    fn own(&self, rank: usize) -> impl Iterator<Item = &Own<'a>> {
        self.places(rank).iter().map(|place| &self.pieces[*place as usize])
    }

    /// The payload of the message to a rank, which is sent once. Fails if there is no shared memory for a part.
    pub fn take(&mut self, rank: usize) -> io::Result<Payload<'a>> {
        let mut all = Vec::with_capacity(self.each + 1);
        for at in rank * self.each..(rank + 1) * self.each {
            let piece = &mut self.pieces[self.places[at] as usize];
            let payload = match piece.payload.take() {
                Some(payload) => payload,
                None => Payload::new(&self.arena, piece.parts.iter().copied())?,
            };
            piece.remaining = piece.remaining.saturating_sub(1);
            if piece.remaining > 0 {
                piece.payload = Some(Payload::join([&payload]));
            }
            all.push(payload);
        }
        Ok(Payload::join(all.iter().chain([&self.common])))
    }

    /// The number of bytes that a rank gets and others may not get.
    pub fn own_len(&self, rank: usize) -> u64 {
        self.own(rank).map(|piece| piece.len).sum()
    }

    /// The number of bytes of the largest part.
    pub fn largest(&self) -> usize {
        let own = self.pieces.iter().flat_map(|piece| &piece.parts).map(|part| part.bytes.len()).max();
        self.common.largest().max(own.unwrap_or(0))
    }

    /// True if a tree may carry the values: none has a part that belongs beside a frame, and together they are small.
    pub fn fit_cast(&self) -> bool {
        let small = |piece: &Own<'_>| piece.parts.iter().all(|part| part.bytes.len() < SHARED_FROM);
        self.pieces.iter().all(small) && self.pieces.iter().map(|piece| piece.len).sum::<u64>() <= MAX_CAST_VALUES
    }

    /// The values of these ranks, in the format of a cast.
    pub fn of_targets(&self, ranks: impl Iterator<Item = usize>) -> Values {
        let places: Vec<u32> = ranks.flat_map(|rank| self.places(rank)).copied().collect();
        let targets = (places.len() / self.each.max(1)) as u32;
        let encoded = |piece: &Own<'_>| {
            let mut bytes = Vec::with_capacity(piece.len as usize + 5 * piece.parts.len());
            for part in &piece.parts {
                Part::put_inline_head(&mut bytes, part.bytes.len(), part.readonly);
                bytes.extend_from_slice(part.bytes);
            }
            Piece { count: piece.parts.len() as u32, bytes: bytes.into() }
        };
        // Pieces of ranks that get the message directly are left out.
        Values::new(self.each as u32, places, self.pieces.iter().map(encoded).collect()).part(0..targets)
    }
}
