//! Small bounded frames over a stream that is not open yet: `u16 length of the rest, u8 tag, body`.
//!
//! Exactly what is needed is read: what comes after it belongs to whoever gets the stream. A peer can make this hold one frame.

use std::io::ErrorKind;

use crate::stream::Stream;
use crate::trust::preface;
use crate::trust::refused::Refused;

/// A hello at most.
pub const MAX_HELLO: usize = 16 * 1024;
const HEADER: usize = 3;
/// How TLS begins.
const HANDSHAKE: u8 = 22;
/// "No" to a ClientHello: an alert in the clear, fatal, access_denied.
const ACCESS_DENIED: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// "No", and no reason.
    No = 0,
    /// Of the dialler: job and proof.
    Proof = 1,
    /// Of the worker: proof and public key.
    Answer = 2,
    /// Of the dialler: kind and job.
    Request = 3,
    /// Of the authority: the host's id, its certificate, the authority's.
    Certificate = 4,
    /// Of the dialler, for whoever gets the stream.
    Hello = 5,
    /// Of the listening side: all is well, the stream is open.
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

    /// True when all has gone out.
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

    /// A last word before the connection is closed. What the peer has sent is taken from the socket, else closing it would
    /// reset the connection, and the word might be lost.
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

    /// Reads until `n` bytes are there.
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

    /// The next frame, which has to be this one; None while it is not all there.
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

    /// The other end's release, if it is one that we can talk to.
    pub fn release(&mut self) -> Result<Option<()>, Refused> {
        let fixed = self.have(preface::FIXED);
        // A "no" is shorter, and nothing comes after it.
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
