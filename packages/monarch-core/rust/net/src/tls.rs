//! The encryption of a stream: rustls does no input or output, this file does it.
//!
//! The socket is read in large pieces, which are then fed to rustls: its own reads would be of 4 KiB each. Records go out by
//! gather writes, up to `OUT_LIMIT` at a time.

use std::io::{self, BufRead, ErrorKind, IoSlice, Write};
use std::os::fd::RawFd;

use rustls::Connection;

use crate::stream::retry;
use crate::sys;

/// Ciphertext that one read may bring: sixteen records. During the handshake the buffer is smaller.
const IN_LIMIT: usize = 256 * 1024;
/// What a peer may make us hold before it is authenticated.
const HANDSHAKE_IN: usize = 8 * 1024;
/// Plaintext that is taken before the socket has room: as much as a socket buffer usually holds.
const OUT_LIMIT: usize = 256 * 1024;

pub struct Tls {
    connection: Connection,
    incoming: Vec<u8>,
    /// How much of `incoming` rustls has taken.
    taken: usize,
    /// The socket has ended.
    ended: bool,
}

impl Tls {
    pub fn new(mut connection: Connection) -> Tls {
        connection.set_buffer_limit(Some(OUT_LIMIT));
        Tls { connection, incoming: Vec::new(), taken: 0, ended: false }
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// True when both sides have finished.
    pub fn handshake(&mut self, fd: RawFd) -> io::Result<bool> {
        loop {
            self.flush(fd)?;
            if !self.connection.is_handshaking() {
                return Ok(true);
            }
            match self.take_in(fd, HANDSHAKE_IN) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
    }

    pub fn write(&mut self, fd: RawFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.connection.wants_write() {
            self.flush(fd)?;
        }
        let n = self.connection.writer().write_vectored(slices)?;
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        // A failure shows at the next call: these bytes have been taken.
        let _ = self.flush(fd);
        Ok(n)
    }

    pub fn flush(&mut self, fd: RawFd) -> io::Result<bool> {
        while self.connection.wants_write() {
            match retry(|| self.connection.write_tls(&mut Socket(fd))) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    pub fn read(&mut self, fd: RawFd, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        let before = buf.len();
        let limit = before + limit;
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
            // More may be there; a failure shows again at the next call.
            if let Some(end) = end {
                return if buf.len() > before { Ok(buf.len() - before) } else { end.map(|()| 0) };
            }
            match self.take_in(fd, IN_LIMIT) {
                Ok(_) => {}
                Err(_) if buf.len() > before => return Ok(buf.len() - before),
                Err(e) => return Err(e),
            }
        }
    }

    pub fn close(&mut self, fd: RawFd) {
        self.connection.send_close_notify();
        let _ = self.flush(fd);
    }

    /// Gives rustls more of what came, from the socket if need be; 0 at its end.
    fn take_in(&mut self, fd: RawFd, limit: usize) -> io::Result<usize> {
        if self.taken == self.incoming.len() && !self.ended {
            self.incoming.clear();
            self.taken = 0;
            if retry(|| sys::read_into(fd, &mut self.incoming, limit))? == 0 {
                self.ended = true;
            }
        }
        let n = self.connection.read_tls(&mut &self.incoming[self.taken..])?;
        self.taken += n;
        if let Err(e) = self.connection.process_new_packets() {
            // The alert tells the peer that it was refused, without the reason.
            let _ = self.flush(fd);
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        Ok(n)
    }
}

/// Writes without SIGPIPE.
struct Socket(RawFd);

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sys::send_slices(self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send_slices(self.0, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
