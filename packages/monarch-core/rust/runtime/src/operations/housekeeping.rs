//! The events of the housekeeping thread of a process, and the threads that wait for it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use net::{Poller, Waiter};

use super::interpreter::Interpreter;
use super::wait;
use crate::inspection::Inspections;
use crate::system::{SystemEvent, SystemQueue};

thread_local! {
    /// True on the housekeeping thread.
    static IS_HOUSEKEEPING: Cell<bool> = const { Cell::new(false) };
}

/// The housekeeping thread as the taker of the events of its process.
pub struct Housekeeping {
    poller: Arc<Poller>,
    system: Arc<SystemQueue>,
    inspections: Arc<Inspections>,
    /// The waiter of the thread, which never reads the sockets: it would have to wake the threads for which it reads.
    waiter: Arc<Waiter>,
}

impl Housekeeping {
    pub fn new(poller: &Arc<Poller>, system: &Arc<SystemQueue>, inspections: &Arc<Inspections>) -> Self {
        let waiter = poller.waiter();
        Housekeeping { poller: poller.clone(), system: system.clone(), inspections: inspections.clone(), waiter }
    }

    /// The next event; `None` after `timeout`.
    pub fn next_event<I: Interpreter>(&self, interpreter: &I, timeout: Option<Duration>) -> Result<Option<SystemEvent>, I::Error> {
        self.system.set_waiter(self.waiter.clone());
        IS_HOUSEKEEPING.set(true);
        let deadline = timeout.map(|t| self.poller.now() + t);
        // Events that are there already are taken without a release of the lock: a batch of spawns is one turn.
        loop {
            if let Some(event) = self.taken() {
                return Ok(Some(event));
            }
            if !wait::follow(interpreter, &self.poller, &self.waiter, deadline, || !self.system.is_empty())? {
                return Ok(None);
            }
        }
    }

    /// Takes an event. Pings are answered here, with the lock of the interpreter held: a ping checks that the interpreter runs.
    fn taken(&self) -> Option<SystemEvent> {
        loop {
            match self.system.pop()? {
                SystemEvent::Ping { from, seq } => self.inspections.pong(from, seq),
                event => return Some(event),
            }
        }
    }
}

/// Waits until the housekeeping thread has handled all failures that have arrived. On that thread itself it returns at once.
pub fn settle(interpreter: &impl Interpreter, system: &SystemQueue) {
    if system.failures_in_flight() > 0 && !IS_HOUSEKEEPING.get() {
        wait::blocking(interpreter, || system.settle());
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use wire::ProcUid;

    use super::*;
    use crate::node::Node;
    use crate::operations::interpreter::model::Model;

    #[test]
    fn ping_is_answered_and_not_returned() {
        let node = Node::start(ProcUid(1), ProcUid(2)).unwrap();
        let housekeeping = Housekeeping::new(&node.poller, &node.system, &node.inspections);
        node.system.push(SystemEvent::Ping { from: ProcUid(2), seq: 1 });
        node.system.push(SystemEvent::RootLost);
        let interpreter = Model::default();
        assert!(matches!(housekeeping.next_event(&interpreter, None), Ok(Some(SystemEvent::RootLost))));
        assert!(matches!(housekeeping.next_event(&interpreter, Some(Duration::ZERO)), Ok(None)));
        node.poller.stop();
    }
}
