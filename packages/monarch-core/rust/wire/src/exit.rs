//! The exit reason of a proc, as the kernel reported it to the agent. Every process and Python have the same value.

use serde::{Deserialize, Serialize};

use crate::MailboxId;

/// The reason for the end of a proc.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExitReason {
    /// The process ended with code 0.
    Returned,
    ExitCode(i32),
    /// A signal has killed the process.
    Signal {
        signal: i32,
        core_dumped: bool,
    },
    /// The owner requested the end.
    Stopped(String),
    /// The process did not start; the text is the reason.
    NotStarted(String),
    /// The agent of its host has ended or is lost.
    HostLost(String),
    /// The kernel killed the process because this cgroup was out of memory.
    Oom {
        signal: i32,
        cgroup: String,
    },
    /// The process is alive, but its host cannot be reached from here.
    LinkLost(String),
    /// A client has ended: the one through which the process was reached, or the process itself.
    ClientLost(String),
}

impl ExitReason {
    /// The value of `kind` in Python's `ExitReason`.
    pub fn kind(&self) -> &'static str {
        match self {
            ExitReason::Returned => "returned",
            ExitReason::ExitCode(_) => "exit_code",
            ExitReason::Signal { .. } => "signal",
            ExitReason::Stopped(_) => "stopped",
            ExitReason::NotStarted(_) => "not_started",
            ExitReason::HostLost(_) => "host_lost",
            ExitReason::Oom { .. } => "oom",
            ExitReason::LinkLost(_) => "link_lost",
            ExitReason::ClientLost(_) => "client_lost",
        }
    }

    /// True if the process was stopped, which is no failure.
    pub fn is_stop(&self) -> bool {
        matches!(self, ExitReason::Stopped(_))
    }

    pub fn exit_code(&self) -> Option<i32> {
        if let ExitReason::ExitCode(code) = self { Some(*code) } else { None }
    }

    pub fn signal(&self) -> Option<i32> {
        match self {
            ExitReason::Signal { signal, .. } | ExitReason::Oom { signal, .. } => Some(*signal),
            _ => None,
        }
    }

    /// The text of the kinds that have one. For `Stopped` it begins with the time limits of the stop.
    pub fn detail(&self) -> &str {
        match self {
            ExitReason::Stopped(why) | ExitReason::NotStarted(why) => why,
            ExitReason::HostLost(why) | ExitReason::LinkLost(why) | ExitReason::ClientLost(why) => why,
            ExitReason::Oom { cgroup, .. } => cgroup,
            ExitReason::Returned | ExitReason::ExitCode(_) | ExitReason::Signal { .. } => "",
        }
    }
}

/// The facts about a proc that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcEnd {
    pub pid: u32,
    /// The proc had started and sent a frame before it ended.
    pub started: bool,
    pub host: String,
    pub reason: ExitReason,
    /// Meshes whose actors in the proc had begun their `__cleanup__` and not finished it. Empty if the proc was stopped.
    pub cleaning: Vec<MailboxId>,
    /// The last lines of its output, oldest first.
    pub output: Vec<String>,
    /// Its last events, in the encoding of the crate `events`; empty if no events were recorded.
    pub recent: Vec<u8>,
}
