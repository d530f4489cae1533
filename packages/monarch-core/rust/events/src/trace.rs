//! The trace that the events of this thread belong to: trace id (high and low half) and span, 0 for none.

use std::cell::Cell;

use crate::recorder::is_on;

thread_local! {
    static TRACE: Cell<[u64; 3]> = const { Cell::new([0; 3]) };
}

#[inline]
pub fn trace() -> [u64; 3] {
    TRACE.get()
}

/// From now on events of this thread belong to this trace; gives the one before.
pub fn set_trace(trace: [u64; 3]) -> [u64; 3] {
    TRACE.replace(trace)
}

/// Records what `emit` does as part of a trace; without one, as part of what the thread is in.
#[inline]
pub fn in_trace(trace: [u64; 3], emit: impl FnOnce()) {
    if trace == [0; 3] || !is_on() {
        return emit();
    }
    let before = set_trace(trace);
    emit();
    set_trace(before);
}
