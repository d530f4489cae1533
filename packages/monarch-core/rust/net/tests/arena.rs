//! Tests of the arena: its free list against a naive model, and the release of its memory.

use net::Arena;
use net::arena::{FreeList, KEEP, SEGMENT};
use proptest::prelude::*;

const LEN: usize = 64;

/// The model: one flag for each unit.
struct Naive([bool; LEN]);

impl Naive {
    fn take(&mut self, n: usize) -> Option<u64> {
        let at = (0..=LEN - n).find(|at| self.0[*at..at + n].iter().all(|used| !used))?;
        self.0[at..at + n].fill(true);
        Some(at as u64)
    }
}

#[derive(Debug, Clone)]
enum Op {
    Take(usize),
    Give(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![(1usize..20).prop_map(Op::Take), any::<prop::sample::Index>().prop_map(Op::Give)]
}

proptest! {
    /// The free list gives the answers of the model: the lowest range that fits, no range twice, neighbours merged.
    #[test]
    fn free_list_equals_its_model(ops in proptest::collection::vec(op(), 0..200)) {
        let (mut list, mut naive) = (FreeList::new(LEN as u64), Naive([false; LEN]));
        let mut held: Vec<(u64, usize)> = Vec::new();
        for op in ops {
            match op {
                Op::Take(n) => {
                    let at = list.take(n as u64);
                    prop_assert_eq!(at, naive.take(n));
                    held.extend(at.map(|at| (at, n)));
                }
                Op::Give(i) if !held.is_empty() => {
                    let (at, n) = held.swap_remove(i.index(held.len()));
                    list.give(at, n as u64);
                    naive.0[at as usize..at as usize + n].fill(false);
                }
                Op::Give(_) => {}
            }
            prop_assert_eq!(list.is_whole(LEN as u64), held.is_empty());
        }
    }
}

#[test]
fn dropped_block_is_reused() {
    let arena = Arena::new();
    let first = arena.alloc(10_000).unwrap();
    let second = arena.alloc(1).unwrap();
    assert_eq!((first.id().offset, second.id().offset), (0, 10_000u64.next_multiple_of(net::sys::page() as u64)));
    let id = first.id();
    drop(first);
    assert_eq!(arena.alloc(12_288).unwrap().id(), id);
    assert_eq!(arena.reserved(), SEGMENT);
}

/// The kernel maps a part only if its offset in the segment is a multiple of the page size.
#[test]
fn blocks_begin_at_pages_of_the_kernel() {
    let page = 64 << 10;
    let arena = Arena::with_page(page as usize);
    let mut blocks: Vec<_> = (1..4).map(|_| arena.alloc(1).unwrap()).collect();
    assert_eq!(blocks.iter().map(|b| b.id().offset).collect::<Vec<_>>(), [0, page, 2 * page]);
    blocks[1].fill(&[7; 100]);
    drop(blocks.remove(0));
    assert_eq!(arena.alloc(page as usize + 1).unwrap().id().offset, 3 * page);
    let own = arena.alloc(SEGMENT as usize + 1).unwrap();
    assert_eq!((own.segment.len, Arena::new().alloc(1).unwrap().segment.len), (SEGMENT + page, SEGMENT));
}

#[test]
fn block_holds_the_filled_bytes() {
    let arena = Arena::new();
    let bytes: Vec<u8> = (0..100_003u32).map(|i| (i % 251) as u8).collect();
    let before = arena.alloc(4096).unwrap();
    let mut block = arena.alloc(bytes.len()).unwrap();
    block.fill(&bytes);
    assert_eq!((block.len(), before.is_empty()), (bytes.len(), false));
    // Read through the descriptor, as a receiver does.
    let mut back = vec![0; bytes.len()];
    let file = std::fs::File::from(block.segment.fd().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, block.id().offset).unwrap();
    assert!(back == bytes);
}

#[test]
fn filling_stops_at_the_block() {
    let arena = Arena::new();
    let mut block = arena.alloc(100).unwrap();
    let next = arena.alloc(100).unwrap();
    block.fill(&[7; 9000]);
    let file = std::fs::File::from(next.segment.fd().try_clone_to_owned().unwrap());
    let mut back = [1; 100];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, next.id().offset).unwrap();
    assert_eq!(back, [0; 100]);
}

#[test]
fn segment_is_as_large_as_its_block() {
    let arena = Arena::new();
    let large = arena.alloc(SEGMENT as usize + 1).unwrap();
    assert_eq!(arena.reserved(), SEGMENT + net::sys::page() as u64);
    drop(large);
    assert_eq!(arena.reserved(), SEGMENT + net::sys::page() as u64, "kept, it is within the bound");
}

#[test]
fn memory_beyond_the_bound_is_freed() {
    let arena = Arena::new();
    let small = arena.alloc(1).unwrap();
    let large = arena.alloc(KEEP as usize).unwrap();
    assert_eq!(arena.reserved(), SEGMENT + KEEP);
    let segment = std::sync::Arc::downgrade(&large.segment);
    drop(large);
    assert_eq!(arena.reserved(), SEGMENT);
    assert!(segment.upgrade().is_none());
    drop(small);
    assert_eq!(arena.reserved(), SEGMENT);
}

/// A receiver that has not been notified yet does not keep the memory.
#[test]
fn memory_of_a_dropped_segment_is_freed() {
    let arena = Arena::new();
    let mut block = arena.alloc(1 << 20).unwrap();
    block.fill(&[1; 1 << 20]);
    let theirs = std::fs::File::from(block.segment.fd().try_clone_to_owned().unwrap());
    let pages = || std::os::unix::fs::MetadataExt::blocks(&theirs.metadata().unwrap());
    assert!(pages() > 0);
    drop((block, arena));
    assert_eq!(pages(), 0);
}

#[test]
fn block_outlives_its_arena() {
    let arena = Arena::new();
    let mut block = arena.alloc(5000).unwrap();
    drop(arena);
    block.fill(&[1; 5000]);
    drop(block);
}

#[test]
fn threads_do_not_get_the_same_block() {
    let arena = Arena::new();
    let threads: Vec<_> = (0..4u8)
        .map(|t| {
            let arena = arena.clone();
            std::thread::spawn(move || {
                for round in 0..200usize {
                    let mut block = arena.alloc(1 + round * 97 % 20_000).unwrap();
                    let bytes = vec![t; block.len()];
                    block.fill(&bytes);
                    let file = std::fs::File::from(block.segment.fd().try_clone_to_owned().unwrap());
                    let mut back = vec![0; block.len()];
                    std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, block.id().offset).unwrap();
                    assert!(back == bytes);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(arena.alloc(SEGMENT as usize).unwrap().id().offset == 0, "all is free again");
}

#[test]
fn block_is_filled_in_fragments() {
    let arena = Arena::new();
    let (mut block, mut next) = (arena.alloc(5000).unwrap(), arena.alloc(5000).unwrap());
    // The later block first, while the pages of the earlier one do not exist.
    next.fill(&[2; 5000]);
    block.fill_at(0, &[1; 3000]);
    block.fill_at(3000, &[3; 2000]);
    assert!(block.bytes()[..3000].iter().all(|b| *b == 1));
    assert!(block.bytes()[3000..].iter().all(|b| *b == 3));
    // A write past the end is cut at the end of the block's pages.
    block.fill_at(4999, &[4; 5000]);
    assert_eq!(block.bytes()[4998..], [3, 4]);
    assert_eq!(next.bytes(), [2; 5000]);
    next.fill_at(usize::MAX, &[5]);
    assert_eq!(next.bytes(), [2; 5000]);
}
