//! Accepts streams from other hosts.
//!
//! Any process that reaches the port can open connections and stay silent. So the number of unauthenticated connections is limited, each
//! has little time, and the oldest is closed when there are too many. A flood delays new connections, but uses a bounded amount of memory
//! and descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::address::{self, Address};
use crate::dial::{self, Handshake, NoStream};
use crate::lock::lock;
use crate::poller::{Poller, Source};
use crate::trust::{AuthHandshake, HostTrust, Opened};

/// Most connections that are not authenticated yet: a flood uses no more descriptors and memory than these.
const MAX_UNAUTHENTICATED: usize = 256;
/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that one call accepts before the poller serves other sockets.
const BATCH: usize = 16;

/// Receives each connection: the name of its peer, and the stream or the reason why there is none.
pub type Arrived = Arc<dyn Fn(String, Result<Opened, NoStream>) + Send + Sync>;

/// A listening socket with its unauthenticated connections. The gateway of an agent owns it.
pub struct Listener {
    fd: OwnedFd,
    token: u64,
    pub port: u16,
    is_unix: bool,
    poller: Arc<Poller>,
    trust: Arc<HostTrust>,
    arrived: Arrived,
    unauthenticated: Mutex<VecDeque<Arc<Handshake>>>,
}

impl Listener {
    /// Listens at an address. `arrived` receives each authenticated connection, and each failure.
    pub fn open(poller: &Arc<Poller>, at: &Address, trust: Arc<HostTrust>, arrived: Arrived) -> io::Result<Arc<Listener>> {
        let (fd, port) = at.listen()?;
        let (raw, token) = (fd.as_raw_fd(), poller.unauthenticated_token());
        let unauthenticated = Mutex::default();
        let is_unix = at.is_unix();
        let me = Arc::new(Listener { fd, token, port, is_unix, poller: poller.clone(), trust, arrived, unauthenticated });
        poller.add(token, raw, Arc::new(AcceptSource(me.clone())))?;
        Ok(me)
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Accepts waiting connections and starts their handshakes.
    fn accept(&self) {
        for _ in 0..BATCH {
            let (fd, peer) = match address::accept(self.fd(), self.is_unix) {
                Ok(Some(come)) => come,
                Ok(None) => return,
                // No descriptor is left, and the pending connection would wake the poller again at once. Closing half-open connections
                // makes room.
                Err(_) => return self.make_room(0),
            };
            let arrived = self.arrived.clone();
            if let Err(why) = self.trust.admits_user(fd.as_raw_fd()) {
                // Refused at once, without waiting for the peer's first bytes.
                drop(fd);
                arrived(peer, Err(NoStream::Refused(why)));
                continue;
            }
            let Ok(handshake) = AuthHandshake::accept(fd, &self.trust, peer.clone()) else { continue };
            let done = Box::new(move |result: Result<dial::Ready, NoStream>| arrived(peer, result.map(|r| r.opened)));
            self.make_room(MAX_UNAUTHENTICATED - 1);
            let handshake = dial::take_in(&self.poller, handshake, HANDSHAKE_TIMEOUT, done);
            lock(&self.unauthenticated).push_back(handshake);
        }
    }

    /// Closes the oldest unauthenticated connections until at most `most` are left.
    fn make_room(&self, most: usize) {
        let mut given_up = vec![];
        {
            let mut unauthenticated = lock(&self.unauthenticated);
            if unauthenticated.len() > most {
                unauthenticated.retain(|h| !h.is_over());
            }
            while unauthenticated.len() > most {
                given_up.extend(unauthenticated.pop_front());
            }
        }
        given_up.iter().for_each(|h| h.give_up());
    }

    pub fn close(&self) {
        self.poller.remove(self.token, self.fd());
        self.make_room(0);
    }
}

/// The listening socket as a source of the poller.
struct AcceptSource(Arc<Listener>);

impl Source for AcceptSource {
    fn ready(&self, _events: u32) {
        self.0.accept();
    }
}
