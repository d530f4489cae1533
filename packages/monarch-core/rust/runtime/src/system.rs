//! The queue of events for the housekeeping thread of this process, on the Python side.
//!
//! Any thread pushes events; the housekeeping thread takes them in order. Failures are counted until they have reached the actors
//! concerned, and an actor takes its next message only when this count is zero. So a message never overtakes a failure that arrived before
//! it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use net::Waiter;
use wire::control::DrainLimits;
use wire::cursor::{Cursor, DecodeError};
use wire::exit::ProcEnd;
use wire::{CallId, MailboxId, ProcUid};

use crate::supervision::Member;

/// An event for the audit log, such as a join or a refused connection.
pub struct Audit {
    pub what: &'static str,
    pub peer: String,
    pub detail: String,
    /// The number of events that this record stands for; `peer` and `detail` are those of the last event.
    pub count: u64,
}

/// An event for the housekeeping thread.
pub enum SystemEvent {
    SpawnActor {
        from: ProcUid,
        mailbox: MailboxId,
        spec: Vec<u8>,
    },
    StopProc {
        grace_ms: u64,
        drain: Option<DrainLimits>,
        reason: String,
    },
    /// Processes have ended, of one cause.
    ProcsEnded {
        ends: Vec<(ProcUid, ProcEnd)>,
    },
    /// An actor of a mesh that this process owns has failed.
    ActorFailed {
        from: ProcUid,
        member: Member,
        /// The failure, which this crate does not interpret.
        failure: Vec<u8>,
    },
    Request {
        from: ProcUid,
        kind: u16,
        call_id: CallId,
        body: Vec<u8>,
    },
    /// A failed call was dropped before its failure was seen.
    Abandoned {
        mesh: MailboxId,
    },
    /// A call that had ended with the error of an endpoint was dropped before the error was read, or the error came later.
    UnreadError {
        /// The packed error.
        answer: Vec<u8>,
    },
    /// The agent checks whether Python runs in this process.
    Ping {
        from: ProcUid,
        seq: u64,
    },
    /// An inspection has requested the stacks of all threads.
    Stacks {
        ticket: u64,
    },
    /// The deadline of a message in progress has passed: its caller wants to know the line of code.
    Overdue {
        mailbox: MailboxId,
        number: u64,
    },
    /// Python does not run in a proc of this agent, or runs again (`cause` is empty then).
    Unresponsive {
        uid: ProcUid,
        cause: String,
        /// The stacks of the proc as JSON, if they could be taken.
        stacks: Vec<u8>,
    },
    /// The agent of this proc has ended.
    RootLost,
    /// A member of the job has joined, attached, was refused, or is lost.
    Audit(Audit),
    /// Sent to an agent: a client requests the end of the host.
    Shutdown {
        from: ProcUid,
        call_id: CallId,
    },
    /// Sent to an agent: a client has ended, with all its processes here.
    JobEnded {
        /// The id of this host in the job.
        here: ProcUid,
    },
    /// Sent to the client of a simulated world: a proc is to be started in this process.
    Launch {
        uid: ProcUid,
        setup: Vec<u8>,
    },
}

impl SystemEvent {
    /// The event of a request that has arrived; `None` if the request is malformed. A malformed request is recorded.
    pub(crate) fn of_request(from: ProcUid, kind: u16, call_id: CallId, body: Vec<u8>) -> Option<Self> {
        if kind != FAILURE {
            return Some(SystemEvent::Request { from, kind, call_id, body });
        }
        match decode_failure(&body) {
            Ok((member, failure)) => Some(SystemEvent::ActorFailed { from, member, failure: failure.to_vec() }),
            Err(_) => {
                events::frame_refused(from.0, b"failure", body.len() as u64);
                None
            }
        }
    }

    /// True if the event must be handled before any message that arrives after it.
    fn is_failure(&self) -> bool {
        matches!(self, SystemEvent::ProcsEnded { .. } | SystemEvent::ActorFailed { .. })
    }
}

/// The request that reports a failed actor to the owner of its mesh. Its body: the mesh, the rank, the failure.
pub(crate) const FAILURE: u16 = 1;

/// The body of a report of a failed actor.
pub(crate) fn encode_failure(member: Member, failure: &[u8]) -> Vec<u8> {
    [&member.mesh.0.to_le_bytes()[..], &member.rank.to_le_bytes(), failure].concat()
}

fn decode_failure(body: &[u8]) -> Result<(Member, &[u8]), DecodeError> {
    let mut c = Cursor::new(body);
    let member = Member { mesh: MailboxId(c.u64()?), rank: c.u32()? };
    Ok((member, c.take(c.remaining())?))
}

/// The request that reports an undeliverable message to its sender. Its body: the sender's mailbox, the receiver's mailbox, the reason.
pub const UNDELIVERABLE: u16 = 2;

/// The message with lines of output for the client: the number of the stream, then the lines.
pub(crate) const LINES: u16 = 41;
/// The message that lines are not sent to the client: the identity of the console that they are written to, then host, proc and destination
/// as text.
pub(crate) const UNSHOWN: u16 = 42;

/// The queue of the housekeeping thread.
#[derive(Default)]
pub struct SystemQueue {
    queue: Mutex<VecDeque<SystemEvent>>,
    waiter: OnceLock<Arc<Waiter>>,
    /// The number of failures that have not reached the actors concerned.
    failures: AtomicUsize,
    /// The housekeeping thread has ended.
    over: AtomicBool,
    /// Notified when `failures` decreases.
    settled: (Mutex<()>, Condvar),
}

impl SystemQueue {
    pub fn set_waiter(&self, waiter: Arc<Waiter>) {
        let _ = self.waiter.set(waiter);
    }

    /// True if a thread takes the events.
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

    /// The number of failures that have arrived and have not reached the actors concerned.
    pub fn failures_in_flight(&self) -> usize {
        self.failures.load(Ordering::Acquire)
    }

    /// Notes that a failure has reached the actors concerned.
    pub fn failure_handled(&self) {
        self.failures.fetch_sub(1, Ordering::AcqRel);
        let _held = self.settled.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.settled.1.notify_all();
    }

    /// Marks the housekeeping thread as ended: no thread waits for events that it has not handled.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        let _held = self.settled.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.settled.1.notify_all();
    }

    /// Blocks until every failure that has arrived has reached the actors concerned.
    pub fn settle(&self) {
        let mut held = self.settled.0.lock().unwrap_or_else(PoisonError::into_inner);
        while self.failures_in_flight() > 0 && !self.over.load(Ordering::Acquire) {
            held = self.settled.1.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: Member = Member { mesh: MailboxId(7), rank: 3 };

    fn event(body: Vec<u8>) -> Option<SystemEvent> {
        SystemEvent::of_request(ProcUid(9), FAILURE, CallId::NONE, body)
    }

    #[test]
    fn failure_report_becomes_a_failure() {
        let Some(SystemEvent::ActorFailed { from, member, failure }) = event(encode_failure(MEMBER, b"why")) else {
            panic!("another event")
        };
        assert_eq!((from, member, &failure[..]), (ProcUid(9), MEMBER, &b"why"[..]));
    }

    #[test]
    fn report_without_its_rank_is_dropped() {
        let body = encode_failure(MEMBER, b"");
        assert!((0..body.len()).all(|len| event(body[..len].to_vec()).is_none()));
    }
}
