//! A peer: another process, with the link to it, the credit of its mailboxes, and the messages that wait for credit.
//!
//! A message that exceeds the credit of its mailbox waits in this process, in order. The end of the process is set once; from then on no
//! message is sent or queued, and the queued messages are returned or dropped. Frames of a process on another host also wait here for their
//! large parts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use net::{Block, Link, RecvPart, Waiter};
pub use wire::frame::{Head, View};
use wire::frame::{MESSAGE, REPLY, RETURN, begin, put_reply_head};
use wire::frame_fragment::Gathering;
use wire::{CallId, Control, Frame, MailboxId, Part, ProcUid, Status};

use super::ended::Ended;
use crate::mailboxes::credit::{OVERHEAD, Window};
use crate::mailboxes::mailbox::Incoming;
use crate::sync::{Mutex, lock};
use crate::transfers::MAX_REMOTE_MESSAGE;
use crate::transfers::assembly::{Assembly, waits};
use crate::transfers::offers::{OfferRecord, Offers};
use crate::transfers::payload::{OwnedPayload, Payload};

/// A message that is returned to its sender if it cannot be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Returned {
    pub sender: MailboxId,
    pub dest: MailboxId,
}

/// A message that waits for credit.
pub(crate) enum Queued {
    Frame(Vec<u8>, OwnedPayload, Option<Returned>),
    Local(Incoming),
}

impl Queued {
    /// The message to return to its sender, if it is returnable.
    fn returned(self) -> Option<Returned> {
        match self {
            Queued::Frame(_, _, returned) => returned,
            Queued::Local(_) => None,
        }
    }
}

/// The outcome of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    Yes,
    /// The mailbox has no credit; the message was not sent.
    Full,
    /// The process has ended, see `Peer::ended`.
    Ended,
    /// The deadline of the message has passed while the sender waited for credit.
    Expired,
}

/// Another process. `Peers` keeps it until some time after the end of the process.
pub struct Peer {
    pub uid: ProcUid,
    pub link: Arc<Link>,
    /// The credit of each mailbox of the process, and the messages that wait for it.
    windows: Mutex<HashMap<MailboxId, Window<Queued>>>,
    /// The threads that wait for credit.
    waiting: Mutex<Vec<Arc<Waiter>>>,
    ended: OnceLock<Arc<Ended>>,
    /// Returnable messages that were sent before the link got its socket: if it never gets one, none of them has left this process.
    unlinked: Mutex<Vec<Returned>>,
    /// The fragments of a run of frames from another host.
    gathering: Mutex<Gathering>,
    assembly: Mutex<Assembly>,
    /// True while frames are held in `assembly`: later frames must join them.
    is_holding: AtomicBool,
    offers: Arc<Offers>,
}

impl Peer {
    pub fn new(uid: ProcUid, link: Arc<Link>, offers: Arc<Offers>) -> Arc<Self> {
        Arc::new(Peer {
            uid,
            link,
            windows: Mutex::default(),
            waiting: Mutex::default(),
            ended: OnceLock::new(),
            unlinked: Mutex::default(),
            gathering: Mutex::default(),
            assembly: Mutex::default(),
            is_holding: AtomicBool::new(false),
            offers,
        })
    }

    /// True if a message of this length can be sent: a frame to another host has a length of 32 bits; on one host large parts are outside
    /// the frame.
    pub fn takes(&self, len: u64) -> bool {
        len < MAX_REMOTE_MESSAGE || !self.link.is_forwarded()
    }

    pub fn ended(&self) -> Option<&Arc<Ended>> {
        self.ended.get()
    }

    /// Marks the process as ended. Returns the messages to return to their senders: those that waited for credit or for the link. Returns
    /// none if the end was known before.
    pub(crate) fn set_ended(&self, ended: Arc<Ended>) -> Vec<Returned> {
        let first = self.ended.set(ended).is_ok();
        let windows = std::mem::take(&mut *lock(&self.windows));
        *lock(&self.gathering) = Gathering::default();
        *lock(&self.assembly) = Assembly::default();
        self.is_holding.store(false, Ordering::Release);
        self.wake_waiting();
        let left = windows.into_values().flat_map(|mut w| w.take_queue());
        let mut unlinked = std::mem::take(&mut *lock(&self.unlinked));
        // A link that is down has had its socket.
        if self.link.is_attached() || self.link.is_down() {
            unlinked.clear();
        }
        if first { unlinked.into_iter().chain(left.filter_map(Queued::returned)).collect() } else { vec![] }
    }

    /// Takes a fragment of a run of frames from the process; returns the whole run after its last fragment.
    pub(crate) fn add_fragment(&self, fragment: &[u8]) -> Option<Vec<u8>> {
        // Fragments that do not fit are the fault of their sender, which belongs to the job.
        let refused = |_| events::frame_refused(self.uid.0, b"fragment", fragment.len() as u64);
        lock(&self.gathering).take(fragment, net::sys::advise_huge).map_err(refused).ok().flatten()
    }

    /// Takes a frame from another host; returns it if it can be handled now.
    pub(crate) fn on_frame(&self, frame: Frame) -> Option<Frame> {
        if !waits(&frame) && !self.is_holding.load(Ordering::Acquire) {
            return Some(frame);
        }
        // These frames do not refer to earlier messages, and transfers of parts wait for them.
        if matches!(frame, Frame::Control(Control::PartPulled { .. } | Control::PartRefused { .. } | Control::BulkRefused { .. })) {
            return Some(frame);
        }
        let mut assembly = lock(&self.assembly);
        // No more parts of an ended process arrive. `set_ended` sets the end before it empties the assembly, so no frame is left in it.
        if self.ended.get().is_some() {
            return Some(frame);
        }
        let now = assembly.frame(frame);
        self.is_holding.store(!assembly.is_empty(), Ordering::Release);
        now
    }

