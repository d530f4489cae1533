//! Bytes between hosts, in the clear or encrypted; non-blocking.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys;

pub struct Stream {
    fd: OwnedFd,
}

impl Stream {
    pub fn plain(fd: OwnedFd) -> Stream {
        Stream { fd }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn write(&mut self, pieces: &[&[u8]]) -> io::Result<usize> {
        sys::send(self.fd(), pieces, &[])
    }

    pub fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    pub fn read(&mut self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        buf.reserve(limit);
        sys::recv_into(self.fd(), buf, &mut Default::default(), libc::MSG_DONTWAIT)
    }

    pub fn close(&mut self) {
        // SAFETY: our descriptor.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }

    pub fn is_encrypted(&self) -> bool {
        false
    }
}
