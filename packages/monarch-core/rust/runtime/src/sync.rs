//! The locks, replaceable by shuttle's so that their interleavings can be explored.

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, Mutex, MutexGuard};

/// A lock whose data stays valid if a holder panicked.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
