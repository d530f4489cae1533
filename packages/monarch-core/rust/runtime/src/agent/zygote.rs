//! The interpreter that procs are forked from.
//!
//! The zygote has a single thread and has imported everything that a proc needs, so a proc costs a fork instead of the start of an
//! interpreter. It is also the parent of every proc, also of those started by a command, so the user's process has no children that its own
//! `wait` could find. It ends when its link ends, and its procs end with it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use net::sys::{self, Descriptors};
use net::{Link, LinkHandler, Poller};
use serde_json::value::RawValue;
use wire::exit::ExitReason;
use wire::{Frame, ProcUid};

use crate::agent::options::AgentOptions;

/// Requests to the zygote: the first byte of a frame.
const FORK: u8 = 1;
const EXEC: u8 = 2;
const KILL: u8 = 3;
const JOB_ENDED: u8 = 4;

/// Reports of the zygote: the first byte of a frame.
const STARTED: u8 = 1;
const EXITED: u8 = 2;
const FAILED: u8 = 3;
const PRELOADED: u8 = 4;

/// A report of the zygote.
pub enum Report {
    Started {
        uid: ProcUid,
        pid: u32,
    },
    /// The process has ended, with a wait status as from `waitpid`.
    Exited {
        uid: ProcUid,
        status: i32,
    },
    /// The process could not be started.
    Failed {
        uid: ProcUid,
        why: String,
    },
    /// A preloaded interpreter of the job in which this host has the id `here` has another state, or has ended: then it has no description.
    Preloaded {
        here: ProcUid,
        pid: u32,
        description: Option<Box<RawValue>>,
    },
    /// The zygote itself has ended.
    Gone,
}

/// Takes the reports of a zygote.
pub type ReportTo = Box<dyn Fn(Report) + Send + Sync>;

/// The zygote process, and the agent's link to it. The agent owns it.
pub struct Zygote {
    link: Arc<Link>,
    child: Child,
}

impl Zygote {
    /// Starts the zygote. The command runs its main function, with the link as standard input.
    pub fn start(options: &AgentOptions, poller: &Arc<Poller>, reports: ReportTo) -> io::Result<Self> {
        let AgentOptions { zygote: command, env, consoles, .. } = options;
        let (ours, theirs) = sys::socketpair()?;
        let program = command.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut c = Command::new(program);
        // A process group of its own: Ctrl-C on the terminal sends a signal to the client only.
        std::os::unix::process::CommandExt::process_group(&mut c, 0);
        c.args(&command[1..]).env_clear().envs(env.iter().map(|(k, v)| (k, v))).stdin(Stdio::from(theirs));
        // If a standard stream were closed, another file would get its number, and an interpreter without standard streams cannot be forked
        // from.
        if consoles[0] < 0 {
            c.stdout(Stdio::null());
        }
        if consoles[1] < 0 {
            c.stderr(Stdio::null());
        }
        let child = c.spawn().map_err(net::thread_limit::named)?;
        let link = Link::new(ProcUid(0), poller.clone(), Arc::new(Reports(reports)));
        link.attach(ours)?;
        Ok(Zygote { link, child })
    }

    fn send(&self, op: u8, uid: ProcUid, body: &[u8], fds: Vec<OwnedFd>) {
        let mut raw = Vec::with_capacity(9 + body.len());
        raw.push(op);
        raw.extend_from_slice(&uid.0.to_le_bytes());
        raw.extend_from_slice(body);
        let _ = self.link.send(&[&Frame::Raw(raw.into()).encode()], fds);
    }

    /// Forks a proc whose link, stdout and stderr are `fds`.
    pub fn fork(&self, uid: ProcUid, setup: &[u8], fds: Vec<OwnedFd>) {
        self.send(FORK, uid, setup, fds);
    }

    /// Starts a proc by a command. `plan` is the zygote's encoding of command, environment and directory.
    pub fn exec(&self, uid: ProcUid, plan: &[u8], fds: Vec<OwnedFd>) {
        self.send(EXEC, uid, plan, fds);
    }

    pub fn kill(&self, uid: ProcUid, signal: i32) {
        self.send(KILL, uid, &signal.to_le_bytes(), Vec::new());
    }

    /// Ends the preloaded interpreters of a job.
    pub fn job_ended(&self, here: ProcUid) {
        self.send(JOB_ENDED, here, &[], Vec::new());
    }

    /// Kills the zygote and waits for its end. It may be in the middle of its imports. The procs that it still has end with it.
    pub fn end(mut self) {
        self.link.close();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// The agent's end of the link to the zygote.
struct Reports(ReportTo);

impl LinkHandler for Reports {
    fn frame(&self, _link: &Arc<Link>, frame: Frame, _fds: &mut Descriptors) {
        if let Frame::Raw(body) = frame
            && let Some(report) = parse(&body)
        {
            (self.0)(report);
        }
    }

    fn down(&self, _link: &Arc<Link>) {
        (self.0)(Report::Gone);
    }
}

fn parse(body: &[u8]) -> Option<Report> {
    let (&op, rest) = body.split_first()?;
    let uid = ProcUid(u64::from_le_bytes(rest.get(..8)?.try_into().ok()?));
    let rest = &rest[8..];
    let number = || rest.get(..4).and_then(|b| b.try_into().ok()).map(i32::from_le_bytes);
    Some(match op {
        STARTED => Report::Started { uid, pid: number()? as u32 },
        EXITED => Report::Exited { uid, status: number()? },
        FAILED => Report::Failed { uid, why: String::from_utf8_lossy(rest).into_owned() },
        PRELOADED => {
            let text = String::from_utf8(rest.get(4..)?.to_vec()).ok()?;
            Report::Preloaded { here: uid, pid: number()? as u32, description: RawValue::from_string(text).ok() }
        }
        _ => return None,
    })
}

/// The exit reason that a wait status stands for.
pub(crate) fn from_status(status: i32) -> ExitReason {
    if libc::WIFSIGNALED(status) {
        ExitReason::Signal { signal: libc::WTERMSIG(status), core_dumped: libc::WCOREDUMP(status) }
    } else {
        match libc::WEXITSTATUS(status) {
            0 => ExitReason::Returned,
            n => ExitReason::ExitCode(n),
        }
    }
}
