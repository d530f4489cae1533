//! The attempts to open the connections of the session with one host.
//!
//! A connection that cannot be opened is tried again after a pause, which doubles with each failure. Everything that needs the host waits
//! for this retry: a frame for the host begins no attempt of its own. Only the probes of the failure detector do not wait, since they have
//! a rate of their own, which the beat limits.
//!
//! What it needs: its caller opens the connections and keeps the time. The state of the host's connections owns it.
//!
//! What always holds:
//! - At most one attempt for each connection is under way.
//! - At most one retry is planned for the host. Until it is due, only `begin_probe` begins an attempt.

use std::time::Duration;

/// The shortest pause between two attempts. The pause doubles with each failure, up to `RETRY_PAUSE_MAX`.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(500);

/// The pause after this number of failures.
pub(super) fn backoff(failures: u32) -> Duration {
    (RETRY_PAUSE * 2u32.pow(failures.min(8))).min(RETRY_PAUSE_MAX)
}

#[derive(Default)]
pub(super) struct Redial {
    /// The connections that are being opened, by their number in the session.
    opening: Vec<u8>,
    /// The number of the planned retry; none if no retry is planned.
    retry: Option<u64>,
    /// The number of retries that were planned until now.
    retries: u64,
    /// Consecutive failures.
    failures: u32,
}

impl Redial {
    /// Begins attempts for the missing connections that have none: returns their numbers. While a retry is planned, none begins.
    pub fn begin(&mut self, missing: impl IntoIterator<Item = u8>) -> Vec<u8> {
        if self.retry.is_some() {
            return vec![];
        }
        let new: Vec<u8> = missing.into_iter().filter(|number| !self.opening.contains(number)).collect();
        self.opening.extend(&new);
        new
    }

    /// Begins an attempt for one connection, also while a retry is planned; false if one is under way.
    pub fn begin_probe(&mut self, number: u8) -> bool {
        let is_new = !self.opening.contains(&number);
        self.opening.extend(Some(number).filter(|_| is_new));
        is_new
    }

    /// Ends the attempt for a connection.
    pub fn end(&mut self, number: u8) {
        self.opening.retain(|n| *n != number);
    }

    /// Notes that the host has answered: the next attempts need not wait.
    pub fn answered(&mut self) {
        (self.failures, self.retry) = (0, None);
    }

    /// Plans a retry after a failure: returns its pause and its number; none if one is planned already.
    pub fn plan_retry(&mut self) -> Option<(Duration, u64)> {
        if self.retry.is_some() {
            return None;
        }
        self.failures += 1;
        self.retries += 1;
        self.retry = Some(self.retries);
        Some((backoff(self.failures), self.retries))
    }

    /// Handles the end of a retry's pause; false if the host has answered since.
    pub fn retry_due(&mut self, number: u64) -> bool {
        let is_due = self.retry == Some(number);
        self.retry.take_if(|_| is_due);
        is_due
    }

    pub fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// True if an attempt for this connection is under way or planned.
    pub fn is_expected(&self, number: u8) -> bool {
        self.retry.is_some() || self.opening.contains(&number)
    }

    /// The number of retries that were planned until now.
    pub fn retries(&self) -> u64 {
        self.retries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_begin_one_attempt_for_each_retry() {
        let mut redial = Redial::default();
        let mut attempts = 0;
        for round in 0..20 {
            // Both connections fail, and each failure asks for a retry.
            let begun: Vec<u8> = (0..100).flat_map(|_| redial.begin([0, 1])).collect();
            attempts += begun.len();
            let fail = |number| {
                redial.end(number);
                redial.plan_retry()
            };
            let planned: Vec<_> = begun.into_iter().filter_map(fail).collect();
            let [(pause, number)] = planned[..] else { panic!("{planned:?}") };
            assert_eq!(pause, backoff(round + 1));
            assert!((0..100).all(|_| redial.begin([0, 1]).is_empty()), "a frame does not wait for the retry");
            assert!(redial.retry_due(number) && !redial.retry_due(number));
        }
        assert_eq!((attempts, redial.retries()), (40, 20));
    }

    #[test]
    fn answer_replaces_the_planned_retry() {
        let mut redial = Redial::default();
        let (_, number) = redial.plan_retry().unwrap();
        redial.answered();
        assert_eq!(redial.begin([0]), [0]);
        assert!(!redial.retry_due(number));
        redial.end(0);
        assert_eq!(redial.plan_retry().map(|(pause, _)| pause), Some(backoff(1)));
    }

    #[test]
    fn probe_does_not_wait_for_the_retry() {
        let mut redial = Redial::default();
        redial.plan_retry();
        assert!(redial.begin_probe(1) && !redial.begin_probe(1));
        assert!(redial.is_expected(0) && redial.is_opening());
    }
}
