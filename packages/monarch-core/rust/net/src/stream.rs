//! A non-blocking byte stream over a socket, plain or encrypted.
//!
//! Readiness of the descriptor does not tell everything: an encrypted stream may hold plaintext that has been read from the
//! socket already, and records that have not gone out. So a reader reads until `WouldBlock` before it waits, and a writer
//! waits for room while `flush` says that something is left.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{OwnedFd, RawFd};

use crate::socket::Socket;
use crate::sys;
use crate::tls::Tls;

/// Pieces of one write at most; the rest is for the next one.
const MAX_PIECES: usize = 64;

pub struct Stream {
    socket: Socket,
    tls: Option<Box<Tls>>,
}

impl Stream {
    pub fn plain(fd: OwnedFd) -> Stream {
        Stream { socket: Socket::new(fd), tls: None }
    }

    /// From now on everything goes through the connection, whose handshake may still be to do.
    pub(crate) fn encrypt(&mut self, connection: rustls::Connection) {
        self.tls = Some(Box::new(Tls::new(connection)));
    }

    pub(crate) fn tls(&mut self) -> Option<&mut Tls> {
        self.tls.as_deref_mut()
    }

    /// Goes on with the TLS handshake; true when it is over.
    pub(crate) fn handshake(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            None => Ok(true),
            Some(tls) => tls.handshake(&mut self.socket),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether `flush` has something left.
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection().wants_write())
    }

    /// Bytes can be sent that the other end understands: no handshake is under way.
    pub(crate) fn can_talk(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.connection().is_handshaking())
    }

    /// Takes what is there from the socket, as it came.
    pub(crate) fn discard(&mut self, limit: usize) {
        let _ = self.socket.read(&mut Vec::new(), limit);
    }

    /// Takes as much of the pieces as goes out, or fits the buffer of an encrypted stream; `WouldBlock` if nothing does.
    pub fn write(&mut self, pieces: &[&[u8]]) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        let mut count = 0;
        for piece in pieces.iter().filter(|p| !p.is_empty()).take(MAX_PIECES) {
            slices[count] = IoSlice::new(piece);
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        match &mut self.tls {
            None => retry(|| self.socket.send(&slices[..count])),
            Some(tls) => tls.write(&mut self.socket, &slices[..count]),
        }
    }

    /// Pushes out what is buffered; true when nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            None => Ok(true),
            Some(tls) => tls.flush(&mut self.socket),
        }
    }

    /// Appends at most `limit` bytes to `buf`. `Ok(0)` is the clean end, `UnexpectedEof` an end that the peer did not announce,
    /// `WouldBlock` nothing now. What a write has failed with comes here too.
    pub fn read(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        match &mut self.tls {
            None => retry(|| self.socket.read(buf, limit.max(1))),
            Some(tls) => tls.read(&mut self.socket, buf, limit),
        }
    }

    /// Announces the end and sends nothing more; what has been written before arrives. Flush first: what does not fit now is
    /// lost, and the peer sees a cut.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.socket);
        }
        sys::shutdown_write(self.socket.fd());
    }
}

/// Signals interrupt nothing here.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
