//! Reports of refused connections, one by one or counted.
//!
//! A peer that can reach a port can be refused any number of times. The first refusals of a window are reported one by one; the others of
//! that window are counted, and reported together with the last of them. The module only decides, and the caller
//! gives the time.

use std::time::{Duration, Instant};

use wire::greeting::RefusalReason;

/// The length of a window: a flood makes at most one summary in this time.
const WINDOW: Duration = Duration::from_secs(10);
/// The number of refusals in a window that are reported one by one.
const EACH: u32 = 10;

/// The handling of one refused connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Report {
    Now,
    /// The refusal is counted. The first counted one of a window has the delay after which `collect` is due.
    Counted(Option<Duration>),
}

#[derive(Default)]
/// The refused connections of the present window.
pub(super) struct Refusals {
    /// The start of the window.
    begun: Option<Instant>,
    /// Refusals of the window that were reported one by one.
    reported: u32,
    /// Refusals of the window that were counted.
    counted: u64,
    /// Peer and reason of the last counted refusal.
    last: (String, String),
}

impl Refusals {
    /// Handles a refusal, and returns what the caller has to do.
    pub fn refused(&mut self, peer: &str, why: &str, now: Instant) -> Report {
        let begun = *self.begun.get_or_insert(now);
        let passed = now.saturating_duration_since(begun);
        if passed >= WINDOW && self.counted == 0 {
            (self.begun, self.reported) = (Some(now), 0);
        }
        if self.reported < EACH && self.counted == 0 {
            self.reported += 1;
            return Report::Now;
        }
        self.counted += 1;
        self.last = (peer.to_owned(), why.to_owned());
        Report::Counted((self.counted == 1).then(|| WINDOW.saturating_sub(passed)))
    }

    /// Ends the window. Returns the number of counted refusals, and the peer and the reason of the last one.
    pub fn collect(&mut self) -> (u64, String, String) {
        let (peer, why) = std::mem::take(&mut self.last);
        (self.begun, self.reported) = (None, 0);
        (std::mem::take(&mut self.counted), peer, why)
    }
}

/// The reason of a refusal, for the side that is refused.
pub(super) fn refusal(no: RefusalReason) -> &'static str {
    match no {
        RefusalReason::Lost => "refused after being declared lost",
        RefusalReason::NoSession => "it knows nothing of this connection",
        RefusalReason::Glare => "it connects to us",
        RefusalReason::OtherAgent => "another agent answers at this address",
        RefusalReason::Closing => "its agent is ending",
        RefusalReason::Twice => "this host is in the job already, by another address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_is_counted_and_nothing_is_left_out() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let each = (0..EACH).filter(|n| refusals.refused("a", &n.to_string(), start) == Report::Now).count();
        assert_eq!(each as u32, EACH);
        let at = start + Duration::from_secs(4);
        assert_eq!(refusals.refused("b", "first", at), Report::Counted(Some(Duration::from_secs(6))));
        for n in 0..999 {
            assert_eq!(refusals.refused("c", &n.to_string(), at), Report::Counted(None));
        }
        assert_eq!(refusals.collect(), (1000, "c".to_owned(), "998".to_owned()));
        assert_eq!(refusals.refused("d", "later", at), Report::Now);
    }

    #[test]
    fn quiet_window_begins_another_one() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for n in 0..5 * EACH {
            assert_eq!(refusals.refused("a", "slow", start + n * WINDOW / 5), Report::Now);
        }
    }
}
