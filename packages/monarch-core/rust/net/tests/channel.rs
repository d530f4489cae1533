//! A channel over streams that break at any byte: every frame arrives once and in order.

use std::sync::Arc;

use net::channel::{ACK, Disagree, Held, Inbox, Outbox};
use net::{Arena, RecvPart};
use proptest::prelude::*;

fn frame(n: u32, size: usize) -> Box<[u8]> {
    let mut body = vec![7u8];
    body.extend_from_slice(&n.to_le_bytes());
    body.resize(5 + size, n as u8);
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.extend(body);
    out.into()
}

/// The receiving end: the unread bytes of the current stream, and the frames taken from them.
#[derive(Default)]
struct Receiver {
    buf: Vec<u8>,
    inbox: Inbox,
    got: Vec<u32>,
    acks: Vec<u64>,
}

impl Receiver {
    /// Takes whole frames; returns the count to acknowledge, if an acknowledgement is due.
    fn take(&mut self) -> Option<u64> {
        let mut due = false;
        while let Some(head) = self.buf.get(..4) {
            let len = u32::from_le_bytes(head.try_into().unwrap()) as usize;
            let Some(body) = self.buf.get(4..4 + len) else { break };
            if body[0] == ACK {
                self.acks.push(u64::from_le_bytes(body[1..].try_into().unwrap()));
            } else {
                self.got.push(u32::from_le_bytes(body[1..5].try_into().unwrap()));
                due |= self.inbox.took(len + 4);
            }
            self.buf.drain(..4 + len);
        }
        due.then(|| {
            self.inbox.acknowledged();
            self.inbox.received
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A frame of this size, cut at this many places.
    Send(usize, usize),
    /// This many bytes reach the receiver.
    Write(usize),
    /// The stream breaks; bytes that were written and not read are lost or delivered.
    Break { lose: bool },
    /// The receiver's acknowledgement arrives (true) or is lost.
    Ack(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..2000, 0usize..6).prop_map(|(size, cuts)| Step::Send(size, cuts)),
        6 => (1usize..5000).prop_map(Step::Write),
        1 => any::<bool>().prop_map(|lose| Step::Break { lose }),
        2 => any::<bool>().prop_map(Step::Ack),
    ];
    prop::collection::vec(step, 1..200)
}

/// Queues a frame in runs that are alternately in the arena and owned.
fn put(out: &mut Outbox, frame: &[u8], cuts: usize) {
    let parts: Vec<&[u8]> = frame.chunks(frame.len().div_ceil(cuts + 1)).collect();
    let arena = Arena::new();
    for (i, part) in parts.iter().enumerate() {
        let held = if i % 2 == 0 {
            Held::Own((*part).into())
        } else {
            let mut block = arena.alloc(part.len() + 3).unwrap();
            block.fill(&[b"xy", *part].concat());
            Held::Part(Arc::new(RecvPart::Own { block: Arc::new(block), readonly: true }), 2..2 + part.len())
        };
        out.put(held, i + 1 == parts.len());
    }
}

fn write(out: &mut Outbox, to: &mut Receiver, most: usize) {
    let mut left = most;
    while left > 0 {
        let pieces = out.pieces(3);
        let now = pieces.concat();
        let n = now.len().min(left);
        if n == 0 {
            return;
        }
        to.buf.extend_from_slice(&now[..n]);
        drop(pieces);
        out.wrote(n);
        left -= n;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_arrives_once_and_in_order(steps in steps()) {
        let (mut out, mut to) = (Outbox::default(), Receiver::default());
        let mut sent = 0u32;
        let mut due = None;
        for step in steps {
            match step {
                Step::Send(size, cuts) => {
                    put(&mut out, &frame(sent, size), cuts);
                    sent += 1;
                }
                Step::Write(most) => {
                    write(&mut out, &mut to, most);
                    due = to.take().or(due);
                }
                Step::Break { lose } => {
                    if !lose {
                        to.take();
                    }
                    to.buf.clear();
                    due = None;
                    prop_assert_eq!(out.resume(to.inbox.received), Ok(()));
                }
                Step::Ack(arrives) => {
                    if let (Some(n), true) = (due.take(), arrives) {
                        prop_assert_eq!(out.acked(n), Ok(()));
                    }
                }
            }
        }
        write(&mut out, &mut to, usize::MAX);
        to.take();
        prop_assert_eq!(&to.got, &(0..sent).collect::<Vec<_>>());
        prop_assert!(out.is_written());
        prop_assert_eq!(out.unwritten(), 0);
        prop_assert_eq!(out.acked(to.inbox.received), Ok(()));
        prop_assert_eq!(out.kept(), 0);
    }

    #[test]
    fn acknowledgements_go_between_frames(sizes in prop::collection::vec(0usize..300, 1..20), cut in 1usize..400) {
        let (mut out, mut to) = (Outbox::default(), Receiver::default());
        for (n, size) in sizes.iter().enumerate() {
            put(&mut out, &frame(n as u32, *size), n % 3);
            write(&mut out, &mut to, cut);
            out.acknowledge(n as u64);
        }
        write(&mut out, &mut to, usize::MAX);
        to.take();
        prop_assert_eq!(to.got.len(), sizes.len());
        prop_assert_eq!(to.acks, (0..sizes.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn false_acknowledgement_of_a_peer_is_refused() {
    let mut out = Outbox::default();
    out.push(frame(0, 10));
    assert_eq!(out.acked(1), Err(Disagree::Ahead), "it has not been written");
    assert_eq!(out.resume(2), Err(Disagree::Ahead));
    let mut to = Receiver::default();
    write(&mut out, &mut to, usize::MAX);
    assert_eq!(out.acked(1), Ok(()));
    assert_eq!(out.resume(0), Err(Disagree::Stale), "it has been thrown away");
    assert_eq!(out.resume(1), Ok(()), "a stale claim changes nothing");
}
