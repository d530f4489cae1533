//! The order in which parts and frames enter a channel.

use std::collections::HashMap;
use std::sync::Arc;

use net::channel::Outbox;
use net::send_queues::SendQueues;
use net::{Arena, RecvPart};
use proptest::prelude::*;
use wire::frame::{CONTROL, MESSAGE, ROUTED};
use wire::part_fragment::{self, SIZE};
use wire::routed::Frames;
use wire::{ProcUid, Route};

/// The process id of the agents of both sides.
const AGENT: u64 = 0;
/// The same process as a receiver of messages that do not concern it as an agent.
const CLIENT: u64 = 4;
const BODY: usize = 5 + Route::LEN;

fn route(from: u64, to: u64) -> Route {
    let to = if to == CLIENT { AGENT } else { to };
    Route { from: ProcUid(from), from_host: ProcUid(100), to: ProcUid(to), to_host: ProcUid(AGENT), seq: 0 }
}

fn frame(from: u64, to: u64, n: u64) -> Box<[u8]> {
    let mut body = vec![ROUTED];
    route(from, to).put(&mut body);
    body.extend_from_slice(&9u32.to_le_bytes());
    body.push(if to == AGENT { CONTROL } else { MESSAGE });
    body.extend_from_slice(&n.to_le_bytes());
    [&(body.len() as u32).to_le_bytes()[..], &body].concat().into()
}

fn is_behind(queues: &SendQueues, from: u64, to: u64) -> bool {
    queues.is_behind(&route(from, to), &[], &frame(from, to, 0)[BODY..])
}

fn part(len: usize, n: u64) -> Arc<RecvPart> {
    Arc::new(RecvPart::Inline { data: (0..len).map(|i| (i as u64 * 31 + n) as u8).collect::<Vec<u8>>().into(), readonly: true })
}

/// A message of a sender: from one process to another, a frame or a part of this length.
type Sent = (u64, u64, Option<usize>);

