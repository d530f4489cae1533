//! The delay that tests put on the links of a process, in both directions. Without a delay the cost is one relaxed load for each frame.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The delay in nanoseconds. The poller owns one for all links of its process.
#[derive(Default)]
pub struct Delay(AtomicU64);

impl Delay {
    #[inline]
    pub fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// Sets the delay; zero ends it. Frames that are already held keep their time.
    pub fn set(&self, delay: Duration) {
        self.0.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
