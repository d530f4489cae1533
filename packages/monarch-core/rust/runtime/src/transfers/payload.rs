//! The parts of one outgoing message.
//!
//! Parts of 64 KiB and more are copied once into the arena and named in the frame; a cast to many ranks copies them once for all. All other
//! bytes travel in the frame, so frames stay small and do not delay later ones for long.

use std::io;
use std::sync::Arc;

use net::forwarder::reserve_part_numbers;
use net::{Arena, Block, Link, LinkDown, RecvPart};
use wire::Part;

use super::offers::OfferRecord;

/// Parts of this size and larger travel through shared memory (contract: 64 KiB).
pub const SHARED_FROM: usize = 64 << 10;
/// The limit of all inline parts of a frame; beyond it smaller parts are shared too.
const INLINE_TOTAL: usize = 256 << 10;
/// The same limit for a process that can have no shared memory of that size: the length of a frame has 32 bits, and its head needs some
/// bytes.
const MAX_INLINE_FRAME: usize = (u32::MAX - (1 << 20)) as usize;
/// Inline parts up to this size are copied into the frame's head, which saves an entry of the gather write.
const COPY_INTO_HEAD: usize = 4 << 10;

/// A part of an outgoing message.
#[derive(Clone, Copy)]
pub struct OutPart<'a> {
    pub bytes: &'a [u8],
    pub readonly: bool,
}

/// A part that is ready to be sent: in the frame, or in a block of the arena.
#[derive(Clone)]
enum Prepared<'a> {
    Inline(OutPart<'a>),
    Shared { block: Arc<Block>, len: u64, readonly: bool },
}

/// The parts of an outgoing message, whose inline bytes are borrowed.
pub struct Payload<'a> {
    parts: Vec<Prepared<'a>>,
    blocks: Vec<Arc<Block>>,
    len: u64,
}

