//! Blocks of this process that the peer of a link holds, and the segments that the peer knows. Owned by the link.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use wire::BlockId;

use crate::arena::{Block, Segment};

/// Blocks with the number of uses by the peer, and the segments that were announced to the peer.
#[derive(Default)]
pub struct SharedBlocks {
    blocks: HashMap<BlockId, (Arc<Block>, u32)>,
    announced: HashMap<u32, Weak<Segment>>,
}

impl SharedBlocks {
    /// Counts one more use of each block; returns the segments that the peer does not know yet.
    pub fn share(&mut self, blocks: &[Arc<Block>]) -> Vec<Arc<Segment>> {
        let mut fresh = Vec::new();
        for block in blocks {
            if self.announced.insert(block.segment.id, Arc::downgrade(&block.segment)).is_none() {
                fresh.push(block.segment.clone());
            }
            self.blocks.entry(block.id()).or_insert_with(|| (block.clone(), 0)).1 += 1;
        }
        fresh
    }

    pub fn block(&self, id: BlockId) -> Option<Arc<Block>> {
        self.blocks.get(&id).map(|shared| shared.0.clone())
    }

    /// Counts one use less of each block; returns the blocks that the peer no longer uses.
    pub fn release_uses(&mut self, blocks: &[BlockId]) -> Vec<Arc<Block>> {
        let mut freed = Vec::new();
        for id in blocks {
            if let Some(entry) = self.blocks.get_mut(id) {
                entry.1 -= 1;
                if entry.1 == 0 {
                    freed.extend(self.blocks.remove(id).map(|e| e.0));
                }
            }
        }
        freed
    }

    /// Forgets a segment that the peer no longer knows.
    pub fn forget(&mut self, segment: u32) {
        self.announced.remove(&segment);
    }

    /// Forgets the segments that no longer exist; returns their ids, of which the peer must be notified.
    pub fn sweep(&mut self) -> Vec<u32> {
        let gone: Vec<u32> = self.announced.iter().filter(|(_, s)| s.strong_count() == 0).map(|(id, _)| *id).collect();
        gone.iter().for_each(|id| drop(self.announced.remove(id)));
        gone
    }
}
