//! Whether a connection without traffic is dead.
//!
//! A connection can be half-open: its other end is gone, and this end is never notified, because the reset was lost or a firewall has
//! forgotten the connection. So the owner is asked over a new connection whether it still serves the silent one, and how many bytes it has
//! moved.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{RemoteConnection, Wait};
use super::owner::{RemoteOwner, reply};
use super::traffic::Traffic;
use crate::frames::{self, Reply, Request};

/// The time without traffic before the owner is asked, and the time limit of its answer.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// The time to the next question while bytes are in flight and none arrives.
const STALLED_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time between two questions while the owner does not answer.
const MAX_INTERVAL: Duration = Duration::from_secs(12);

/// The counters of both ends: bytes that the owner has sent and received, and bytes that this process has.
type Seen = ((u64, u64), (u64, u64));

/// The progress of the questions.
#[derive(Default)]
struct State {
    /// The time without traffic at the last question, and at the next one.
    asked: Duration,
    next: Duration,
    /// The counters at the last question, if bytes were in flight.
    stalled: Option<Seen>,
    unanswered: u32,
    /// The connection over which the owner has answered.
    fresh: Option<RemoteConnection>,
}

/// The questions about one connection, during one operation.
pub struct Probe<'a> {
    remote_owner: &'a RemoteOwner,
    number: u64,
    traffic: Arc<Traffic>,
    until: Instant,
    state: RefCell<State>,
}

impl<'a> Probe<'a> {
    pub fn new(remote_owner: &'a RemoteOwner, connection: &RemoteConnection, until: Instant) -> Probe<'a> {
        let state = RefCell::new(State { next: PROBE_TIMEOUT, ..State::default() });
        Probe { remote_owner, number: connection.number, traffic: connection.traffic.clone(), until, state }
    }

    /// Whether the connection is dead, after `idle` without traffic. Only an answer of the owner can show that.
    pub fn is_dead(&self, idle: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        if idle < state.asked {
            // Bytes have moved since the last question.
            *state = State { next: PROBE_TIMEOUT, fresh: state.fresh.take(), ..State::default() };
        }
        if idle < state.next {
            return false;
        }
        state.asked = idle;
        let (wait, is_dead) = match self.request_progress(&mut state.fresh) {
            None => {
                state.unanswered += 1;
                (MAX_INTERVAL.min(PROBE_TIMEOUT * state.unanswered), false)
            }
            Some(None) => (PROBE_TIMEOUT, true),
            Some(Some((sent, received))) => {
                state.unanswered = 0;
                let own = self.traffic.totals();
                let seen = ((sent, received), own);
                // If no bytes are in flight, the owner is still working on the answer.
                let is_stalled = (received, sent) != own;
                let is_dead = is_stalled && state.stalled == Some(seen);
                state.stalled = is_stalled.then_some(seen);
                (if is_stalled { STALLED_INTERVAL } else { PROBE_TIMEOUT }, is_dead)
            }
        };
        state.next = idle + wait;
        is_dead
    }

    /// The connection over which the owner has answered, for further use.
    pub fn into_fresh(self) -> Option<RemoteConnection> {
        self.state.into_inner().fresh
    }

    /// Asks the owner. `None` without an answer; otherwise the owner's counters, if it still serves the connection.
    fn request_progress(&self, fresh: &mut Option<RemoteConnection>) -> Option<Option<(u64, u64)>> {
        let until = self.until.min(Instant::now() + PROBE_TIMEOUT);
        let mut connection = match fresh.take() {
            Some(connection) => connection,
            None => self.remote_owner.open(until).ok()?,
        };
        let stop = || self.remote_owner.has_ended();
        let wait = Wait { until: Some(until), stop: &stop, is_dead: &|_| false };
        connection.send_frame(&frames::encode(0, &Request::Progress { number: self.number }), wait).ok()?;
        let Ok(Ok(Reply::Progress { is_served, sent, received })) = reply(&mut connection, wait) else { return None };
        *fresh = Some(connection);
        Some(is_served.then_some((sent, received)))
    }
}
