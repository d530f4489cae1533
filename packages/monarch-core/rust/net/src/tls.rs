//! The encryption of a stream. rustls does no I/O; this file does it.
//!
//! The layer below is a socket or, for a stream through a gateway, another encrypted stream. It is read in large chunks, which are then
//! passed to rustls: rustls itself would read 4 KiB at a time. The chunk size grows while chunks are filled, and shrinks again, so that
//! thousands of idle streams use little memory. Records are written by gather writes of up to `OUT_LIMIT` bytes.

use std::io::{self, BufRead, ErrorKind, IoSlice, Write};

use rustls::Connection;

use crate::records::Keys;
use crate::stream::LowerLayer;

/// Smallest and largest amount of ciphertext that one read requests: one record, and sixteen.
const IN_SMALL: usize = 17 * 1024;
const IN_LARGE: usize = 16 * IN_SMALL;
/// Plaintext that is buffered before the socket has room: as much as a socket buffer usually holds.
const OUT_LIMIT: usize = 256 * 1024;

/// The TLS connection of a stream and its read buffer.
pub struct Tls {
    connection: Connection,
    incoming: Vec<u8>,
    /// Bytes of `incoming` that rustls has taken.
    taken: usize,
    /// The size of the next read.
    read_size: usize,
    /// The socket has ended.
    ended: bool,
}

impl Tls {
    pub fn new(mut connection: Connection) -> Tls {
        connection.set_buffer_limit(Some(OUT_LIMIT));
        Tls { connection, incoming: Vec::new(), taken: 0, read_size: IN_SMALL, ended: false }
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Continues the handshake; true when both sides have finished.
    pub fn handshake(&mut self, lower: &mut LowerLayer<'_>) -> io::Result<bool> {
        loop {
            // A peer may have sent its reason and closed: that reason can still be read.
            let unsent = self.flush(lower).err();
            if unsent.is_none() && !self.connection.is_handshaking() {
                return Ok(true);
            }
            match (self.take_in(lower), unsent) {
                (Err(e), _) if e.kind() == ErrorKind::InvalidData => return Err(e),
                (_, Some(unsent)) => return Err(unsent),
                (Ok(0), None) => return Err(ErrorKind::UnexpectedEof.into()),
                (Ok(_), None) => {}
                (Err(e), None) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                (Err(e), None) => return Err(e),
            }
        }
    }

    pub fn write(&mut self, lower: &mut LowerLayer<'_>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.connection.wants_write() {
            self.flush(lower)?;
        }
        let n = self.connection.writer().write_vectored(slices)?;
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        // These bytes are buffered, so a failure is reported by the next call.
        let _ = self.flush(lower);
        Ok(n)
    }

    pub fn flush(&mut self, lower: &mut LowerLayer<'_>) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut RecordWriter(lower)) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        lower.flush()
    }

    pub fn read(&mut self, lower: &mut LowerLayer<'_>, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        let before = buf.len();
        let limit = before + limit.max(1);
        loop {
            let end = loop {
                let mut reader = self.connection.reader();
                match reader.fill_buf() {
                    Ok([]) => break Some(Ok(())),
                    Ok(chunk) => {
                        let n = chunk.len().min(limit - buf.len());
                        buf.extend_from_slice(&chunk[..n]);
                        reader.consume(n);
                        if buf.len() == limit {
                            return Ok(limit - before);
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break None,
                    Err(e) => break Some(Err(e)),
                }
            };
            // More bytes may be available. A failure is reported again by the next call.
            if let Some(end) = end {
                return if buf.len() > before { Ok(buf.len() - before) } else { end.map(|()| 0) };
            }
            match self.take_in(lower) {
                Ok(_) => {}
                Err(_) if buf.len() > before => return Ok(buf.len() - before),
                Err(e) => return Err(e),
            }
        }
    }

    /// The keys for the rest of the stream; `None` while bytes are buffered in either direction. An incomplete record in the socket cannot
    /// be detected: the other side must not send before it is notified that this side is ready.
    pub fn into_keys(mut self) -> Option<Keys> {
        let unread = self.connection.process_new_packets().ok()?.plaintext_bytes_to_read();
        if unread > 0 || self.taken < self.incoming.len() || self.connection.is_handshaking() || self.connection.wants_write() {
            return None;
        }
        Keys::new(&self.connection.dangerous_extract_secrets().ok()?)
    }

    pub fn close(&mut self, lower: &mut LowerLayer<'_>) {
        self.connection.send_close_notify();
        let _ = self.flush(lower);
    }

    /// Passes received bytes to rustls, and reads from the socket if there are none; 0 at its end.
    fn take_in(&mut self, lower: &mut LowerLayer<'_>) -> io::Result<usize> {
        if self.taken == self.incoming.len() && !self.ended {
            self.refill(lower)?;
        }
        let n = self.connection.read_tls(&mut &self.incoming[self.taken..])?;
        self.taken += n;
        if let Err(e) = self.connection.process_new_packets() {
            // The alert notifies the peer of the refusal, without the reason.
            let _ = self.flush(lower);
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        Ok(n)
    }

    /// Reads ciphertext from the layer below and adapts the size of the next read.
    fn refill(&mut self, lower: &mut LowerLayer<'_>) -> io::Result<()> {
        self.incoming.clear();
        self.taken = 0;
        let n = lower.read(&mut self.incoming, self.read_size)?;
        self.ended = n == 0;
        if n == self.read_size {
            self.read_size = (2 * self.read_size).min(IN_LARGE);
        } else if n < self.read_size / 4 {
            self.read_size = (self.read_size / 2).max(IN_SMALL);
            self.incoming.shrink_to(2 * self.read_size);
        }
        Ok(())
    }
}

/// The writer of records: adapts the layer below to `Write`.
struct RecordWriter<'a, 'b>(&'a mut LowerLayer<'b>);

impl Write for RecordWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
