//! The calls of this process that wait for answers.
//!
//! | file | noun |
//! |---|---|
//! | `pending_call` | one call, with an outcome for each addressed rank |
//! | `failed_calls` | the calls that have failed and still have a holder |
//!
//! A call is pending from `start` until it has all outcomes that it needs, or its user drops it; an outcome that comes later is counted and
//! dropped. A call with a deadline has an entry in one table of this process. Each rank gets one outcome: an answer, or the end of its
//! process or mesh. `peers` knows which processes have ended; the housekeeping thread is notified of failed calls that no user has seen,
//! and of errors of endpoints that no user has read. Errors cost a reader, and calls dropped before their end, a little work; calls that
//! succeed cost none.

pub mod failed_calls;
pub mod pending_call;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use net::lock::lock;
use wire::control::{CallState, ExpiredCall};
use wire::{CallId, MailboxId, ProcUid, Status};

use self::failed_calls::FailedCalls;
use self::pending_call::{CallReport, ExpiredEnd, Expiry, Mode, Outcome, PendingCall, REPORT_TIME};
use crate::due_table::DueTable;
use crate::peers::Peers;
use crate::peers::ended::Ended;
use crate::peers::peer::Peer;
use crate::sync::{read, write};
use crate::system::{SystemEvent, SystemQueue};
use crate::tasks;

/// The reason for a caller whose answer lost parts.
pub(crate) const INCOMPLETE: &[u8] = b"parts of the answer were lost on the way";

/// The most calls that are remembered after they were dropped before their end.
const MOST_DROPPED: usize = 1024;

/// The calls of one process.
pub struct Calls {
    peers: Arc<Peers>,
    system: Arc<SystemQueue>,
    pending: Mutex<HashMap<CallId, Arc<PendingCall>>>,
    failed: Mutex<FailedCalls>,
    /// The calls that have ended with the error of an endpoint.
    raised: Mutex<FailedCalls>,
    /// The last calls that were dropped before their end: an error may still arrive for them.
    dropped: Mutex<VecDeque<CallId>>,
    next_id: AtomicU64,
    /// The number of replies whose call was gone.
    dropped_replies: AtomicU64,
    /// Meshes whose owner's process has ended and to which this process has handles, with the answer to calls.
    orphaned: RwLock<HashMap<MailboxId, Arc<[u8]>>>,
    any_orphaned: AtomicBool,
    /// The calls with a deadline.
    deadlines: Arc<DueTable<CallId>>,
}

