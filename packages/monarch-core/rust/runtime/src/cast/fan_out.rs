//! The division of a cast tree: a node that answers for a span of hosts keeps its own position and divides the rest among its children.
//!
//! With `k` children a tree over `n` hosts is `d = log n / log k` deep. A cast that costs `s` for each send and `l` for each hop reaches
//! the last host after `d (l + k s)`, and its answers take about as long. With l = 40 us and s = 3 us a cast reaches 4,096 hosts after: k =
//! 2 (d = 12) 552 us, k = 4 (6) 312 us, k = 8 (4) 256 us, k = 16 (3) 264 us, k = 64 (2) 464 us. The times of 8 and 16 are equal, but with
//! 16 the tree is less deep, so fewer hosts can die between the root and a leaf. 16 is also the largest number of sends of the root.

use wire::{ProcUid, Span};

/// The number of children of a node; the module's documentation has the reason for 16.
pub const FAN_OUT: u32 = 16;

/// Divides a span without the position `own` into at most `k` parts of nearly equal length (at most 3 if `k` is smaller and `own` lies
/// within the span). No part is empty.
pub fn divide(span: Span, own: Option<u32>, k: u32) -> Vec<Span> {
    let segments = match own.filter(|p| span.contains(*p)) {
        Some(p) => [Span::new(span.start, p), Span::new(p + 1, span.end)],
        None => [span, Span::new(span.end, span.end)],
    };
    let total = segments[0].len() + segments[1].len();
    if total == 0 {
        return vec![];
    }
    // Each of the two segments can end in a part that is smaller than the others, so one part less is full.
    let full = if segments.iter().all(|s| !s.is_empty()) { k.max(3) - 1 } else { k.max(1) };
    let most = total.div_ceil(full);
    let mut parts = Vec::with_capacity(k as usize);
    for s in segments.into_iter().filter(|s| !s.is_empty()) {
        let n = s.len().div_ceil(most);
        let bound = |i: u32| s.start + (u64::from(s.len()) * u64::from(i) / u64::from(n)) as u32;
        parts.extend((0..n).map(|i| Span::new(bound(i), bound(i + 1))));
    }
    parts
}

/// The first live host of a span, and the rest of the span from this host on.
pub fn head(span: Span, host: impl Fn(u32) -> Option<ProcUid>, dead: impl Fn(ProcUid) -> bool) -> Option<(ProcUid, Span)> {
    (span.start..span.end).find_map(|p| host(p).filter(|h| !dead(*h)).map(|h| (h, Span::new(p, span.end))))
}
