//! Frames of casts: encoding and decoding are inverse, and arbitrary bytes are harmless.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use wire::cast::{Answer, CastBody, CastFrame, CastMode, Order, Reduced, Taken};
use wire::values::Piece;
use wire::{CallId, Cast, GroupId, GroupSlice, MailboxId, ProcUid, Runs, Span, Status, Trace, Values};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..40)
}

fn group() -> impl Strategy<Value = GroupId> {
    (any::<u64>(), any::<u32>()).prop_map(|(source, number)| GroupId { source: ProcUid(source), number })
}

fn span() -> impl Strategy<Value = Span> {
    (any::<u32>(), 0u32..5000).prop_map(|(start, len)| Span::new(start, start.saturating_add(len)))
}

fn slice() -> impl Strategy<Value = Arc<GroupSlice>> {
    let host = (any::<u64>(), proptest::collection::vec((any::<u64>(), prop_oneof![0u32..20, any::<u32>()]), 0..4));
    (any::<u64>(), proptest::collection::vec(host, 0..20), any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
        |(mailbox, hosts, from, to)| {
            let n = hosts.len() + 1;
            let hosts = hosts.into_iter().map(|(h, procs)| (ProcUid(h), procs.into_iter().map(|(p, rank)| (ProcUid(p), rank)).collect()));
            let whole = GroupSlice::whole(MailboxId(mailbox), ProcUid(3), hosts);
            let (a, b) = (from.index(n) as u32, to.index(n) as u32);
            Arc::new(whole.part(Span::new(a.min(b), a.max(b))))
        },
    )
}

fn values() -> impl Strategy<Value = Values> {
    (0u32..4, 0usize..12, proptest::collection::vec((0u32..9, bytes()), 1..9)).prop_flat_map(|(each, targets, pieces)| {
        let pieces: Vec<Piece> = pieces.into_iter().map(|(count, bytes)| Piece { count, bytes: bytes.into() }).collect();
        let places = proptest::collection::vec(0..pieces.len() as u32, each as usize * targets);
        places.prop_map(move |places| Values::new(each, places, pieces.clone()))
    })
}

fn cast() -> impl Strategy<Value = Cast> {
    let numbers = proptest::collection::vec((1u32..9, any::<u64>()), 0..6);
    let mode = prop_oneof![Just(CastMode::Gather), Just(CastMode::FirstError), Just(CastMode::Taken), Just(CastMode::Forget)];
    (
        (group(), any::<u64>(), any::<u64>(), any::<u32>()),
        0u32..1000,
        numbers,
        mode,
        proptest::option::of(slice()),
        bytes(),
        proptest::option::of(values()),
    )
        .prop_map(|((group, a, b, ask), start, numbers, mode, slice, body, values)| {
            let (mut order, mut end) = (Order::default(), start);
            for (len, number) in numbers {
                end += len;
                order.push(end, number);
            }
            Cast {
                group,
                number: a.max(b),
                finished: a.min(b),
                ask,
                span: Span::new(start, end),
                mode,
                slice,
                order,
                body: body.into(),
                values: values.map(Arc::new),
            }
        })
}

fn runs() -> impl Strategy<Value = Runs> {
    proptest::collection::vec((1u32..1000, prop_oneof![0u8..5, Just(253), Just(254), Just(255)], bytes()), 0..5).prop_map(|all| {
        let mut runs = Runs::default();
        all.iter().for_each(|(count, status, bytes)| runs.push(*count, *status, bytes));
        runs
    })
}

fn frame() -> impl Strategy<Value = CastFrame> {
    let head = || (group(), any::<u64>(), any::<u32>());
    let over = proptest::collection::vec(any::<u32>(), 0..4);
    let taken = (group(), any::<u32>(), span(), any::<u64>(), any::<u64>(), over)
        .prop_map(|(group, ask, span, first, count, unreached)| Taken { group, ask, span, first, count, unreached });
    prop_oneof![
        cast().prop_map(CastFrame::Cast),
        (head(), span(), runs()).prop_map(|((group, number, ask), span, runs)| CastFrame::Reduced(Reduced {
            group,
            number,
            ask,
            span,
            runs
        })),
        (head(), any::<u32>(), bytes()).prop_map(|((group, number, ask), index, bytes)| CastFrame::Answer(Answer {
            group,
            number,
            ask,
            index,
            status: Status::Error,
            bytes: bytes.into()
        })),
        proptest::collection::vec(taken, 0..4).prop_map(CastFrame::Taken),
        (group(), span(), any::<u64>()).prop_map(|(group, span, below)| CastFrame::Finished { group, span, below }),
    ]
}

