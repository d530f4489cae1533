//! Counting lines that are equal up to numbers, on a clock that the test moves.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use runtime::agent::aggregation::{Aggregation, Report, without_numbers};

const WINDOW: Duration = Duration::from_secs(10);

fn key(line: &str) -> Vec<u8> {
    let mut out = Vec::new();
    without_numbers(line.as_bytes(), &mut out);
    out
}

fn text(reports: Vec<Report>) -> String {
    reports.into_iter().map(|(_, t)| String::from_utf8(t).unwrap()).collect()
}

#[test]
fn numbers_do_not_count() {
    for (a, b) in [
        ("step 1", "step 22"),
        ("loss 0.5", "loss 3"),
        ("loss 1e-5", "loss -2.25E+10"),
        ("x=-1", "x=1"),
        ("x=+1", "x=12345678901234567890123"),
        ("at 0x7ffE", "at 0x1"),
        ("rank3 of 8", "rank10 of 16"),
        ("12:30:05", "1:2:3"),
        ("[1, 2]", "[10, 20]"),
        ("took 5.", "took 17."),
        ("1", "2"),
        ("a_1", "a_2"),
    ] {
        assert_eq!(key(a), key(b), "{a} {b}");
    }
}

#[test]
fn different_lines_have_different_keys() {
    for (a, b) in [
        ("step 1", "Step 1"),
        ("a 1", "a  1"),
        ("a", "a 1"),
        ("1 2", "1"),
        ("1.2.3", "1.2"),
        ("1e", "1"),
        ("0x", "0"),
        ("0xg", "0xf"),
        ("a-1", "a+1"),
        ("[1, 2]", "[1]"),
        ("é1", "e1"),
        ("", "1"),
    ] {
        assert_ne!(key(a), key(b), "{a} {b}");
    }
}

#[test]
fn window_begins_with_its_first_line() {
    let mut a = Aggregation::new(WINDOW);
    let start = Instant::now();
    assert_eq!(a.due(), None);
    a.add(1, b"[0] ", b"step 1", start);
    a.add(1, b"[1] ", b"step 2", start + WINDOW / 2);
    a.add(2, b"[1] ", b"step 3", start + WINDOW / 2);
    a.add(1, b"[1] ", b"done", start + WINDOW / 2);
    assert_eq!(a.due(), Some(start + WINDOW));
    assert!(a.take_due(start + WINDOW - Duration::from_nanos(1)).is_empty());
    let reports = a.take_due(start + WINDOW);
    assert_eq!(
        reports,
        [
            (1, b"[2 similar log lines] [0] step 1\n[1 similar log lines] [1] done\n".to_vec()),
            (2, b"[1 similar log lines] [1] step 3\n".to_vec())
        ]
    );
    assert_eq!(a.due(), None);
    // The window is empty, and the next one has its own time.
    a.add(1, b"", b"step 4", start + 3 * WINDOW);
    assert_eq!(a.due(), Some(start + 4 * WINDOW));
    assert_eq!(text(a.take()), "[1 similar log lines] step 4\n");
    assert!(a.take().is_empty());
}

#[test]
fn kept_lines_are_bounded() {
    let mut a = Aggregation::new(WINDOW);
    let mut added = 0usize;
    while !a.is_full() {
        a.add(1, b"", "x".repeat(added % 4000).as_bytes(), Instant::now());
        added += 1;
        assert!(added < 10_000);
    }
    a.take();
    assert!(!a.is_full());
}

/// A piece of a line, and a piece that is equal to it up to a number.
fn piece() -> impl Strategy<Value = (String, String)> {
    let number = || prop_oneof!["[0-9]{1,9}", "[0-9]{1,3}\\.[0-9]{1,4}", "[0-9]e-[0-9]{2}"];
    prop_oneof!["[a-zé ]{1,5} ".prop_map(|t: String| (t.clone(), t)), (number(), number()).prop_map(|(a, b)| (a + " ", b + " "))]
}

proptest! {
    #[test]
    fn other_numbers_make_a_line_that_is_alike(pieces in prop::collection::vec(piece(), 0..6)) {
        let (a, b): (Vec<String>, Vec<String>) = pieces.into_iter().unzip();
        prop_assert_eq!(key(&a.concat()), key(&b.concat()));
    }

    #[test]
    fn any_bytes_are_a_line(line in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut out = Vec::new();
        without_numbers(&line, &mut out);
        prop_assert!(out.len() <= line.len());
    }

    /// Every line is counted once, with a sample that is equal up to numbers, and no line waits longer than a window.
    #[test]
    fn every_line_is_counted_once(lines in prop::collection::vec(("[ab] [0-9]{1,2}", 1..3i32, 0u64..8), 0..60)) {
        let mut a = Aggregation::new(WINDOW);
        let mut now = Instant::now();
        let mut expected: HashMap<(i32, Vec<u8>), u64> = HashMap::new();
        let mut counted: HashMap<(i32, Vec<u8>), u64> = HashMap::new();
        let mut count = |reports: Vec<Report>| {
            for (console, t) in reports {
                for line in String::from_utf8(t).unwrap().lines() {
                    let (n, sample) = line.strip_prefix('[').unwrap().split_once(" similar log lines] > ").unwrap();
                    *counted.entry((console, key(sample))).or_default() += n.parse::<u64>().unwrap();
                }
            }
        };
        for (line, console, seconds) in &lines {
            now += Duration::from_secs(*seconds);
            count(a.take_due(now));
            prop_assert!(a.due().is_none_or(|due| due > now));
            a.add(*console, b"> ", line.as_bytes(), now);
            prop_assert!(a.due().is_some_and(|due| due <= now + WINDOW));
            *expected.entry((*console, key(line))).or_default() += 1;
        }
        count(a.take());
        prop_assert_eq!(counted, expected);
    }
}
