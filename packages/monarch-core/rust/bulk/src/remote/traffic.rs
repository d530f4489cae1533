//! The progress of one end of a connection, and the connections that are served, by their numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use net::lock::lock;

/// Interval of checks whether to continue a wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The bytes that one end of a connection has passed to its kernel, and got from it.
#[derive(Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    /// The requesting side no longer uses the connection.
    is_abandoned: AtomicBool,
}

impl Traffic {
    pub fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    pub fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Bytes sent, and bytes received.
    pub fn totals(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Acquire), self.received.load(Ordering::Acquire))
    }

    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }
}

/// The requesting process, and its number of the connection.
type Key = (u64, u64);

/// The connections that threads of this process serve.
#[derive(Default)]
pub struct Served {
    open: Mutex<HashMap<Key, Arc<Traffic>>>,
    closed: Condvar,
}

/// Marks a connection as served while it exists.
pub struct Serving {
    served: Arc<Served>,
    key: Key,
}

impl Served {
    pub fn begin(self: &Arc<Self>, peer: u64, number: u64, traffic: &Arc<Traffic>) -> Serving {
        lock(&self.open).insert((peer, number), traffic.clone());
        Serving { served: self.clone(), key: (peer, number) }
    }

    pub fn find(&self, peer: u64, number: u64) -> Option<Arc<Traffic>> {
        lock(&self.open).get(&(peer, number)).cloned()
    }

    /// Ends the threads of these connections. True when all have ended, and so touch no memory any more; false if `stop` was true first.
    pub fn abandon(&self, peer: u64, numbers: &[u64], stop: &dyn Fn() -> bool) -> bool {
        let mut open = lock(&self.open);
        loop {
            let mut left = 0;
            for traffic in numbers.iter().filter_map(|number| open.get(&(peer, *number))) {
                traffic.is_abandoned.store(true, Ordering::Release);
                left += 1;
            }
            if left == 0 {
                return true;
            }
            if stop() {
                return false;
            }
            open = self.closed.wait_timeout(open, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn count(&self) -> usize {
        lock(&self.open).len()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        lock(&self.served.open).remove(&self.key);
        self.served.closed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_connection_is_awaited() {
        let (served, traffic) = (Arc::new(Served::default()), Arc::new(Traffic::default()));
        let serving = served.begin(7, 1, &traffic);
        assert!(served.find(8, 1).is_none() && served.find(7, 1).is_some());
        assert!(!served.abandon(7, &[1, 2], &|| true));
        assert!(traffic.is_abandoned());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| served.abandon(7, &[1], &|| false));
            drop(serving);
            assert!(waiting.join().unwrap());
        });
        assert_eq!(served.count(), 0);
    }
}
