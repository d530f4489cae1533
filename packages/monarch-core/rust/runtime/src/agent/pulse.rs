//! Heartbeats of the Python interpreter of a proc: whether it runs, decided from answers to pings. No input, no output, no clock.
//!
//! A proc that does not answer is `unresponsive`: stopped by a signal, starved, or with a thread that keeps the GIL. It is never taken for
//! ended because of that, and may be responsive again at any time.

use std::time::{Duration, Instant};

/// How often it is looked at.
pub const PERIOD: Duration = Duration::from_millis(1250);
/// So long without an answer is unresponsive. With the period that is known within 3.75 s; the contract allows 5, stacks included.
const LIMIT: Duration = Duration::from_millis(2000);

/// What to do at a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    Ask,
    Wait,
    /// It has just become unresponsive.
    Lost,
}

#[derive(Default)]
pub struct Pulse {
    /// When the question was asked that is not answered yet.
    asked: Option<Instant>,
    lost: bool,
}

impl Pulse {
    pub fn tick(&mut self, now: Instant) -> Beat {
        match self.asked {
            None => {
                self.asked = Some(now);
                Beat::Ask
            }
            Some(at) if !self.lost && now.duration_since(at) >= LIMIT => {
                self.lost = true;
                Beat::Lost
            }
            Some(_) => Beat::Wait,
        }
    }

    /// It has answered; true if it was unresponsive.
    pub fn answered(&mut self) -> bool {
        self.asked = None;
        std::mem::take(&mut self.lost)
    }

    /// Since when it is unresponsive, if it is.
    pub fn lost_since(&self) -> Option<Instant> {
        self.asked.filter(|_| self.lost)
    }
}
