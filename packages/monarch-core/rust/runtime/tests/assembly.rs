//! Frames of another host's process wait for their large parts, in order, and for nothing else.
#![cfg(not(feature = "shuttle"))]

use net::RecvPart;
use proptest::prelude::*;
use runtime::transfers::assembly::Assembly;
use wire::{CallId, Frame, MailboxId, Part, Reply, Status};

/// A frame with `parts` large parts, the first of which has the number `first`; without large parts, `first` is 0.
fn frame(n: u64, first: u64, parts: u64) -> Frame {
    if n.is_multiple_of(5) && parts == 0 {
        return Frame::Credit { mailbox: MailboxId(n), bytes: 1 };
    }
    let mut all = vec![Part::Inline { data: vec![1].into(), readonly: true }];
    all.extend((0..parts).map(|i| Part::OutOfBand { number: first + i, len: 1, readonly: true }));
    all.push(Part::Inline { data: vec![2].into(), readonly: true });
    Frame::Reply(Reply { call_id: CallId(n), rank: 0, status: Status::Ok, parts: all })
}

fn number(f: &Frame) -> u64 {
    match f {
        Frame::Reply(r) => r.call_id.0,
        Frame::Credit { mailbox, .. } => mailbox.0,
        other => panic!("{other:?}"),
    }
}

/// The number of large parts of each frame.
fn frames() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![2 => Just(0u64), 1 => 1u64..4], 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_stays_and_nothing_waits_without_need(frames in frames(), ways in any::<u64>()) {
        let mut first = 0;
        let mut numbered = |(parts, n): (&u64, u64)| {
            first += parts;
            frame(n, first - parts, *parts)
        };
        let all: Vec<Frame> = frames.iter().zip(1..).map(&mut numbered).collect();
        // The number of large parts that each frame and all frames before it need.
        let needs: Vec<u64> = frames.iter().scan(0, |sum, parts| { *sum += parts; Some(*sum) }).collect();
        let total = *needs.last().unwrap();
        let (mut assembly, mut got, mut came, mut parts) = (Assembly::default(), Vec::new(), 0, 0);
        for step in 0.. {
            if came == all.len() && parts == total {
                break;
            }
            let is_frame = parts == total || came < all.len() && ways.rotate_right(step) & 1 == 0;
            if is_frame {
                if let Some(f) = assembly.frame(all[came].clone()) {
                    got.push(number(&f));
                    take(&mut assembly, &f);
                }
                came += 1;
            } else {
                let part = RecvPart::Inline { data: vec![parts as u8].into(), readonly: true };
                if assembly.part(parts, part) {
                    while let Some(f) = assembly.next_whole() {
                        // A frame that arrives meanwhile does not overtake this one.
                        prop_assert!(!assembly.is_empty());
                        got.push(number(&f));
                        take(&mut assembly, &f);
                    }
                }
                parts += 1;
            }
            // All frames that have arrived are handled, up to the first one that lacks a part.
            let here = needs[..came].iter().zip(&frames).take_while(|(need, own)| **own == 0 || **need <= parts).count();
            prop_assert_eq!(&got, &(1..=here as u64).collect::<Vec<_>>());
            prop_assert_eq!(assembly.is_empty(), here == came);
        }
    }
}

fn take(assembly: &mut Assembly, frame: &Frame) {
    if let Frame::Reply(r) = frame {
        for part in &r.parts {
            if let Part::OutOfBand { number, .. } = part {
                assert_eq!(assembly.take(*number).unwrap().bytes().unwrap(), [*number as u8]);
            }
        }
    }
}

/// A frame with parts of these numbers; the receiver pulls those from 100 on.
fn mixed(n: u64, numbers: &[u64]) -> Frame {
    let part = |number: &u64| match number {
        100.. => Part::Offered { number: *number, len: 1, record: [].into(), readonly: true },
        _ => Part::OutOfBand { number: *number, len: 1, readonly: true },
    };
    Frame::Reply(Reply { call_id: CallId(n), rank: 0, status: Status::Ok, parts: numbers.iter().map(part).collect() })
}

#[test]
fn pulled_parts_may_arrive_in_any_order() {
    let mut assembly = Assembly::default();
    let mut got = vec![];
    for (n, numbers) in [(1, &[100, 0, 101][..]), (2, &[102]), (3, &[1]), (4, &[103, 104])] {
        assert!(assembly.frame(mixed(n, numbers)).is_none());
    }
    for (number, here) in [(104, 0), (102, 0), (0, 0), (101, 0), (100, 2), (103, 2), (1, 4)] {
        if assembly.part(number, RecvPart::Inline { data: vec![0].into(), readonly: true }) {
            while let Some(f) = assembly.next_whole() {
                got.push(self::number(&f));
                if let Frame::Reply(r) = f {
                    for part in r.parts {
                        let (Part::Offered { number, .. } | Part::OutOfBand { number, .. }) = part else { panic!("{part:?}") };
                        assert!(assembly.take(number).is_some());
                    }
                }
            }
        }
        assert_eq!(got, (1..=here).collect::<Vec<u64>>(), "after part {number}");
    }
    assert!(assembly.is_empty());
}
