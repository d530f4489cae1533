//! The deadlines of messages that have arrived: the end of those that have not begun, and the reports to their callers.
//!
//! At its deadline a message that has not begun is dropped, unless it makes or stops an actor. The caller gets one report for all calls in
//! one state. For a message in progress, the housekeeping thread finds the line of code, within `PLACE_TIME`; then the event loop of an
//! async actor gets an event that cancels the endpoint. A sync endpoint runs on, and the mailbox shows it as overdue.
//!
//! Here a deadline is what was left of it when the message was sent, counted from its arrival: clocks of hosts differ. So the caller's own
//! deadline never comes later.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use net::lock::lock;
use wire::control::{CallState, ExpiredCall};
use wire::frame::{EXPLICIT_PORT, STOP};
use wire::{CallId, Control, MailboxId, ProcUid};

use super::Messages;
use crate::due_table::DueTable;
use crate::mailboxes::begun::Due;
use crate::mailboxes::mailbox::{Incoming, Mailbox, answer_rank};
use crate::peers::Peers;
use crate::system::SystemEvent;

/// The time that the housekeeping thread has to find a line of code. A thread that keeps the GIL longer is reported without a line.
const PLACE_TIME: Duration = Duration::from_millis(100);
/// The first byte of the event for an actor whose endpoint is to be cancelled. The number of the message follows.
pub const EXPIRED: u8 = b'x';
/// The message that makes an actor. It begins also after its deadline: the actor is used by later calls.
const INIT: &[u8] = b"__init__";

/// A message with a deadline.
struct Limited {
    mailbox: Arc<Mailbox>,
    from: ProcUid,
    call_id: CallId,
    rank: u32,
    flags: u8,
    number: u64,
    arrived: Instant,
}

impl Limited {
    fn call(&self, time: Duration) -> ExpiredCall {
        ExpiredCall { call_id: self.call_id, rank: answer_rank(self.rank), millis: time.as_millis().try_into().unwrap_or(u64::MAX) }
    }
}

/// A message in progress at its deadline, whose line of code is not known yet.
struct Running {
    limited: Limited,
    endpoint: String,
    since: Instant,
    /// The number of the timer that ends the search for the line.
    timer: u64,
}

/// The deadlines of the messages of one process.
pub(super) struct Limits {
    peers: Arc<Peers>,
    table: Arc<DueTable<Limited>>,
    next: AtomicU64,
    /// The number of messages whose deadline had passed before they began.
    dropped: AtomicU64,
    running: Mutex<HashMap<u64, Running>>,
}

impl Limits {
    pub fn new(messages: &Weak<Messages>, peers: &Arc<Peers>) -> Self {
        let messages = messages.clone();
        let on_due = move |due| {
            if let Some(messages) = messages.upgrade() {
                messages.on_due(due);
            }
        };
        Limits {
            peers: peers.clone(),
            table: DueTable::new(&peers.poller, on_due),
            next: AtomicU64::new(1),
            dropped: AtomicU64::new(0),
            running: Mutex::default(),
        }
    }

    /// The deadline of a message that has arrived now.
    pub fn due(&self, left: Option<Duration>) -> Option<Due> {
        let at = self.peers.poller.now().checked_add(left?)?;
        Some(Due { at, number: self.next.fetch_add(1, Ordering::Relaxed) })
    }

    /// Adds a message with a deadline that enters its mailbox.
    pub fn entered(&self, mailbox: &Arc<Mailbox>, m: Incoming) -> Incoming {
        if let Some(Due { at, number }) = m.due {
            let Incoming { from, call_id, rank, flags, .. } = m;
            let (mailbox, arrived) = (mailbox.clone(), self.peers.poller.now());
            self.table.add(at, number, Limited { mailbox, from, call_id, rank, flags, number, arrived });
        }
        m
    }

    /// Sends a report about calls in one state to each of their callers.
    fn report(
        &self,
        calls: impl IntoIterator<Item = (ProcUid, ExpiredCall)>,
        state: &CallState,
        to_own: impl Fn(Vec<ExpiredCall>, &CallState),
    ) {
        let mut callers: HashMap<ProcUid, Vec<ExpiredCall>> = HashMap::new();
        calls.into_iter().filter(|(_, c)| !c.call_id.is_none()).for_each(|(from, c)| callers.entry(from).or_default().push(c));
        for (from, calls) in callers {
            if from == self.peers.uid {
                to_own(calls, state);
            } else {
                self.peers.peer(from).send_control(Control::CallsExpired { calls, state: state.clone() });
            }
        }
    }
}

