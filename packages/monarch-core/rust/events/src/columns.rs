//! The events of one type of a batch, column by column in one block of memory, as array libraries use them without a copy.
//!
//! A column is contiguous and begins at a multiple of 64 bytes from the start. Its format is a letter of Python's `struct` module: `Q` for
//! numbers, `d` for floats, `i` for texts. A text is the number of a text of the batch, or -1 if it was overwritten.

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::layout::{FIELDS, KIND, SEQ, SLOT, TIME, TRACE};
use crate::table::{Unit, type_of};

/// Alignment of the columns: the length of a cache line, as Arrow recommends.
const ALIGNMENT: usize = 64;
/// Bytes of a trace context.
const CONTEXT: usize = (FIELDS - TRACE) * 8;

/// The name, the format and the place of one column.
pub struct Column {
    pub name: &'static str,
    pub format: char,
    /// The offset of its first byte.
    pub offset: usize,
    pub bytes: usize,
}

/// All events of one type of a batch.
pub struct Columns {
    pub kind: u16,
    pub rows: usize,
    memory: Vec<u64>,
    columns: Vec<Column>,
}

impl Columns {
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialised words, which may be read as bytes.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.memory.len() * 8) }
    }

    /// Appends a column and fills it.
    fn fill<const N: usize>(&mut self, name: &'static str, format: char, values: impl Iterator<Item = [u8; N]>) {
        let offset = self.memory.len() * 8;
        let bytes = self.rows * N;
        self.memory.resize((offset + bytes).next_multiple_of(ALIGNMENT) / 8, 0);
        let words = &mut self.memory[offset / 8..];
        // SAFETY: the same memory as bytes, borrowed for the same time.
        let memory = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), words.len() * 8) };
        for (place, value) in memory[..bytes].chunks_exact_mut(N).zip(values) {
            place.copy_from_slice(&value);
        }
        self.columns.push(Column { name, format, offset, bytes });
    }
}

impl Batch {
    /// The columns of each type in the batch, by the type's number. Rows keep their order.
    pub fn columns(&self) -> Vec<Columns> {
        let mut rows: BTreeMap<u16, Vec<&[u64; SLOT]>> = BTreeMap::new();
        for slot in &self.records {
            rows.entry(slot[KIND] as u16).or_default().push(slot);
        }
        rows.into_iter().map(|(kind, slots)| columns(kind, &slots)).collect()
    }
}

fn columns(kind: u16, slots: &[&[u64; SLOT]]) -> Columns {
    let fields = type_of(kind).map_or(&[][..], |t| t.fields);
    let mut all = Columns { kind, rows: slots.len(), memory: vec![], columns: vec![] };
    let words = |at: usize| slots.iter().map(move |slot| slot[at].to_ne_bytes());
    all.fill("number", 'Q', words(SEQ));
    all.fill("time", 'q', words(TIME));
    all.fill("thread", 'I', slots.iter().map(|slot| ((slot[KIND] >> 32) as u32).to_ne_bytes()));
    all.fill::<CONTEXT>("trace", 'B', slots.iter().map(|slot| context(slot)));
    for (i, field) in fields.iter().enumerate() {
        match field.unit {
            // `LOST` is -1 also as a number of 32 bits.
            Unit::Name | Unit::Text => all.fill(field.name, 'i', slots.iter().map(move |slot| (slot[FIELDS + i] as i32).to_ne_bytes())),
            Unit::Float => all.fill(field.name, 'd', words(FIELDS + i)),
            _ => all.fill(field.name, 'Q', words(FIELDS + i)),
        }
    }
    all
}

fn context(slot: &[u64; SLOT]) -> [u8; CONTEXT] {
    let mut bytes = [0; CONTEXT];
    for (place, word) in bytes.chunks_exact_mut(8).zip(&slot[TRACE..FIELDS]) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
