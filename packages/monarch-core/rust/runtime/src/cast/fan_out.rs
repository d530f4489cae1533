//! Who passes on to whom: a node that answers for a span of hosts keeps its own and divides the rest.
//!
//! With `k` children a tree over `n` hosts is `d = log n / log k` deep, and a cast that costs `s` for each send and `l` for each
//! hop takes `d (l + k s)` to the last host, and about as long back. At l = 40 us and s = 3 us a tree over 4,096 hosts takes,
//! one way: k = 2 (d = 12) 552 us, k = 4 (6) 312 us, k = 8 (4) 256 us, k = 16 (3) 264 us, k = 64 (2) 464 us. Between 8 and 16
//! nothing is gained in time; the smaller depth means that fewer hosts can die between the root and a leaf, so 16 it is, the
//! most that the root may send.

use wire::{ProcUid, Span};

/// Children of a node.
pub const FAN_OUT: u32 = 16;

/// Divides a span but for one position (the node's own) into at most `k` parts as equal as can be, none of them empty.
pub fn divide(span: Span, own: Option<u32>, k: u32) -> Vec<Span> {
    let segments = match own.filter(|p| span.contains(*p)) {
        Some(p) => [Span::new(span.start, p), Span::new(p + 1, span.end)],
        None => [span, Span::new(span.end, span.end)],
    };
    let total = segments[0].len() + segments[1].len();
    if total == 0 {
        return vec![];
    }
    // Each segment may end in a part that is not full.
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

/// The first host of a span that lives, and what is left of the span from there.
pub fn head(span: Span, host: impl Fn(u32) -> Option<ProcUid>, dead: impl Fn(ProcUid) -> bool) -> Option<(ProcUid, Span)> {
    (span.start..span.end).find_map(|p| host(p).filter(|h| !dead(*h)).map(|h| (h, Span::new(p, span.end))))
}