impl Messages {
    /// The number of messages whose deadline had passed before they began.
    pub fn expired(&self) -> u64 {
        self.limits.dropped.load(Ordering::Relaxed)
    }

    /// Counts a message that was not sent because its deadline had passed.
    pub fn count_expired(&self) {
        self.limits.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a message that its consumer has taken; `None` if its deadline has passed, so that it was dropped.
    pub fn begin(&self, mailbox: &Mailbox, m: Incoming) -> Option<Incoming> {
        let Some(due) = m.due else { return Some(m) };
        let now = self.peers.poller.now();
        if due.at <= now && !begins_always(&m) {
            // The table reports it: the timer of this deadline has not run yet, because this process was stopped or is busy.
            self.count_expired();
            self.handled(mailbox, m.from, m.cost());
            return None;
        }
        mailbox.begin(&m, now);
        Some(m)
    }

    /// Ends a message with a deadline. `is_owed`: its caller still waits for an answer by a port.
    pub fn finish(&self, mailbox: &Mailbox, due: Due, is_owed: bool) {
        mailbox.finish(due.number);
        if !is_owed {
            self.limits.table.remove(due.at, due.number);
        }
    }

    fn on_due(&self, due: Vec<Limited>) {
        let mut mailboxes: HashMap<MailboxId, Vec<Limited>> = HashMap::new();
        due.into_iter().for_each(|l| mailboxes.entry(l.mailbox.id).or_default().push(l));
        for all in mailboxes.into_values() {
            self.expire(all);
        }
    }

    /// Handles the messages of one mailbox whose deadline has passed.
    fn expire(&self, mut all: Vec<Limited>) {
        let Some(mailbox) = all.first().map(|l| l.mailbox.clone()) else { return };
        all.sort_unstable_by_key(|l| l.number);
        let numbers: Vec<u64> = all.iter().map(|l| l.number).collect();
        let now = self.peers.poller.now();
        let found = mailbox.expire(&numbers, begins_always);
        self.limits.dropped.fetch_add(found.dropped.len() as u64, Ordering::Relaxed);
        for m in found.dropped {
            self.handled(&mailbox, m.from, m.cost());
        }
        let mut running: HashMap<u64, (String, Instant)> = found.running.into_iter().map(|(n, name, since)| (n, (name, since))).collect();
        let (mut waiting, mut owed) = (Vec::new(), Vec::new());
        for l in all {
            let waited = l.call(now.saturating_duration_since(l.arrived));
            if let Some((endpoint, since)) = running.remove(&l.number) {
                // A stop has no name: the actor's hooks run.
                self.find_place(l, if endpoint.is_empty() { found.doing.clone() } else { endpoint }, since);
            } else if l.flags & EXPLICIT_PORT != 0 && !found.queued.contains(&l.number) {
                owed.push((l.from, waited));
            } else {
                waiting.push((l.from, waited));
            }
        }
        let to_own = |calls, state: &CallState| self.replies.report_expired(calls, state);
        self.limits.report(waiting, &CallState::Queued { behind: found.doing }, to_own);
        self.limits.report(owed, &CallState::Owed, to_own);
    }

    /// Lets the housekeeping thread find the line of code of a message in progress.
    fn find_place(&self, limited: Limited, endpoint: String, since: Instant) {
        let (mailbox, number) = (limited.mailbox.id, limited.number);
        let me = self.me.clone();
        let give_up = move || {
            if let Some(me) = me.upgrade() {
                me.place_found(number, String::new());
            }
        };
        let time = if self.system.is_served() { PLACE_TIME } else { Duration::ZERO };
        let timer = self.peers.poller.timer(time, Box::new(give_up));
        lock(&self.limits.running).insert(number, Running { limited, endpoint, since, timer });
        self.system.push(SystemEvent::Overdue { mailbox, number });
    }

    /// Reports a message in progress to its caller, with its line of code, and lets an event loop cancel it.
    pub fn place_found(&self, number: u64, place: String) {
        let Some(Running { limited, endpoint, since, timer }) = lock(&self.limits.running).remove(&number) else { return };
        self.peers.poller.cancel(timer);
        let call = limited.call(self.peers.poller.now().saturating_duration_since(since));
        let to_own = |calls, state: &CallState| self.replies.report_expired(calls, state);
        self.limits.report([(limited.from, call)], &CallState::Running { endpoint, place }, to_own);
        if limited.mailbox.is_on_loop() {
            limited.mailbox.push_event([&[EXPIRED][..], &number.to_le_bytes()].concat().into());
        }
    }
}

/// True for a message that begins also after its deadline: it makes or stops an actor.
fn begins_always(m: &Incoming) -> bool {
    m.flags & STOP != 0 || &*m.method == INIT
}
