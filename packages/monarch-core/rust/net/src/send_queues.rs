//! Large parts that wait to enter a channel, and the frames that must not overtake them.
//!
//! Frames to another host enter the channel at once. Large parts enter it only as fast as the stream takes them. The parts from one process
//! to another form a send queue and keep their order; the queues take turns, one fragment each. Most frames overtake the waiting parts,
//! because their receiver keeps each frame until its parts have arrived. Requests to an agent also concern other processes. Such a request
//! stays behind everything that its process sent before, and ahead of everything that the process sends later. Messages, answers and
//! credits concern only their receiver, even where the receiver is a client and therefore also an agent. No I/O here.

use std::collections::VecDeque;
use std::sync::Arc;

use wire::frame::{CREDIT, MESSAGE, REPLY};
use wire::routed::Frames;
use wire::{ProcUid, Route, part_fragment};

use crate::channel::{Held, Outbox};
use crate::segment::RecvPart;

/// An entry of a send queue. `at` is the number of bytes of the part that have entered the channel.
enum Item {
    Frame(Box<[u8]>),
    Part { route: Route, number: u64, part: Arc<RecvPart>, at: usize },
}

/// A send queue.
struct SendQueue {
    from: ProcUid,
    /// The receiving process; `None` if the queue has the items to all receivers.
    to: Option<ProcUid>,
    items: VecDeque<Item>,
}

/// Whether a frame is a request to the agent of the host: neither a message to an actor, nor an answer to a call, nor credit.
fn is_for_agent(route: &Route, body: &[u8]) -> bool {
    route.to == route.to_host && !Frames::of(body).all(|f| matches!(f.first(), Some(&(MESSAGE | REPLY | CREDIT))))
}

/// All send queues of a session.
#[derive(Default)]
pub struct SendQueues {
    queues: VecDeque<SendQueue>,
    bytes: usize,
}

impl SendQueues {
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Bytes that wait in all queues.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a frame on this route must wait in a send queue. `body` is its content. `ended` are the processes whose ends it reports; the
    /// report stays behind everything that they sent.
    pub fn is_behind(&self, route: &Route, ended: &[ProcUid], body: &[u8]) -> bool {
        let mut its = self.queues.iter().filter(|l| l.from == route.from).peekable();
        let is_behind_its_own = its.peek().is_some() && (its.any(|l| l.to.is_none()) || is_for_agent(route, body));
        is_behind_its_own || self.queues.iter().any(|l| ended.contains(&l.from))
    }

    /// Queues a frame that must not overtake the waiting parts. `body` is the offset of its content.
    pub fn put_frame(&mut self, route: &Route, ended: &[ProcUid], frame: Box<[u8]>, body: usize) {
        self.bytes += frame.len();
        if !ended.is_empty() || is_for_agent(route, &frame[body..]) {
            self.join(route.from, ended);
        }
        self.queue(route).items.push_back(Item::Frame(frame));
    }

    /// Queues a part whose bytes are complete.
    pub fn put_part(&mut self, route: &Route, number: u64, part: Arc<RecvPart>) {
        self.bytes += part.len();
        self.queue(route).items.push_back(Item::Part { route: *route, number, part, at: 0 });
    }

    /// The send queue for a route; a new one if none exists.
    fn queue(&mut self, route: &Route) -> &mut SendQueue {
        let found = self.queues.iter().position(|l| l.from == route.from && l.to.is_none_or(|to| to == route.to));
        let i = found.unwrap_or_else(|| {
            self.queues.push_back(SendQueue { from: route.from, to: Some(route.to), items: VecDeque::new() });
            self.queues.len() - 1
        });
        &mut self.queues[i]
    }

    /// Merges the queues of the process `from` and of the processes in `ended` into one.
    fn join(&mut self, from: ProcUid, ended: &[ProcUid]) {
        let (its, others) = std::mem::take(&mut self.queues).into_iter().partition(|l| l.from == from || ended.contains(&l.from));
        self.queues = others;
        let its: VecDeque<SendQueue> = its;
        let items = its.into_iter().flat_map(|l| l.items).collect();
        self.queues.push_back(SendQueue { from, to: None, items });
    }

    /// Moves the next frame or fragment into the channel; returns false if none waits.
    pub fn next(&mut self, outbox: &mut Outbox) -> bool {
        let Some(mut queue) = self.queues.pop_front() else { return false };
        let mut turn_is_over = false;
        match queue.items.front_mut() {
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
                    queue.items.pop_front();
                }
            }
            Some(Item::Frame(_)) => {
                if let Some(Item::Frame(frame)) = queue.items.pop_front() {
                    self.bytes -= frame.len();
                    outbox.push(frame);
                }
            }
            None => {}
        }
        if !queue.items.is_empty() {
            if turn_is_over { self.queues.push_back(queue) } else { self.queues.push_front(queue) }
        }
        true
    }
}
