//! Whether a connection without traffic is dead.
//!
//! A connection can be half-open: its other end is gone, and this end is never notified, because the reset was lost or a firewall has
//! forgotten the connection. So the owner is asked over a new connection whether it still serves the silent one, and how many bytes it has
//! moved.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{Line, Wait};
use super::owner::{Far, reply};
use super::traffic::Traffic;
use crate::frames::{self, Reply, Request};

/// The time without traffic before the owner is asked, and the time limit of its answer.
pub const SILENCE: Duration = Duration::from_secs(3);
/// The time to the next question while bytes are in flight and none arrives.
const STUCK: Duration = Duration::from_secs(2);
/// Longest time between two questions while the owner does not answer.
const LONGEST: Duration = Duration::from_secs(12);

/// The counters of both ends: bytes that the owner has sent and received, and bytes that this process has.
type Seen = ((u64, u64), (u64, u64));

/// The progress of the questions.
#[derive(Default)]
struct State {
    /// The time without traffic at the last question, and at the next one.
    asked: Duration,
    next: Duration,
    /// The counters at the last question, if bytes were in flight.
    stuck: Option<Seen>,
    unanswered: u32,
    /// The connection over which the owner has answered.
    fresh: Option<Line>,
}

/// The questions about one connection, during one operation.
pub struct Inquiry<'a> {
    far: &'a Far,
    number: u64,
    traffic: Arc<Traffic>,
    until: Instant,
    state: RefCell<State>,
}

impl<'a> Inquiry<'a> {
    pub fn new(far: &'a Far, line: &Line, until: Instant) -> Inquiry<'a> {
        let state = RefCell::new(State { next: SILENCE, ..State::default() });
        Inquiry { far, number: line.number, traffic: line.traffic.clone(), until, state }
    }

    /// Whether the connection is dead, after `silence` without traffic. Only an answer of the owner can show that.
    pub fn is_dead(&self, silence: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        if silence < state.asked {
            // Bytes have moved since the last question.
            *state = State { next: SILENCE, fresh: state.fresh.take(), ..State::default() };
        }
        if silence < state.next {
            return false;
        }
        state.asked = silence;
        let (wait, is_dead) = match self.ask(&mut state.fresh) {
            None => {
                state.unanswered += 1;
                (LONGEST.min(SILENCE * state.unanswered), false)
            }
            Some(None) => (SILENCE, true),
            Some(Some((sent, received))) => {
                state.unanswered = 0;
                let own = self.traffic.so_far();
                let seen = ((sent, received), own);
                // If no bytes are in flight, the owner is still working on the answer.
                let is_stuck = (received, sent) != own;
                let is_dead = is_stuck && state.stuck == Some(seen);
                state.stuck = is_stuck.then_some(seen);
                (if is_stuck { STUCK } else { SILENCE }, is_dead)
            }
        };
        state.next = silence + wait;
        is_dead
    }

    /// The connection over which the owner has answered, for further use.
    pub fn into_fresh(self) -> Option<Line> {
        self.state.into_inner().fresh
    }

    /// Asks the owner. `None` without an answer; otherwise the owner's counters, if it still serves the connection.
    fn ask(&self, fresh: &mut Option<Line>) -> Option<Option<(u64, u64)>> {
        let until = self.until.min(Instant::now() + SILENCE);
        let mut line = match fresh.take() {
            Some(line) => line,
            None => self.far.open(until).ok()?,
        };
        let stop = || self.far.has_ended();
        let wait = Wait { until: Some(until), stop: &stop, is_dead: &|_| false };
        line.send_frame(&frames::encode(0, &Request::HowFar { number: self.number }), wait).ok()?;
        let Ok(Ok(Reply::SoFar { is_served, sent, received })) = reply(&mut line, wait) else { return None };
        *fresh = Some(line);
        Some(is_served.then_some((sent, received)))
    }
}
