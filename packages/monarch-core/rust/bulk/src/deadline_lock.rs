//! A lock with a deadline.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use net::lock::lock;

/// The lock. A thread waits for it only until its deadline.
#[derive(Default)]
pub struct DeadlineLock {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// The guard of the lock, which releases it on drop.
pub struct DeadlineGuard<'a>(&'a DeadlineLock);

impl DeadlineLock {
    /// Takes the lock; `None` if the deadline has passed.
    pub fn acquire(&self, until: Instant) -> Option<DeadlineGuard<'_>> {
        let mut taken = lock(&self.taken);
        while *taken {
            let left = until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero())?;
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Some(DeadlineGuard(self))
    }
}

impl Drop for DeadlineGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) = false;
        self.0.freed.notify_one();
    }
}
