//! Where an agent puts what its procs print: the console, windows that count, files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::lock::lock;
use wire::control::ProcPlan;
use wire::{ProcUid, SlotId};

use crate::agent::{Agent, FLUSH};
use crate::capture::CaptureFile;
use crate::node::Node;
use crate::viewer::Viewer;

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
    ///
    /// With a viewer, a client on another host, the lines are shown there too.
    pub fn aggregate(&self, procs: &[ProcUid], window: Option<Duration>, viewer: Option<ProcUid>, done: impl FnOnce() + Send + 'static) {
        let Some(node) = self.node() else { return };
        let send = viewer.filter(|v| *v != node.uid).map(|v| to_viewer(&node, v));
        let state = lock(&self.state);
        let mut streams = vec![];
        for p in procs.iter().filter_map(|p| state.procs.get(p)) {
            let tag = format!("[{} {}] ", self.host(), p.name);
            for (stream, number) in p.streams.iter().zip([1, 2]) {
                streams.push((stream.clone(), send.as_ref().map(|s| Viewer::new(s.clone(), number, tag.clone().into_bytes()))));
            }
        }
        drop(state);
        let done = Arc::new(Mutex::new(Some(done)));
        let once = move || {
            if let Some(f) = lock(&done).take() {
                f();
            }
        };
        node.poller.later(FLUSH, Box::new(once.clone()));
        let host = format!("[{}] ", self.host()).into_bytes();
        let reports = send
            .map(|s| -> crate::viewer::Send { Arc::new(move |stream, lines, may_wait| s(stream, [&host[..], &lines].concat(), may_wait)) });
        self.output.arrange(streams, window, reports, once);
    }

    /// Lines of procs of another host, as its agent has sent them: the number of the stream, then whole lines.
    pub(crate) fn show(&self, body: &[u8]) {
        if let Some((stream, lines)) = body.split_first() {
            let console = lock(&self.consoles)[usize::from(*stream == 2)];
            if console >= 0 {
                self.output.show(console, lines.to_vec());
            }
        }
    }
}

/// The request that carries lines: the number of the stream, then the lines.
pub(crate) const LINES: u16 = 41;
/// So much may be on its way to a viewer before those who print are held back, at most so long at a time.
const BEHIND: usize = 4 << 20;
const HELD: Duration = Duration::from_secs(3);

fn to_viewer(node: &Arc<Node>, viewer: ProcUid) -> crate::viewer::Send {
    let node = Arc::downgrade(node);
    Arc::new(move |stream, lines, may_wait| {
        let Some(node) = node.upgrade() else { return };
        let deadline = Instant::now() + HELD;
        while may_wait && node.waiting_for(viewer) > BEHIND && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut body = vec![stream];
        body.extend_from_slice(&lines);
        node.send_system(viewer, LINES, SlotId::NONE, body);
    })
}
