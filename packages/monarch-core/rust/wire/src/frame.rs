//! Frames on a link: `u32 length of the rest, u8 kind, body`, little-endian.
//!
//! Messages and replies are encoded by hand because every call pays for them. All other frames use postcard.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::control::Control;
use crate::cursor::{Cursor, DecodeError};
use crate::ids::{CallId, MailboxId};
use crate::part::Part;
use crate::routed::Routed;
use crate::trace::Trace;

/// A `Message`.
pub const MESSAGE: u8 = 1;
/// A `Reply`.
pub const REPLY: u8 = 2;
/// Credit for the sender of messages to a mailbox.
pub const CREDIT: u8 = 3;
/// A `Control` message.
pub const CONTROL: u8 = 4;
/// Bytes for a peer that is not a process of the job: the zygote.
pub const RAW: u8 = 5;
/// Frames between processes of different hosts.
pub const ROUTED: u8 = 6;
/// A `CastFrame`: between agents, and between a proc that casts and its agent.
pub const CAST: u8 = 7;
/// Frames along the join tree: a `join_tree::TreeMessage`, and bytes of a session without a connection. Both begin with `join_tree::Along`.
pub const TREE: u8 = 8;
/// Bytes of a session without a connection, along the join tree.
pub const CARRIED: u8 = 9;
/// A fragment of a long run of routed frames.
pub const FRAME_FRAGMENT: u8 = 16;
/// A large part of the next frame on a link, encoded as a `Part`. In a routed frame it is the only content.
pub const PART: u8 = 17;
/// A fragment of such a part, between hosts. It is the only content of a routed frame.
pub const PART_FRAGMENT: u8 = 18;

/// The destination is a port, not an actor: a message to an unknown port is refused at once.
pub const TO_PORT: u8 = 1;
/// A message to a port that contains its sender's rank.
pub const RANKED: u8 = 2;
/// A message to a port that is an exception.
pub const EXCEPTION: u8 = 4;
/// Ends the actor after all earlier messages.
pub const STOP: u8 = 8;
/// A message that cannot be delivered returns to its sender.
pub const RETURN: u8 = 16;

/// The method receives a port for its answer.
pub const EXPLICIT_PORT: u8 = 32;
/// A trace follows the flags. The flag exists only in encoded frames.
pub const TRACED: u8 = 64;
/// The time that is left of a deadline follows the trace, in microseconds. The flag exists only in encoded frames.
pub const LIMITED: u8 = 128;

/// Length of the prefix: frame length and kind.
pub const PREFIX: usize = 5;

/// The addressed part of a mesh, as events have it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct View<'a> {
    /// 1 more than the first rank; 0 for the whole mesh.
    pub offset: u64,
    /// The dimensions, UTF-8.
    pub dims: &'a [u8],
}

/// The fields of a message before its parts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Head<'a> {
    pub dest: MailboxId,
    /// The sending actor within the peer process; 0 for a process without one.
    pub sender: MailboxId,
    pub call_id: CallId,
    /// The rank within the addressed mesh.
    pub rank: u32,
    pub flags: u8,
    /// The span of this message in its trace.
    pub trace: Trace,
    /// The time that is left of the message's deadline: the clocks of two hosts differ.
    pub left: Option<Duration>,
    /// The span that sends the message. It is not encoded.
    pub parent: u64,
    /// The addressed part of the mesh. It is not encoded.
    pub view: View<'a>,
    /// The name of the endpoint, UTF-8.
    pub method: &'a [u8],
    /// The addressed shape; empty if it is the shape of the spawn.
    pub extent: &'a [u8],
}

impl Head<'_> {
    /// Encodes a message up to its parts.
    pub fn put(&self, out: &mut Vec<u8>, parts: u32) {
        out.extend_from_slice(&self.dest.0.to_le_bytes());
        out.extend_from_slice(&self.sender.0.to_le_bytes());
        out.extend_from_slice(&self.call_id.0.to_le_bytes());
        out.extend_from_slice(&self.rank.to_le_bytes());
        put_flags(out, self.flags, self.trace, self.left);
        out.extend_from_slice(&(self.method.len() as u16).to_le_bytes());
        out.extend_from_slice(self.method);
        out.extend_from_slice(&(self.extent.len() as u16).to_le_bytes());
        out.extend_from_slice(self.extent);
        out.extend_from_slice(&parts.to_le_bytes());
    }
}