impl<'a> Payload<'a> {
    pub fn new(arena: &Arc<Arena>, parts: impl IntoIterator<Item = OutPart<'a>>) -> io::Result<Self> {
        let mut out = Payload { parts: Vec::with_capacity(1), blocks: Vec::new(), len: 0 };
        let mut inline = 0;
        for part in parts {
            let n = part.bytes.len();
            out.len += n as u64;
            if n >= SHARED_FROM || (inline + n > INLINE_TOTAL && n >= COPY_INTO_HEAD) {
                let mut block = match arena.alloc(n) {
                    Ok(block) => block,
                    // The limit of file sizes applies to shared memory, for the life of the process.
                    Err(e) if e.raw_os_error() == Some(libc::EFBIG) && inline + n <= MAX_INLINE_FRAME => {
                        inline += n;
                        out.parts.push(Prepared::Inline(part));
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                block.fill(part.bytes);
                let block = Arc::new(block);
                out.blocks.push(block.clone());
                out.parts.push(Prepared::Shared { block, len: n as u64, readonly: part.readonly });
            } else {
                inline += n;
                out.parts.push(Prepared::Inline(part));
            }
        }
        Ok(out)
    }

    /// A payload of one small read-only part, which does not use the arena.
    pub fn small(bytes: &'a [u8]) -> Self {
        Payload { parts: vec![Prepared::Inline(OutPart { bytes, readonly: true })], blocks: Vec::new(), len: bytes.len() as u64 }
    }

    /// A payload of the parts of several payloads, one after the other. Blocks are shared with them.
    pub fn join<'p>(all: impl IntoIterator<Item = &'p Payload<'a>>) -> Self
    where
        'a: 'p,
    {
        let mut out = Payload { parts: Vec::new(), blocks: Vec::new(), len: 0 };
        for payload in all {
            out.parts.extend_from_slice(&payload.parts);
            out.blocks.extend_from_slice(&payload.blocks);
            out.len += payload.len;
        }
        out
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// The number of bytes of the largest part that is not in the frame.
    pub fn largest(&self) -> usize {
        self.blocks.iter().map(|b| b.len()).max().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn count(&self) -> u32 {
        self.parts.len() as u32
    }

    /// All parts with their number, in the format of a frame that leaves this host.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.len as usize + 5 * self.parts.len());
        out.extend_from_slice(&self.count().to_le_bytes());
        for part in &self.parts {
            let (bytes, readonly) = match part {
                Prepared::Inline(p) => (p.bytes, p.readonly),
                Prepared::Shared { block, readonly, .. } => (block.bytes(), *readonly),
            };
            Part::put_inline_head(&mut out, bytes.len(), readonly);
            out.extend_from_slice(bytes);
        }
        out
    }

    /// Sends a frame whose head (up to and including the number of parts) is in `head`, starting at its length field. Parts may be offered
    /// to a process of another host by `offer`.
    pub fn send(&self, link: &Link, head: &mut Vec<u8>, offer: impl Fn(&Arc<Block>) -> Option<OfferRecord>) -> Result<(), LinkDown> {
        // The end of a section of `head`, and the inline part that follows this section.
        let mut inline_cuts: Vec<(usize, &[u8])> = Vec::new();
        let mut outside = 0;
        // To another host, shared parts are sent out of band and named by their numbers, or they are offered.
        let is_remote = !self.blocks.is_empty() && link.is_forwarded();
        let mut offers: Vec<Option<OfferRecord>> = if is_remote { self.blocks.iter().map(offer).collect() } else { Vec::new() };
        let offered = offers.iter().flatten().count();
        let mut out_of_band: Vec<Arc<Block>> = Vec::new();
        let mut place = 0;
        let first = is_remote.then(|| reserve_part_numbers(self.blocks.len() - offered));
        for part in &self.parts {
            match part {
                Prepared::Inline(p) => {
                    Part::put_inline_head(head, p.bytes.len(), p.readonly);
                    if p.bytes.len() <= COPY_INTO_HEAD {
                        head.extend_from_slice(p.bytes);
                    } else {
                        inline_cuts.push((head.len(), p.bytes));
                        outside += p.bytes.len();
                    }
                }
                Prepared::Shared { block, readonly, .. } if is_remote => {
                    match offers[place].take() {
                        Some(OfferRecord { number, record }) => Part::put_offered(head, number, block.len() as u64, &record, *readonly),
                        None => {
                            let number = first.unwrap_or_default() + out_of_band.len() as u64;
                            Part::put_out_of_band(head, number, block.len() as u64, *readonly);
                            out_of_band.push(block.clone());
                        }
                    }
                    place += 1;
                }
                Prepared::Shared { block, len, readonly } => Part::put_shared(head, block.id(), *len, *readonly),
            }
        }
        wire::frame::finish(head, 0, outside);
        if inline_cuts.is_empty() {
            return self.write(link, &[head], first.map(|n| (n, &out_of_band[..])));
        }
        let mut slices: Vec<&[u8]> = Vec::with_capacity(2 * inline_cuts.len() + 1);
        let mut at = 0;
        for (end, slice) in inline_cuts {
            slices.push(&head[at..end]);
            slices.push(slice);
            at = end;
        }
        slices.push(&head[at..]);
        self.write(link, &slices, first.map(|n| (n, &out_of_band[..])))
    }

    /// Sends the pieces of a frame: with its out-of-band parts, with its shared blocks, or alone.
    fn write(&self, link: &Link, slices: &[&[u8]], out_of_band: Option<(u64, &[Arc<Block>])>) -> Result<(), LinkDown> {
        match out_of_band {
            Some((first, blocks)) => link.send_behind(slices, blocks, first),
            None if self.blocks.is_empty() => link.send_soon(slices),
            None => link.send_with_blocks(slices, &self.blocks),
        }
    }

    /// A copy of the payload that owns its bytes, for a later send.
    pub fn to_owned_parts(&self) -> OwnedPayload {
        let parts = self.parts.iter().map(|p| match p {
            Prepared::Inline(p) => OwnedPart::Inline(p.bytes.into(), p.readonly),
            Prepared::Shared { block, len, readonly } => OwnedPart::Shared(block.clone(), *len, *readonly),
        });
        OwnedPayload { parts: parts.collect() }
    }
}

/// A part that owns its bytes.
enum OwnedPart {
    Inline(Box<[u8]>, bool),
    Shared(Arc<Block>, u64, bool),
}

/// The parts of a message that waits for credit.
pub struct OwnedPayload {
    parts: Vec<OwnedPart>,
}

impl OwnedPayload {
    /// The payload for a send.
    pub fn borrow(&self) -> Payload<'_> {
        let mut out = Payload { parts: Vec::new(), blocks: Vec::new(), len: 0 };
        for p in &self.parts {
            match p {
                OwnedPart::Inline(b, readonly) => {
                    out.len += b.len() as u64;
                    out.parts.push(Prepared::Inline(OutPart { bytes: b, readonly: *readonly }));
                }
                OwnedPart::Shared(block, len, readonly) => {
                    out.len += *len;
                    out.blocks.push(block.clone());
                    out.parts.push(Prepared::Shared { block: block.clone(), len: *len, readonly: *readonly });
                }
            }
        }
        out
    }
}

/// The parts of a message that stays in this process: every part is copied once.
pub fn keep<'a>(parts: impl IntoIterator<Item = OutPart<'a>>) -> Vec<RecvPart> {
    parts.into_iter().map(|p| RecvPart::Inline { data: p.bytes.into(), readonly: p.readonly }).collect()
}
