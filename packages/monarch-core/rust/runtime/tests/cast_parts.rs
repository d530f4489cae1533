//! The parts of a cast, one by one: order of a sequence, trees, runs of answers.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use runtime::cast::fan_out::{divide, head};
use runtime::cast::{Effect, InOrder, OutOrder, Relay, Source};
use wire::cast::{CastBody, CastFrame, CastMode};
use wire::runs::ENDED;
use wire::{CallId, GroupId, GroupSlice, MailboxId, ProcUid, Runs, Span, Status};

const SOURCE: ProcUid = ProcUid(77);

proptest! {
    #[test]
    fn frames_come_out_in_order_and_once(
        order in Just((0u64..40).collect::<Vec<_>>()).prop_shuffle(),
        again in proptest::collection::vec(0usize..40, 0..40),
    ) {
        let (mut held, mut got) = (InOrder::default(), vec![]);
        for (i, number) in order.iter().enumerate() {
            held.accept(SOURCE, *number, *number, |n| got.push(n));
            for at in again.iter().filter(|at| **at <= i) {
                held.accept(SOURCE, order[*at], order[*at], |n| got.push(n));
            }
        }
        prop_assert_eq!(got, (0..40).collect::<Vec<_>>());
        prop_assert_eq!(held.held(), 0);
    }

    #[test]
    fn cast_counts_like_direct_frames(
        sends in proptest::collection::vec(proptest::option::of(0usize..5), 0..60),
        hosts in proptest::sample::subsequence((0..5).collect::<Vec<usize>>(), 1..=5),
    ) {
        let (mut order, mut model) = (OutOrder::default(), [0u64; 5]);
        let counters: Vec<_> = hosts.iter().map(|h| order.counter(ProcUid(*h as u64))).collect();
        for send in sends {
            match send {
                Some(host) => {
                    prop_assert_eq!(order.next(ProcUid(host as u64)), model[host]);
                    model[host] += 1;
                }
                None => {
                    let cast = order.cast(&counters);
                    for (position, host) in hosts.iter().enumerate() {
                        prop_assert_eq!(cast.get(position as u32), Some(model[*host]));
                        let part = cast.part(Span::new(position as u32, hosts.len() as u32));
                        prop_assert_eq!(part.get(position as u32), Some(model[*host]));
                        model[*host] += 1;
                    }
                    prop_assert_eq!(cast.get(hosts.len() as u32), None);
                }
            }
        }
    }

    #[test]
    fn division_of_a_span_covers_it(start in 0u32..100, len in 0u32..500, own in proptest::option::of(0u32..700), k in 1u32..20) {
        let span = Span::new(start, start + len);
        let parts = divide(span, own, k);
        prop_assert!(parts.len() <= k.max(3) as usize && (own.is_some() || parts.len() <= k as usize));
        prop_assert!(parts.iter().all(|p| !p.is_empty()));
        let all: Vec<u32> = parts.iter().flat_map(|p| p.start..p.end).collect();
        let expected: Vec<u32> = (span.start..span.end).filter(|p| Some(*p) != own).collect();
        prop_assert_eq!(all, expected);
        let longest = parts.iter().map(|p| p.len()).max().unwrap_or(0);
        prop_assert!(u64::from(longest) <= u64::from(len) / u64::from(k.max(2) - 1) + 1, "{} of {}", longest, len);
    }

    /// Runs that are combined in any grouping give the same answers.
    #[test]
    fn runs_are_what_was_pushed(pieces in proptest::collection::vec(proptest::collection::vec((1u32..300, 0u8..3, 0u8..2), 0..5), 0..6)) {
        let (mut all, mut flat) = (Runs::default(), vec![]);
        for piece in &pieces {
            let mut runs = Runs::default();
            for (count, status, byte) in piece {
                let status = if *status == 2 { ENDED } else { *status };
                runs.push(*count, status, &[*byte]);
                flat.extend(std::iter::repeat_n((status, *byte), *count as usize));
            }
            let mut bytes = vec![];
            runs.put(&mut bytes);
            let read = Runs::read(&mut wire::cursor::Cursor::new(&bytes)).unwrap();
            prop_assert_eq!(&read, &runs);
            all.append(&read);
        }
        let got: Vec<_> = all.iter().flat_map(|r| std::iter::repeat_n((r.status, r.bytes[0]), r.count as usize)).collect();
        prop_assert_eq!(got, flat.clone());
        prop_assert_eq!(all.targets() as usize, flat.len());
        prop_assert_eq!(all.absent() as usize, flat.iter().filter(|(s, _)| *s == ENDED).count());
        prop_assert_eq!(all.errors() as usize, flat.iter().filter(|(s, _)| *s == 1).count());
        let runs: Vec<_> = all.iter().map(|r| (r.status, r.bytes.to_vec())).collect();
        prop_assert!(runs.windows(2).all(|w| w[0] != w[1]), "equal neighbours are one run");
    }
}

