//! Procs that end while an actor runs its `__cleanup__`.
//!
//! A proc that is being stopped counts as stopped, however it ends: a library that crashes in a destructor is no failure. An actor's
//! clean-up that did not finish is a failure, however, and only the agent knows of it: the proc reports when a clean-up begins and ends.

use wire::MailboxId;
use wire::exit::ExitReason;

/// The clean-ups of one proc. The proc's entry owns it.
#[derive(Default)]
pub(crate) struct Cleanups {
    /// The meshes whose actors are in their clean-up now.
    running: Vec<MailboxId>,
    /// The agent has killed the proc.
    killed: bool,
}

impl Cleanups {
    /// Handles the report of a proc that the clean-up of an actor begins or ends.
    pub fn note(&mut self, mesh: MailboxId, begins: bool) {
        self.running.retain(|m| *m != mesh);
        if begins {
            self.running.push(mesh);
        }
    }

    pub fn killed(&mut self) {
        self.killed = true;
    }

    /// The exit reason of the proc, which was asked to stop if `stopping` is set, and the clean-ups that did not finish.
    pub fn outcome(self, stopping: Option<String>, reason: impl FnOnce() -> ExitReason) -> (ExitReason, Vec<MailboxId>) {
        match stopping {
            Some(why) if self.killed || self.running.is_empty() => (ExitReason::Stopped(why), vec![]),
            _ => (reason(), self.running),
        }
    }
}
