//! Casts over hosts, and their answers. The encoding is written by hand, because the root of a tree over thousands of hosts pays for it.
//!
//! A frame is `u8 kind, body`. Numbers that are usually small have a variable length. The body of a cast is encoded once, and relays
//! forward it unchanged.

use std::sync::Arc;
use std::time::Duration;

use crate::cursor::{Cursor, DecodeError, put_block, put_var};
use crate::frame::{Status, put_flags, read_flags};
use crate::group::{GroupId, GroupSlice, Span};
use crate::ids::{CallId, MailboxId};
use crate::runs::Runs;
use crate::trace::Trace;
use crate::values::Values;

/// The flag of a cast that contains members of its group.
const SLICE: u8 = 0x80;
/// The flag of a cast that contains values.
const VALUES: u8 = 0x40;

/// The answers that a cast requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CastMode {
    /// All answers, reduced on the way to the caller.
    Gather = 0,
    /// As `Gather`, and the first error is also sent at once.
    FirstError = 1,
    /// A confirmation that all receivers have taken the cast. Answers go directly to the caller, if the cast has its call id.
    Taken = 2,
    /// No message is delivered: the group is forgotten once all receivers have been notified.
    Forget = 3,
}

impl CastMode {
    pub fn from_u8(v: u8) -> Result<Self, DecodeError> {
        Ok(match v {
            0 => CastMode::Gather,
            1 => CastMode::FirstError,
            2 => CastMode::Taken,
            3 => CastMode::Forget,
            other => return Err(DecodeError::Tag(other)),
        })
    }

    /// Whether relays reduce the answers.
    pub fn reduces(self) -> bool {
        matches!(self, CastMode::Gather | CastMode::FirstError)
    }
}

/// The sequence number of a cast at each host of a span: runs of equal numbers, as (end position, number).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Order {
    runs: Vec<(u32, u64)>,
}

impl Order {
    /// Gives this number to the next positions, up to `end`.
    pub fn push(&mut self, end: u32, number: u64) {
        match self.runs.last_mut() {
            Some(last) if last.1 == number => last.0 = end,
            _ => self.runs.push((end, number)),
        }
    }

    fn at(&self, position: u32) -> usize {
        self.runs.partition_point(|(end, _)| *end <= position)
    }

    pub fn get(&self, position: u32) -> Option<u64> {
        self.runs.get(self.at(position)).map(|(_, number)| *number)
    }

    /// The sequence numbers of a part of the hosts.
    pub fn part(&self, span: Span) -> Order {
        let mut part = Order::default();
        for (end, number) in &self.runs[self.at(span.start)..] {
            part.push((*end).min(span.end), *number);
            if *end >= span.end {
                break;
            }
        }
        part
    }

    pub fn put(&self, out: &mut Vec<u8>, start: u32) {
        put_var(out, self.runs.len() as u64);
        let (mut from, mut before) = (start, 0);
        for (end, number) in &self.runs {
            put_var(out, end.saturating_sub(from).into());
            let delta = number.wrapping_sub(before) as i64;
            put_var(out, ((delta << 1) ^ (delta >> 63)) as u64);
            (from, before) = (*end, *number);
        }
    }

    pub fn read(c: &mut Cursor<'_>, start: u32) -> Result<Self, DecodeError> {
        let n = c.count(2)?;
        let (mut end, mut number) = (start, 0u64);
        let mut runs = Vec::with_capacity(n);
        for _ in 0..n {
            end = end.checked_add(c.var32()?).ok_or(DecodeError::Number)?;
            let zigzag = c.var()?;
            number = number.wrapping_add(((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)) as u64);
            runs.push((end, number));
        }
        Ok(Order { runs })
    }
}

/// A message to the hosts of a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cast {
    pub group: GroupId,
    /// The number of this cast in its group, from a counter of the source.
    pub number: u64,
    /// All casts of the group with a lower number have finished, and their state can be dropped.
    pub finished: u64,
    /// The number of the request for answers to this cast, from a counter of the sender; replies repeat it. The first request has 0.
    pub ask: u32,
    /// The hosts whose answers the receiver is responsible for.
    pub span: Span,
    pub mode: CastMode,
    /// The group, if the receiver does not have it.
    pub slice: Option<Arc<GroupSlice>>,
    pub order: Order,
    /// An encoded `CastBody`.
    pub body: Arc<[u8]>,
    /// The parts of the message that differ between the targets of the span.
    pub values: Option<Arc<Values>>,
}

/// The message for the receiving procs. Only their ranks differ.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct CastBody<'a> {
    pub sender: MailboxId,
    /// The caller's call id, for answers that go directly to it.
    pub call_id: CallId,
    pub flags: u8,
    pub trace: Trace,
    /// The time that is left of the message's deadline.
    pub left: Option<Duration>,
    pub method: &'a [u8],
    pub extent: &'a [u8],
    /// Encoded parts, with their count.
    pub parts: &'a [u8],
}

impl<'a> CastBody<'a> {
    pub fn encode(&self) -> Arc<[u8]> {
        let mut out = Vec::with_capacity(64 + self.method.len() + self.extent.len() + self.parts.len());
        out.extend_from_slice(&self.sender.0.to_le_bytes());
        put_var(&mut out, self.call_id.0);
        put_flags(&mut out, self.flags, self.trace, self.left);
        put_block(&mut out, self.method);
        put_block(&mut out, self.extent);
        out.extend_from_slice(self.parts);
        out.into()
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes);
        let (sender, call_id) = (MailboxId(c.u64()?), CallId(c.var()?));
        let (flags, trace, left) = read_flags(&mut c)?;
        Ok(CastBody {
            sender,
            call_id,
            flags,
            trace,
            left,
            method: c.block()?,
            extent: c.block()?,
            parts: {
                let n = c.remaining();
                c.take(n)?
            },
        })
    }
}

