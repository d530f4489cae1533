//! Another process, and the sending end towards it: its link, the windows of its mailboxes, the messages that wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use net::{Block, Link, RecvPart, Waiter};
pub use wire::frame::Head;
use wire::frame::{MESSAGE, REPLY, RETURN, begin, put_reply_head};
use wire::frame_fragment::Gathering;
use wire::{Control, Frame, MailboxId, Part, ProcUid, SlotId, Status};

use crate::node::assembly::{Assembly, waits};
use crate::node::credit::{OVERHEAD, Window};
use crate::node::lending::{Lending, Loan};
use crate::node::mailbox::Incoming;
use crate::node::payload::{OwnedPayload, Payload};
use crate::node::tombs::Ended;
use crate::sync::{Mutex, lock};

/// Of one message to another host, with room for its head.
pub const MOST_BETWEEN_HOSTS: u64 = (4 << 30) - (16 << 20);

/// A message that comes back to its sender if it cannot be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Returned {
    pub sender: MailboxId,
    pub dest: MailboxId,
}

/// What waits for credit.
pub(crate) enum Queued {
    Frame(Vec<u8>, OwnedPayload, Option<Returned>),
    Local(Incoming),
}

impl Queued {
    fn returned(self) -> Option<Returned> {
        match self {
            Queued::Frame(_, _, returned) => returned,
            Queued::Local(_) => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    Yes,
    /// The receiver is behind; nothing was sent.
    Full,
    /// The process is gone, see `Peer::ended`.
    Ended,
}

pub struct Peer {
    pub uid: ProcUid,
    pub link: Arc<Link>,
    windows: Mutex<HashMap<MailboxId, Window<Queued>>>,
    waiting: Mutex<Vec<Arc<Waiter>>>,
    ended: OnceLock<Arc<Ended>>,
    /// Messages that come back if they cannot be delivered, sent before the link has its socket: without one, none of them has gone out.
    unlinked: Mutex<Vec<Returned>>,
    gathering: Mutex<Gathering>,
    assembly: Mutex<Assembly>,
    /// Frames are held there: those that follow are to join them.
    holds: AtomicBool,
    lending: Arc<Lending>,
}

impl Peer {
    pub fn new(uid: ProcUid, link: Arc<Link>, lending: Arc<Lending>) -> Arc<Self> {
        Arc::new(Peer {
            uid,
            link,
            windows: Mutex::default(),
            waiting: Mutex::default(),
            ended: OnceLock::new(),
            unlinked: Mutex::default(),
            gathering: Mutex::default(),
            assembly: Mutex::default(),
            holds: AtomicBool::new(false),
            lending,
        })
    }

    /// A frame to another host has a length of 32 bits; on one host large parts are beside the frame.
    pub fn takes(&self, len: u64) -> bool {
        len < MOST_BETWEEN_HOSTS || !self.link.is_carried()
    }

    pub fn ended(&self) -> Option<&Arc<Ended>> {
        self.ended.get()
    }

    /// From now on nothing is sent. What waited for credit or for the link, and is to come back; nothing if the end is known already.
    pub(crate) fn set_ended(&self, ended: Arc<Ended>) -> Vec<Returned> {
        let first = self.ended.set(ended).is_ok();
        let windows = std::mem::take(&mut *lock(&self.windows));
        *lock(&self.gathering) = Gathering::default();
        *lock(&self.assembly) = Assembly::default();
        self.holds.store(false, Ordering::Release);
        self.wake_waiting();
        let left = windows.into_values().flat_map(|mut w| w.take_queue());
        let mut unlinked = std::mem::take(&mut *lock(&self.unlinked));
        // One that is down has had its socket.
        if self.link.is_attached() || self.link.is_down() {
            unlinked.clear();
        }
        if first { unlinked.into_iter().chain(left.filter_map(Queued::returned)).collect() } else { vec![] }
    }

    /// A piece of what the process sends; all of it when this was the last one.
    pub(crate) fn gather(&self, piece: &[u8]) -> Option<Vec<u8>> {
        // Pieces that do not fit are the fault of their sender, who is of the job.
        lock(&self.gathering).take(piece, net::sys::advise_huge).ok().flatten()
    }

    /// A frame has come from another host: it is given back if it is to be handled now.
    pub(crate) fn frame_came(&self, frame: Frame) -> Option<Frame> {
        if !waits(&frame) && !self.holds.load(Ordering::Acquire) {
            return Some(frame);
        }
        // Not about what was sent before them: parts wait for them.
        if matches!(frame, Frame::Control(Control::PartFetched { .. } | Control::PartRefused { .. } | Control::BulkRefused { .. })) {
            return Some(frame);
        }
        let mut assembly = lock(&self.assembly);
        // Of one that is gone nothing comes any more; in this order with `set_ended`.
        if self.ended.get().is_some() {
            return Some(frame);
        }
        let now = assembly.frame(frame);
        self.holds.store(!assembly.is_empty(), Ordering::Release);
        now
    }

    /// A large part of a frame; true if the caller is to handle what `next_whole` gives, until there is none.
    pub(crate) fn part_came(&self, number: u64, part: RecvPart) -> bool {
        let mut assembly = lock(&self.assembly);
        self.ended.get().is_none() && assembly.part(number, part)
    }

    pub(crate) fn next_whole(&self) -> Option<Frame> {
        let mut assembly = lock(&self.assembly);
        let next = assembly.next_whole();
        self.holds.store(!assembly.is_empty(), Ordering::Release);
        next
    }

    /// The parts of a frame that has come by this peer's link; none if they make no sense.
    pub(crate) fn adopt(&self, parts: Vec<Part>) -> Option<Vec<RecvPart>> {
        let adopt = |part| match part {
            Part::Ahead { number, len, readonly } | Part::Lent { number, len, readonly, .. } => {
                let part = lock(&self.assembly).take(number)?;
                (part.len() as u64 == len).then(|| part.described(readonly))
            }
            part => RecvPart::adopt(part, Some(&self.link)),
        };
        parts.into_iter().map(adopt).collect()
    }

    fn wake_waiting(&self) {
        for w in lock(&self.waiting).drain(..) {
            w.notify();
        }
    }

    /// Sends a message within the mailbox's credit; beyond it queues it, or refuses if `queue` is false.
    pub fn send_message(&self, head: &Head<'_>, payload: &Payload<'_>, queue: bool) -> Sent {
        if self.ended.get().is_some() {
            return Sent::Ended;
        }
        let mut bytes = Vec::with_capacity(64 + head.method.len() + head.extent.len() + payload.len().min(4096) as usize);
        begin(&mut bytes, MESSAGE);
        head.put(&mut bytes, payload.count());
        let cost = payload.len() + OVERHEAD;
        {
            let mut windows = lock(&self.windows);
            let window = windows.entry(head.dest).or_default();
            if !window.is_open() {
                if !queue {
                    return Sent::Full;
                }
                // What waited is taken back under the same lock; nothing may join it after that.
                if self.ended.get().is_some() {
                    return Sent::Ended;
                }
                let returned = (head.flags & RETURN != 0).then_some(Returned { sender: head.sender, dest: head.dest });
                window.enqueue(cost, Queued::Frame(bytes, payload.to_owned_parts(), returned));
                return Sent::Yes;
            }
            window.spend(cost);
        }
        if head.flags & RETURN != 0 && !self.link.is_carried() && !self.link.is_attached() {
            let mut unlinked = lock(&self.unlinked);
            // What is here is taken under the same lock; nothing may join it after that.
            if self.ended.get().is_some() {
                return Sent::Ended;
            }
            unlinked.push(Returned { sender: head.sender, dest: head.dest });
        }
        // A link that has just gone down is reported by its agent, which fails everything that waits.
        let _ = payload.send(&self.link, &mut bytes, |block| self.lend(block));
        Sent::Yes
    }

    /// The same bookkeeping for a message that stays in this process; gives it back when it may be delivered now.
    pub fn admit_local(&self, message: Incoming, queue: bool) -> Result<Option<Incoming>, Incoming> {
        let cost = message.cost();
        let mut windows = lock(&self.windows);
        let window = windows.entry(message.dest).or_default();
        if !window.is_open() {
            if !queue {
                return Err(message);
            }
            window.enqueue(cost, Queued::Local(message));
            return Ok(None);
        }
        window.spend(cost);
        Ok(Some(message))
    }

    /// May a message to this mailbox go out now?
    pub fn has_credit(&self, dest: MailboxId) -> bool {
        self.ended.get().is_some() || lock(&self.windows).get(&dest).is_none_or(Window::is_open)
    }

    /// Counts a message to this mailbox that goes out another way.
    pub fn spend(&self, dest: MailboxId, cost: u64) {
        if self.ended.get().is_none() {
            lock(&self.windows).entry(dest).or_default().spend(cost);
        }
    }

    pub fn wait_for_credit(&self, w: &Arc<Waiter>) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|x| Arc::ptr_eq(x, w)) {
            waiting.push(w.clone());
        }
    }

