//! Events for the process's own housekeeping thread, on the Python side.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use net::Waiter;
use wire::exit::ProcEnd;
use wire::{MailboxId, ProcUid, SlotId};

use crate::gateway::Audit;

pub enum SystemEvent {
    SpawnActor {
        from: ProcUid,
        mailbox: MailboxId,
        spec: Vec<u8>,
    },
    StopProc {
        grace_ms: u64,
        reason: String,
    },
    /// Of one cause.
    ProcsEnded {
        ends: Vec<(ProcUid, ProcEnd)>,
    },
    Request {
        from: ProcUid,
        kind: u16,
        slot: SlotId,
        body: Vec<u8>,
    },
    /// A failed call was let go unseen.
    Abandoned {
        mesh: MailboxId,
    },
    /// The agent asks whether Python runs here.
    Ping {
        from: ProcUid,
        seq: u64,
    },
    /// Somebody wants the stacks of all threads.
    Stacks {
        ticket: u64,
    },
    /// Python does not run in a proc of this agent, or runs again (`evidence` is empty then).
    Unresponsive {
        uid: ProcUid,
        evidence: String,
        /// Its stacks as JSON, if they could be had.
        stacks: Vec<u8>,
    },
    /// The agent of this proc is gone.
    RootLost,
    /// Somebody has joined, attached, was refused, or is lost.
    Audit(Audit),
    /// Of an agent: a client has the host end.
    Shutdown {
        from: ProcUid,
        slot: SlotId,
    },
    /// Of an agent: a client is gone, with all that it had here.
    JobEnded {
        /// The id of this host in the job.
        here: ProcUid,
    },
    /// Of a simulated world's client: a proc is to be started in this process.
    Launch {
        uid: ProcUid,
        setup: Vec<u8>,
    },
}

impl SystemEvent {
    /// Must be handled before any message that arrives after it.
    fn is_failure(&self) -> bool {
        matches!(self, SystemEvent::ProcsEnded { .. } | SystemEvent::Request { kind: FAILURE, .. })
    }
}

/// The request that reports a failed actor to the owner of its mesh.
pub const FAILURE: u16 = 1;

#[derive(Default)]
pub struct SystemQueue {
    queue: Mutex<VecDeque<SystemEvent>>,
    waiter: OnceLock<Arc<Waiter>>,
    failures: AtomicUsize,
    /// Nobody handles anything any more.
    over: AtomicBool,
    settled: (Mutex<()>, Condvar),
}

impl SystemQueue {
    pub fn set_waiter(&self, waiter: Arc<Waiter>) {
        let _ = self.waiter.set(waiter);
    }

    /// There is a thread that takes the events.
    pub fn is_served(&self) -> bool {
        self.waiter.get().is_some()
    }

    pub fn push(&self, event: SystemEvent) {
        if event.is_failure() {
            self.failures.fetch_add(1, Ordering::AcqRel);
        }
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        if let Some(w) = self.waiter.get() {
            w.notify();
        }
    }

    pub fn pop(&self) -> Option<SystemEvent> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Failures that have arrived and are not yet with the actors concerned.
    pub fn failures_in_flight(&self) -> usize {
        self.failures.load(Ordering::Acquire)
    }

    pub fn failure_handled(&self) {
        self.failures.fetch_sub(1, Ordering::AcqRel);
        let _held = self.settled.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.settled.1.notify_all();
    }

    /// The housekeeping thread is no more: nobody waits for what it has not handled.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        let _held = self.settled.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.settled.1.notify_all();
    }

    /// Blocks until every failure that has arrived is with the actors concerned.
    pub fn settle(&self) {
        let mut held = self.settled.0.lock().unwrap_or_else(PoisonError::into_inner);
        while self.failures_in_flight() > 0 && !self.over.load(Ordering::Acquire) {
            held = self.settled.1.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
