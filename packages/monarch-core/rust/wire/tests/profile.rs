//! The profile that tests are compiled with. It has overflow checks wherever it has assertions: cargo switches each one alone, and an
//! overflow that wraps would stay unseen.

use std::hint::black_box;
use std::panic::catch_unwind;

#[test]
fn overflow_panics_where_assertions_do() {
    assert_eq!(catch_unwind(|| black_box(u8::MAX) + black_box(1)).is_err(), cfg!(debug_assertions));
}
