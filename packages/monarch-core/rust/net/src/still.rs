//! A connection that a test has paused: nothing is read from it or written to it, and it is not closed either, as if a cable were pulled.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::lock;
use crate::stream::Stream;
use crate::sys;

#[derive(Default)]
pub(crate) struct Still {
    on: AtomicBool,
    /// Those that were given up meanwhile, of which the other side is not to hear yet.
    kept: Mutex<Vec<Stream>>,
}

impl Still {
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

    pub fn keep(&self, stream: Stream) {
        lock(&self.kept).push(stream);
    }
}
