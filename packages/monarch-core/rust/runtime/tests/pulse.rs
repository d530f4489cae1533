//! When a proc counts as unresponsive.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use runtime::agent::pulse::{Beat, PERIOD, Pulse};

#[test]
fn one_that_answers_is_asked_again_and_again() {
    let (mut pulse, start) = (Pulse::default(), Instant::now());
    for n in 0..10 {
        assert_eq!(pulse.tick(start + n * PERIOD), Beat::Ask);
        assert!(!pulse.answered());
        assert_eq!(pulse.lost_since(), None);
    }
}

#[test]
fn one_that_does_not_is_lost_once_and_may_come_back() {
    let (mut pulse, start) = (Pulse::default(), Instant::now());
    let beats: Vec<Beat> = (0..6).map(|n| pulse.tick(start + n * PERIOD)).collect();
    assert_eq!(beats, [Beat::Ask, Beat::Wait, Beat::Lost, Beat::Wait, Beat::Wait, Beat::Wait]);
    assert_eq!(pulse.lost_since(), Some(start));
    assert!(pulse.answered());
    assert_eq!(pulse.lost_since(), None);
    assert_eq!(pulse.tick(start + 9 * PERIOD), Beat::Ask);
}

proptest! {
    /// A proc that stops to answer at any time is known to be unresponsive within four seconds.
    #[test]
    fn within_four_seconds(answers in 0_u32..50, after_ms in 0_u64..1250) {
        let (mut pulse, start) = (Pulse::default(), Instant::now());
        for n in 0..answers {
            prop_assert_eq!(pulse.tick(start + n * PERIOD), Beat::Ask);
            pulse.answered();
        }
        // The proc stops to answer some time after its last answer.
        let silent = start + answers.saturating_sub(1) * PERIOD + Duration::from_millis(after_ms);
        let mut n = answers;
        while pulse.tick(start + n * PERIOD) != Beat::Lost {
            n += 1;
        }
        prop_assert!(start + n * PERIOD <= silent + Duration::from_secs(4));
    }
}