/// Encodes the flags of a message, its trace and what is left of its deadline, if it has them.
pub fn put_flags(out: &mut Vec<u8>, flags: u8, trace: Trace, left: Option<Duration>) {
    let traced = if trace.is_none() { 0 } else { TRACED };
    out.push(flags | traced | if left.is_none() { 0 } else { LIMITED });
    if traced != 0 {
        trace.put(out);
    }
    if let Some(left) = left {
        out.extend_from_slice(&u64::try_from(left.as_micros()).unwrap_or(u64::MAX).to_le_bytes());
    }
}

/// The flags of a message, its trace, and what is left of its deadline.
pub fn read_flags(c: &mut Cursor<'_>) -> Result<(u8, Trace, Option<Duration>), DecodeError> {
    let flags = c.u8()?;
    let trace = if flags & TRACED == 0 { Trace::NONE } else { Trace::read(c)? };
    let left = if flags & LIMITED == 0 { None } else { Some(Duration::from_micros(c.u64()?)) };
    Ok((flags & !(TRACED | LIMITED), trace, left))
}

/// A message to an actor or a port.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Message {
    pub dest: MailboxId,
    /// The sending actor within the peer process; 0 for a process without one.
    pub sender: MailboxId,
    pub call_id: CallId,
    /// The rank within the addressed mesh.
    pub rank: u32,
    pub flags: u8,
    /// The span of this message in its trace.
    pub trace: Trace,
    /// The time that is left of the message's deadline.
    pub left: Option<Duration>,
    /// The name of the endpoint, UTF-8.
    pub method: Box<[u8]>,
    /// The addressed shape; empty if it is the shape of the spawn.
    pub extent: Box<[u8]>,
    pub parts: Vec<Part>,
}

impl Message {
    fn head(&self) -> Head<'_> {
        let Message { dest, sender, call_id, rank, flags, trace, left, .. } = *self;
        Head { dest, sender, call_id, rank, flags, trace, left, method: &self.method, extent: &self.extent, ..Head::default() }
    }
}

/// The kind of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    /// The payload is a packed exception.
    Error = 1,
    /// The payload is a packed failure: the actor has ended.
    Failed = 2,
    /// The payload is an encoded `ProcEnd`: the process has ended.
    ProcEnded = 3,
    /// A port was closed, or dropped without an answer.
    Closed = 4,
    /// The payload is a text: the message or its answer is incomplete, although all processes involved are alive.
    Undelivered = 5,
    /// The deadline of the call has passed. The caller makes this answer; no frame has it.
    Expired = 6,
}

impl Status {
    pub fn from_u8(v: u8) -> Result<Status, DecodeError> {
        Ok(match v {
            0 => Status::Ok,
            1 => Status::Error,
            2 => Status::Failed,
            3 => Status::ProcEnded,
            4 => Status::Closed,
            5 => Status::Undelivered,
            other => return Err(DecodeError::Tag(other)),
        })
    }
}

/// The answer of one rank to a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    pub call_id: CallId,
    pub rank: u32,
    pub status: Status,
    pub parts: Vec<Part>,
}

/// A decoded frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    Message(Message),
    Reply(Reply),
    /// The receiver has consumed this many bytes that were sent to the mailbox.
    Credit {
        mailbox: MailboxId,
        bytes: u64,
    },
    Control(Control),
    Raw(Box<[u8]>),
    Routed(Routed),
    Cast(Box<[u8]>),
}

/// Starts a frame and returns its offset; `finish` fills in the length.
pub fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    at
}

