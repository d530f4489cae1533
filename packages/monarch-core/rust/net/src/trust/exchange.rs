//! Small bounded frames over a stream that is not authenticated yet: `u16 length of the rest, u8 tag, body`.
//!
//! Only the bytes of the current frame are read: later bytes belong to the user of the stream. A peer can make this process hold at most
//! one frame.

use std::io::ErrorKind;

use crate::stream::Stream;
use crate::trust::preface;
use crate::trust::refused::Refused;

/// Most bytes of a hello: the longest greeting, `wire::greeting::LIMIT`.
pub const MAX_HELLO: usize = 16 * 1024;
/// Bytes before the body: length and tag.
const HEADER: usize = 3;
/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 22;
/// The refusal of a ClientHello: an unencrypted alert, fatal, access_denied.
const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

/// The kind of a frame of the handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// A refusal without a reason.
    No = 0,
    /// From the dialling side: the job, the digest of its authority, and the proof.
    Proof = 1,
    /// From the worker: its proof and its public key.
    Answer = 2,
    /// From the dialling side: kind and job.
    Request = 3,
    /// From the dialling side: the host's id, its certificate, and the certificate of the authority.
    Certificate = 4,
    /// From the dialling side: the greeting, for the user of the stream.
    Hello = 5,
    /// From the listening side: the handshake is complete.
    Welcome = 6,
}

impl Tag {
    fn limit(self) -> usize {
        match self {
            Tag::No | Tag::Welcome => 0,
            Tag::Proof | Tag::Answer | Tag::Request => 256,
            Tag::Certificate => 8 * 1024,
            Tag::Hello => MAX_HELLO,
        }
    }
}

/// The stream of a handshake with its unread and unwritten bytes.
pub struct Exchange {
    pub stream: Stream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

impl Exchange {
    pub fn new(stream: Stream) -> Exchange {
        Exchange { stream, inbox: Vec::new(), outbox: Vec::new() }
    }

    pub fn put(&mut self, tag: Tag, pieces: &[&[u8]]) {
        let length = 1 + pieces.iter().map(|p| p.len()).sum::<usize>();
        debug_assert!(length <= 1 + tag.limit());
        self.outbox.extend_from_slice(&(length as u16).to_le_bytes());
        self.outbox.push(tag as u8);
        pieces.iter().for_each(|p| self.outbox.extend_from_slice(p));
    }

    pub fn put_release(&mut self) {
        preface::put(&mut self.outbox);
    }

    /// Writes the queued frames; true when all bytes have been written.
    pub fn flush(&mut self) -> Result<bool, Refused> {
        while !self.outbox.is_empty() {
            match self.stream.write(&[&self.outbox]) {
                Ok(n) => drop(self.outbox.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.stream.flush()?)
    }

    pub fn wants_write(&self) -> bool {
        !self.outbox.is_empty() || self.stream.wants_write()
    }

    /// Refuses the peer before the connection is closed. Bytes of the peer that are still in the socket are read, because a close with
    /// unread bytes resets the connection, and the refusal might be lost.
    pub fn deny(&mut self, before_tls: bool) {
        let wants_tls = !self.stream.is_encrypted() && self.inbox.first() == Some(&HANDSHAKE);
        if before_tls || wants_tls {
            let _ = self.stream.write(&[ACCESS_DENIED]);
        } else if self.stream.can_talk() {
            self.put(Tag::No, &[]);
            let _ = self.flush();
        }
        self.stream.close();
        self.stream.discard(4 * MAX_HELLO);
    }

    /// Reads until `n` bytes are in the buffer; false if they have not arrived yet.
    fn have(&mut self, n: usize) -> Result<bool, Refused> {
        while self.inbox.len() < n {
            let missing = n - self.inbox.len();
            match self.stream.read(&mut self.inbox, missing) {
                Ok(0) => return Err(Refused::Closed),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// The next frame, which must have this tag; `None` while it is incomplete.
    pub fn frame(&mut self, tag: Tag) -> Result<Option<Vec<u8>>, Refused> {
        if !self.have(HEADER)? {
            return Ok(None);
        }
        let length = u16::from_le_bytes([self.inbox[0], self.inbox[1]]) as usize;
        if self.inbox[2] == Tag::No as u8 && length == 1 {
            return Err(Refused::denied());
        }
        if self.inbox[2] != tag as u8 || length == 0 || length > 1 + tag.limit() {
            return Err(Refused::protocol("an unexpected frame"));
        }
        if !self.have(HEADER - 1 + length)? {
            return Ok(None);
        }
        let body = self.inbox.split_off(HEADER);
        self.inbox.clear();
        Ok(Some(body))
    }

    /// The release of the other side, if it is compatible; `None` while it is incomplete.
    pub fn release(&mut self) -> Result<Option<()>, Refused> {
        let fixed = self.have(preface::FIXED);
        // A refusal is shorter than a release, and no bytes follow it.
        if self.inbox == [1, 0, Tag::No as u8] {
            return Err(Refused::denied());
        }
        if !self.inbox.starts_with(&[1, 0]) {
            preface::begins(&self.inbox)?;
        }
        let Some(first) = self.inbox.first_chunk() else { return fixed.map(|_| None) };
        if !self.have(preface::len(first))? {
            return Ok(None);
        }
        let release = preface::parse(&self.inbox)?;
        self.inbox.clear();
        release.check().map(Some)
    }
}
