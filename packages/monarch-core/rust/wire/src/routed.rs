//! Frames between processes of different hosts.
//!
//! Agents forward them without decoding their body. The head has the sender, the receiver and a sequence number.

use crate::cursor::{Cursor, DecodeError};
use crate::ids::ProcUid;

/// The sender and the receiver of a routed frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    pub from: ProcUid,
    /// The host of the sender, by its id in the job.
    pub from_host: ProcUid,
    pub to: ProcUid,
    pub to_host: ProcUid,
    /// The position in the order of all frames from `from` to `to_host`; 0: the frame has none.
    pub seq: u64,
}

impl Route {
    pub const LEN: usize = 40;

    pub fn put(&self, out: &mut Vec<u8>) {
        for n in [self.from.0, self.from_host.0, self.to.0, self.to_host.0, self.seq] {
            out.extend_from_slice(&n.to_le_bytes());
        }
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Route, DecodeError> {
        Ok(Route {
            from: ProcUid(c.u64()?),
            from_host: ProcUid(c.u64()?),
            to: ProcUid(c.u64()?),
            to_host: ProcUid(c.u64()?),
            seq: c.u64()?,
        })
    }
}

/// Frames between two processes of different hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Routed {
    pub head: Route,
    /// Whole frames, with their lengths.
    pub body: Box<[u8]>,
}

impl Routed {
    pub fn read(c: &mut Cursor<'_>) -> Result<Routed, DecodeError> {
        let head = Route::read(c)?;
        let n = c.remaining();
        Ok(Routed { head, body: c.take(n)?.into() })
    }
}

/// Iterates over kind and body of each frame in a run; ends at the first incomplete frame.
pub struct Frames<'a>(&'a [u8]);

impl<'a> Frames<'a> {
    pub fn of(run: &'a [u8]) -> Self {
        Frames(run)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = u32::from_le_bytes(self.0.get(..4)?.try_into().ok()?) as usize;
        let frame = self.0.get(4..4 + len)?;
        self.0 = &self.0[4 + len..];
        Some(frame)
    }
}
