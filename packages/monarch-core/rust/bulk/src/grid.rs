//! Runs of bytes at equal distances, in a buffer and in local memory.
//!
//! A grid has two dimensions. Its bytes have an order: those of a run, then the runs of the inner dimension, then those of the outer one. A
//! section of this order is a part of a copy, so threads and streams divide a grid as they divide contiguous bytes. The runs of a valid
//! grid do not overlap in the buffer, so a copy has no more bytes than the buffer.

use crate::failure::{Failure, Kind, Outcome};
use crate::frames::Part;

/// Runs of `run` bytes. The outer dimension comes first; a dimension that is not used has one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub run: u64,
    pub counts: [u64; 2],
    /// Bytes of one step in the buffer.
    pub there: [u64; 2],
    /// Bytes of one step in local memory.
    pub here: [i64; 2],
}

/// Runs at equal distances: the first one is at `there` and `here`, which count from the first byte of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub there: u64,
    pub here: i64,
    pub run: u64,
    pub count: u64,
    pub there_step: u64,
    pub here_step: i64,
}

impl Grid {
    pub fn contiguous(len: u64) -> Grid {
        Grid { run: len, counts: [1, 1], there: [0, 0], here: [0, 0] }
    }

    /// The grid of a part that another process has named. Local bytes lie one after another.
    pub fn of_part(part: &Part) -> Grid {
        Grid { run: part.run, counts: part.counts, there: part.steps, here: [0, 0] }
    }

    pub fn part(&self, offset: u64) -> Part {
        Part { offset, run: self.run, counts: self.counts, steps: self.there }
    }

    pub fn is_contiguous(&self) -> bool {
        self.counts == [1, 1]
    }

    /// The bytes from the first to the last one in the buffer. `None` if the grid is invalid: empty, too large, or with overlapping runs.
    /// The number of bytes of a valid grid is at most this.
    pub fn span(&self) -> Option<u64> {
        let mut extent = self.run;
        for dim in [1, 0] {
            let (count, step) = (self.counts[dim], self.there[dim]);
            if count > 1 && step < extent {
                return None;
            }
            extent = step.checked_mul(count.checked_sub(1)?)?.checked_add(extent)?;
        }
        (self.run > 0).then_some(extent)
    }

    /// The number of bytes of a valid grid.
    pub fn len(&self) -> u64 {
        self.run.saturating_mul(self.counts[0]).saturating_mul(self.counts[1])
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows that make up `len` bytes from byte `start` on. A run of which only a part is wanted is a row of its own.
    pub fn rows(&self, start: u64, len: u64) -> Rows {
        Rows { grid: *self, at: start, left: len.min(self.len().saturating_sub(start)) }
    }
}

/// The rows of a section of a grid.
pub struct Rows {
    grid: Grid,
    at: u64,
    left: u64,
}

impl Iterator for Rows {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        if self.left == 0 {
            return None;
        }
        let g = &self.grid;
        let (number, within) = if g.is_contiguous() { (0, self.at) } else { (self.at / g.run, self.at % g.run) };
        let (outer, inner) = if g.counts[0] == 1 { (0, number) } else { (number / g.counts[1], number % g.counts[1]) };
        let there = outer * g.there[0] + inner * g.there[1] + within;
        // Local steps are of the caller, who guarantees the memory behind them.
        let step = |count: u64, step: i64| (count as i64).wrapping_mul(step);
        let here = step(outer, g.here[0]).wrapping_add(step(inner, g.here[1])).wrapping_add(within as i64);
        let row = if within > 0 || self.left < g.run {
            let run = (g.run - within).min(self.left);
            Row { there, here, run, count: 1, there_step: 0, here_step: 0 }
        } else {
            let count = (g.counts[1] - inner).min(self.left / g.run);
            Row { there, here, run: g.run, count, there_step: g.there[1], here_step: g.here[1] }
        };
        self.at += row.run * row.count;
        self.left -= row.run * row.count;
        Some(row)
    }
}

/// Checks parts that another process has named. Returns the range of the buffer that they lie in, and the number of their bytes.
pub fn admitted(parts: &[Part], skip: u64, len: u64) -> Outcome<(u64, u64)> {
    let (mut low, mut high, mut bytes) = (u64::MAX, 0, 0u64);
    for part in parts {
        let grid = Grid::of_part(part);
        let end = grid.span().and_then(|span| part.offset.checked_add(span));
        let (Some(end), Some(sum)) = (end, bytes.checked_add(grid.len())) else {
            return Err(Failure::new(Kind::Access, "a part of the copy is empty, too large, or has runs that overlap"));
        };
        (low, high, bytes) = (low.min(part.offset), high.max(end), sum);
    }
    if len == 0 || skip.checked_add(len).is_none_or(|end| end > bytes) {
        return Err(Failure::new(Kind::Access, format!("the parts of the copy have {bytes} bytes, and {len} after {skip} are wanted")));
    }
    Ok((low, high - low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grid(run: u64, counts: [u64; 2], there: [u64; 2]) -> Grid {
        Grid { run, counts, there, here: [7, -3] }
    }

    /// The place of each byte: in the buffer, and in local memory.
    fn places(g: &Grid, start: u64, len: u64) -> Vec<(u64, i64)> {
        let runs = |r: Row| (0..r.count).flat_map(move |i| (0..r.run).map(move |b| (i, b, r)));
        let at = |(i, b, r): (u64, u64, Row)| (r.there + i * r.there_step + b, r.here + i as i64 * r.here_step + b as i64);
        g.rows(start, len).flat_map(runs).map(at).collect()
    }

    proptest! {
        #[test]
        fn sections_make_up_the_whole(run in 1..9u64, counts in [1..5u64, 1..5u64], gaps in [0..4u64, 0..4u64], cut: prop::sample::Index) {
            let inner = run + gaps[1];
            let g = grid(run, counts, [inner * counts[1] + gaps[0], inner]);
            let all = places(&g, 0, u64::MAX);
            prop_assert_eq!(all.len() as u64, g.len());
            let cut = cut.index(all.len() + 1) as u64;
            prop_assert_eq!([places(&g, 0, cut), places(&g, cut, g.len() - cut)].concat(), all.clone());
            let span = g.span().unwrap();
            prop_assert!(g.len() <= span && all.iter().all(|(there, _)| *there < span));
            prop_assert_eq!(all.last().unwrap().0, span - 1);
        }

        #[test]
        fn any_part_is_refused_or_within(offset: u64, run: u64, counts: [u64; 2], steps: [u64; 2], skip: u64, len: u64) {
            if let Ok((low, range)) = admitted(&[Part { offset, run, counts, steps }], skip, len) {
                prop_assert!(low == offset && low.checked_add(range).is_some() && len <= range);
            }
        }
    }

    #[test]
    fn invalid_grids_have_no_span() {
        for g in [
            grid(0, [1, 1], [0, 0]),
            grid(4, [0, 1], [8, 8]),
            grid(4, [1, 0], [8, 8]),
            grid(4, [1, 2], [0, 3]),
            grid(4, [1, 2], [0, 0]),
            grid(4, [2, 2], [11, 8]),
            grid(u64::MAX, [2, 1], [u64::MAX, 0]),
            grid(1, [1, u64::MAX], [0, 2]),
            grid(8, [u64::MAX, u64::MAX], [u64::MAX, 8]),
        ] {
            assert_eq!(g.span(), None, "{g:?}");
        }
        assert_eq!(grid(4, [2, 2], [12, 8]).span(), Some(24));
    }
}