    /// Takes a large part of a frame; true if the caller must now handle all frames that `next_whole` returns.
    pub(crate) fn on_part(&self, number: u64, part: RecvPart) -> bool {
        let mut assembly = lock(&self.assembly);
        self.ended.get().is_none() && assembly.part(number, part)
    }

    /// The next held frame, if it is complete now.
    pub(crate) fn next_whole(&self) -> Option<Frame> {
        let mut assembly = lock(&self.assembly);
        let next = assembly.next_whole();
        self.is_holding.store(!assembly.is_empty(), Ordering::Release);
        next
    }

    /// Takes the parts of a frame that arrived on this peer's link; `None` if a part is malformed or missing.
    pub(crate) fn resolve_parts(&self, parts: Vec<Part>) -> Option<Vec<RecvPart>> {
        let resolve = |part| match part {
            Part::OutOfBand { number, len, readonly } | Part::Offered { number, len, readonly, .. } => {
                let part = lock(&self.assembly).take(number)?;
                (part.len() as u64 == len).then(|| part.described(readonly))
            }
            part => RecvPart::accept(part, Some(&self.link)),
        };
        parts.into_iter().map(resolve).collect()
    }

    /// Wakes the threads that wait for credit.
    fn wake_waiting(&self) {
        for w in lock(&self.waiting).drain(..) {
            w.notify();
        }
    }

    /// Sends a message if the mailbox has credit. Without credit queues the message, or refuses it if `queue` is false.
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
                // `set_ended` takes the queued messages under the same lock; no message may be queued after that.
                if self.ended.get().is_some() {
                    return Sent::Ended;
                }
                let returned = (head.flags & RETURN != 0).then_some(Returned { sender: head.sender, dest: head.dest });
                window.enqueue(cost, Queued::Frame(bytes, payload.to_owned_parts(), returned));
                return Sent::Yes;
            }
            window.spend(cost);
        }
        if head.flags & RETURN != 0 && !self.link.is_forwarded() && !self.link.is_attached() {
            let mut unlinked = lock(&self.unlinked);
            // `set_ended` takes these messages under the same lock; no message may be added after that.
            if self.ended.get().is_some() {
                return Sent::Ended;
            }
            unlinked.push(Returned { sender: head.sender, dest: head.dest });
        }
        // A link that has just gone down is reported by its agent, and the report fails all calls to the process.
        let _ = payload.send(&self.link, &mut bytes, |block| self.offer(block));
        Sent::Yes
    }

    /// Counts a message that stays in this process against the credit; returns the message if it can be delivered now.
    #[allow(clippy::result_large_err, reason = "a refused message is moved once, and refusals are rare")]
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

    /// True if a message to this mailbox can be sent now.
    pub fn has_credit(&self, dest: MailboxId) -> bool {
        self.ended.get().is_some() || lock(&self.windows).get(&dest).is_none_or(Window::is_open)
    }

    /// Counts a message to this mailbox that another component sends.
    pub fn spend(&self, dest: MailboxId, cost: u64) {
        if self.ended.get().is_none() {
            lock(&self.windows).entry(dest).or_default().spend(cost);
        }
    }

    /// Notifies the waiter once, at the next change of credit.
    pub fn wait_for_credit(&self, w: &Arc<Waiter>) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|x| Arc::ptr_eq(x, w)) {
            waiting.push(w.clone());
        }
    }

    /// Takes returned credit and sends queued messages. Local messages go to `deliver`, which is called without locks.
    pub fn refill(&self, mailbox: MailboxId, bytes: u64, mut deliver: impl FnMut(Incoming)) {
        let mut given = Some(bytes);
        while let Some(q) = self.next_queued(mailbox, given.take()) {
            match q {
                Queued::Frame(mut head, payload, _) => drop(payload.borrow().send(&self.link, &mut head, |block| self.offer(block))),
                Queued::Local(m) => deliver(m),
            }
        }
        self.wake_waiting();
    }

    /// Drops the window of a mailbox that will return no credit: queued messages are dropped, and threads that wait for credit continue.
    pub fn forget_window(&self, mailbox: MailboxId) {
        lock(&self.windows).remove(&mailbox);
        self.wake_waiting();
    }

    /// Takes credit and a message in one step, so that no thread finds a closed window without queued messages.
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

    pub fn send_reply(&self, call_id: CallId, rank: u32, status: Status, payload: &Payload<'_>) {
        let mut head = Vec::with_capacity(32 + payload.len().min(4096) as usize);
        begin(&mut head, REPLY);
        put_reply_head(&mut head, call_id, rank, status, payload.count());
        let _ = payload.send(&self.link, &mut head, |block| self.offer(block));
    }

    /// Offers a block to this peer.
    fn offer(&self, block: &Arc<Block>) -> Option<OfferRecord> {
        let record = self.offers.offer(self.uid, &self.link, block)?;
        // This check comes after the offer, and `set_ended` comes before the removal of offers, so no offer is left over.
        if self.ended.get().is_some() {
            self.offers.ended(self.uid);
        }
        Some(record)
    }

    pub fn send_frame(&self, f: &Frame) {
        let _ = self.link.send(&[&f.encode()], Vec::new());
    }

    pub fn send_control(&self, c: Control) {
        self.send_frame(&Frame::Control(c));
    }
}
