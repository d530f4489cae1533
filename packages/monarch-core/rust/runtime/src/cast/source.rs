//! The source of casts: the groups of one process, the sequence numbers of its frames, and the removal of groups.
//!
//! The first cast to a group contains all members; later casts contain only the group's id. Each cast takes the next sequence number of
//! every host in the group, so casts and other frames to a host are in one order.

use std::collections::HashMap;
use std::sync::Arc;

use wire::cast::CastMode;
use wire::{Cast, GroupId, GroupSlice, ProcUid, Values};

use super::order::{Counter, OutOrder, all};

/// A group of this process: its members, the counters of their hosts, and the number of the next cast.
struct Target {
    slice: Arc<GroupSlice>,
    counters: Vec<Counter>,
    next: u64,
}

/// The groups of a process, and the numbers of all frames that it sends to other hosts.
pub struct Source {
    me: ProcUid,
    pub order: OutOrder,
    groups: HashMap<GroupId, Target>,
    next: u32,
}

impl Source {
    pub fn new(me: ProcUid) -> Self {
        Source { me, order: OutOrder::default(), groups: HashMap::new(), next: 0 }
    }

    /// Makes a group of the targets of a handle.
    pub fn group(&mut self, whole: GroupSlice) -> GroupId {
        let id = GroupId { source: self.me, number: self.next };
        self.next += 1;
        let counters = whole.hosts.iter().map(|h| self.order.counter(*h)).collect();
        self.groups.insert(id, Target { slice: Arc::new(whole), counters, next: 0 });
        id
    }

    pub fn members(&self, group: GroupId) -> Option<&Arc<GroupSlice>> {
        self.groups.get(&group).map(|g| &g.slice)
    }

    /// Makes a cast for the relay of this host, which is the root of the tree.
    pub fn cast(&mut self, group: GroupId, mode: CastMode, body: Arc<[u8]>, values: Option<Arc<Values>>) -> Option<Cast> {
        let g = self.groups.get_mut(&group)?;
        let number = g.next;
        g.next += 1;
        let slice = (number == 0).then(|| g.slice.clone());
        let order = self.order.cast(&g.counters);
        Some(Cast { group, number, finished: 0, ask: 0, span: all(g.counters.len()), mode, slice, order, body, values })
    }

    /// Removes a group whose handle no longer exists. The returned cast asks all relays to remove it when its casts are finished.
    pub fn forget(&mut self, group: GroupId) -> Option<Cast> {
        let g = self.groups.remove(&group)?;
        // No cast was sent, so no relay knows the group.
        if g.next == 0 {
            return None;
        }
        Some(Cast {
            group,
            number: g.next,
            finished: 0,
            ask: 0,
            span: all(g.counters.len()),
            mode: CastMode::Forget,
            slice: None,
            order: Default::default(),
            body: Arc::new([]),
            values: None,
        })
    }
}
