//! The sending of one message, and the wait for the credit of its mailbox.
//!
//! A thread without credit waits, but not on an event loop and not while its actor has messages: then the message is queued.

use std::sync::Arc;
use std::time::Duration;

use net::Poller;

use super::interpreter::Interpreter;
use super::{sender, wait};
use crate::messages::Messages;
use crate::peers::peer::{Head, Peer, Sent};
use crate::transfers::payload::{OutPart, Payload};

/// The interval of the checks whether the own actor has messages: its mailbox does not notify a thread that waits for credit.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The messages of a process, and the poller on which its threads wait.
pub struct Sending<'a> {
    pub messages: &'a Messages,
    pub poller: &'a Arc<Poller>,
}

impl Sending<'_> {
    /// Sends one message. Waits for credit if this thread may wait. `local` copies the parts of a message that stays in this process.
    pub fn send<'p, I: Interpreter>(
        &self,
        interpreter: &I,
        peer: &Peer,
        head: &Head<'_>,
        payload: &Payload<'_>,
        local: impl Fn() -> Vec<OutPart<'p>>,
    ) -> Result<Sent, I::Error> {
        match self.messages.send(peer, head, payload, &local, false) {
            Sent::Full => self.send_when_possible(interpreter, peer, head, payload, local),
            sent => Ok(sent),
        }
    }

    /// Sends a message without credit.
    #[cold]
    fn send_when_possible<'p, I: Interpreter>(
        &self,
        interpreter: &I,
        peer: &Peer,
        head: &Head<'_>,
        payload: &Payload<'_>,
        local: impl Fn() -> Vec<OutPart<'p>>,
    ) -> Result<Sent, I::Error> {
        let Sending { messages, poller } = *self;
        let due = head.left.and_then(|left| poller.now().checked_add(left));
        let sender = sender::current();
        let own = sender.as_ref().and_then(|s| s.mailbox.as_ref());
        let on_loop = sender.as_ref().is_some_and(|s| s.on_loop) || interpreter.runs_loop()?;
        let (waiter, began) = (wait::waiter(poller), events::now_if_on());
        let mut interval = LOOK_INTERVAL;
        loop {
            // An actor with messages in its own mailbox does not wait for credit, so actors that flood each other make progress.
            if on_loop || own.is_some_and(|own| !own.is_empty()) {
                return Ok(messages.send(peer, head, payload, local, true));
            }
            let now = poller.now();
            // The rest of the deadline when the message is sent.
            let head = &Head { left: due.map(|due| due.saturating_duration_since(now)), ..*head };
            if head.left == Some(Duration::ZERO) {
                messages.count_expired();
                return Ok(Sent::Expired);
            }
            peer.wait_for_credit(&waiter);
            let mut look = Some(now + interval);
            if poller.timeline().is_some() {
                // Simulated hours pass in few checks; a thread without a mailbox needs none.
                interval *= 2;
                look = look.filter(|_| own.is_some());
            }
            look = [look, due].into_iter().flatten().min();
            wait::wait(interpreter, poller, &waiter, look, || peer.has_credit(head.dest))?;
            let sent = messages.send(peer, head, payload, &local, false);
            if sent != Sent::Full {
                if began > 0 {
                    events::credit_stall(head.dest.0, head.method, peer.uid.0, events::now() - began);
                }
                return Ok(sent);
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use wire::{MailboxId, ProcUid};

    use super::*;
    use crate::mailboxes::credit::WINDOW;
    use crate::mailboxes::mailbox::{Delivery, Mailbox};
    use crate::node::Node;
    use crate::operations::interpreter::model::Model;

    const BOX: MailboxId = MailboxId(10);

    /// A process whose mailbox has no credit left.
    fn without_credit() -> (Arc<Node>, Arc<Mailbox>) {
        let node = Node::start(ProcUid(1), ProcUid(1)).unwrap();
        let mailbox = node.mailboxes.get(BOX).unwrap();
        assert_eq!(send(&node, &Model::default(), WINDOW as usize), Sent::Yes);
        (node, mailbox)
    }

    fn send(node: &Arc<Node>, interpreter: &Model, len: usize) -> Sent {
        let (peer, bytes) = (node.peers.peer(node.uid), vec![0; len]);
        let local = || vec![OutPart { bytes: &bytes, readonly: true }];
        let sending = Sending { messages: &node.messages, poller: &node.poller };
        sending.send(interpreter, &peer, &Head { dest: BOX, ..Head::default() }, &Payload::small(&bytes), local).unwrap()
    }

    /// Handles the first message of the mailbox.
    fn handle_one(node: &Node, mailbox: &Mailbox) {
        let Some(Delivery::Message(m)) = mailbox.pop() else { panic!("no message") };
        node.messages.handled(mailbox, m.from, m.cost());
    }

    #[test]
    fn thread_waits_for_credit_without_the_lock() {
        let (node, mailbox) = without_credit();
        let releases = Rc::new(Cell::new(0));
        let interpreter = Model::default();
        let (theirs, counted) = (node.clone(), releases.clone());
        *interpreter.released.borrow_mut() = Some(Box::new(move || {
            counted.set(counted.get() + 1);
            handle_one(&theirs, &mailbox);
        }));
        assert_eq!(send(&node, &interpreter, 1), Sent::Yes);
        assert_eq!(releases.get(), 1);
        node.poller.stop();
    }

    #[test]
    fn event_loop_queues_its_message() {
        let (node, mailbox) = without_credit();
        let interpreter = Model { runs_loop: true, ..Model::default() };
        *interpreter.released.borrow_mut() = Some(Box::new(|| panic!("the loop was blocked")));
        assert_eq!((send(&node, &interpreter, 1), mailbox.len()), (Sent::Yes, 1));
        handle_one(&node, &mailbox);
        assert_eq!(mailbox.len(), 1, "the message is delivered when there is credit");
        node.poller.stop();
    }

    #[test]
    fn actor_with_messages_queues_its_message() {
        let (node, mailbox) = without_credit();
        let theirs = node.clone();
        std::thread::spawn(move || {
            sender::set(&mailbox, false);
            let interpreter = Model::default();
            *interpreter.released.borrow_mut() = Some(Box::new(|| panic!("the actor was blocked")));
            assert_eq!(send(&theirs, &interpreter, 1), Sent::Yes);
        })
        .join()
        .unwrap();
        node.poller.stop();
    }
}
