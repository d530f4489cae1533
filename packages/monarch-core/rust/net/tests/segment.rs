//! Tests of blocks that a receiver holds.

mod side;

use std::sync::{Arc, Mutex};

use net::arena::SEGMENT;
use net::{Arena, Block, Forwarder, LinkDown, RecvPart};
use side::{Side, connected, settle};
use wire::{BlockId, Frame, MailboxId, Message, Part, ProcUid};

fn message(parts: Vec<Part>) -> Vec<u8> {
    Frame::Message(Message { dest: MailboxId(1), parts, ..Message::default() }).encode()
}

fn share(arena: &Arc<Arena>, from: &Side, bytes: &[u8]) -> Arc<Block> {
    let mut block = arena.alloc(bytes.len()).unwrap();
    block.fill(bytes);
    let block = Arc::new(block);
    let part = Part::Shared { block: block.id(), len: bytes.len() as u64, readonly: false };
    from.link.send_with_blocks(&[&message(vec![part])], std::slice::from_ref(&block)).unwrap();
    block
}

fn one(side: &Side) -> RecvPart {
    let mut parts = side.next_parts();
    assert_eq!(parts.len(), 1);
    parts.remove(0).expect("the block was refused")
}

/// A frame that a carrier was given, the parts that go with it, and the number of the first part.
type Given = (Frame, Vec<Vec<u8>>, u64);

#[derive(Default)]
struct Carried(Mutex<Vec<Given>>);

impl Forwarder for Carried {
    fn host(&self) -> ProcUid {
        ProcUid(9)
    }

    fn forward(&self, _to: ProcUid, pieces: &[&[u8]], blocks: &[Arc<Block>], first: u64) -> Result<(), LinkDown> {
        let frame = Frame::decode(&pieces.concat()[4..]).unwrap();
        self.0.lock().unwrap().push((frame, blocks.iter().map(|b| b.bytes().to_vec()).collect(), first));
        Ok(())
    }
}

