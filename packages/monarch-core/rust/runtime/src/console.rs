//! Where an agent puts what its procs print: the console, windows that count, files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::lock::lock;
use wire::ProcUid;
use wire::control::ProcPlan;

use crate::agent::{Agent, FLUSH};
use crate::capture::CaptureFile;

impl Agent {
    /// Where lines of procs that are started from now on are written.
    pub fn set_consoles(&self, consoles: [libc::c_int; 2]) {
        *lock(&self.consoles) = consoles;
    }

    /// Where the output of procs that are spawned from now on is kept, if it is.
    pub fn set_log_dir(&self, path: PathBuf) {
        *lock(&self.log_dir) = path;
    }

    pub(crate) fn file(&self, plan: &ProcPlan, stream: &str) -> Option<CaptureFile> {
        let folder = lock(&self.log_dir);
        (!plan.capture.is_empty()).then(|| CaptureFile::new(folder.join(format!("{}.{stream}", plan.capture))))
    }

    /// Waits until what procs have printed before is on the console, at most so long.
    pub fn flush_output(&self, bound: Duration) {
        for s in lock(&self.state).procs.values().flat_map(|p| &p.streams) {
            self.output.carry(s);
        }
        self.output.flush(bound, false);
    }

    /// Counts the lines of these procs together in windows from now on, or shows them one by one again. `done` is called when
    /// what was counted so far is on the console, or does not get there in time.
    pub fn aggregate(&self, procs: &[ProcUid], window: Option<Duration>, done: impl FnOnce() + Send + 'static) {
        let Some(node) = self.node() else { return };
        let state = lock(&self.state);
        let streams = procs.iter().filter_map(|p| state.procs.get(p)).flat_map(|p| p.streams.clone()).collect();
        drop(state);
        let done = Arc::new(Mutex::new(Some(done)));
        let once = move || {
            if let Some(f) = lock(&done).take() {
                f();
            }
        };
        node.poller.later(FLUSH, Box::new(once.clone()));
        self.output.aggregate(streams, window, once);
    }
}
