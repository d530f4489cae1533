//! The sends to ports of any process, and the receives from ports of this one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wire::MailboxId;
use wire::frame::{EXCEPTION, RANKED, RETURN, TO_PORT};

use super::interpreter::Interpreter;
use super::send::Sending;
use super::sender;
use crate::calls::pending_call::{Mode, PendingCall};
use crate::mailboxes::mailbox::Mailbox;
use crate::node::Node;
use crate::peers::peer::{Head, Peer, Returned, Sent};
use crate::transfers::payload::{OutPart, Payload};

/// A message to a port, without its parts.
#[derive(Clone, Copy)]
pub struct PortMessage {
    pub port: MailboxId,
    /// The rank of the sender, for a ranked port.
    pub rank: Option<u32>,
    /// The message is an exception, which the receive raises.
    pub is_exception: bool,
    /// The sender is notified if the message cannot be delivered.
    pub is_returnable: bool,
}

impl PortMessage {
    fn head(self, sender: MailboxId) -> Head<'static> {
        Head { dest: self.port, sender, rank: self.rank.unwrap_or(0), flags: self.flags(), ..Head::default() }
    }

    fn flags(self) -> u8 {
        let optional = [(self.rank.is_some(), RANKED), (self.is_exception, EXCEPTION), (self.is_returnable, RETURN)];
        optional.iter().filter(|(is_set, _)| *is_set).fold(TO_PORT, |flags, (_, flag)| flags | flag)
    }
}

/// Sends a message to a port of the process `peer`. If the process has ended, a returnable message is reported to its sender.
pub fn send<'p, I: Interpreter>(
    interpreter: &I,
    node: &Node,
    peer: &Peer,
    message: PortMessage,
    payload: &Payload<'_>,
    local: impl Fn() -> Vec<OutPart<'p>>,
) -> Result<(), I::Error> {
    let head = message.head(MailboxId(sender::id()));
    let sending = Sending { messages: &node.messages, poller: &node.poller };
    let sent = sending.send(interpreter, peer, &head, payload, local)?;
    report_if_ended(node, peer, &head, sent);
    Ok(())
}

/// Sends a message of the mailbox `from` to a port of the process `peer`. Without credit the message is queued: the thread must not wait.
pub fn send_or_queue<'p>(
    node: &Node,
    peer: &Peer,
    from: MailboxId,
    message: PortMessage,
    payload: &Payload<'_>,
    local: impl Fn() -> Vec<OutPart<'p>>,
) {
    let head = message.head(from);
    let sent = node.messages.send(peer, &head, payload, local, true);
    report_if_ended(node, peer, &head, sent);
}

/// Reports a returnable message to its sender if the process of its receiver has ended.
fn report_if_ended(node: &Node, peer: &Peer, head: &Head<'_>, sent: Sent) {
    if sent == Sent::Ended && head.flags & RETURN != 0 {
        node.replies.report_ended(Returned { sender: head.sender, dest: head.dest }, peer);
    }
}

/// A receive of the next message of a port that no other receive takes.
pub fn receive(node: &Node, port: &Mailbox) -> Arc<PendingCall> {
    let receive = node.calls.start(Mode::FirstError, 1, Arc::from([]));
    // The message comes from the mailbox, and no process answers the call id.
    node.calls.forget(receive.call_id);
    if let Some((from, bytes)) = port.take_into(&receive) {
        node.messages.give_credit(from, port.id, bytes);
    }
    receive
}

/// Abandons a receive, unless its message was read: the message goes to the next receive.
pub fn abandon(node: &Node, port: &Mailbox, receive: &Arc<PendingCall>) {
    if !receive.retrieved.load(Ordering::Acquire) && !port.abandon(receive) {
        node.messages.dropped_items.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use wire::ProcUid;

    use super::*;
    use crate::operations::interpreter::model::Model;
    use crate::system::SystemEvent;

    const PORT: MailboxId = MailboxId(10);
    const MESSAGE: PortMessage = PortMessage { port: PORT, rank: None, is_exception: false, is_returnable: true };

    fn send_bytes(node: &Node, to: ProcUid, bytes: &[u8]) {
        let local = || vec![OutPart { bytes, readonly: true }];
        send(&Model::default(), node, &node.peers.peer(to), MESSAGE, &Payload::small(bytes), local).unwrap();
    }

    #[test]
    fn abandoned_receive_leaves_its_message_to_the_next() {
        let node = Node::start(ProcUid(1), ProcUid(1)).unwrap();
        let port = node.mailboxes.get(PORT).unwrap();
        let first = receive(&node, &port);
        send_bytes(&node, node.uid, b"one");
        assert!(first.is_done(0));
        abandon(&node, &port, &first);
        assert!(receive(&node, &port).is_done(0));
        node.poller.stop();
    }

    #[test]
    fn read_message_is_not_received_again() {
        let node = Node::start(ProcUid(1), ProcUid(1)).unwrap();
        let port = node.mailboxes.get(PORT).unwrap();
        let first = receive(&node, &port);
        send_bytes(&node, node.uid, b"one");
        first.retrieved.store(true, Ordering::Release);
        abandon(&node, &port, &first);
        assert!(!receive(&node, &port).is_done(0));
        node.poller.stop();
    }

    #[test]
    fn message_to_an_ended_process_is_reported() {
        let node = Node::start(ProcUid(1), ProcUid(1)).unwrap();
        node.ends.procs_ended(vec![(ProcUid(7), crate::peers::ended::host_end("", "a test"))]);
        while node.system.pop().is_some() {}
        send_bytes(&node, ProcUid(7), b"lost");
        assert!(matches!(node.system.pop(), Some(SystemEvent::Request { .. })));
        node.poller.stop();
    }
}
