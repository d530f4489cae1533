//! Procs that die while an actor there runs its `__cleanup__`.
//!
//! A proc that is being stopped has been stopped, however it ends: libraries that crash in their destructors are no failure. But code of
//! an actor that never got to its end is one, and the agent is the only process that knows: the proc says when a clean-up begins and ends.

use wire::MailboxId;
use wire::exit::ExitReason;

/// Of one proc.
#[derive(Default)]
pub(crate) struct Cleanups {
    running: Vec<MailboxId>,
    /// The agent has killed the proc.
    killed: bool,
}

impl Cleanups {
    pub fn note(&mut self, mesh: MailboxId, begins: bool) {
        self.running.retain(|m| *m != mesh);
        if begins {
            self.running.push(mesh);
        }
    }

    pub fn killed(&mut self) {
        self.killed = true;
    }

    /// Why the proc has ended, which was to stop for `stopping`, and the clean-ups that it died in.
    pub fn outcome(self, stopping: Option<String>, reason: impl FnOnce() -> ExitReason) -> (ExitReason, Vec<MailboxId>) {
        match stopping {
            Some(why) if self.killed || self.running.is_empty() => (ExitReason::Stopped(why), vec![]),
            _ => (reason(), self.running),
        }
    }
}
