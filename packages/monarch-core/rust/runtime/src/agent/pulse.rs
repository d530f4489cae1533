//! The responsiveness check: decides from the answers to pings whether the Python interpreter of a proc runs. It does no I/O, and the
//! caller gives the time.
//!
//! A proc that does not answer is `unresponsive`: it is stopped by a signal, it gets no CPU time, or one of its threads keeps the GIL. This
//! state is no failure, and the proc may be responsive again at any time.

use std::time::{Duration, Instant};

/// The period of the check.
pub const PERIOD: Duration = Duration::from_millis(1250);
/// A proc without an answer for this time is unresponsive. With the period, that is known within 3.75 s; the contract allows 5 s, including
/// the time for stacks.
const LIMIT: Duration = Duration::from_millis(2000);

/// The action of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Send a ping.
    Ask,
    /// A ping is not answered yet, or the proc is known to be unresponsive.
    Wait,
    /// The proc has just become unresponsive.
    Lost,
}

/// The state of the check of one process.
#[derive(Default)]
pub struct Pulse {
    /// When the ping was sent that is not answered yet.
    asked: Option<Instant>,
    /// The process is unresponsive.
    lost: bool,
}

impl Pulse {
    /// Makes a check, and returns its action.
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

    /// Handles an answer; true if the process was unresponsive.
    pub fn answered(&mut self) -> bool {
        self.asked = None;
        std::mem::take(&mut self.lost)
    }

    /// When the unanswered ping of an unresponsive process was sent; none if the process is responsive.
    pub fn lost_since(&self) -> Option<Instant> {
        self.asked.filter(|_| self.lost)
    }
}
