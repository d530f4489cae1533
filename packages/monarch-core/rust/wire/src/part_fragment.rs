//! A large part between hosts, in fragments. Each fragment is a routed frame of its own.
//!
//! An agent that forwards fragments holds none of them, and interleaves those of other senders; the receiving agent writes them into its
//! arena. A fragment is `u64 number, u64 bytes that follow in later fragments`, and bytes. The frame of the part names it by its number,
//! which is unique at the sender. The frame may arrive before the part.

use crate::cursor::{Cursor, DecodeError};
use crate::frame::{PART, PART_FRAGMENT, ROUTED, begin, finish};
use crate::part::Part;
use crate::routed::Route;

/// Bytes of a fragment: small enough to stay in the processor's cache from the read to the write.
pub const SIZE: usize = 256 << 10;

/// A fragment: the number of its part, the bytes in later fragments, and its own bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartFragment<'a> {
    pub number: u64,
    pub left: u64,
    pub bytes: &'a [u8],
}

/// Encodes a routed frame up to the bytes of the fragment; `bytes` is their number.
pub fn head(route: &Route, number: u64, left: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(26 + Route::LEN);
    let at = begin(&mut out, ROUTED);
    route.put(&mut out);
    let inner = begin(&mut out, PART_FRAGMENT);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&left.to_le_bytes());
    finish(&mut out, inner, bytes);
    finish(&mut out, at, bytes);
    out
}

/// The fragment in the body of a routed frame; `None` if the body is something else.
pub fn read(body: &[u8]) -> Option<Result<PartFragment<'_>, DecodeError>> {
    let mut c = of_kind(body, PART_FRAGMENT)?;
    let mut read = || Ok(PartFragment { number: c.u64()?, left: c.u64()?, bytes: c.take(c.remaining())? });
    Some(read())
}

/// Encodes a routed frame with a part.
pub fn put_part(out: &mut Vec<u8>, route: &Route, number: u64, part: &Part) {
    let at = begin(out, ROUTED);
    route.put(out);
    let inner = begin(out, PART);
    out.extend_from_slice(&number.to_le_bytes());
    part.put(out);
    finish(out, inner, 0);
    finish(out, at, 0);
}

/// The part in the body of a routed frame, with its number; `None` if the body is something else.
pub fn read_part(body: &[u8]) -> Option<Result<(u64, Part), DecodeError>> {
    let mut c = of_kind(body, PART)?;
    let mut read = || Ok((c.u64()?, Part::read(&mut c)?));
    Some(read().and_then(|read| c.finish().map(|()| read)))
}

fn of_kind(body: &[u8], kind: u8) -> Option<Cursor<'_>> {
    (body.get(4) == Some(&kind)).then(|| Cursor::new(&body[5..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BlockId, ProcUid};
    use crate::routed::Frames;

    const ROUTE: Route = Route { from: ProcUid(1), from_host: ProcUid(2), to: ProcUid(3), to_host: ProcUid(4), seq: 0 };

    /// The body of the only routed frame.
    fn body(frame: &[u8]) -> &[u8] {
        let frame = Frames::of(frame).next().unwrap();
        assert_eq!(frame[0], ROUTED);
        &frame[1 + Route::LEN..]
    }

    #[test]
    fn fragment_survives_encoding() {
        let mut frame = head(&ROUTE, 5, 77, 3);
        frame.extend_from_slice(b"abc");
        assert_eq!(read(body(&frame)), Some(Ok(PartFragment { number: 5, left: 77, bytes: b"abc" })));
        assert_eq!(read_part(body(&frame)), None);
        let part = Part::Shared { block: BlockId { segment: 1, offset: 4096 }, len: 9, readonly: false };
        let mut frame = Vec::new();
        put_part(&mut frame, &ROUTE, 6, &part);
        assert_eq!(read_part(body(&frame)), Some(Ok((6, part))));
        assert_eq!(read(body(&frame)), None);
    }

    #[test]
    fn malformed_fragment_is_an_error() {
        assert_eq!(read(&[9, 0, 0, 0, PART_FRAGMENT, 1, 2]), Some(Err(DecodeError::Truncated)));
        assert_eq!(read_part(&[&[9, 0, 0, 0, PART][..], &[0; 13], &[1]].concat()), Some(Err(DecodeError::Trailing)));
        assert_eq!(read(&[]), None);
    }
}
