//! A lock with a deadline.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use net::lock::lock;

/// The lock. A thread waits for it only until its deadline.
#[derive(Default)]
pub struct Gate {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// The guard of the lock, which releases it on drop.
pub struct Passed<'a>(&'a Gate);

impl Gate {
    /// Takes the lock; `None` if the deadline has passed.
    pub fn enter(&self, until: Instant) -> Option<Passed<'_>> {
        let mut taken = lock(&self.taken);
        while *taken {
            let left = until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero())?;
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Some(Passed(self))
    }
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) = false;
        self.0.freed.notify_one();
    }
}
