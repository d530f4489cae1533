//! Where streams come in.
//!
//! Whoever can reach the port can open connections and say nothing; so only so many may be half open, each for a short time, and when
//! there are more, the oldest goes: a flood slows newcomers down, and takes neither memory nor descriptors without bound.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::address::{self, Address};
use crate::dial::{self, Handshake, NoStream};
use crate::lock::lock;
use crate::poller::{Poller, Source};
use crate::trust::{HostTrust, Opened, Opening};

/// Connections that have not shown who they are.
const HALF_OPEN: usize = 256;
/// How long they may take to.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections accepted in one turn of the listener.
const BATCH: usize = 16;

/// Gets each connection: where it came from, and the stream or why there is none.
pub type Arrived = Arc<dyn Fn(String, Result<Opened, NoStream>) + Send + Sync>;

pub struct Listener {
    fd: OwnedFd,
    token: u64,
    pub port: u16,
    is_unix: bool,
    poller: Arc<Poller>,
    trust: Arc<HostTrust>,
    arrived: Arrived,
    half_open: Mutex<VecDeque<Arc<Handshake>>>,
}

impl Listener {
    pub fn open(poller: &Arc<Poller>, at: &Address, trust: Arc<HostTrust>, arrived: Arrived) -> io::Result<Arc<Listener>> {
        let (fd, port) = at.listen()?;
        let (raw, token) = (fd.as_raw_fd(), poller.stranger_token());
        let half_open = Mutex::default();
        let is_unix = at.is_unix();
        let me = Arc::new(Listener { fd, token, port, is_unix, poller: poller.clone(), trust, arrived, half_open });
        poller.add(token, raw, Arc::new(Comes(me.clone())))?;
        Ok(me)
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn accept(&self) {
        for _ in 0..BATCH {
            let (fd, peer) = match address::accept(self.fd(), self.is_unix) {
                Ok(Some(come)) => come,
                Ok(None) => return,
                // Without descriptors it would be tried again at once and for ever: make room.
                Err(_) => return self.make_room(0),
            };
            let arrived = self.arrived.clone();
            if let Err(why) = self.trust.admits_user(fd.as_raw_fd()) {
                // At once, without waiting for what it has to send.
                drop(fd);
                arrived(peer, Err(NoStream::Refused(why)));
                continue;
            }
            let Ok(opening) = Opening::accept(fd, &self.trust, peer.clone()) else { continue };
            let done = Box::new(move |result: Result<dial::Ready, NoStream>| arrived(peer, result.map(|r| r.opened)));
            self.make_room(HALF_OPEN - 1);
            let handshake = dial::take_in(&self.poller, opening, PATIENCE, done);
            lock(&self.half_open).push_back(handshake);
        }
    }

    fn make_room(&self, most: usize) {
        let mut given_up = vec![];
        {
            let mut half_open = lock(&self.half_open);
            if half_open.len() > most {
                half_open.retain(|h| !h.is_over());
            }
            while half_open.len() > most {
                given_up.extend(half_open.pop_front());
            }
        }
        given_up.iter().for_each(|h| h.give_up());
    }

    pub fn close(&self) {
        self.poller.remove(self.token, self.fd());
        self.make_room(0);
    }
}

struct Comes(Arc<Listener>);

impl Source for Comes {
    fn ready(&self, _events: u32) {
        self.0.accept();
    }
}
