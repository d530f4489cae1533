//! The values of a cast: the part of the message that differs between its targets.
//!
//! A value is cut into pieces, which are runs of encoded parts. Each target gets the same number of pieces, and several targets may get the
//! same piece. A relay passes on the pieces of the targets of a span, each piece once, and no others. A target's message has the parts of
//! its pieces before the parts that are common to all targets.

use std::ops::Range;
use std::sync::Arc;

use crate::cursor::{Cursor, DecodeError, put_block, put_var};

/// A run of encoded parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The number of parts.
    pub count: u32,
    pub bytes: Arc<[u8]>,
}

/// The pieces of consecutive targets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Values {
    /// The number of pieces of each target.
    each: u32,
    /// The places of the pieces of all targets, `each` for a target.
    places: Vec<u32>,
    pieces: Vec<Piece>,
}

impl Values {
    /// `places` has `each` places in `pieces` for each target.
    pub fn new(each: u32, places: Vec<u32>, pieces: Vec<Piece>) -> Self {
        Values { each, places, pieces }
    }

    /// The number of targets.
    pub fn targets(&self) -> u32 {
        self.places.len() as u32 / self.each.max(1)
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pieces of a target, counted from the first target; `None` if one is missing.
    pub fn of(&self, target: u32) -> Option<Vec<&Piece>> {
        let places = self.places.get(self.range(target..target.saturating_add(1)))?;
        places.iter().map(|place| self.pieces.get(*place as usize)).collect()
    }

    /// The values of some of the targets, with no piece that none of them gets.
    pub fn part(&self, targets: Range<u32>) -> Values {
        const ABSENT: u32 = u32::MAX;
        let mut moved = vec![ABSENT; self.pieces.len()];
        let mut part = Values { each: self.each, ..Values::default() };
        for place in self.places.get(self.range(targets)).unwrap_or_default() {
            let Some(to) = moved.get_mut(*place as usize) else { continue };
            if *to == ABSENT {
                *to = part.pieces.len() as u32;
                part.pieces.push(self.pieces[*place as usize].clone());
            }
            part.places.push(*to);
        }
        part
    }

    fn range(&self, targets: Range<u32>) -> Range<usize> {
        targets.start as usize * self.each as usize..targets.end as usize * self.each as usize
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        out.reserve(self.pieces.iter().map(|p| p.bytes.len() + 8).sum::<usize>() + 3 * self.places.len() + 12);
        put_var(out, self.pieces.len() as u64);
        for piece in &self.pieces {
            put_var(out, piece.count.into());
            put_block(out, &piece.bytes);
        }
        put_var(out, self.each.into());
        put_var(out, self.places.len() as u64);
        self.places.iter().for_each(|place| put_var(out, (*place).into()));
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let n = c.count(2)?;
        let pieces = (0..n).map(|_| Ok(Piece { count: c.var32()?, bytes: c.block()?.into() })).collect::<Result<Vec<_>, DecodeError>>()?;
        let each = c.var32()?;
        let n = c.count(1)?;
        let places = (0..n).map(|_| c.var32()).collect::<Result<Vec<_>, _>>()?;
        if places.iter().any(|place| *place as usize >= pieces.len()) {
            return Err(DecodeError::Number);
        }
        Ok(Values { each, places, pieces })
    }
}
