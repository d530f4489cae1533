//! The memory that decoding allocates is bounded by the input, whatever the input claims.

mod strategy;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::prelude::*;
use wire::Frame;
use wire::frame::{CONTROL, MESSAGE, REPLY};

/// Bound on the size of an element. Each claimed element takes at least one byte of input.
const PER_BYTE: usize = 256;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(by: isize) {
    let live = LIVE.get() + by;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: all calls go to the system's allocator; the counters are plain thread-local cells.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most bytes that were allocated at one time while `bytes` were decoded.
fn peak(bytes: &[u8]) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    drop(Frame::decode(bytes));
    (PEAK.get() - before) as usize
}

#[test]
fn allocator_counts_bytes() {
    let raw = Frame::Raw(vec![0; 1000].into()).encode();
    assert!((1000..1100).contains(&peak(&raw[4..])));
}

proptest! {
    #[test]
    fn arbitrary_bytes(kind in prop::sample::select(vec![MESSAGE, REPLY, CONTROL]), mut body in strategy::bytes()) {
        body.insert(0, kind);
        prop_assert!(peak(&body) <= PER_BYTE * body.len());
    }

    #[test]
    fn damaged_frames(frame in strategy::frame(), hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
        let mut bytes = frame.encode();
        bytes.drain(..4);
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        prop_assert!(peak(&bytes) <= PER_BYTE * bytes.len());
    }

    /// The largest possible counts: every field that can be a length is one.
    #[test]
    fn false_counts_allocate_little(
        kind in prop::sample::select(vec![MESSAGE, REPLY, CONTROL]),
        variant in 0u8..13,
        fill in prop::sample::select(vec![0u8, 1, 0x7f, 0xff]),
        n in 0usize..2000,
    ) {
        let mut bytes = vec![kind, variant];
        bytes.extend(std::iter::repeat_n(fill, n));
        // The largest number that postcard's lengths can express.
        bytes.extend([0xff; 9]);
        bytes.push(1);
        prop_assert!(peak(&bytes) <= PER_BYTE * bytes.len());
    }
}