    /// Credit has come back: what waited goes out, local messages through `deliver`, which is called without locks.
    pub fn refill(&self, mailbox: MailboxId, bytes: u64, mut deliver: impl FnMut(Incoming)) {
        let mut given = Some(bytes);
        while let Some(q) = self.next_queued(mailbox, given.take()) {
            match q {
                Queued::Frame(mut head, payload, _) => drop(payload.borrow().send(&self.link, &mut head, |block| self.lend(block))),
                Queued::Local(m) => deliver(m),
            }
        }
        self.wake_waiting();
    }

    /// Nobody will give credit for this mailbox: what waits for it is dropped, and who waits goes on.
    pub fn forget_window(&self, mailbox: MailboxId) {
        lock(&self.windows).remove(&mailbox);
        self.wake_waiting();
    }

    /// In one step with taking the credit, so that nobody finds a window shut behind which nothing waits.
    fn next_queued(&self, mailbox: MailboxId, given: Option<u64>) -> Option<Queued> {
        let mut windows = lock(&self.windows);
        let window = windows.get_mut(&mailbox)?;
        if given.is_some_and(|bytes| !window.refill(bytes)) {
            return None;
        }
        let next = window.next_out();
        if window.is_idle() {
            windows.remove(&mailbox);
        }
        next
    }

    pub fn send_reply(&self, slot: SlotId, rank: u32, status: Status, payload: &Payload<'_>) {
        let mut head = Vec::with_capacity(32 + payload.len().min(4096) as usize);
        begin(&mut head, REPLY);
        put_reply_head(&mut head, slot, rank, status, payload.count());
        let _ = payload.send(&self.link, &mut head, |block| self.lend(block));
    }

    fn lend(&self, block: &Arc<Block>) -> Option<Loan> {
        self.lending.lend(self, block)
    }

    pub fn send_frame(&self, f: &Frame) {
        let _ = self.link.send(&[&f.encode()], Vec::new());
    }

    pub fn send_control(&self, c: Control) {
        self.send_frame(&Frame::Control(c));
    }
}
