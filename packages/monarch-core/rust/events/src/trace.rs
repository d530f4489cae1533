//! The current trace of this thread, to which its events belong: trace id (high and low half) and span; 0 for none.

use std::cell::Cell;

use crate::recorder::is_on;

thread_local! {
    static TRACE: Cell<[u64; 3]> = const { Cell::new([0; 3]) };
}

#[inline]
pub fn trace() -> [u64; 3] {
    TRACE.get()
}

/// Sets the trace of later events of this thread; returns the previous one.
pub fn set_trace(trace: [u64; 3]) -> [u64; 3] {
    TRACE.replace(trace)
}

/// Records the events of `emit` as part of a trace. Without a trace, the current one of the thread applies.
#[inline]
pub fn in_trace(trace: [u64; 3], emit: impl FnOnce()) {
    if trace == [0; 3] || !is_on() {
        return emit();
    }
    let before = set_trace(trace);
    emit();
    set_trace(before);
}
