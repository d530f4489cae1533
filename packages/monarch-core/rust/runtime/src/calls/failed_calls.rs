//! The calls of this process that have failed and that still have a holder.
//!
//! A call is listed at its first failure only, and dropped calls are removed when the list has doubled. So a failure costs constant time on
//! average, however many ranks of a call fail and however many calls are held.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::pending_call::PendingCall;

/// The least length of the list at which dropped calls are removed.
const LEAST: usize = 64;

/// The failed calls, by weak references. `Calls` owns the list.
#[derive(Default)]
pub(crate) struct FailedCalls {
    calls: Vec<Weak<PendingCall>>,
    /// The length of `calls` after the last removal of dropped calls.
    swept: usize,
}

impl FailedCalls {
    /// Adds a call that has failed, unless it is listed.
    pub fn add(&mut self, call: &Arc<PendingCall>) {
        if !call.is_listed.swap(true, Ordering::AcqRel) {
            self.add_new(call);
        }
    }

    /// Adds a call that is in no list.
    pub fn add_new(&mut self, call: &Arc<PendingCall>) {
        if self.calls.len() >= LEAST.max(2 * self.swept) {
            self.calls.retain(|c| c.strong_count() > 0);
            self.swept = self.calls.len();
        }
        self.calls.push(Arc::downgrade(call));
    }

    /// The calls that still have a holder.
    pub fn held(&self) -> Vec<Arc<PendingCall>> {
        self.calls.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use wire::CallId;

    use super::*;
    use crate::calls::pending_call::Mode;

    fn call() -> Arc<PendingCall> {
        PendingCall::new(CallId(1), Mode::Gather, 1, Arc::default())
    }

    #[test]
    fn call_is_listed_once() {
        let (mut failed, call) = (FailedCalls::default(), call());
        (0..100).for_each(|_| failed.add(&call));
        assert_eq!(failed.calls.len(), 1);
    }

    #[test]
    fn dropped_calls_leave_the_list() {
        let mut failed = FailedCalls::default();
        let held: Vec<_> = (0..10).map(|_| call()).collect();
        held.iter().for_each(|call| failed.add(call));
        (0..10 * LEAST).for_each(|_| failed.add(&call()));
        assert_eq!(failed.held().len(), held.len());
        assert!(failed.calls.len() <= LEAST, "{}", failed.calls.len());
    }
}
