//! Messages of a mailbox that have a deadline: those in progress, and the removal of those that have not begun in time.

use std::collections::VecDeque;
use std::time::Instant;

use super::mailbox::Incoming;

/// The deadline of a message, on the clock of this process, and the number of the message among those with one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    pub at: Instant,
    pub number: u64,
}

/// A message with a deadline whose handling has begun.
pub(super) struct Begun {
    pub due: Due,
    since: Instant,
    method: Box<[u8]>,
    is_overdue: bool,
}

impl Begun {
    pub fn new(due: Due, m: &Incoming, now: Instant) -> Self {
        Begun { due, since: now, method: m.method.clone(), is_overdue: false }
    }
}

/// The longest time since the deadline of a message in progress, in seconds; `None` if no deadline has passed.
pub(super) fn overdue(begun: &[Begun], now: Instant) -> Option<f64> {
    let late = begun.iter().filter(|b| b.is_overdue);
    late.map(|b| now.saturating_duration_since(b.due.at).as_secs_f64()).reduce(f64::max)
}

/// The messages of a mailbox whose deadline has passed, by their states.
pub struct AtDeadline {
    /// Messages that had not begun, and that are removed.
    pub dropped: Vec<Incoming>,
    /// The numbers of messages that had not begun.
    pub queued: Vec<u64>,
    /// The work in progress; empty if there is none.
    pub doing: String,
    /// The messages in progress: their numbers, their endpoints and their begins.
    pub running: Vec<(u64, String, Instant)>,
}

impl AtDeadline {
    /// Takes the messages with these numbers, which are sorted.
    pub(super) fn take(
        queue: &mut VecDeque<Incoming>,
        begun: &mut [Begun],
        doing: String,
        numbers: &[u64],
        keeps: impl Fn(&Incoming) -> bool,
    ) -> Self {
        let is_due = |number: u64| numbers.binary_search(&number).is_ok();
        let mut found = AtDeadline { dropped: vec![], queued: vec![], doing, running: vec![] };
        for m in std::mem::take(queue) {
            match m.due.filter(|due| is_due(due.number)) {
                None => queue.push_back(m),
                Some(due) => {
                    found.queued.push(due.number);
                    if keeps(&m) { queue.push_back(m) } else { found.dropped.push(m) }
                }
            }
        }
        for b in begun.iter_mut().filter(|b| is_due(b.due.number)) {
            b.is_overdue = true;
            found.running.push((b.due.number, String::from_utf8_lossy(&b.method).into_owned(), b.since));
        }
        found
    }
}
