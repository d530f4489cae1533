//! The exit reason of a proc, as the kernel reported it to the agent; the same value in every process and in Python.

use serde::{Deserialize, Serialize};

use crate::MailboxId;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExitReason {
    /// The process ended with code 0.
    Returned,
    ExitCode(i32),
    Signal {
        signal: i32,
        core_dumped: bool,
    },
    /// Ended because its owner asked for it.
    Stopped(String),
    /// Never came up; the text says why.
    NotStarted(String),
    /// The agent of its host is gone.
    HostLost(String),
    /// Killed by the kernel because this cgroup was out of memory.
    Oom {
        signal: i32,
        cgroup: String,
    },
    /// It lives, but there is no way to its host from here.
    LinkLost(String),
    /// The client is gone through which another client's job was reached, or which was the process itself.
    ClientLost(String),
}

impl ExitReason {
    /// The kind of an `ExitReason` of Python.
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

    pub fn exit_code(&self) -> Option<i32> {
        if let ExitReason::ExitCode(code) = self { Some(*code) } else { None }
    }

    pub fn signal(&self) -> Option<i32> {
        match self {
            ExitReason::Signal { signal, .. } | ExitReason::Oom { signal, .. } => Some(*signal),
            _ => None,
        }
    }

    /// The reason in words, of the kinds that have one. The text of a stop has its bounds before it.
    pub fn detail(&self) -> &str {
        match self {
            ExitReason::Stopped(why) | ExitReason::NotStarted(why) => why,
            ExitReason::HostLost(why) | ExitReason::LinkLost(why) | ExitReason::ClientLost(why) => why,
            ExitReason::Oom { cgroup, .. } => cgroup,
            ExitReason::Returned | ExitReason::ExitCode(_) | ExitReason::Signal { .. } => "",
        }
    }
}

/// What is known of a proc that is gone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcEnd {
    pub pid: u32,
    /// It had come up and spoken before it ended.
    pub started: bool,
    pub host: String,
    pub reason: ExitReason,
    /// Meshes whose actors there had begun their `__cleanup__` and not ended it, if the proc died by itself.
    pub cleaning: Vec<MailboxId>,
    /// The last lines it wrote, oldest first.
    pub output: Vec<String>,
    /// Its last events, as the crate `events` writes them down; empty if none were recorded.
    pub recent: Vec<u8>,
}
