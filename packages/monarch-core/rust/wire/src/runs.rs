//! The answers of many targets: runs of equal answers over consecutive indices, each stored once.
//!
//! A run is `count, status, length, bytes`. Two values with consecutive targets are joined by comparing the last run of the first with the
//! first run of the second, and copying the rest. So a node of a tree pays for its children, not for the ranks below them, and the caller
//! decodes 32,768 different answers only when they are read. The bytes are therefore checked when they are read, not on arrival: a
//! malformed value yields fewer answers than it claims, and never a panic.

use crate::cursor::{Cursor, DecodeError, put_block, put_var};
use crate::frame::Status;

/// The target's process or host has ended, so it has no answer here.
pub const ENDED: u8 = 255;
/// The answer was sent separately, because it is large or the first error.
pub const SEPARATE: u8 = 254;
/// The reporting host cannot reach the target's host, or it has ended. Other hosts may still have the answer.
pub const UNREACHED: u8 = 253;

/// One run of equal answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run<'a> {
    pub count: u32,
    /// A `Status`, or `ENDED`, `SEPARATE` or `UNREACHED`.
    pub status: u8,
    pub bytes: &'a [u8],
}

/// The answers of consecutive targets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Runs {
    bytes: Vec<u8>,
    /// The number of targets.
    targets: u32,
    absent: u32,
    errors: u32,
    /// The offset of the last run.
    last: u32,
}

fn read_run<'a>(c: &mut Cursor<'a>) -> Result<Run<'a>, DecodeError> {
    Ok(Run { count: c.var32()?, status: c.u8()?, bytes: c.block()? })
}

fn put_run(out: &mut Vec<u8>, run: Run<'_>) {
    put_var(out, run.count.into());
    out.push(run.status);
    put_block(out, run.bytes);
}

impl Runs {
    pub fn targets(&self) -> u32 {
        self.targets
    }

    /// The number of targets without an answer here: they have ended, or their answer was sent separately.
    pub fn absent(&self) -> u32 {
        self.absent
    }

    /// The number of targets whose answer is an error, without the errors that were sent separately.
    pub fn errors(&self) -> u32 {
        self.errors
    }

    /// Bytes of all answers.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Adds `count` equal answers.
    pub fn push(&mut self, count: u32, status: u8, bytes: &[u8]) {
        if count == 0 {
            return;
        }
        match status {
            ENDED | SEPARATE | UNREACHED => self.absent += count,
            s if s == Status::Ok as u8 => {}
            _ => self.errors += count,
        }
        self.targets += count;
        self.add(Run { count, status, bytes });
    }

    fn add(&mut self, run: Run<'_>) {
        if let Some(last) = self.last_run().filter(|last| (last.status, last.bytes) == (run.status, run.bytes)) {
            let count = last.count.saturating_add(run.count);
            self.bytes.truncate(self.last as usize);
            put_run(&mut self.bytes, Run { count, ..run });
        } else {
            self.last = self.bytes.len() as u32;
            put_run(&mut self.bytes, run);
        }
    }

    fn last_run(&self) -> Option<Run<'_>> {
        let mut c = Cursor::new(self.bytes.get(self.last as usize..)?);
        read_run(&mut c).ok().filter(|_| c.remaining() == 0)
    }

    /// Adds the answers of the targets that follow this value's targets.
    pub fn append(&mut self, other: &Runs) {
        let mut c = Cursor::new(&other.bytes);
        let Ok(head) = read_run(&mut c) else { return };
        self.targets = self.targets.saturating_add(other.targets);
        self.absent = self.absent.saturating_add(other.absent);
        self.errors = self.errors.saturating_add(other.errors);
        self.add(head);
        let (rest, skipped) = (c.remaining(), other.bytes.len() - c.remaining());
        if rest > 0 {
            let base = self.bytes.len();
            self.bytes.extend_from_slice(&other.bytes[skipped..]);
            self.last = (base + (other.last as usize).saturating_sub(skipped)) as u32;
        }
    }

    /// The runs of some of the targets, counted from the first target here.
    pub fn part(&self, from: u32, to: u32) -> Runs {
        let (mut part, mut at) = (Runs::default(), 0u32);
        for run in self.iter() {
            let end = at.saturating_add(run.count);
            part.push(end.min(to).saturating_sub(at.max(from)), run.status, run.bytes);
            at = end;
        }
        part
    }

    /// The runs, in order. The iteration ends at malformed bytes.
    pub fn iter(&self) -> impl Iterator<Item = Run<'_>> {
        let mut c = Cursor::new(&self.bytes);
        std::iter::from_fn(move || if c.remaining() == 0 { None } else { read_run(&mut c).ok() })
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        for n in [self.targets, self.absent, self.errors, self.last] {
            put_var(out, n.into());
        }
        put_block(out, &self.bytes);
    }

    pub fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let (targets, absent, errors, last) = (c.var32()?, c.var32()?, c.var32()?, c.var32()?);
        Ok(Runs { bytes: c.block()?.to_vec(), targets, absent, errors, last })
    }
}
