//! A socket that keeps its first error.
//!
//! The kernel reports an error once, to the first system call. Later reads return an end of stream, as if the other side had closed it.
//! Often a write gets the error. The reader needs it too: an end of stream means that a process has exited, a reset does not.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys;

/// A connected socket, its first error, and its low-water mark.
pub struct Socket {
    fd: OwnedFd,
    /// The error number of the first failure.
    failed: Option<i32>,
    /// The number of available bytes from which on the socket is readable.
    least: usize,
}

impl Socket {
    pub fn new(fd: OwnedFd) -> Socket {
        Socket { fd, failed: None, least: 1 }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Makes the socket readable only when `bytes` bytes are available, or its end.
    pub fn wait_for(&mut self, bytes: usize) {
        if bytes != self.least {
            self.least = bytes;
            sys::set_least(self.fd(), bytes);
        }
    }

    /// Sends without raising SIGPIPE.
    pub fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send_slices(self.fd(), slices).inspect_err(|e| self.note(e))
    }

    /// Appends the available bytes, at most `limit`. 0 is an end without an error.
    pub fn read(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        match (sys::read_into(self.fd(), buf, limit), self.failed) {
            (Ok(0), Some(number)) => Err(io::Error::from_raw_os_error(number)),
            (got, _) => got.inspect_err(|e| self.note(e)),
        }
    }

    /// Keeps the first error.
    fn note(&mut self, e: &io::Error) {
        // EPIPE only follows an end of stream or an earlier error.
        if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::BrokenPipe) && self.failed.is_none() {
            self.failed = e.raw_os_error();
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
