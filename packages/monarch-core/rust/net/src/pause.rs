//! A connection that a test has paused, like a pulled cable: nothing is read or written, and nothing is closed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::lock;
use crate::stream::Stream;
use crate::sys;

/// The pause of a session.
#[derive(Default)]
pub(crate) struct Pause {
    on: AtomicBool,
    /// Connections that this side has closed meanwhile. The other side must not notice before the pause ends.
    kept: Mutex<Vec<Stream>>,
}

impl Pause {
    #[inline]
    pub fn get(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub fn begin(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.on.store(false, Ordering::Relaxed);
        for stream in lock(&self.kept).drain(..) {
            sys::reset(stream.fd());
        }
    }

    /// Holds a closed connection open until the pause ends.
    pub fn keep_open(&self, stream: Stream) {
        lock(&self.kept).push(stream);
    }
}
