//! A large part on its way between hosts, in stretches, each a routed frame of its own.
//!
//! Who passes them on holds none of it, and gives others their turn in between; who receives them puts them into its arena. A stretch is
//! `u64 bytes that follow in later stretches`, and bytes. The frame that the part belongs to comes after the last one.

use crate::cursor::{Cursor, DecodeError};
use crate::frame::{PART, ROUTED, STRETCH, begin, finish};
use crate::part::Part;
use crate::routed::Route;

/// Bytes of a stretch: with buffers of this size all that is done to it finds it in the cache.
pub const SIZE: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch<'a> {
    pub bytes: &'a [u8],
    pub left: u64,
}

/// All of a routed frame but the bytes of the stretch, which are so many.
pub fn head(route: &Route, left: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(18 + Route::LEN);
    let at = begin(&mut out, ROUTED);
    route.put(&mut out);
    let inner = begin(&mut out, STRETCH);
    out.extend_from_slice(&left.to_le_bytes());
    finish(&mut out, inner, bytes);
    finish(&mut out, at, bytes);
    out
}

/// What the body of a routed frame holds, if it is a stretch.
pub fn read(body: &[u8]) -> Option<Result<Stretch<'_>, DecodeError>> {
    let mut c = of_kind(body, STRETCH)?;
    Some(c.u64().and_then(|left| Ok(Stretch { left, bytes: c.take(c.remaining())? })))
}

/// A routed frame with a part.
pub fn put_part(out: &mut Vec<u8>, route: &Route, part: &Part) {
    let at = begin(out, ROUTED);
    route.put(out);
    let inner = begin(out, PART);
    part.put(out);
    finish(out, inner, 0);
    finish(out, at, 0);
}

/// What the body of a routed frame holds, if it is a part.
pub fn read_part(body: &[u8]) -> Option<Result<Part, DecodeError>> {
    let mut c = of_kind(body, PART)?;
    Some(Part::read(&mut c).and_then(|part| c.finish().map(|()| part)))
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
    fn what_was_put_is_read() {
        let mut frame = head(&ROUTE, 77, 3);
        frame.extend_from_slice(b"abc");
        assert_eq!(read(body(&frame)), Some(Ok(Stretch { bytes: b"abc", left: 77 })));
        assert_eq!(read_part(body(&frame)), None);
        let part = Part::Shared { block: BlockId { segment: 1, offset: 4096 }, len: 9, readonly: false };
        let mut frame = Vec::new();
        put_part(&mut frame, &ROUTE, &part);
        assert_eq!(read_part(body(&frame)), Some(Ok(part)));
        assert_eq!(read(body(&frame)), None);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        assert_eq!(read(&[9, 0, 0, 0, STRETCH, 1, 2]), Some(Err(DecodeError::Truncated)));
        assert_eq!(read_part(&[9, 0, 0, 0, PART, 0, 0, 0, 0, 0, 1]), Some(Err(DecodeError::Trailing)));
        assert_eq!(read(&[]), None);
    }
}