impl Calls {
    pub(crate) fn new(peers: &Arc<Peers>, system: &Arc<SystemQueue>) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Calls>| Calls {
            peers: peers.clone(),
            system: system.clone(),
            pending: Mutex::default(),
            failed: Mutex::default(),
            raised: Mutex::default(),
            dropped: Mutex::default(),
            next_id: AtomicU64::new(1),
            dropped_replies: AtomicU64::new(0),
            orphaned: RwLock::default(),
            any_orphaned: AtomicBool::new(false),
            deadlines: Self::deadlines(me.clone(), peers),
        })
    }

    /// Makes a pending call with a new call id.
    pub fn start(&self, mode: Mode, size: usize, targets: Arc<[(ProcUid, MailboxId)]>) -> Arc<PendingCall> {
        let call_id = CallId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let call = PendingCall::new(call_id, mode, size, targets);
        lock(&self.pending).insert(call_id, call.clone());
        // Checked after the call can be found: `fail_mesh` fails either the calls that it finds, or leads to this check.
        if self.any_orphaned.load(Ordering::Acquire)
            && let Some((_, mesh)) = call.targets.first()
            && let Some(reason) = read(&self.orphaned).get(mesh).cloned()
        {
            self.fail_mesh_call(&call, *mesh, &reason);
        }
        call
    }

    /// Removes a call: later answers to it are dropped.
    pub fn forget(&self, call_id: CallId) {
        self.remove(call_id);
    }

    /// Removes a call with its deadline; false if it is not pending.
    fn remove(&self, call_id: CallId) -> bool {
        let Some(call) = lock(&self.pending).remove(&call_id) else { return false };
        if let Some(due) = call.take_due() {
            self.deadlines.remove(due, call_id.0);
        }
        true
    }

    // ---- deadlines

    fn deadlines(me: Weak<Calls>, peers: &Peers) -> Arc<DueTable<CallId>> {
        DueTable::new(&peers.poller, move |due| {
            if let Some(me) = me.upgrade() {
                // The sockets are read first: after a pause of this process, answers that have arrived in time count.
                tasks::spawn(&me.peers.poller, &me, move |me| me.on_due(&due));
            }
        })
    }

    /// Sets the deadline of a call. With `goes_on` the call records answers also after it, until the next deadline or without one.
    pub fn limit(&self, call: &PendingCall, at: Instant, goes_on: bool) {
        if let Some(due) = call.take_due() {
            self.deadlines.remove(due, call.call_id.0);
        }
        call.set_due(at, goes_on);
        self.deadlines.add(at, call.call_id.0, call.call_id);
        // A call without targets is done from the start, and another thread may have completed the call meanwhile.
        if !lock(&self.pending).contains_key(&call.call_id)
            && let Some(due) = call.take_due()
        {
            self.deadlines.remove(due, call.call_id.0);
        }
    }

    /// Removes the deadline of a call, also one that has passed.
    pub fn unlimit(&self, call: &PendingCall) {
        if let Some(due) = call.take_due() {
            self.deadlines.remove(due, call.call_id.0);
        }
        call.clear_limit();
    }

    /// Expires a call whose deadline has passed before any of its messages was sent.
    pub fn expire_unsent(&self, call: &PendingCall) {
        (0..call.size() as u32).for_each(|rank| self.report_unsent(call, rank));
        call.expire();
        self.forget(call.call_id);
    }

    /// Notes that the deadline of a call has passed before its message to a rank was sent.
    pub(crate) fn report_unsent(&self, call: &PendingCall, rank: u32) {
        call.report(rank, CallReport { state: CallState::Unsent, time: Duration::ZERO });
    }

    /// Expires calls that are due, and ends those that have expired before.
    fn on_due(&self, due: &[CallId]) {
        let calls: Vec<_> = {
            let pending = lock(&self.pending);
            due.iter().filter_map(|id| pending.get(id).cloned()).collect()
        };
        let now = self.peers.poller.now();
        let later = now + REPORT_TIME;
        for call in calls.into_iter().filter(|call| call.has_due(now)) {
            if call.is_expired() {
                self.end_expired(call.call_id, call.give_up());
                continue;
            }
            match call.expire() {
                Expiry::Over(end) => self.end_expired(call.call_id, Some(end)),
                Expiry::Waits => {
                    call.set_due_again(later);
                    self.deadlines.add(later, call.call_id.0, call.call_id);
                }
            }
        }
    }

    /// Forgets an expired call that is over. A call that goes on is still answered.
    fn end_expired(&self, call_id: CallId, end: Option<ExpiredEnd>) {
        let Some(ExpiredEnd { due, goes_on }) = end else { return };
        if let Some(due) = due {
            self.deadlines.remove(due, call_id.0);
        }
        if !goes_on {
            self.forget(call_id);
        }
    }

    /// Takes the report of receivers about calls whose deadline has passed there.
    pub(crate) fn on_reports(&self, from: ProcUid, calls: Vec<ExpiredCall>, state: &CallState) {
        for ExpiredCall { call_id, rank, millis } in calls {
            let found = lock(&self.pending).get(&call_id).cloned();
            let Some(call) = found.filter(|c| c.targets.get(rank as usize).is_some_and(|(proc, _)| *proc == from)) else { continue };
            let report = CallReport { state: state.clone(), time: Duration::from_millis(millis) };
            self.end_expired(call_id, call.report(rank, report));
        }
    }

    /// Drops a call that its user no longer holds.
    pub fn drop_call(&self, call: &PendingCall) {
        let is_pending = self.remove(call.call_id);
        // Neither the receive of a port nor a call without targets can end with the error of an endpoint. A call that has ended may still
        // be pending here: its observers are notified first.
        if is_pending && !call.targets.is_empty() && !call.is_finished() {
            let mut dropped = lock(&self.dropped);
            if dropped.len() == MOST_DROPPED {
                dropped.pop_front();
            }
            dropped.push_back(call.call_id);
        }
        let error = call.error();
        if let Some(answer) = error.as_ref().filter(|o| o.status == Status::Error)
            && !call.targets.is_empty()
            && !call.error_read.swap(true, Ordering::AcqRel)
        {
            self.system.push(SystemEvent::UnreadError { answer: answer.body() });
        }
        let failed = error.is_some_and(|o| matches!(o.status, Status::Failed | Status::ProcEnded));
        if failed && !call.retrieved.swap(true, Ordering::AcqRel) {
            let meshes: BTreeSet<_> = call.targets.iter().map(|(_, m)| *m).collect();
            meshes.into_iter().for_each(|mesh| self.system.push(SystemEvent::Abandoned { mesh }));
        }
    }

    /// Drops all calls: the process ends.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.pending));
        // A call that is freed may take locks of its own.
        drop(all);
    }

    /// True if a holder of a call to this mesh may still see the call's failure, now or later.
    pub fn failure_may_be_seen(&self, mesh: MailboxId) -> bool {
        let unseen = |c: &Arc<PendingCall>| c.is_about(mesh) && !c.retrieved.load(Ordering::Acquire);
        let failed = lock(&self.failed).held();
        failed.iter().any(unseen) || lock(&self.pending).values().any(unseen)
    }

    /// The errors of endpoints that a holder of their call may read and has not read. They count as read from now on.
    pub fn take_unread_errors(&self) -> Vec<Vec<u8>> {
        let raised = lock(&self.raised).held();
        let unread = raised.iter().filter(|call| !call.error_read.swap(true, Ordering::AcqRel));
        unread.filter_map(|call| call.error()).filter(|o| o.status == Status::Error).map(|o| o.body()).collect()
    }

    /// Reports the error of an endpoint for a call that was dropped before its end.
    fn report_late(&self, call_id: CallId, outcome: &Outcome) {
        let mut dropped = lock(&self.dropped);
        if let Some(at) = dropped.iter().position(|id| *id == call_id) {
            dropped.remove(at);
            self.system.push(SystemEvent::UnreadError { answer: outcome.body() });
        }
    }

    pub fn in_flight(&self) -> usize {
        lock(&self.pending).len()
    }

    pub fn dropped_replies(&self) -> u64 {
        self.dropped_replies.load(Ordering::Relaxed)
    }

    /// The ranks that a call still waits for; empty if it is done or dropped.
    pub fn unanswered(&self, call_id: CallId) -> Vec<u32> {
        let call = lock(&self.pending).get(&call_id).cloned();
        call.filter(|c| !c.is_done(0)).map_or(vec![], |c| c.waiting_for(|_, _| true))
    }

    /// Records an outcome of a call. Without such a call the outcome is counted as dropped.
    pub fn complete(&self, call_id: CallId, outcome: Arc<Outcome>) {
        let call = lock(&self.pending).get(&call_id).cloned();
        match call {
            // An error after the deadline is mostly the effect of the same deadline elsewhere; the timer of this process may be late.
            Some(call) if call.drops_answers() || outcome.status == Status::Error && call.is_due(|| self.peers.poller.now()) => {
                self.dropped_replies.fetch_add(1, Ordering::Relaxed);
                let ended = CallReport { state: CallState::Ended, time: Duration::ZERO };
                if outcome.status != Status::Ok && outcome.status != Status::Error {
                    self.end_expired(call_id, call.report(outcome.rank, ended));
                }
            }
            Some(call) => {
                if matches!(outcome.status, Status::Failed | Status::ProcEnded) {
                    lock(&self.failed).add(&call);
                }
                let is_raised = outcome.status == Status::Error && !call.targets.is_empty();
                if call.complete(outcome) {
                    self.forget(call_id);
                    if is_raised {
                        lock(&self.raised).add_new(&call);
                    }
                }
            }
            None => {
                self.dropped_replies.fetch_add(1, Ordering::Relaxed);
                if outcome.status == Status::Error {
                    self.report_late(call_id, &outcome);
                }
            }
        }
    }

    /// Fails one rank of a call because its process has ended.
    pub fn fail_rank(&self, call: &PendingCall, rank: u32, peer: &Peer) {
        if let Some(ended) = peer.ended() {
            self.complete(call.call_id, Outcome::new(rank, Status::ProcEnded, &ended.bytes));
        }
    }

    /// Fails the calls to this peer, if it has ended.
    pub fn fail_peer(&self, peer: &Peer) {
        if let Some(ended) = peer.ended() {
            self.fail_peers(&HashMap::from([(peer.uid, ended.clone())]));
        }
    }

    /// Fails the calls to these processes, in one pass over the ranks of all calls.
    pub(crate) fn fail_peers(&self, ended: &HashMap<ProcUid, Arc<Ended>>) {
        for call in self.all() {
            for rank in call.waiting_for(|p, _| ended.contains_key(&p)) {
                let end = call.targets.get(rank as usize).and_then(|(p, _)| ended.get(p));
                self.complete(call.call_id, Outcome::new(rank, Status::ProcEnded, end.map_or(&b""[..], |e| &e.bytes)));
            }
        }
    }

    /// Takes the end of another owner's mesh: calls to it fail, and messages that wait for its credit are dropped.
    pub fn fail_mesh(&self, mesh: MailboxId, procs: &[ProcUid], reason: &[u8]) {
        write(&self.orphaned).insert(mesh, reason.into());
        self.any_orphaned.store(true, Ordering::Release);
        self.all().iter().for_each(|call| self.fail_mesh_call(call, mesh, reason));
        procs.iter().filter_map(|uid| self.peers.known_peer(*uid)).for_each(|peer| peer.forget_window(mesh));
    }

    /// Fails the ranks of a call that belong to the mesh and whose processes are alive.
    fn fail_mesh_call(&self, call: &PendingCall, mesh: MailboxId, reason: &[u8]) {
        // A rank whose process has ended fails with the end of the process as the reason.
        let lives = |p| self.peers.known_peer(p).is_none_or(|peer| peer.ended().is_none());
        for rank in call.waiting_for(|p, m| m == mesh && lives(p)) {
            self.complete(call.call_id, Outcome::new(rank, Status::Failed, reason));
        }
    }

    fn all(&self) -> Vec<Arc<PendingCall>> {
        lock(&self.pending).values().cloned().collect()
    }
}
