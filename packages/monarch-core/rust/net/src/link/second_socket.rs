//! A second socket of a link, from which frames are only read.
//!
//! Two clients that contact each other for the first time at the same moment open a socket each. Neither knows which socket the other one
//! writes to, so both are kept: each side writes to the socket that it had first, and reads both. All frames of one side are in one
//! socket, in order.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use super::{In, Link, READS_IN_A_ROW};
use crate::lock::lock;
use crate::poller::Source;

/// A socket that was attached to a link that had one, as a source of the poller. The link and the poller hold it.
pub(super) struct SecondSocket {
    link: Weak<Link>,
    fd: OwnedFd,
    token: u64,
    pub(super) input: Mutex<In>,
}

impl Link {
    /// Reads frames from this socket too. If the kernel does not watch it, it is closed: the other side, which may write to it, ends the
    /// link.
    pub(super) fn attach_second(self: &Arc<Self>, fd: OwnedFd) -> io::Result<()> {
        let token = self.poller.token();
        let second = Arc::new(SecondSocket { link: self.me.clone(), fd, token, input: Mutex::default() });
        lock(&self.second).push(second.clone());
        let added = self.poller.add(token, second.fd.as_raw_fd(), second.clone());
        if added.is_err() || self.is_down() {
            second.leave(self);
        }
        added
    }

    /// Handles the frames that are still in the second sockets. Leaves out a socket that another thread is reading now.
    pub(super) fn drain_second(self: &Arc<Self>) {
        let all = lock(&self.second).clone();
        for second in all {
            if let Ok(mut input) = second.input.try_lock() {
                self.read_all(&mut input, second.fd.as_raw_fd(), usize::MAX);
                self.handle_delayed(&mut input, None);
            }
        }
    }

    pub(super) fn close_second(&self) {
        let all = std::mem::take(&mut *lock(&self.second));
        all.iter().for_each(|second| self.poller.remove(second.token, second.fd.as_raw_fd()));
    }
}

impl SecondSocket {
    fn leave(&self, link: &Link) {
        link.poller.remove(self.token, self.fd.as_raw_fd());
        lock(&link.second).retain(|other| other.token != self.token);
    }
}

impl Source for SecondSocket {
    fn ready(&self, _events: u32) {
        let Some(link) = self.link.upgrade() else { return };
        let mut input = lock(&self.input);
        if !link.read_all(&mut input, self.fd.as_raw_fd(), READS_IN_A_ROW) {
            link.handle_delayed(&mut input, None);
            drop(input);
            // The end of the first socket is the end of the link.
            self.leave(&link);
        }
    }
}
