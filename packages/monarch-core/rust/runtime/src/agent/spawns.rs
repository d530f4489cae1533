//! The start of procs: their links and streams, their entries in the table, and their processes.
//!
//! What it needs: the table of procs and the components that a new proc takes part in.
//!
//! What always holds:
//! - A proc is stopped if its owner has ended, whenever that is noticed.
//! - A proc that cannot be started, or is not ready in time, ends like every other one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use net::sys;
use wire::ProcUid;
use wire::control::ProcPlan;
use wire::exit::{ExitReason, ProcEnd};

use crate::agent::cgroup::Cgroups;
use crate::agent::console::Console;
use crate::agent::external::ExternalProcesses;
use crate::agent::options::AgentOptions;
use crate::agent::output::Tail;
use crate::agent::proc_ends::{LINGER, ProcEnds};
use crate::agent::proc_links::ProcLinks;
use crate::agent::procs::{Proc, Procs};
use crate::agent::recordings::Recordings;
use crate::agent::starter::Starter;
use crate::local::Local;
use crate::tasks;

/// Starts procs.
pub(crate) struct Spawns {
    pub local: Arc<Local>,
    pub options: Arc<AgentOptions>,
    pub procs: Arc<Procs>,
    pub starter: Arc<Starter>,
    pub console: Arc<Console>,
    pub cgroups: Arc<Cgroups>,
    pub recordings: Arc<Recordings>,
    pub ends: Arc<ProcEnds>,
    pub links: Arc<ProcLinks>,
    pub externals: Arc<ExternalProcesses>,
}

impl Spawns {
    /// Starts procs soon, on the I/O thread.
    pub fn spawn_soon(self: &Arc<Self>, owner: ProcUid, here: ProcUid, procs: Vec<(ProcUid, ProcPlan)>) {
        self.procs.lock().starting += 1;
        tasks::spawn(&self.local.poller, self, move |me| {
            me.spawn_all(owner, here, procs);
            me.procs.lock().starting -= 1;
            me.procs.changed();
        });
    }

    fn spawn_all(self: &Arc<Self>, owner: ProcUid, here: ProcUid, procs: Vec<(ProcUid, ProcPlan)>) {
        let mut failed = vec![];
        for (uid, plan) in procs {
            if let Err(e) = self.spawn(owner, here, uid, &plan) {
                self.procs.lock().procs.remove(&uid);
                let end = ProcEnd {
                    pid: 0,
                    started: false,
                    host: self.options.host.clone(),
                    reason: ExitReason::NotStarted(format!("cannot start a process: {e}")),
                    cleaning: vec![],
                    output: vec![],
                    recent: vec![],
                };
                failed.push((uid, end, owner));
            }
        }
        if !failed.is_empty() {
            self.ends.ended(failed);
        }
    }

    fn spawn(self: &Arc<Self>, owner: ProcUid, here: ProcUid, uid: ProcUid, plan: &ProcPlan) -> io::Result<()> {
        let node = self.local.node().ok_or(io::ErrorKind::NotConnected)?;
        let owner_lives = || if node.peers.end_of(owner).is_some() { Err(io::Error::other("its owner is gone")) } else { Ok(()) };
        owner_lives()?;
        let (ours, theirs) = sys::socketpair()?;
        let tail = Tail::new(self.options.tail_lines);
        let (mut fds, mut streams) = (vec![theirs], vec![]);
        // A simulated proc prints to the output of this process.
        if !self.starter.is_simulated() {
            for (console, name) in self.console.descriptors().into_iter().zip(["stdout", "stderr"]) {
                let (read, write) = sys::pipe()?;
                streams.push(self.console.stream((read, console), name, (here, uid), plan, tail.clone())?);
                fds.push(write);
            }
        }
        let waiting = {
            let mut state = self.procs.lock();
            // In one step with the new entry: the thread that handles the owner's end at the same time finds this proc and stops it.
            owner_lives()?;
            state.procs.insert(uid, Proc::new(owner, here, plan.name.clone(), tail, streams));
            state.link_requests.remove(&uid).unwrap_or_default()
        };
        self.recordings.record_proc(uid);
        node.peers.peer_unlinked(uid).0.link.attach(ours)?;
        self.starter.start(uid, plan, fds)?;
        waiting.into_iter().for_each(|from| self.links.connect(from, uid));
        if plan.ready_ms > 0 {
            let bound = Duration::from_millis(plan.ready_ms);
            tasks::later(&self.local.poller, bound, self, move |me| me.give_up(uid, bound));
        }
        Ok(())
    }

    fn give_up(self: &Arc<Self>, uid: ProcUid, bound: Duration) {
        let why = format!("not ready after {} s", bound.as_secs_f64());
        let is_late = |p: &mut Proc| {
            if !p.started {
                p.start_failure = Some(why);
            }
            !p.started
        };
        if !self.procs.with(uid, is_late).unwrap_or_default() {
            return;
        }
        self.starter.kill(uid);
        // The zygote may be stuck and report no exit. A proc that becomes ready after all finds its link closed.
        tasks::later(&self.local.poller, LINGER, &self.ends, move |ends| {
            ends.exited(vec![(uid, ExitReason::NotStarted(String::new()))]);
        });
    }

    /// Handles the report of a process that it runs.
    pub fn hello(&self, from: ProcUid, pid: u32) {
        // The command of the proc may have moved it to another cgroup after the fork.
        let cgroup = self.cgroups.watch(pid);
        let is_proc = self.procs.with(from, |p| {
            p.started = true;
            p.pid = pid;
            p.is_in(cgroup);
        });
        if is_proc.is_some() { self.recordings.record_proc(from) } else { self.externals.admit(from, pid) }
    }
}