proptest! {
    #[test]
    fn frames_survive_the_trip(frame in frame()) {
        prop_assert_eq!(CastFrame::decode(&frame.encode()), Ok(frame));
    }

    /// The body of a cast is the rest of the frame; all other frames contain their length.
    #[test]
    fn frames_cut_short_are_refused(frame in frame(), cut in any::<prop::sample::Index>()) {
        let bytes = frame.encode();
        let body = if let CastFrame::Cast(c) = &frame { c.body.len() } else { 0 };
        prop_assert!(CastFrame::decode(&bytes[..cut.index(bytes.len() - body)]).is_err());
    }

    /// A part of the values has the pieces of its targets, each once, and no others.
    #[test]
    fn part_has_the_pieces_of_its_targets(values in values(), from in 0u32..14, to in 0u32..14) {
        let part = values.part(from..to);
        let own: Vec<_> = (from..to).filter(|target| *target < values.targets()).collect();
        if to <= values.targets() {
            for (at, target) in (0..).zip(&own) {
                prop_assert_eq!(part.of(at), values.of(*target));
            }
            let used = (0..part.targets()).flat_map(|target| part.of(target).unwrap()).map(std::ptr::from_ref);
            prop_assert_eq!(used.collect::<std::collections::BTreeSet<_>>().len(), part.pieces().len());
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(kind in 0u8..10, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut all = vec![kind];
        all.extend(bytes);
        if let Ok(CastFrame::Reduced(r)) = CastFrame::decode(&all) {
            let mut sum = Runs::default();
            sum.append(&r.runs);
            sum.append(&r.runs);
            sum.push(1, 0, b"x");
            prop_assert!(sum.iter().count() <= 2 * all.len() + 1);
        }
    }

    /// A valid frame with a few changed bytes passes more checks than random bytes.
    #[test]
    fn changed_bytes_do_no_harm(frame in frame(), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = frame.encode();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        match CastFrame::decode(&bytes) {
            Ok(CastFrame::Reduced(r)) => {
                let mut sum = Runs::default();
                sum.push(1, 0, b"x");
                sum.append(&r.runs);
                sum.append(&r.runs);
                let _ = sum.iter().map(|run| run.bytes.len()).sum::<usize>();
            }
            Ok(CastFrame::Cast(c)) => {
                let _ = c.order.part(c.span);
                if let Some(v) = &c.values {
                    let _ = (v.of(c.span.start), v.part(c.span.start..c.span.end), v.part(0..v.targets()));
                }
                if let Some(s) = c.slice {
                    let _ = (s.part(c.span), s.targets(c.span), s.indices(c.span.start).len());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn body_survives_encoding() {
    let left = Some(Duration::from_micros(1 << 40));
    for (trace, left) in [(Trace::NONE, None), (Trace { id: 1 << 100, span: 7 }, left), (Trace::NONE, left)] {
        let body =
            CastBody { sender: MailboxId(5), call_id: CallId(300), flags: 9, trace, left, method: b"step", extent: b"ex", parts: b"parts" };
        assert_eq!(CastBody::decode(&body.encode()), Ok(body));
    }
}

/// The root's frame for a cast stays small, however many procs there are.
#[test]
fn cast_to_thousands_of_hosts_is_short() {
    let mut order = Order::default();
    order.push(4096, 17);
    let group = GroupId { source: ProcUid(u64::MAX), number: 3 };
    let (span, body) = (Span::new(0, 256), Arc::from(&b""[..]));
    let mode = CastMode::Gather;
    let cast = Cast { group, number: 1000, finished: 999, ask: 0, span, mode, slice: None, order: order.part(span), body, values: None };
    assert!(CastFrame::Cast(cast).encode().len() <= 32);
}
