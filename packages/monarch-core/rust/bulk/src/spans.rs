//! Sections of grids that are copied one after another, and how far a copy of them has come.

use crate::grid::{Grid, Row};

/// A copy of a section of a grid between local memory and a buffer; a write goes from local memory to the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub write: bool,
    /// The address of the first byte of the grid in local memory.
    pub local: usize,
    /// The offset of that byte in the buffer.
    pub offset: u64,
    pub grid: Grid,
    /// The first byte of the section, in the order of the grid.
    pub start: u64,
    pub len: u64,
}

impl Span {
    /// A copy of contiguous bytes.
    pub fn contiguous(write: bool, local: usize, offset: u64, len: u64) -> Span {
        Span { write, local, offset, grid: Grid::contiguous(len), start: 0, len }
    }

    /// Whether the section is all of its grid.
    pub fn is_whole(&self) -> bool {
        self.start == 0 && self.len == self.grid.len()
    }

    /// The address of the first run of a row in local memory.
    pub fn local_of(&self, row: &Row) -> usize {
        self.local.wrapping_add_signed(row.here as isize)
    }

    /// The contiguous copies that make up this one.
    pub fn runs(self) -> impl Iterator<Item = Span> {
        let run = move |r: Row, i: u64| {
            let local = self.local_of(&r).wrapping_add_signed((i as i64).wrapping_mul(r.here_step) as isize);
            Span::contiguous(self.write, local, self.offset + r.there + i * r.there_step, r.run)
        };
        self.grid.rows(self.start, self.len).flat_map(move |r| (0..r.count).map(move |i| run(r, i)))
    }
}

/// Spans of one copy, and the number of bytes that are copied already.
pub struct Spans {
    all: Vec<Span>,
    len: u64,
    done: u64,
    /// The first span that is not complete, and the number of its bytes that are copied already.
    next: (usize, u64),
}

impl Spans {
    pub fn new(all: Vec<Span>) -> Spans {
        let len = all.iter().map(|span| span.len).sum();
        Spans { all, len, done: 0, next: (0, 0) }
    }

    /// The number of spans.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The number of bytes that are not copied yet.
    pub fn left(&self) -> u64 {
        self.len - self.done
    }

    /// The spans that are not complete, and the number of bytes of the first one that are copied already.
    pub fn rest(&self) -> (&[Span], u64) {
        (self.all.get(self.next.0..).unwrap_or_default(), self.next.1)
    }

    /// Counts bytes that were copied.
    pub fn advance(&mut self, mut bytes: u64) {
        self.done += bytes;
        while let Some(span) = self.all.get(self.next.0) {
            let left = span.len - self.next.1;
            if bytes < left {
                self.next.1 += bytes;
                return;
            }
            bytes -= left;
            self.next = (self.next.0 + 1, 0);
        }
    }

    /// The rows that are not copied yet.
    pub fn rows(&self) -> impl Iterator<Item = (&Span, Row)> {
        let (rest, within) = self.rest();
        rest.iter().enumerate().flat_map(move |(i, span)| {
            let skip = if i == 0 { within } else { 0 };
            span.grid.rows(span.start + skip, span.len - skip).map(move |row| (span, row))
        })
    }
}