#[test]
fn queued_blocks_move_whole_to_another_host() {
    let side = Side::new();
    let (arena, carried) = (Arena::new(), Arc::new(Carried::default()));
    let blocks: Vec<_> = [3u8, 4].iter().map(|n| share(&arena, &side, &[*n; 100_000])).collect();
    side.send_raw(b"between", Vec::new());
    let both = blocks.iter().map(|b| Part::Shared { block: b.id(), len: 100_000, readonly: true }).collect();
    side.link.send_with_blocks(&[&message(both)], &blocks).unwrap();
    side.link.forward_by(carried.clone());
    // A sender that began before the carrier was set.
    let late = share(&arena, &side, &[5; 70_000]);
    let all = std::mem::take(&mut *carried.0.lock().unwrap());
    let numbers = |m: &Message| {
        m.parts.iter().map(|p| if let Part::OutOfBand { number, .. } = p { *number } else { panic!("{p:?}") }).collect::<Vec<_>>()
    };
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for (frame, ahead, first) in all {
        match frame {
            Frame::Message(m) => {
                assert_eq!(numbers(&m), (first..first + ahead.len() as u64).collect::<Vec<_>>());
                assert!(m.parts.iter().zip(&ahead).all(|(p, a)| p.len() == a.len() as u64));
                parts.push(ahead.iter().map(|a| a[0]).collect());
            }
            Frame::Raw(body) => parts.push(body.into()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(parts, [vec![3], vec![4], b"between".to_vec(), vec![3, 4], vec![5]]);
    // No peer holds a block any more.
    assert!(blocks.iter().chain([&late]).all(|b| Arc::strong_count(b) == 1));
}

#[test]
fn private_mapping_does_not_change_the_block() {
    let (a, b) = connected();
    let arena = Arena::new();
    share(&arena, &a, &[7; 10_000]);
    let part = one(&b);
    assert_eq!((part.len(), part.is_empty(), part.readonly()), (10_000, false, false));
    let map = part.map().unwrap().expect("a shared part");
    assert_eq!((map.len(), map.is_empty()), (10_000, false));
    // SAFETY: writable private memory of that length, used by this thread only.
    let view = unsafe { std::slice::from_raw_parts_mut(map.as_ptr(), map.len()) };
    assert!(view.iter().all(|b| *b == 7));
    view.fill(9);
    assert!(part.bytes().unwrap().iter().all(|b| *b == 7));
    let again = part.map().unwrap().expect("a shared part");
    // SAFETY: readable private memory, as above.
    assert_eq!(unsafe { *again.as_ptr() }, 7);
}

#[test]
fn block_is_released_with_its_last_view() {
    let (a, b) = connected();
    let arena = Arena::new();
    let id = share(&arena, &a, &[1; 4096]).id();
    let part = one(&b);
    let map = part.map().unwrap();
    let busy = || arena.alloc(1).unwrap().id() != id;

    settle(&b, &a);
    assert!(busy(), "the part is held");

    drop(part);
    settle(&b, &a);
    assert!(busy(), "the mapping is held");

    drop(map);
    settle(&b, &a);
    assert!(!busy());
}

#[test]
fn release_travels_with_the_next_frame() {
    let (a, b) = connected();
    let arena = Arena::new();
    let id = share(&arena, &a, &[1; 4096]).id();
    drop(one(&b));
    settle(&b, &a);
    assert_eq!(arena.alloc(1).unwrap().id(), id);
}

#[test]
fn much_is_released_at_once() {
    let (a, b) = connected();
    let arena = Arena::new();
    let block = Arc::downgrade(&share(&arena, &a, &vec![1; 9 << 20]));
    drop(one(&b));
    // No other frame is sent: the release alone frees the block. A later frame cannot overtake it.
    while block.strong_count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn block_sent_twice_needs_two_releases() {
    let (a, b) = connected();
    let arena = Arena::new();
    let block = share(&arena, &a, &[1; 4096]);
    let part = Part::Shared { block: block.id(), len: 4096, readonly: true };
    a.link.send_with_blocks(&[&message(vec![part])], std::slice::from_ref(&block)).unwrap();
    let weak = Arc::downgrade(&block);
    drop(block);
    let (first, second) = (one(&b), one(&b));
    assert!(second.readonly());
    drop(first);
    settle(&b, &a);
    assert!(weak.upgrade().is_some());
    drop(second);
    settle(&b, &a);
    assert!(weak.upgrade().is_none());
}

#[test]
fn false_block_id_is_refused() {
    let (a, b) = connected();
    let arena = Arena::new();
    share(&arena, &a, &[1; 4096]);
    let part = one(&b);
    let shared = |segment, offset, len| Part::Shared { block: BlockId { segment, offset }, len, readonly: false };
    let wrong = vec![
        shared(1, 0, 10),
        shared(0, 0, SEGMENT + 1),
        shared(0, SEGMENT, 1),
        shared(0, 4096, SEGMENT),
        shared(0, !4095, 8192),
        shared(0, 1, 1),
    ];
    a.link.send(&[&message(wrong)], Vec::new()).unwrap();
    assert!(b.next_parts().iter().all(Option::is_none));
    drop(part);
    assert!(RecvPart::accept(shared(0, 0, 1), None).is_none());
}

#[test]
fn freed_segment_is_forgotten() {
    let (a, b) = connected();
    let arena = Arena::new();
    share(&arena, &a, &[1]);
    let keep = one(&b);
    let large = net::arena::KEEP as usize;
    let block = Arc::new(arena.alloc(large).unwrap());
    let part = Part::Shared { block: block.id(), len: large as u64, readonly: true };
    a.link.send_with_blocks(&[&message(vec![part])], std::slice::from_ref(&block)).unwrap();
    let id = block.id().segment;
    drop(block);
    let part = one(&b);
    assert!(b.link.segment(id).is_some());
    drop(part);
    settle(&b, &a);
    settle(&a, &b);
    assert!(b.link.segment(id).is_none());
    drop(keep);
}

#[test]
fn closed_link_holds_neither_segments_nor_blocks() {
    let (a, b) = connected();
    let arena = Arena::new();
    let block = Arc::downgrade(&share(&arena, &a, &[3; 5000]));
    let part = one(&b);
    assert!(b.link.segment(0).is_some() && block.strong_count() > 0);
    b.link.close();
    assert!(b.link.segment(0).is_none());
    // A part that is held stays readable.
    assert!(part.bytes().unwrap().iter().all(|b| *b == 3));
    // `a` reads the end of the stream.
    assert!(matches!(a.next(), side::Got::Down));
    assert!(block.upgrade().is_none());
}
