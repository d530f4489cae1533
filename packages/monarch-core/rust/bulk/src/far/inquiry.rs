//! Whether a connection on which nothing moves still carries anything.
//!
//! A connection can be half-open: its other end is gone, and this end never learns it, because the reset was lost or a firewall has
//! forgotten the connection. So the owner is asked over a new connection whether it still serves the silent one, and how far it is.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::line::{Line, Wait};
use super::owner::{Far, reply};
use super::traffic::Traffic;
use crate::frames::{self, Reply, Request};

/// After so long a silence the owner is asked, and so long its answer is waited for.
pub const SILENCE: Duration = Duration::from_secs(3);
/// Where bytes are under way and none arrives: the time to the next question.
const STUCK: Duration = Duration::from_secs(2);
/// Between questions that are not answered, at most.
const LONGEST: Duration = Duration::from_secs(12);

/// The numbers of both ends: what the owner has sent and received, and what this process has.
type Seen = ((u64, u64), (u64, u64));

#[derive(Default)]
struct State {
    /// The silence at the last question, and the silence at the next one.
    asked: Duration,
    next: Duration,
    /// At the last question, if bytes were under way.
    stuck: Option<Seen>,
    unanswered: u32,
    /// The owner has answered over this one.
    fresh: Option<Line>,
}

/// About one connection, during one operation.
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

    /// Nothing has moved for so long: is the connection of no use any more? Only an answer of the owner makes it so.
    pub fn is_dead(&self, silence: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        if silence < state.asked {
            // Something has moved since.
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
                // Where nothing is under way, the owner works on the answer.
                let is_stuck = (received, sent) != own;
                let is_dead = is_stuck && state.stuck == Some(seen);
                state.stuck = is_stuck.then_some(seen);
                (if is_stuck { STUCK } else { SILENCE }, is_dead)
            }
        };
        state.next = silence + wait;
        is_dead
    }

    /// The connection over which the owner has answered, to go on with.
    pub fn into_fresh(self) -> Option<Line> {
        self.state.into_inner().fresh
    }

    /// None without an answer; else what the owner has sent and received, if it still serves the connection.
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
