//! When a proc counts as unresponsive.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use runtime::agent::responsiveness::{Check, PERIOD, Responsiveness};

#[test]
fn proc_that_answers_is_pinged_again() {
    let (mut responsiveness, start) = (Responsiveness::default(), Instant::now());
    for n in 0..10 {
        assert_eq!(responsiveness.tick(start + n * PERIOD), Check::Ping);
        assert!(!responsiveness.answered());
        assert_eq!(responsiveness.unresponsive_since(), None);
    }
}

#[test]
fn silent_proc_is_reported_once_until_it_answers() {
    let (mut responsiveness, start) = (Responsiveness::default(), Instant::now());
    let checks: Vec<Check> = (0..6).map(|n| responsiveness.tick(start + n * PERIOD)).collect();
    assert_eq!(checks, [Check::Ping, Check::Wait, Check::Unresponsive, Check::Wait, Check::Wait, Check::Wait]);
    assert_eq!(responsiveness.unresponsive_since(), Some(start));
    assert!(responsiveness.answered());
    assert_eq!(responsiveness.unresponsive_since(), None);
    assert_eq!(responsiveness.tick(start + 9 * PERIOD), Check::Ping);
}

proptest! {
    /// A proc that stops to answer at any time is known to be unresponsive within four seconds.
    #[test]
    fn silent_proc_is_found_within_four_seconds(answers in 0_u32..50, after_ms in 0_u64..1250) {
        let (mut responsiveness, start) = (Responsiveness::default(), Instant::now());
        for n in 0..answers {
            prop_assert_eq!(responsiveness.tick(start + n * PERIOD), Check::Ping);
            responsiveness.answered();
        }
        // The proc stops to answer some time after its last answer.
        let silent = start + answers.saturating_sub(1) * PERIOD + Duration::from_millis(after_ms);
        let mut n = answers;
        while responsiveness.tick(start + n * PERIOD) != Check::Unresponsive {
            n += 1;
        }
        prop_assert!(start + n * PERIOD <= silent + Duration::from_secs(4));
    }
}
