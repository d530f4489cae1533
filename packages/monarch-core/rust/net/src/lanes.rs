//! Large parts on their way into a channel, and what must not overtake them.
//!
//! What goes to another host goes into the channel at once, but for large parts: of those only as much as keeps the stream busy. Those from
//! one process to another are a lane, and come in their order; lanes take turns, a stretch each. Frames go past them all, for their
//! receiver keeps them until it has their parts. But what a process sends to an agent is about other processes, too: it is behind all
//! that this process has sent before, and before all that it sends then. No I/O here.

use std::collections::VecDeque;
use std::sync::Arc;

use wire::{ProcUid, Route, stretch};

use crate::channel::{Held, Outbox};
use crate::segment::RecvPart;

enum Item {
    Frame(Box<[u8]>),
    Part { route: Route, number: u64, part: Arc<RecvPart>, at: usize },
}

struct Lane {
    from: ProcUid,
    /// Of all that the process sends, if none.
    to: Option<ProcUid>,
    items: VecDeque<Item>,
}

#[derive(Default)]
pub struct Lanes {
    lanes: VecDeque<Lane>,
    bytes: usize,
}

impl Lanes {
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A frame that goes this way must wait here.
    pub fn is_behind(&self, route: &Route) -> bool {
        self.lanes.iter().any(|l| l.from == route.from && (l.to.is_none() || route.to == route.to_host))
    }

    pub fn put_frame(&mut self, route: &Route, frame: Box<[u8]>) {
        self.bytes += frame.len();
        self.lane(route).items.push_back(Item::Frame(frame));
    }

    /// A part whose bytes are there.
    pub fn put_part(&mut self, route: &Route, number: u64, part: Arc<RecvPart>) {
        self.bytes += part.len();
        self.lane(route).items.push_back(Item::Part { route: *route, number, part, at: 0 });
    }

    fn lane(&mut self, route: &Route) -> &mut Lane {
        if route.to == route.to_host && self.is_behind(route) {
            self.join(route.from);
        }
        let found = self.lanes.iter().position(|l| l.from == route.from && l.to.is_none_or(|to| to == route.to));
        let i = found.unwrap_or_else(|| {
            self.lanes.push_back(Lane { from: route.from, to: Some(route.to), items: VecDeque::new() });
            self.lanes.len() - 1
        });
        &mut self.lanes[i]
    }

    /// Makes one lane of all that a process has.
    fn join(&mut self, from: ProcUid) {
        let (its, others) = std::mem::take(&mut self.lanes).into_iter().partition(|l| l.from == from);
        self.lanes = others;
        let its: VecDeque<Lane> = its;
        let items = its.into_iter().flat_map(|l| l.items).collect();
        self.lanes.push_back(Lane { from, to: None, items });
    }

    /// Moves the next frame into the channel; false if there is none.
    pub fn next(&mut self, outbox: &mut Outbox) -> bool {
        let Some(mut lane) = self.lanes.pop_front() else { return false };
        let mut turn_is_over = false;
        match lane.items.front_mut() {
            Some(Item::Part { route, number, part, at }) => {
                let n = (part.len() - *at).min(stretch::SIZE);
                let left = part.len() - *at - n;
                outbox.put(Held::Own(stretch::head(route, *number, left as u64, n).into()), n == 0);
                if n > 0 {
                    outbox.put(Held::Part(part.clone(), *at..*at + n), true);
                }
                self.bytes -= n;
                *at += n;
                turn_is_over = true;
                if left == 0 {
                    lane.items.pop_front();
                }
            }
            Some(Item::Frame(_)) => {
                if let Some(Item::Frame(frame)) = lane.items.pop_front() {
                    self.bytes -= frame.len();
                    outbox.push(frame);
                }
            }
            None => {}
        }
        if !lane.items.is_empty() {
            if turn_is_over { self.lanes.push_back(lane) } else { self.lanes.push_front(lane) }
        }
        true
    }
}
