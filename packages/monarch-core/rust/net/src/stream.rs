//! A non-blocking byte stream over a socket, plain or encrypted.
//!
//! Readiness of the descriptor is not enough: an encrypted stream may hold plaintext that has already been read from the socket, and
//! records that have not been sent. So a reader reads until `WouldBlock` before it waits, and a writer waits for room while `flush` returns
//! false.
//!
//! A stream to a host behind a gateway goes through a stream to that gateway: bytes that are encrypted for the host are encrypted for the
//! gateway once more. Both streams share one socket, whose end or failure is the end or failure of both.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{OwnedFd, RawFd};

use crate::records::Keys;
use crate::socket::Socket;
use crate::sys;
use crate::tls::Tls;

/// Most slices of one write; it bounds the array on the stack.
const MAX_PIECES: usize = 64;

/// The low-water mark of the socket is a multiple of this, to save a system call for each read.
const STEP: usize = 64 << 10;
/// Received bytes that cannot be read yet: an incomplete record of the stream, and one of the stream to the gateway.
const IN_RECORDS: usize = 2 * (17 << 10);

/// The layer below a stream: the socket, or the stream to a gateway.
pub struct LowerLayer<'a> {
    socket: &'a mut Socket,
    gateway: Option<&'a mut Outer>,
}

/// The stream to a gateway, which contains the stream to the host.
struct Outer {
    /// `None` where streams are not encrypted.
    tls: Option<Tls>,
}

impl LowerLayer<'_> {
    pub(crate) fn read(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        let Some(gateway) = &mut self.gateway else { return retry(|| self.socket.read(buf, limit)) };
        let got = match &mut gateway.tls {
            None => match retry(|| self.socket.read(buf, limit)) {
                // The host or the gateway has ended: both look alike here.
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                other => other,
            },
            Some(tls) => tls.read(&mut LowerLayer { socket: self.socket, gateway: None }, buf, limit),
        };
        // The gateway itself has ended, which is no information about the host behind it.
        got.map_err(|e| if e.kind() == ErrorKind::UnexpectedEof { ErrorKind::NotConnected.into() } else { e })
    }

    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.gateway {
            Some(Outer { tls: Some(tls) }) => tls.write(&mut LowerLayer { socket: self.socket, gateway: None }, slices),
            _ => retry(|| self.socket.send(slices)),
        }
    }

    /// Writes buffered records; true when none is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.gateway {
            Some(Outer { tls: Some(tls) }) => tls.flush(&mut LowerLayer { socket: self.socket, gateway: None }),
            _ => Ok(true),
        }
    }
}

/// A connection to another host: its socket, and the encryption for a gateway and for the host.
pub struct Stream {
    socket: Socket,
    gateway: Option<Box<Outer>>,
    tls: Option<Box<Tls>>,
}

impl Stream {
    pub fn plain(fd: OwnedFd) -> Stream {
        Stream { socket: Socket::new(fd), gateway: None, tls: None }
    }

    /// A stream to a host behind a gateway. The gateway forwards the bytes that it receives on `gateway`.
    pub fn through(gateway: Stream) -> Stream {
        Stream { socket: gateway.socket, gateway: Some(Box::new(Outer { tls: gateway.tls.map(|tls| *tls) })), tls: None }
    }

    /// Encrypts the stream from now on. The handshake of the connection may still be open.
    pub(crate) fn encrypt(&mut self, connection: rustls::Connection) {
        self.tls = Some(Box::new(Tls::new(connection)));
    }

    pub(crate) fn tls(&mut self) -> Option<&mut Tls> {
        self.tls.as_deref_mut()
    }

    fn parts(&mut self) -> (Option<&mut Tls>, LowerLayer<'_>) {
        (self.tls.as_deref_mut(), LowerLayer { socket: &mut self.socket, gateway: self.gateway.as_deref_mut() })
    }

    /// Continues the TLS handshake; true when it is complete.
    pub(crate) fn handshake(&mut self) -> io::Result<bool> {
        match self.parts() {
            (None, _) => Ok(true),
            (Some(tls), mut lower) => tls.handshake(&mut lower),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether `flush` has bytes to write.
    pub fn wants_write(&self) -> bool {
        let outer = self.gateway.as_ref().and_then(|g| g.tls.as_ref());
        [self.tls.as_deref(), outer].into_iter().flatten().any(|tls| tls.connection().wants_write())
    }

    /// Whether the other side can read what is sent now: no TLS handshake is in progress.
    pub(crate) fn can_talk(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.connection().is_handshaking())
    }

    /// The reader needs `bytes` more bytes and is not to be woken by fewer. Holds for one wait: the caller repeats the request.
    pub fn wait_for(&mut self, bytes: usize) {
        let least = bytes.saturating_sub(IN_RECORDS) / STEP * STEP;
        self.socket.wait_for(least.max(1));
    }

    /// Reads and drops raw bytes of the socket.
    pub(crate) fn discard(&mut self, limit: usize) {
        let _ = sys::read_into(self.socket.fd(), &mut Vec::new(), limit);
    }

    /// Writes as much of the pieces as the socket, or the buffer of an encrypted stream, takes; `WouldBlock` if it takes nothing.
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
            (None, mut lower) => lower.write(&slices[..count]),
            (Some(tls), mut lower) => tls.write(&mut lower, &slices[..count]),
        }
    }

    /// Writes buffered bytes; true when none is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self.parts() {
            (None, mut lower) => lower.flush(),
            (Some(tls), mut lower) => tls.flush(&mut lower),
        }
    }

    /// Appends at most `limit` bytes to `buf`. `Ok(0)` is the announced end, `UnexpectedEof` an end without an announcement; `WouldBlock`
    /// means that no byte is available now.
    pub fn read(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        match self.parts() {
            (None, mut lower) => lower.read(buf, limit.max(1)),
            (Some(tls), mut lower) => tls.read(&mut lower, buf, limit),
        }
    }

    /// The socket and, if the stream is encrypted, its keys. `None` while bytes are buffered, and for a stream through a gateway.
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

    /// Announces the end and sends nothing more; bytes that were written before arrive. The caller flushes first: buffered bytes that the
    /// socket does not take now are lost, and the peer gets an end without an announcement.
    pub fn close(&mut self) {
        if let (Some(tls), mut lower) = self.parts() {
            tls.close(&mut lower);
        }
        if let Some(Outer { tls: Some(tls) }) = self.gateway.as_deref_mut() {
            tls.close(&mut LowerLayer { socket: &mut self.socket, gateway: None });
        }
        sys::shutdown_write(self.socket.fd());
    }
}

/// Repeats a system call that a signal has interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
