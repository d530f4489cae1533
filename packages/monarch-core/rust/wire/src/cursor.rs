//! Bounds-checked reading of little-endian fields.

use std::ops::Range;
use std::sync::Arc;

use crate::part::Bytes;

/// Longer byte strings are not copied out of their buffer.
const STAY: usize = 64 << 10;

/// The reason for which bytes could not be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("truncated frame")]
    Truncated,
    #[error("trailing bytes in frame")]
    Trailing,
    #[error("unknown frame kind {0}")]
    Kind(u8),
    #[error("unknown tag {0}")]
    Tag(u8),
    #[error("malformed control message")]
    Control,
    #[error("text is not utf-8")]
    Text,
    #[error("number out of range")]
    Number,
}

/// A reader over the body of a frame.
pub struct Cursor<'a> {
    rest: &'a [u8],
    /// The buffer that contains the bytes, and the end of the bytes in it.
    run: Option<(&'a Arc<Vec<u8>>, usize)>,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { rest: bytes, run: None }
    }

    /// A reader over a range of a buffer; empty if the buffer has no such range.
    pub fn within(run: &'a Arc<Vec<u8>>, range: Range<usize>) -> Self {
        Cursor { rest: run.get(range.clone()).unwrap_or_default(), run: Some((run, range.end)) }
    }

    /// Reads `n` bytes. Long byte strings share the buffer, short ones are copied.
    pub fn bytes(&mut self, n: usize) -> Result<Bytes, DecodeError> {
        let bytes = self.take(n)?;
        Ok(match self.run {
            Some((run, end)) if n >= STAY => {
                let start = end - self.rest.len() - n;
                Bytes::Within(run.clone(), start..start + n)
            }
            _ => bytes.into(),
        })
    }

    pub fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        if n > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        let (head, tail) = self.rest.split_at(n);
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a number that `put_var` wrote, in groups of seven bits, lowest first.
    pub fn var(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError::Number);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Number)
    }

    pub fn var32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.var()?).map_err(|_| DecodeError::Number)
    }

    /// Reads a count of items of at least `each` bytes. A count beyond the input is an error, so it causes no large allocation.
    pub fn count(&mut self, each: usize) -> Result<usize, DecodeError> {
        let count = self.var()? as usize;
        if count > self.remaining() / each { Err(DecodeError::Truncated) } else { Ok(count) }
    }

    /// Reads a byte string that follows its length.
    pub fn block(&mut self) -> Result<&'a [u8], DecodeError> {
        let n = self.var()?;
        self.take(usize::try_from(n).map_err(|_| DecodeError::Truncated)?)
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Fails if bytes are left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

/// Writes a number, in few bytes if it is small; `Cursor::var` reads it.
pub fn put_var(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a byte string after its length.
pub fn put_block(out: &mut Vec<u8>, bytes: &[u8]) {
    put_var(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
