//! The interpreter that procs are forked from.
//!
//! It is single-threaded and has everything imported that a proc needs, so a proc costs a fork instead of an
//! interpreter start. It is also the parent of every proc (those started by a command too), so the user's process
//! has no children that its own `wait` could see. It ends when its link does, and its procs die with it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};

use net::sys::{self, Descriptors};
use net::{Link, LinkHandler, Poller};
use wire::exit::ExitReason;
use wire::{Frame, ProcUid};

use crate::agent::{Agent, AgentOptions};

const FORK: u8 = 1;
const EXEC: u8 = 2;
const KILL: u8 = 3;

const STARTED: u8 = 1;
const EXITED: u8 = 2;
const FAILED: u8 = 3;

/// What the zygote tells.
pub enum Report {
    Started {
        uid: ProcUid,
        pid: u32,
    },
    /// A wait status, as from `waitpid`.
    Exited {
        uid: ProcUid,
        status: i32,
    },
    Failed {
        uid: ProcUid,
        why: String,
    },
    Gone,
}

pub struct Zygote {
    link: Arc<Link>,
    child: Child,
}

impl Zygote {
    /// The command runs the zygote's main function with the link as its standard input.
    pub fn start(options: &AgentOptions, poller: &Arc<Poller>, agent: Weak<Agent>) -> io::Result<Self> {
        let AgentOptions { zygote: command, env, consoles, .. } = options;
        let (ours, theirs) = sys::socketpair()?;
        let program = command.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut c = Command::new(program);
        // Its own group: a Ctrl-C on the terminal is for the client.
        std::os::unix::process::CommandExt::process_group(&mut c, 0);
        c.args(&command[1..]).env_clear().envs(env.iter().map(|(k, v)| (k, v))).stdin(Stdio::from(theirs));
        // What has the number of a stream that is closed is none, and an interpreter without streams is not one to fork from.
        if consoles[0] < 0 {
            c.stdout(Stdio::null());
        }
        if consoles[1] < 0 {
            c.stderr(Stdio::null());
        }
        let child = c.spawn()?;
        let link = Link::new(ProcUid(0), poller.clone(), Arc::new(Reports(agent)));
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

    /// The same by a command; `plan` is the zygote's own encoding of command, environment and directory.
    pub fn exec(&self, uid: ProcUid, plan: &[u8], fds: Vec<OwnedFd>) {
        self.send(EXEC, uid, plan, fds);
    }

    pub fn kill(&self, uid: ProcUid, signal: i32) {
        self.send(KILL, uid, &signal.to_le_bytes(), Vec::new());
    }

    /// Ends it and waits until it is gone. It may be in the middle of its imports; procs that it still has go with it.
    pub fn end(mut self) {
        self.link.close();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

struct Reports(Weak<Agent>);

impl LinkHandler for Reports {
    fn frame(&self, _link: &Arc<Link>, frame: Frame, _fds: &mut Descriptors) {
        if let (Frame::Raw(body), Some(agent)) = (frame, self.0.upgrade())
            && let Some(report) = parse(&body)
        {
            agent.report(report);
        }
    }

    fn down(&self, _link: &Arc<Link>) {
        if let Some(agent) = self.0.upgrade() {
            agent.report(Report::Gone);
        }
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
        _ => return None,
    })
}

/// What a wait status says.
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