#[test]
fn head_is_the_first_live_host() {
    let host = |p: u32| Some(ProcUid(p.into()));
    let span = Span::new(3, 9);
    assert_eq!(head(span, host, |h| h.0 < 5), Some((ProcUid(5), Span::new(5, 9))));
    assert_eq!(head(span, host, |_| true), None);
    assert_eq!(head(Span::new(3, 3), host, |_| false), None);
}

fn two_hosts() -> (Source, GroupId, Relay, Relay) {
    let mut source = Source::new(SOURCE);
    let procs = |p: u64| vec![(ProcUid(p), p as u32 - 10)];
    let group = source.group(GroupSlice::whole(MailboxId(1), ProcUid(1), [(ProcUid(2), procs(10)), (ProcUid(3), procs(11))]));
    (source, group, Relay::with_fan_out(ProcUid(1), 1), Relay::with_fan_out(ProcUid(2), 1))
}

fn cast(source: &mut Source, group: GroupId, mode: CastMode) -> wire::Cast {
    let body = CastBody { sender: MailboxId(1), call_id: CallId(1), method: b"m", parts: b"", ..CastBody::default() };
    source.cast(group, mode, body.encode(), None).unwrap()
}

fn only_send(out: Vec<Effect>) -> CastFrame {
    let mut frames = out.into_iter().filter_map(|e| if let Effect::Send { frame, .. } = e { Some(frame) } else { None });
    let frame = frames.next().expect("something is sent");
    assert!(frames.next().is_none());
    frame
}

/// A delayed frame of a cast that is over creates no record.
#[test]
fn finished_cast_is_not_started_again() {
    let (mut source, group, mut root, mut relay) = two_hosts();
    let now = Duration::ZERO;
    let first = only_send(root.on_source(now, cast(&mut source, group, CastMode::Taken)));
    relay.on_frame(now, ProcUid(1), first.clone());
    let CastFrame::Cast(mut second) = only_send(root.on_source(now, cast(&mut source, group, CastMode::Taken))) else { panic!("a cast") };
    second.finished = 1;
    relay.on_frame(now, ProcUid(1), CastFrame::Cast(second));
    assert_eq!(relay.records(), 1);
    let CastFrame::Cast(mut late) = first else { panic!("a cast") };
    late.ask = 1;
    let out = relay.on_frame(now, ProcUid(9), CastFrame::Cast(late));
    assert_eq!((out, relay.records()), (vec![], 1));
}

#[test]
fn group_is_sent_once() {
    let (mut source, group, mut root, _) = two_hosts();
    for number in 0..3 {
        let CastFrame::Cast(cast) = only_send(root.on_source(Duration::ZERO, cast(&mut source, group, CastMode::Gather))) else {
            panic!("a cast")
        };
        assert_eq!(cast.slice.is_some(), number == 0);
    }
}

/// An error does not wait for slow ranks.
#[test]
fn error_is_sent_up_before_other_answers() {
    let (mut source, group, mut root, mut relay) = two_hosts();
    let now = Duration::ZERO;
    let frame = only_send(root.on_source(now, cast(&mut source, group, CastMode::FirstError)));
    let out = relay.on_frame(now, ProcUid(1), frame);
    let cast_id = out.iter().find_map(|e| if let Effect::Deliver(d) = e { Some(d.cast_id) } else { None }).unwrap();
    let up = only_send(relay.on_reply(now, cast_id, 0, Status::Error, Arc::new([1])));
    assert!(matches!(&up, CastFrame::Answer(a) if a.index == 0 && a.status == Status::Error), "{up:?}");
    let back = root.on_frame(now, ProcUid(2), up);
    assert!(matches!(&back[..], [Effect::Return { frame: CastFrame::Answer(_), .. }]), "{back:?}");
}

/// The relays forget the groups of a source that has ended.
#[test]
fn groups_of_an_ended_source_end() {
    let (mut source, group, mut root, mut relay) = two_hosts();
    let now = Duration::ZERO;
    let frame = only_send(root.on_source(now, cast(&mut source, group, CastMode::Gather)));
    relay.on_frame(now, ProcUid(1), frame.clone());
    root.on_procs_ended(now, &[SOURCE]);
    relay.on_hosts_ended(now, &[ProcUid(1)]);
    assert_eq!((root.groups(), relay.groups()), (0, 0));
    relay.on_frame(now, ProcUid(1), frame);
    assert_eq!(relay.groups(), 0, "what comes late does not bring it back");
}

#[test]
fn frames_to_a_restarted_host_count_from_zero() {
    let mut order = OutOrder::default();
    let counter = order.counter(ProcUid(1));
    assert_eq!((order.next(ProcUid(1)), order.next(ProcUid(1)), order.next(ProcUid(2))), (0, 1, 0));
    order.restart(ProcUid(1));
    order.restart(ProcUid(3));
    assert_eq!((order.cast(&[counter]).get(0), order.next(ProcUid(1)), order.next(ProcUid(2))), (Some(0), 1, 1));
}
