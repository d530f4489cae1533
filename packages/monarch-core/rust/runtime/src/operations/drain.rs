//! The waits before the end of a process: until its sockets have accepted its frames, and until receivers have pulled its large parts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::{Poller, Waiter};

use super::interpreter::Interpreter;
use super::wait;
use crate::peers::Peers;
use crate::transfers::offers::Offers;

/// The interval of the checks of the links. Nothing notifies a thread when a socket has accepted frames.
const LINKS_INTERVAL: Duration = Duration::from_millis(2);
/// The interval of the checks of the offers.
const OFFERS_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until the sockets have accepted all queued frames; false after `bound`.
pub fn flush_links(interpreter: &impl Interpreter, peers: &Peers, bound: Duration) -> bool {
    let is_empty = || peers.all().iter().all(|p| p.link.queued() == 0 || p.link.is_down());
    let (waiter, deadline) = (wait::waiter(&peers.poller), peers.poller.now() + bound);
    wait::blocking(interpreter, || check_until(&peers.poller, &waiter, (LINKS_INTERVAL, deadline), is_empty, |_| false))
}

/// Waits until receivers have pulled all offered parts; false if some are left after `bound`, if no receiver makes progress for `pause`, or
/// if the agent has ended.
pub fn wait_pulled(interpreter: &impl Interpreter, peers: &Peers, offers: &Offers, bound: Duration, pause: Duration) -> bool {
    if offers.offered() == 0 {
        return true;
    }
    let agent = peers.peer_unlinked(peers.agent_uid).0;
    let (waiter, deadline) = (wait::waiter(&peers.poller), peers.poller.now() + bound);
    let mut timeout = ProgressTimeout { progress: offers.progress(), since: peers.poller.now(), pause };
    let is_over = |now| timeout.is_over(offers.progress(), now) || agent.link.is_down();
    wait::blocking(interpreter, || check_until(&peers.poller, &waiter, (OFFERS_INTERVAL, deadline), || offers.offered() == 0, is_over))
}

/// Checks `is_done` at intervals until it is true; false if the deadline passes or `is_over` is true before that.
fn check_until(
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    (interval, deadline): (Duration, Instant),
    is_done: impl Fn() -> bool,
    mut is_over: impl FnMut(Instant) -> bool,
) -> bool {
    while !is_done() {
        let now = poller.now();
        if now >= deadline || is_over(now) {
            return false;
        }
        poller.wait(waiter, Some(deadline.min(now + interval)), &is_done);
    }
    true
}

/// The wait for progress of receivers.
struct ProgressTimeout<P> {
    progress: P,
    /// The time of the last progress.
    since: Instant,
    /// How long a wait without progress may be.
    pause: Duration,
}

impl<P: PartialEq> ProgressTimeout<P> {
    /// True if there was no progress for too long.
    fn is_over(&mut self, progress: P, now: Instant) -> bool {
        if progress != self.progress {
            (self.progress, self.since) = (progress, now);
        }
        now >= self.since + self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_renews_the_timeout() {
        let (start, pause) = (Instant::now(), Duration::from_secs(1));
        let mut timeout = ProgressTimeout { progress: 0, since: start, pause };
        assert!(!timeout.is_over(0, start + pause / 2));
        assert!(!timeout.is_over(1, start + pause));
        assert!(!timeout.is_over(1, start + pause * 3 / 2));
        assert!(timeout.is_over(1, start + pause * 2));
    }

    #[test]
    fn checks_end_when_done_or_over() {
        let poller = Poller::new().unwrap();
        let (waiter, now) = (poller.waiter(), poller.now());
        let (passed, far) = ((LINKS_INTERVAL, now), (LINKS_INTERVAL, now + Duration::from_secs(3600)));
        assert!(check_until(&poller, &waiter, passed, || true, |_| true));
        assert!(!check_until(&poller, &waiter, passed, || false, |_| false));
        assert!(!check_until(&poller, &waiter, far, || false, |_| true));
    }
}
