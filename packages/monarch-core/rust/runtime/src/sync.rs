//! The lock types of this crate. With the feature `shuttle` they are those of shuttle, which explores the interleavings of threads.

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, Mutex, MutexGuard};

/// Locks `m`, also if a thread has panicked while it held the lock: the data of the locks of this crate is valid at every time.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
