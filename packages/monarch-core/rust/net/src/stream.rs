//! A non-blocking byte stream over a socket, plain or encrypted.
//!
//! Readiness of the descriptor does not tell everything: an encrypted stream may hold plaintext that has been read from the
//! socket already, and records that have not gone out. So a reader reads until `WouldBlock` before it waits, and a writer
//! waits for room while `flush` says that something is left.
//!
//! A stream to a host behind a gateway goes through a stream to that gateway: what is encrypted for the host is encrypted for the
//! gateway once more. It has one socket, whose ends and failures are those of both.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{OwnedFd, RawFd};

use crate::records::Keys;
use crate::socket::Socket;
use crate::sys;
use crate::tls::Tls;

/// Pieces of one write at most; the rest is for the next one.
const MAX_PIECES: usize = 64;

/// What is said of the socket is said in steps, so that it is not said for every read.
const STEP: usize = 64 << 10;
/// What of it has been read, and is not to be had yet: a record that is not whole, of the stream and of that to the gateway.
const IN_RECORDS: usize = 2 * (17 << 10);

/// Where bytes of a stream go to: the socket, or the stream to a gateway.
pub struct Below<'a> {
    socket: &'a mut Socket,
    gateway: Option<&'a mut Outer>,
}

struct Outer {
    /// None where streams are not encrypted.
    tls: Option<Tls>,
}

impl Below<'_> {
    pub(crate) fn read(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        let Some(gateway) = &mut self.gateway else { return retry(|| self.socket.read(buf, limit)) };
        let got = match &mut gateway.tls {
            None => match retry(|| self.socket.read(buf, limit)) {
                // The host's end, or the gateway's: nobody can tell.
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                other => other,
            },
            Some(tls) => tls.read(&mut Below { socket: self.socket, gateway: None }, buf, limit),
        };
        // The gateway itself: it says nothing of the host behind it.
        got.map_err(|e| if e.kind() == ErrorKind::UnexpectedEof { ErrorKind::NotConnected.into() } else { e })
    }

    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.gateway {
            Some(Outer { tls: Some(tls) }) => tls.write(&mut Below { socket: self.socket, gateway: None }, slices),
            _ => retry(|| self.socket.send(slices)),
        }
    }

    /// True when nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.gateway {
            Some(Outer { tls: Some(tls) }) => tls.flush(&mut Below { socket: self.socket, gateway: None }),
            _ => Ok(true),
        }
    }
}

pub struct Stream {
    socket: Socket,
    gateway: Option<Box<Outer>>,
    tls: Option<Box<Tls>>,
}

impl Stream {
    pub fn plain(fd: OwnedFd) -> Stream {
        Stream { socket: Socket::new(fd), gateway: None, tls: None }
    }

    /// A stream to a host behind the other end, which passes on what comes through this one.
    pub fn through(gateway: Stream) -> Stream {
        Stream { socket: gateway.socket, gateway: Some(Box::new(Outer { tls: gateway.tls.map(|tls| *tls) })), tls: None }
    }

    /// From now on everything goes through the connection, whose handshake may still be to do.
    pub(crate) fn encrypt(&mut self, connection: rustls::Connection) {
        self.tls = Some(Box::new(Tls::new(connection)));
    }

    pub(crate) fn tls(&mut self) -> Option<&mut Tls> {
        self.tls.as_deref_mut()
    }

    fn parts(&mut self) -> (Option<&mut Tls>, Below<'_>) {
        (self.tls.as_deref_mut(), Below { socket: &mut self.socket, gateway: self.gateway.as_deref_mut() })
    }

    /// Goes on with the TLS handshake; true when it is over.
    pub(crate) fn handshake(&mut self) -> io::Result<bool> {
        match self.parts() {
            (None, _) => Ok(true),
            (Some(tls), mut below) => tls.handshake(&mut below),
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
        let outer = self.gateway.as_ref().and_then(|g| g.tls.as_ref());
        [self.tls.as_deref(), outer].into_iter().flatten().any(|tls| tls.connection().wants_write())
    }

    /// Bytes can be sent that the other end understands: no handshake is under way.
    pub(crate) fn can_talk(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.connection().is_handshaking())
    }

    /// Who reads cannot go on before so many bytes are there, and does not want to be woken by fewer. For once: to be said again.
    pub fn wait_for(&mut self, bytes: usize) {
        let least = bytes.saturating_sub(IN_RECORDS) / STEP * STEP;
        self.socket.wait_for(least.max(1));
    }

    /// Takes what is there from the socket, as it came.
    pub(crate) fn discard(&mut self, limit: usize) {
        let _ = sys::read_into(self.socket.fd(), &mut Vec::new(), limit);
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
        match self.parts() {
            (None, mut below) => below.write(&slices[..count]),
            (Some(tls), mut below) => tls.write(&mut below, &slices[..count]),
        }
    }

    /// Pushes out what is buffered; true when nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self.parts() {
            (None, mut below) => below.flush(),
            (Some(tls), mut below) => tls.flush(&mut below),
        }
    }

    /// Appends at most `limit` bytes to `buf`. `Ok(0)` is the clean end, `UnexpectedEof` an end that the peer did not announce,
    /// `WouldBlock` nothing now.
    pub fn read(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        match self.parts() {
            (None, mut below) => below.read(buf, limit.max(1)),
            (Some(tls), mut below) => tls.read(&mut below, buf, limit),
        }
    }

    /// The socket, and what protects it if it is encrypted; none while something is on its way, and of a stream through a gateway.
    pub fn into_parts(self) -> Option<(OwnedFd, Option<Keys>)> {
        if self.gateway.is_some() {
            return None;
        }
        let keys = match self.tls {
            Some(tls) => Some(tls.into_keys()?),
            None => None,
        };
        Some((self.socket.into_fd(), keys))
    }

    /// Announces the end and sends nothing more; what has been written before arrives. Flush first: what does not fit now is
    /// lost, and the peer sees a cut.
    pub fn close(&mut self) {
        if let (Some(tls), mut below) = self.parts() {
            tls.close(&mut below);
        }
        if let Some(Outer { tls: Some(tls) }) = self.gateway.as_deref_mut() {
            tls.close(&mut Below { socket: &mut self.socket, gateway: None });
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
