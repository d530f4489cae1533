//! The actor whose code a thread runs, as the sender of messages.

use std::cell::Cell as StdCell;
use std::sync::{Arc, Weak};

use crate::mailboxes::mailbox::Mailbox;

/// The actor whose code this thread runs.
pub struct Sender {
    pub mailbox: Option<Arc<Mailbox>>,
    pub on_loop: bool,
}

/// The sender between calls. A thread's variables are dropped after its last Python code, when no component waits for the thread. They own
/// no mailbox, because a mailbox's messages and descriptors belong to the runtime.
struct ThreadSender {
    id: u64,
    mailbox: Weak<Mailbox>,
    on_loop: bool,
}

thread_local! {
    /// The actor that this thread belongs to.
    static SENDER: StdCell<Option<ThreadSender>> = const { StdCell::new(None) };
}

/// Sets the actor that this thread belongs to. `on_loop`: the thread runs the actor's event loop.
pub fn set(mailbox: &Arc<Mailbox>, on_loop: bool) {
    SENDER.set(Some(ThreadSender { id: mailbox.id.0, mailbox: Arc::downgrade(mailbox), on_loop }));
}

/// The sender of messages of this thread.
pub fn current() -> Option<Sender> {
    read(|s| Sender { mailbox: s.mailbox.upgrade(), on_loop: s.on_loop })
}

/// The id of the sender's mailbox; 0 if the thread belongs to no actor.
pub fn id() -> u64 {
    read(|s| s.id).unwrap_or(0)
}

fn read<T>(f: impl FnOnce(&ThreadSender) -> T) -> Option<T> {
    SENDER.with(|cell| {
        let sender = cell.take();
        let found = sender.as_ref().map(f);
        cell.set(sender);
        found
    })
}
