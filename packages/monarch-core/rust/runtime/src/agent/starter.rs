//! The processes of procs: started by the zygote, or in simulations by the launcher, and killed by it.
//!
//! What it needs: the table of procs, which has the zygote, and the receiver of the reports about processes (`ProcReports`), which is set
//! once.
//!
//! What always holds: once the agent closes, no zygote is started.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use wire::ProcUid;
use wire::control::ProcPlan;

use crate::agent::options::AgentOptions;
use crate::agent::procs::Procs;
use crate::agent::simulated::Launcher;
use crate::agent::zygote::{Report, Zygote};
use crate::local::Local;
use crate::tasks;

/// Receives the reports about the processes of procs.
pub(crate) trait ProcReports: Send + Sync {
    fn report(self: Arc<Self>, report: Report);
}

/// Starts and kills the processes of procs.
pub(crate) struct Starter {
    pub local: Arc<Local>,
    pub options: Arc<AgentOptions>,
    pub procs: Arc<Procs>,
    /// Simulation only: starts procs as nodes of this process.
    pub launcher: OnceLock<Arc<Launcher>>,
    pub reports: OnceLock<Weak<dyn ProcReports>>,
}

impl Starter {
    pub fn is_simulated(&self) -> bool {
        self.launcher.get().is_some()
    }

    /// Makes new procs nodes of this process, for simulations.
    pub fn simulate(&self, launcher: Arc<Launcher>) {
        let report = self.receiver();
        launcher.report_to(Box::new(move |uid, status| report(Report::Exited { uid, status })));
        let _ = self.launcher.set(launcher);
    }

    fn receiver(&self) -> impl Fn(Report) + Send + Sync + 'static {
        let to = self.reports.get().cloned();
        move |report| {
            if let Some(to) = to.as_ref().and_then(Weak::upgrade) {
                to.report(report);
            }
        }
    }

    /// Calls `f` with the zygote, which is started if there is none.
    pub fn with_zygote<T>(&self, f: impl FnOnce(&Zygote) -> T) -> io::Result<T> {
        let mut state = self.procs.lock();
        if state.closing {
            return Err(io::Error::other("the client is shutting down"));
        }
        if state.zygote.is_none() {
            state.zygote = Some(Zygote::start(&self.options, &self.local.poller, Box::new(self.receiver()))?);
        }
        match &state.zygote {
            Some(z) => Ok(f(z)),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Starts the process of a proc. The first descriptor is its link; a simulated proc has no others.
    pub fn start(&self, uid: ProcUid, plan: &ProcPlan, mut fds: Vec<OwnedFd>) -> io::Result<()> {
        if let (Some(launcher), 1) = (self.launcher.get(), fds.len()) {
            launcher.start(uid, &plan.setup, fds.swap_remove(0));
            return Ok(());
        }
        self.with_zygote(|z| if plan.command.is_empty() { z.fork(uid, &plan.setup, fds) } else { z.exec(uid, &plan.setup, fds) })
    }

    pub fn kill(self: &Arc<Self>, uid: ProcUid) {
        self.procs.with(uid, |p| p.cleanups.killed());
        if let Some(l) = self.launcher.get().cloned() {
            // On the I/O thread, after a spawn of the same proc that may wait there.
            return tasks::spawn(&self.local.poller, self, move |_| l.kill(uid));
        }
        let state = self.procs.lock();
        if let (true, Some(z)) = (state.procs.contains_key(&uid), &state.zygote) {
            z.kill(uid, libc::SIGKILL);
        }
    }

    /// Ends the preloaded interpreters of a job that has ended here.
    pub fn job_ended(&self, here: ProcUid) {
        if let Some(z) = &self.procs.lock().zygote {
            z.job_ended(here);
        }
    }

    pub fn zygote_pid(&self) -> Option<u32> {
        self.procs.lock().zygote.as_ref().map(Zygote::pid)
    }

    /// Ends the zygote. None is started any more.
    pub fn close(&self) {
        let zygote = {
            let mut state = self.procs.lock();
            state.closing = true;
            state.zygote.take()
        };
        if let Some(z) = zygote {
            z.end();
        }
    }
}
