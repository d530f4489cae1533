//! The trace of a message: W3C Trace Context, <https://www.w3.org/TR/trace-context/>.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::cursor::{Cursor, DecodeError};

/// A sampled trace and a span of it; both are 0 without one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Trace {
    pub id: u128,
    pub span: u64,
}

impl Trace {
    pub const NONE: Trace = Trace { id: 0, span: 0 };

    pub fn is_none(self) -> bool {
        self.id == 0
    }

    /// The compact form for storage: most messages have no trace.
    pub fn boxed(self) -> Option<Box<Trace>> {
        (!self.is_none()).then(|| Box::new(self))
    }

    /// A new child span of this one.
    pub fn child(self) -> Trace {
        Trace { id: self.id, span: new_span() }
    }

    /// The form in events.
    pub fn words(self) -> [u64; 3] {
        [(self.id >> 64) as u64, self.id as u64, self.span]
    }

    /// Encodes 16 and 8 bytes, in the order of the text form.
    pub fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.span.to_be_bytes());
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Trace, DecodeError> {
        let (mut id, mut span) = ([0; 16], [0; 8]);
        id.copy_from_slice(c.take(16)?);
        span.copy_from_slice(c.take(8)?);
        Ok(Trace { id: u128::from_be_bytes(id), span: u64::from_be_bytes(span) })
    }

    /// The text form of a sampled trace.
    pub fn traceparent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.id, self.span)
    }

    /// Parses the text form; `None` if it is malformed. In later versions only the first four fields count. `NONE` for a trace that is not
    /// sampled.
    pub fn parse(text: &str) -> Option<Trace> {
        let mut fields = text.split('-');
        let version = hex(fields.next()?, 2)? as u8;
        let (id, span) = (hex(fields.next()?, 32)?, hex(fields.next()?, 16)? as u64);
        let flags = hex(fields.next()?, 2)?;
        if version == 0xff || version == 0 && fields.next().is_some() || id == 0 || span == 0 {
            return None;
        }
        Some(if flags & 1 == 1 { Trace { id, span } } else { Trace::NONE })
    }
}

fn hex(field: &str, digits: usize) -> Option<u128> {
    let plain = field.len() == digits && field.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(field, 16).ok().filter(|_| plain)
}

/// A random number that is never 0. It comes from the keys of a hash map: the first key is random from the kernel, later ones count up.
fn new_span() -> u64 {
    RandomState::new().hash_one(0).max(1)
}
