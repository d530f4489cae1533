//! The calls of this process that have failed and that still have a holder.
//!
//! A call is listed at its first failure only, and dropped calls are removed when the list has doubled. So a failure costs constant time on
//! average, however many ranks of a call fail and however many calls are held.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::node::pending_call::PendingCall;

/// The least length of the list at which dropped calls are removed.
const LEAST: usize = 64;

/// The failed calls, by weak references. The node owns the list.
#[derive(Default)]
pub(crate) struct FailedCalls {
    calls: Vec<Weak<PendingCall>>,
    /// The length of `calls` after the last removal of dropped calls.
    swept: usize,
}

impl FailedCalls {
    /// Adds a call that has failed, unless it is listed.
    pub fn add(&mut self, call: &Arc<PendingCall>) {
        if call.is_listed.swap(true, Ordering::AcqRel) {
            return;
        }
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
    use net::Poller;
    use net::lock::lock;
    use wire::{ProcUid, Status};

    use super::*;
    use crate::node::Node;
    use crate::node::pending_call::{Mode, Outcome};

    #[test]
    fn call_is_listed_once_however_many_ranks_fail() {
        let node = Node::on(Poller::new().unwrap(), ProcUid(1), ProcUid(1));
        let call = node.new_call(Mode::Gather, 100, Arc::default());
        for rank in 0..100 {
            node.complete(call.call_id, Outcome::new(rank, Status::ProcEnded, b""));
        }
        assert_eq!(lock(&node.failed_calls).calls.len(), 1);
        assert!(call.is_done(0));
    }

    #[test]
    fn dropped_calls_leave_the_list() {
        let node = Node::on(Poller::new().unwrap(), ProcUid(1), ProcUid(1));
        let fail = || {
            let call = node.new_call(Mode::Gather, 1, Arc::default());
            node.complete(call.call_id, Outcome::new(0, Status::Failed, b""));
            call
        };
        let held: Vec<_> = (0..10).map(|_| fail()).collect();
        for _ in 0..10 * LEAST {
            fail();
        }
        let failed = lock(&node.failed_calls);
        assert_eq!(failed.held().len(), held.len());
        assert!(failed.calls.len() <= LEAST, "{}", failed.calls.len());
    }
}