/// Fills in the length of a frame. `extra` bytes follow outside `out`, in the same gather write.
pub fn finish(out: &mut [u8], at: usize, extra: usize) {
    let len = (out.len() - at - 4 + extra) as u32;
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Encodes a reply up to its parts.
pub fn put_reply_head(out: &mut Vec<u8>, call_id: CallId, rank: u32, status: Status, parts: u32) {
    out.extend_from_slice(&call_id.0.to_le_bytes());
    out.extend_from_slice(&rank.to_le_bytes());
    out.push(status as u8);
    out.extend_from_slice(&parts.to_le_bytes());
}

/// The length of kind and body of the first frame, if the frame is complete.
pub fn whole(buf: &[u8]) -> Option<usize> {
    let head: [u8; 4] = buf.get(..4)?.try_into().ok()?;
    let len = u32::from_le_bytes(head) as usize;
    (buf.len() >= 4 + len).then_some(len)
}

/// The number of missing bytes of the first frame.
pub fn missing(buf: &[u8]) -> usize {
    match buf.get(..4).and_then(|b| <[u8; 4]>::try_from(b).ok()) {
        Some(head) => (4 + u32::from_le_bytes(head) as usize).saturating_sub(buf.len()),
        None => PREFIX,
    }
}

impl Frame {
    /// Appends the whole frame with its prefix.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Message(m) => {
                let at = begin(out, MESSAGE);
                m.head().put(out, m.parts.len() as u32);
                m.parts.iter().for_each(|p| p.put(out));
                finish(out, at, 0);
            }
            Frame::Reply(r) => {
                let at = begin(out, REPLY);
                put_reply_head(out, r.call_id, r.rank, r.status, r.parts.len() as u32);
                r.parts.iter().for_each(|p| p.put(out));
                finish(out, at, 0);
            }
            Frame::Credit { mailbox, bytes } => {
                let at = begin(out, CREDIT);
                out.extend_from_slice(&mailbox.0.to_le_bytes());
                out.extend_from_slice(&bytes.to_le_bytes());
                finish(out, at, 0);
            }
            Frame::Control(c) => {
                let at = begin(out, CONTROL);
                out.extend_from_slice(&c.encode());
                finish(out, at, 0);
            }
            Frame::Raw(body) => {
                let at = begin(out, RAW);
                out.extend_from_slice(body);
                finish(out, at, 0);
            }
            Frame::Routed(r) => {
                let at = begin(out, ROUTED);
                r.head.put(out);
                out.extend_from_slice(&r.body);
                finish(out, at, 0);
            }
            Frame::Cast(body) => {
                let at = begin(out, CAST);
                out.extend_from_slice(body);
                finish(out, at, 0);
            }
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.put(&mut out);
        out
    }

    /// Decodes kind and body, everything after the length.
    pub fn decode(bytes: &[u8]) -> Result<Frame, DecodeError> {
        Frame::read(Cursor::new(bytes))
    }

    /// Decodes a range of a buffer; large parts share the buffer.
    pub fn decode_within(run: &Arc<Vec<u8>>, range: Range<usize>) -> Result<Frame, DecodeError> {
        Frame::read(Cursor::within(run, range))
    }

    fn read(mut c: Cursor<'_>) -> Result<Frame, DecodeError> {
        let frame = match c.u8()? {
            MESSAGE => Frame::Message(read_message(&mut c)?),
            REPLY => Frame::Reply(Reply {
                call_id: CallId(c.u64()?),
                rank: c.u32()?,
                status: Status::from_u8(c.u8()?)?,
                parts: Part::read_all(&mut c)?,
            }),
            CREDIT => Frame::Credit { mailbox: MailboxId(c.u64()?), bytes: c.u64()? },
            CONTROL => {
                let n = c.remaining();
                let body = c.take(n)?;
                let (control, rest) = postcard::take_from_bytes(body).map_err(|_| DecodeError::Control)?;
                if !rest.is_empty() {
                    return Err(DecodeError::Trailing);
                }
                Frame::Control(control)
            }
            RAW => {
                let n = c.remaining();
                Frame::Raw(c.take(n)?.into())
            }
            ROUTED => Frame::Routed(Routed::read(&mut c)?),
            CAST => {
                let n = c.remaining();
                Frame::Cast(c.take(n)?.into())
            }
            other => return Err(DecodeError::Kind(other)),
        };
        c.finish()?;
        Ok(frame)
    }
}

fn read_message(c: &mut Cursor<'_>) -> Result<Message, DecodeError> {
    let (dest, sender, call_id, rank) = (MailboxId(c.u64()?), MailboxId(c.u64()?), CallId(c.u64()?), c.u32()?);
    let (flags, trace, left) = read_flags(c)?;
    let n = c.u16()? as usize;
    let method: Box<[u8]> = c.take(n)?.into();
    std::str::from_utf8(&method).map_err(|_| DecodeError::Text)?;
    let n = c.u16()? as usize;
    let extent = c.take(n)?.into();
    Ok(Message { dest, sender, call_id, rank, flags, trace, left, method, extent, parts: Part::read_all(c)? })
}
