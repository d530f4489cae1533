//! The responsiveness check: decides from the answers to pings whether the Python interpreter of a proc runs. It does no I/O, and the
//! caller gives the time.
//!
//! A proc that does not answer is `unresponsive`: it is stopped by a signal, it gets no CPU time, or one of its threads keeps the GIL. This
//! state is no failure, and the proc may be responsive again at any time.

use std::time::{Duration, Instant};

/// The period of the check.
pub const PERIOD: Duration = Duration::from_millis(1250);
/// A proc without an answer for this time is unresponsive. With the period, that is known within 3.75 s; a report with stacks is
/// due within 5 s.
const LIMIT: Duration = Duration::from_millis(2000);

/// The action of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Send a ping.
    Ping,
    /// A ping is not answered yet, or the proc is known to be unresponsive.
    Wait,
    /// The proc has just become unresponsive.
    Unresponsive,
}

/// The state of the check of one process.
#[derive(Default)]
pub struct Responsiveness {
    /// When the ping was sent that is not answered yet.
    pinged: Option<Instant>,
    /// The process is unresponsive.
    unresponsive: bool,
}

impl Responsiveness {
    /// Makes a check, and returns its action.
    pub fn tick(&mut self, now: Instant) -> Check {
        match self.pinged {
            None => {
                self.pinged = Some(now);
                Check::Ping
            }
            Some(at) if !self.unresponsive && now.duration_since(at) >= LIMIT => {
                self.unresponsive = true;
                Check::Unresponsive
            }
            Some(_) => Check::Wait,
        }
    }

    /// Handles an answer; true if the process was unresponsive.
    pub fn answered(&mut self) -> bool {
        self.pinged = None;
        std::mem::take(&mut self.unresponsive)
    }

    /// When the unanswered ping of an unresponsive process was sent; none if the process is responsive.
    pub fn unresponsive_since(&self) -> Option<Instant> {
        self.pinged.filter(|_| self.unresponsive)
    }
}