#[derive(Clone, Debug)]
enum Step {
    Send(Sent),
    /// This many frames are written.
    Write(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![1 => 0usize..10, 1 => (SIZE - 2)..(SIZE + 2), 1 => (2 * SIZE)..(2 * SIZE + 2)];
    let send = (1u64..4, 0u64..5, prop::option::of(len));
    // No process sends parts to an agent.
    let send = send.prop_map(|(from, to, len)| Step::Send((from, to, len.filter(|_| to != AGENT))));
    prop::collection::vec(prop_oneof![3 => send, 2 => (1usize..4).prop_map(Step::Write)], 1..60)
}

/// The other side: the frames that have arrived whole, in order.
#[derive(Default)]
struct Receiver {
    partial: HashMap<(u64, u64), (Vec<u8>, u64)>,
    got: Vec<(u64, u64, u64)>,
    parts: HashMap<(u64, u64), u64>,
}

impl Receiver {
    fn take(&mut self, frame: &[u8]) {
        assert_eq!(frame[0], ROUTED);
        let mut c = wire::cursor::Cursor::new(&frame[1..]);
        let head = Route::read(&mut c).unwrap();
        let body = &frame[1 + Route::LEN..];
        let pair = (head.from.0, if head.to.0 == AGENT && body[4] != CONTROL { CLIENT } else { head.to.0 });
        match part_fragment::read(body) {
            Some(fragment) => {
                let fragment = fragment.unwrap();
                let (bytes, left) = self.partial.remove(&pair).unwrap_or((Vec::new(), fragment.left + fragment.bytes.len() as u64));
                assert_eq!(left, fragment.left + fragment.bytes.len() as u64);
                let bytes = [&bytes[..], fragment.bytes].concat();
                if fragment.left > 0 {
                    self.partial.insert(pair, (bytes, fragment.left));
                    return;
                }
                // Parts between these two processes have consecutive numbers.
                let n = self.parts.entry(pair).or_default();
                *n += 1;
                assert_eq!(fragment.number, *n);
                assert!(bytes.iter().enumerate().all(|(i, b)| *b == (i as u64 * 31 + *n) as u8));
            }
            None => {
                let n = u64::from_le_bytes(body[5..].try_into().unwrap());
                if pair.1 == AGENT {
                    // All parts that its sender sent before it have arrived, and no part that was sent later has.
                    assert_eq!(n >> 32, self.parts.iter().filter(|((from, _), _)| *from == pair.0).map(|(_, n)| n).sum::<u64>());
                    assert!(self.partial.keys().all(|(from, _)| *from != pair.0));
                }
                self.got.push((pair.0, pair.1, n));
            }
        }
    }
}

fn write(queues: &mut SendQueues, outbox: &mut Outbox, to: &mut Receiver, frames: usize) {
    for _ in 0..frames {
        queues.next(outbox);
        let bytes = outbox.pieces(usize::MAX).concat();
        outbox.wrote(bytes.len());
        Frames::of(&bytes).for_each(|f| to.take(f));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn required_orders_hold_between_queues(steps in steps()) {
        let (mut queues, mut outbox, mut to) = (SendQueues::default(), Outbox::default(), Receiver::default());
        let mut sent: Vec<(u64, u64, u64)> = Vec::new();
        let mut parts: HashMap<(u64, u64), u64> = HashMap::new();
        for step in steps {
            match step {
                Step::Send((from, to, Some(len))) => {
                    let n = parts.entry((from, to)).or_default();
                    *n += 1;
                    queues.put_part(&route(from, to), *n, part(len, *n));
                }
                Step::Send((from, to, None)) => {
                    // The number of parts that the sender has sent before.
                    let n = parts.iter().filter(|((f, _), _)| *f == from).map(|(_, n)| n).sum::<u64>() << 32 | sent.len() as u64;
                    sent.push((from, to, n));
                    let frame = frame(from, to, n);
                    if is_behind(&queues, from, to) { queues.put_frame(&route(from, to), &[], frame, BODY) } else { outbox.push(frame) }
                }
                Step::Write(n) => write(&mut queues, &mut outbox, &mut to, n),
            }
        }
        while !queues.is_empty() {
            write(&mut queues, &mut outbox, &mut to, 1);
        }
        write(&mut queues, &mut outbox, &mut to, 1);
        prop_assert_eq!(queues.bytes(), 0);
        prop_assert_eq!(&to.parts, &parts);
        prop_assert!(to.partial.is_empty());
        let place = |n: u64| to.got.iter().position(|(_, _, m)| *m == n).unwrap();
        prop_assert_eq!(to.got.len(), sent.len());
        for (i, a) in sent.iter().enumerate() {
            for b in &sent[i + 1..] {
                // The order holds between two processes, and between all frames of a process and its frames to an agent.
                if a.0 == b.0 && (a.1 == b.1 || a.1 == AGENT || b.1 == AGENT) {
                    prop_assert!(place(a.2) < place(b.2), "{a:?} {b:?} {:?}", to.got);
                }
            }
        }
    }

    #[test]
    fn frame_to_an_agent_follows_earlier_parts(before in 0usize..4, len in 1usize..SIZE * 3) {
        let (mut queues, mut outbox, mut to) = (SendQueues::default(), Outbox::default(), Receiver::default());
        for n in 1..=before {
            queues.put_part(&route(1, 2), n as u64, part(len, n as u64));
        }
        // Other frames do not wait.
        for (from, to) in [(1, 2), (1, 3), (1, CLIENT), (2, 2), (2, AGENT)] {
            prop_assert!(!is_behind(&queues, from, to));
        }
        let (own, n) = (route(1, AGENT), (before as u64) << 32);
        prop_assert_eq!(is_behind(&queues, 1, AGENT), before > 0);
        if before > 0 { queues.put_frame(&own, &[], frame(1, AGENT, n), BODY) } else { outbox.push(frame(1, AGENT, n)) }
        prop_assert_eq!(is_behind(&queues, 1, 3), before > 0);
        prop_assert_eq!(is_behind(&queues, 1, CLIENT), before > 0);
        while to.got.is_empty() {
            write(&mut queues, &mut outbox, &mut to, 1);
        }
        prop_assert_eq!(to.parts.get(&(1, 2)).copied().unwrap_or(0), before as u64);
    }
}

#[test]
fn notice_of_an_end_follows_sent_parts() {
    let (mut queues, mut outbox, mut to) = (SendQueues::default(), Outbox::default(), Receiver::default());
    for (from, to) in [(1, 2), (1, 3), (5, 2), (6, 2)] {
        queues.put_part(&route(from, to), 1, part(2 * SIZE, 1));
    }
    // The agent, 9, notifies a process that parts were sent to.
    let ended = [ProcUid(1), ProcUid(5)];
    let news = |n| frame(9, 2, n);
    assert!(queues.is_behind(&route(9, 2), &ended, &news(0)[BODY..]) && !queues.is_behind(&route(9, 2), &[], &news(0)[BODY..]));
    queues.put_frame(&route(9, 2), &ended, news(0), BODY);
    // A later frame of the agent stays behind the notice.
    assert!(queues.is_behind(&route(9, 3), &[], &frame(9, 3, 1)[BODY..]));
    queues.put_frame(&route(9, 3), &[], frame(9, 3, 1), BODY);
    while to.got.is_empty() {
        write(&mut queues, &mut outbox, &mut to, 1);
    }
    assert_eq!([(1, 2), (1, 3), (5, 2)].map(|pair| to.parts.get(&pair)), [Some(&1); 3]);
    while !queues.is_empty() {
        write(&mut queues, &mut outbox, &mut to, 1);
    }
    write(&mut queues, &mut outbox, &mut to, 1);
    assert_eq!(to.got, [(9, 2, 0), (9, 3, 1)]);
}

#[test]
fn queues_take_turns() {
    let (mut queues, mut outbox) = (SendQueues::default(), Outbox::default());
    for (from, to) in [(1, 2), (1, 3), (4, 2)] {
        queues.put_part(&route(from, to), 1, part(2 * SIZE, 1));
    }
    while queues.next(&mut outbox) {}
    let bytes = outbox.pieces(usize::MAX).concat();
    let order: Vec<(u64, u64)> =
        Frames::of(&bytes).map(|f| Route::read(&mut wire::cursor::Cursor::new(&f[1..])).unwrap()).map(|r| (r.from.0, r.to.0)).collect();
    assert_eq!(order, [(1, 2), (1, 3), (4, 2), (1, 2), (1, 3), (4, 2)]);
}

#[test]
fn part_is_held_until_its_acknowledgement() {
    let arena = Arena::new();
    let mut block = arena.alloc(2 * SIZE + 5).unwrap();
    block.fill(&vec![9; 2 * SIZE + 5]);
    let block = Arc::new(block);
    let (mut queues, mut outbox) = (SendQueues::default(), Outbox::default());
    queues.put_part(&route(1, 2), 1, Arc::new(RecvPart::Own { block: block.clone(), readonly: true }));
    while queues.next(&mut outbox) {}
    let len: usize = outbox.pieces(usize::MAX).iter().map(|p| p.len()).sum();
    // The part is not copied; only the heads are owned by this process.
    assert_eq!(outbox.pieces(usize::MAX)[1].as_ptr(), block.bytes().as_ptr());
    outbox.wrote(len);
    assert_eq!(outbox.acked(2), Ok(()));
    assert_eq!(Arc::strong_count(&block), 2);
    assert_eq!(outbox.acked(3), Ok(()));
    assert_eq!(Arc::strong_count(&block), 1);
}