/// All answers of a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reduced {
    pub group: GroupId,
    pub number: u64,
    pub ask: u32,
    pub span: Span,
    pub runs: Runs,
}

/// One answer that is sent ahead of the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub group: GroupId,
    pub number: u64,
    pub ask: u32,
    pub index: u32,
    pub status: Status,
    /// Encoded parts, with their count.
    pub bytes: Arc<[u8]>,
}

/// Confirms casts of a group that all hosts of a span have taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    pub group: GroupId,
    pub ask: u32,
    pub span: Span,
    pub first: u64,
    pub count: u64,
    /// The positions, ascending, of hosts without a confirmation: they have ended or could not be reached.
    pub unreached: Vec<u32>,
}

/// A frame of casts. Agents exchange it along a tree of hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CastFrame {
    Cast(Cast),
    Reduced(Reduced),
    Answer(Answer),
    Taken(Vec<Taken>),
    /// The casts of a group below this number have finished, and no later cast has followed for some time.
    Finished {
        group: GroupId,
        span: Span,
        below: u64,
    },
}

impl Cast {
    /// Encodes all fields but the body, which is the rest of the frame.
    pub fn put_head(&self, out: &mut Vec<u8>) {
        out.push(0);
        self.group.put(out);
        put_var(out, self.number);
        put_var(out, self.number - self.finished.min(self.number));
        put_var(out, self.ask.into());
        self.span.put(out);
        out.push(self.mode as u8 | if self.slice.is_some() { SLICE } else { 0 } | if self.values.is_some() { VALUES } else { 0 });
        if let Some(slice) = &self.slice {
            slice.put(out);
        }
        self.order.put(out, self.span.start);
        if let Some(values) = &self.values {
            values.put(out);
        }
    }

    fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let (group, number, back, ask, span, tag) = (GroupId::read(c)?, c.var()?, c.var()?, c.var32()?, Span::read(c)?, c.u8()?);
        let slice = if tag & SLICE == 0 { None } else { Some(Arc::new(GroupSlice::read(c)?)) };
        let order = Order::read(c, span.start)?;
        let values = if tag & VALUES == 0 { None } else { Some(Arc::new(Values::read(c)?)) };
        let rest = c.remaining();
        Ok(Cast {
            group,
            number,
            finished: number.checked_sub(back).ok_or(DecodeError::Number)?,
            ask,
            span,
            mode: CastMode::from_u8(tag & !(SLICE | VALUES))?,
            slice,
            order,
            body: c.take(rest)?.into(),
            values,
        })
    }
}

impl Taken {
    fn read(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let (group, ask, span, first, count) = (GroupId::read(c)?, c.var32()?, Span::read(c)?, c.var()?, c.var()?);
        let n = c.count(1)?;
        let unreached = (0..n).map(|_| c.var32()).collect::<Result<_, DecodeError>>()?;
        Ok(Taken { group, ask, span, first, count, unreached })
    }
}

impl CastFrame {
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            CastFrame::Cast(cast) => {
                cast.put_head(out);
                out.extend_from_slice(&cast.body);
            }
            CastFrame::Reduced(r) => {
                out.push(1);
                r.group.put(out);
                put_var(out, r.number);
                put_var(out, r.ask.into());
                r.span.put(out);
                r.runs.put(out);
            }
            CastFrame::Answer(a) => {
                out.push(2);
                a.group.put(out);
                put_var(out, a.number);
                put_var(out, a.ask.into());
                put_var(out, a.index.into());
                out.push(a.status as u8);
                put_block(out, &a.bytes);
            }
            CastFrame::Taken(all) => {
                out.push(3);
                put_var(out, all.len() as u64);
                for t in all {
                    t.group.put(out);
                    put_var(out, t.ask.into());
                    t.span.put(out);
                    put_var(out, t.first);
                    put_var(out, t.count);
                    put_var(out, t.unreached.len() as u64);
                    t.unreached.iter().for_each(|p| put_var(out, (*p).into()));
                }
            }
            CastFrame::Finished { group, span, below } => {
                out.push(4);
                group.put(out);
                span.put(out);
                put_var(out, *below);
            }
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.put(&mut out);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<CastFrame, DecodeError> {
        let c = &mut Cursor::new(bytes);
        let frame = match c.u8()? {
            0 => CastFrame::Cast(Cast::read(c)?),
            1 => CastFrame::Reduced(Reduced {
                group: GroupId::read(c)?,
                number: c.var()?,
                ask: c.var32()?,
                span: Span::read(c)?,
                runs: Runs::read(c)?,
            }),
            2 => CastFrame::Answer(Answer {
                group: GroupId::read(c)?,
                number: c.var()?,
                ask: c.var32()?,
                index: c.var32()?,
                status: Status::from_u8(c.u8()?)?,
                bytes: c.block()?.into(),
            }),
            3 => {
                let n = c.count(15)?;
                CastFrame::Taken((0..n).map(|_| Taken::read(c)).collect::<Result<_, DecodeError>>()?)
            }
            4 => CastFrame::Finished { group: GroupId::read(c)?, span: Span::read(c)?, below: c.var()? },
            other => return Err(DecodeError::Kind(other)),
        };
        c.finish()?;
        Ok(frame)
    }
}
