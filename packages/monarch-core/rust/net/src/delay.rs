//! A delay that the test kit puts on the links of a process, in both directions; none costs one relaxed load a frame.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

    /// Zero: none. What is held already stays held as long as it was to be.
    pub fn set(&self, delay: Duration) {
        self.0.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
