//! Large parts on their way into a channel, and what must not overtake them.
//!
//! What goes to another host goes into the channel at once, but for large parts: of those only as much as keeps the stream busy. Those from
//! one process to another are a lane, and come in their order; lanes take turns, a stretch each. Frames go past them all, for their
//! receiver keeps them until it has their parts. But what a process has an agent do is about other processes, too: it is behind all
//! that this process has sent before, and before all that it sends then. Messages, answers and credits are for the receiver alone, which
//! may be a client, and so an agent. No I/O here.

use std::collections::VecDeque;
use std::sync::Arc;

use wire::frame::{CREDIT, MESSAGE, REPLY};
use wire::routed::Frames;
use wire::{ProcUid, Route, part_fragment};

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

/// Not for an actor, or for whoever waits for an answer: for the one that starts, stops and links processes.
fn is_for_agent(route: &Route, body: &[u8]) -> bool {
    route.to == route.to_host && !Frames::of(body).all(|f| matches!(f.first(), Some(&(MESSAGE | REPLY | CREDIT))))
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

    /// A frame that goes this way must wait here. `body` is what it carries; it tells that the processes in `ended` have ended, which is
    /// behind all that they have sent.
    pub fn is_behind(&self, route: &Route, ended: &[ProcUid], body: &[u8]) -> bool {
        let mut its = self.lanes.iter().filter(|l| l.from == route.from).peekable();
        let is_behind_its_own = its.peek().is_some() && (its.any(|l| l.to.is_none()) || is_for_agent(route, body));
        is_behind_its_own || self.lanes.iter().any(|l| ended.contains(&l.from))
    }

    pub fn put_frame(&mut self, route: &Route, ended: &[ProcUid], frame: Box<[u8]>, body: usize) {
        self.bytes += frame.len();
        if !ended.is_empty() || is_for_agent(route, &frame[body..]) {
            self.join(route.from, ended);
        }
        self.lane(route).items.push_back(Item::Frame(frame));
    }

    /// A part whose bytes are there.
    pub fn put_part(&mut self, route: &Route, number: u64, part: Arc<RecvPart>) {
        self.bytes += part.len();
        self.lane(route).items.push_back(Item::Part { route: *route, number, part, at: 0 });
    }

    fn lane(&mut self, route: &Route) -> &mut Lane {
        let found = self.lanes.iter().position(|l| l.from == route.from && l.to.is_none_or(|to| to == route.to));
        let i = found.unwrap_or_else(|| {
            self.lanes.push_back(Lane { from: route.from, to: Some(route.to), items: VecDeque::new() });
            self.lanes.len() - 1
        });
        &mut self.lanes[i]
    }

    /// Makes one lane of all that a process has, and others that have ended.
    fn join(&mut self, from: ProcUid, ended: &[ProcUid]) {
        let (its, others) = std::mem::take(&mut self.lanes).into_iter().partition(|l| l.from == from || ended.contains(&l.from));
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
                let n = (part.len() - *at).min(part_fragment::SIZE);
                let left = part.len() - *at - n;
                outbox.put(Held::Own(part_fragment::head(route, *number, left as u64, n).into()), n == 0);
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
