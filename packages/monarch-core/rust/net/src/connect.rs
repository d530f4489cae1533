//! A non-blocking connection to the first of several addresses that accepts it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::address;
use crate::lock::lock;
use crate::poller::{Poller, Source};

/// Receives the connection and the address that accepted it, or the error of the last address.
pub type Connected = Box<dyn FnOnce(io::Result<(OwnedFd, SocketAddr)>) + Send>;

/// The current attempt and the addresses after it.
struct PendingConnect {
    fd: OwnedFd,
    address: SocketAddr,
    rest: VecDeque<SocketAddr>,
    deadline: Instant,
    done: Connected,
}

/// A connection in progress, as a source of the poller.
struct Attempt {
    poller: Arc<Poller>,
    token: u64,
    waits: Mutex<Option<PendingConnect>>,
}

/// Tries one address after the other, for at most `bound` in total. `done` is called once, on this thread or on the poller's.
pub fn connect(poller: &Arc<Poller>, addresses: VecDeque<SocketAddr>, bound: Duration, done: Connected) {
    next(poller, addresses, poller.now() + bound, ErrorKind::NotFound.into(), done);
}

/// Tries the next address.
fn next(poller: &Arc<Poller>, mut addresses: VecDeque<SocketAddr>, deadline: Instant, mut last: io::Error, done: Connected) {
    while let Some(address) = addresses.pop_front() {
        match address::connect_tcp(&address) {
            Ok(fd) => return wait(poller, PendingConnect { fd, address, rest: addresses, deadline, done }),
            Err(e) => last = e,
        }
    }
    done(Err(last));
}

/// Waits for the outcome of an attempt.
fn wait(poller: &Arc<Poller>, waits: PendingConnect) {
    let (fd, token) = (waits.fd.as_raw_fd(), poller.token());
    // Each of the remaining addresses gets an equal share of the time, so that a silent address does not use it all.
    let bound = waits.deadline.saturating_duration_since(poller.now()) / (1 + waits.rest.len() as u32);
    let attempt = Arc::new(Attempt { poller: poller.clone(), token, waits: Mutex::new(Some(waits)) });
    if let Err(e) = poller.add(token, fd, attempt.clone()) {
        return attempt.over(Err(e));
    }
    poller.want_write(token, fd, true);
    poller.later(bound, Box::new(move || attempt.over(Err(ErrorKind::TimedOut.into()))));
}

impl Attempt {
    /// Ends an attempt: reports its success, or tries the next address.
    fn over(&self, result: io::Result<()>) {
        let Some(w) = lock(&self.waits).take() else { return };
        self.poller.remove(self.token, w.fd.as_raw_fd());
        match result {
            Ok(()) => (w.done)(Ok((w.fd, w.address))),
            Err(e) => next(&self.poller, w.rest, w.deadline, e, w.done),
        }
    }
}

impl Source for Attempt {
    fn ready(&self, _events: u32) {
        let Some(fd) = lock(&self.waits).as_ref().map(|w| w.fd.as_raw_fd()) else { return };
        self.over(address::connected(fd));
    }
}
