//! A payload is one or more parts: part 0 is the pickle stream, the others are its out-of-band buffers.
//!
//! Small parts are in the frame. Large parts are named by their block in the sender's arena or, for processes of other hosts, sent
//! out-of-band ahead of the frame.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::cursor::{Cursor, DecodeError};
use crate::ids::BlockId;

/// The part is in the frame.
const INLINE: u8 = 0;
/// The part is a block of the sender's arena.
const SHARED: u8 = 1;
/// The part is sent out-of-band, ahead of the frame.
const OUT_OF_BAND: u8 = 2;
/// The part is offered: the receiver pulls it.
const OFFERED: u8 = 3;
/// The flag of a part that the receiver gets read-only.
const READONLY: u8 = 0x80;

/// Owned bytes, or a range of a received buffer.
#[derive(Clone)]
pub enum Bytes {
    Own(Box<[u8]>),
    Within(Arc<Vec<u8>>, Range<usize>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            Bytes::Within(run, range) => &run[range.clone()],
        }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Into<Box<[u8]>>> From<T> for Bytes {
    fn from(bytes: T) -> Bytes {
        Bytes::Own(bytes.into())
    }
}

/// One received part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    Inline {
        data: Bytes,
        readonly: bool,
    },
    /// A block of the sender's arena, for a receiver on the same host.
    Shared {
        block: BlockId,
        len: u64,
        readonly: bool,
    },
    /// An out-of-band part with this number, which arrives ahead of the frame.
    OutOfBand {
        number: u64,
        len: u64,
        readonly: bool,
    },
    /// The receiver pulls the part by the record. If it cannot, the part is sent out-of-band with this number.
    Offered {
        number: u64,
        len: u64,
        record: Box<[u8]>,
        readonly: bool,
    },
}

impl Part {
    pub fn len(&self) -> u64 {
        match self {
            Part::Inline { data, .. } => data.len() as u64,
            Part::Shared { len, .. } | Part::OutOfBand { len, .. } | Part::Offered { len, .. } => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn readonly(&self) -> bool {
        match self {
            Part::Inline { readonly, .. } | Part::Shared { readonly, .. } => *readonly,
            Part::OutOfBand { readonly, .. } | Part::Offered { readonly, .. } => *readonly,
        }
    }

    /// Encodes the head of an inline part; its bytes follow.
    pub fn put_inline_head(out: &mut Vec<u8>, len: usize, readonly: bool) {
        out.push(INLINE | if readonly { READONLY } else { 0 });
        out.extend_from_slice(&(len as u32).to_le_bytes());
    }

    pub fn put_shared(out: &mut Vec<u8>, block: BlockId, len: u64, readonly: bool) {
        out.push(SHARED | if readonly { READONLY } else { 0 });
        out.extend_from_slice(&block.segment.to_le_bytes());
        out.extend_from_slice(&block.offset.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
    }

    pub fn put_out_of_band(out: &mut Vec<u8>, number: u64, len: u64, readonly: bool) {
        out.push(OUT_OF_BAND | if readonly { READONLY } else { 0 });
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
    }

    pub fn put_offered(out: &mut Vec<u8>, number: u64, len: u64, record: &[u8], readonly: bool) {
        out.push(OFFERED | if readonly { READONLY } else { 0 });
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(record.len() as u32).to_le_bytes());
        out.extend_from_slice(record);
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Part::Inline { data, readonly } => {
                Part::put_inline_head(out, data.len(), *readonly);
                out.extend_from_slice(data);
            }
            Part::Shared { block, len, readonly } => Part::put_shared(out, *block, *len, *readonly),
            Part::OutOfBand { number, len, readonly } => Part::put_out_of_band(out, *number, *len, *readonly),
            Part::Offered { number, len, record, readonly } => Part::put_offered(out, *number, *len, record, *readonly),
        }
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Part, DecodeError> {
        let tag = c.u8()?;
        let readonly = tag & READONLY != 0;
        match tag & !READONLY {
            INLINE => {
                let len = c.u32()? as usize;
                Ok(Part::Inline { data: c.bytes(len)?, readonly })
            }
            SHARED => Ok(Part::Shared { block: BlockId { segment: c.u32()?, offset: c.u64()? }, len: c.u64()?, readonly }),
            OUT_OF_BAND => Ok(Part::OutOfBand { number: c.u64()?, len: c.u64()?, readonly }),
            OFFERED => {
                let (number, len, bytes) = (c.u64()?, c.u64()?, c.u32()? as usize);
                Ok(Part::Offered { number, len, record: c.take(bytes)?.into(), readonly })
            }
            other => Err(DecodeError::Tag(other)),
        }
    }

    pub fn read_all(c: &mut Cursor<'_>) -> Result<Vec<Part>, DecodeError> {
        let count = c.u32()? as usize;
        // Every part takes at least 5 bytes, which bounds the allocation for a wrong count.
        let mut parts = Vec::with_capacity(count.min(c.remaining() / 5 + 1));
        for _ in 0..count {
            parts.push(Part::read(c)?);
        }
        Ok(parts)
    }
}
