//! Events that were read from a ring: whole records, and the texts to which they refer.
//!
//! A record stays as wide as its slot, and its fields stay words: the read copies them, and resolves each name once for the batch. Records
//! or columns are made from the batch later.

use std::collections::HashMap;

use crate::layout::{COUNT, FIELDS, KIND, SEQ, SLOT, TIME, TRACE, Words};
use crate::reader::{Record, Value};
use crate::table::{Unit, type_of};
use crate::text;

/// The number in place of a text that has been overwritten.
pub const LOST: u64 = u64::MAX;

/// Texts one after another, in the layout of Arrow: a text is between the offset of its number and the next offset.
pub struct Texts {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
}

impl Default for Texts {
    /// Number 0 is the empty text.
    fn default() -> Self {
        Texts { offsets: vec![0, 0], bytes: vec![] }
    }
}

impl Texts {
    fn add(&mut self, text: &str) -> u64 {
        self.bytes.extend_from_slice(text.as_bytes());
        // The texts of a batch fit into the memory of a ring, which is less than a megabyte.
        self.offsets.push(self.bytes.len() as i32);
        self.offsets.len() as u64 - 2
    }

    pub fn offsets(&self) -> &[i32] {
        &self.offsets
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The text with this number; `None` if it was overwritten.
    pub fn get(&self, number: u64) -> Option<String> {
        let at = usize::try_from(number).ok()?;
        let (from, to) = (*self.offsets.get(at)?, *self.offsets.get(at + 1)?);
        let bytes = self.bytes.get(from as usize..to as usize)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// Events in the order of the ring, with the texts to which they refer.
#[derive(Default)]
pub struct Batch {
    /// Slots with three changes: the number of the event replaces the sequence number, the time is in nanoseconds since the epoch, and the
    /// number of a text, or `LOST`, replaces a reference.
    pub(crate) records: Vec<[u64; SLOT]>,
    texts: Texts,
    /// The numbers of the texts of names, by their references.
    names: HashMap<u64, u64>,
}

/// How many fields an event was written with.
fn written(kind: u64) -> usize {
    match ((kind >> COUNT) as u8, kind as u16) {
        // Of rings without these numbers: what types had then.
        (0, 5) => 8,
        (0, 14 | 25) => 7,
        (0, _) => SLOT - FIELDS,
        (count, _) => usize::from(count),
    }
}

impl Batch {
    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Adds a whole slot of a ring.
    pub(crate) fn push(&mut self, ring: &Words, mut slot: [u64; SLOT], number: u64, epoch: u64) {
        slot[SEQ] = number;
        slot[TIME] = slot[TIME].wrapping_add(epoch);
        let fields = type_of(slot[KIND] as u16).map_or(&[][..], |t| t.fields);
        // Bytes behind the fields of an event belong to an older event.
        let count = written(slot[KIND]);
        slot[FIELDS..].iter_mut().skip(count).for_each(|word| *word = 0);
        for (field, word) in fields.iter().zip(&mut slot[FIELDS..]) {
            *word = match field.unit {
                Unit::Name => match self.names.get(word) {
                    Some(known) => *known,
                    None => {
                        let found = self.resolve(ring, *word);
                        self.names.insert(*word, found);
                        found
                    }
                },
                Unit::Text => self.resolve(ring, *word),
                _ => *word,
            };
        }
        self.records.push(slot);
    }

    fn resolve(&mut self, ring: &Words, reference: u64) -> u64 {
        if reference == 0 {
            return 0;
        }
        text::read(ring, reference).map_or(LOST, |text| self.texts.add(&text))
    }

    /// The records, one by one.
    pub fn decode(&self) -> Vec<Record> {
        self.records.iter().map(|slot| self.record(slot)).collect()
    }

    fn record(&self, slot: &[u64; SLOT]) -> Record {
        let kind = slot[KIND] as u16;
        let fields = type_of(kind).map_or(&[][..], |t| t.fields);
        let value = |(field, word): (&crate::table::Field, &u64)| match field.unit {
            Unit::Name | Unit::Text => self.texts.get(*word).map_or(Value::Lost, Value::Text),
            Unit::Float => Value::Float(f64::from_bits(*word)),
            _ => Value::Number(*word),
        };
        Record {
            number: slot[SEQ],
            time: slot[TIME],
            kind,
            thread: (slot[KIND] >> 32) as u32,
            trace: [slot[TRACE], slot[TRACE + 1], slot[TRACE + 2]],
            fields: fields.iter().zip(&slot[FIELDS..]).map(value).collect(),
        }
    }
}
