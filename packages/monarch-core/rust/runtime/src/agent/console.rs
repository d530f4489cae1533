//! The destinations of the lines of an agent's procs: consoles, windows in which lines are counted, files, and the client on another host.
//!
//! What it needs: the streams of the procs in the table, the jobs of the procs, and `output`, whose thread writes the lines.
//!
//! What always holds: the client of a job learns once if lines of its procs go to a console that it may not see.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::lock::lock;
use wire::control::ProcPlan;
use wire::{CallId, ProcUid};

use crate::agent::capture::CaptureFile;
use crate::agent::options::AgentOptions;
use crate::agent::output::{Output, Stream, Tail};
use crate::agent::proc_jobs::ProcJobs;
use crate::agent::procs::Procs;
use crate::agent::viewer::{self, Viewer};
use crate::local::Local;
use crate::node::Node;
use crate::system::{LINES, UNSHOWN};

/// The time that a console gets to show counted lines before a flush is reported as done.
const FLUSH: Duration = Duration::from_secs(3);

/// Leads lines to their destinations.
pub(crate) struct Console {
    pub local: Arc<Local>,
    pub options: Arc<AgentOptions>,
    pub procs: Arc<Procs>,
    pub jobs: Arc<ProcJobs>,
    pub output: Output,
    /// The folder of the files with output.
    pub log_dir: Mutex<PathBuf>,
    /// The descriptors to which the lines of procs are written: their stdout and their stderr.
    pub consoles: Mutex<[libc::c_int; 2]>,
}

impl Console {
    pub fn descriptors(&self) -> [libc::c_int; 2] {
        *lock(&self.consoles)
    }

    /// Makes one stream of a proc that is being started.
    pub fn stream(
        self: &Arc<Self>,
        (read, console): (OwnedFd, libc::c_int),
        name: &str,
        (here, proc): (ProcUid, ProcUid),
        plan: &ProcPlan,
        tail: Arc<Tail>,
    ) -> io::Result<Arc<Stream>> {
        let stream = self.output.add(proc, (read, console), &plan.prefix, tail, self.file(plan, name))?;
        let job = self.jobs.gateway().and_then(|g| g.jobs.by_own_id(here)).filter(|j| !j.is_clients());
        // A user watches a terminal, so its lines count as seen.
        if let Some(job) = job.filter(|_| unsafe { libc::isatty(console) } == 0) {
            let (me, shown) = (Arc::downgrade(self), plan.name.clone());
            stream.at_first_line(move || {
                if let Some(me) = me.upgrade().filter(|_| !job.output_warning_sent.swap(true, Ordering::Relaxed)) {
                    me.report_unshown(job.id, console, &shown);
                }
            });
        }
        Ok(stream)
    }

    /// Reports to the client that a proc's lines go to a console which the client's user may not see. An agent sends it once a job.
    fn report_unshown(&self, client: ProcUid, console: libc::c_int, proc: &str) {
        let Some(node) = self.local.node() else { return };
        let mut body = identity(console).to_vec();
        body.extend_from_slice(format!("{}\0{proc}\0{}", self.options.host, destination(console)).as_bytes());
        self.local.poller.spawn(Box::new(move || node.replies.send_system(client, UNSHOWN, CallId::NONE, body)));
    }

    /// Handles that report in the client: logs a warning, once a job, unless the console is also one of the client's.
    fn on_unshown_report(&self, body: &[u8]) {
        let Some((console, words)) = body.split_first_chunk::<IDENTITY>() else { return };
        let text = String::from_utf8_lossy(words);
        let mut words = text.split('\0');
        let (Some(host), Some(proc), Some(to)) = (words.next(), words.next(), words.next()) else { return };
        let Some((gateway, job)) = self.jobs.gateway().and_then(|g| Some((g, g.jobs.get(self.local.uid)?))) else { return };
        let is_seen = lock(&self.consoles).iter().any(|ours| identity(*ours) == *console);
        if !is_seen && !job.output_warning_sent.swap(true, Ordering::Relaxed) {
            gateway.audit.add("output", host, format!("what {proc} on {host} prints goes to {to}, not to this console"));
        }
    }

    /// The file with the output of a stream; none if the plan does not request it.
    pub fn file(&self, plan: &ProcPlan, stream: &str) -> Option<CaptureFile> {
        let folder = lock(&self.log_dir);
        (!plan.capture.is_empty()).then(|| CaptureFile::new(folder.join(format!("{}.{stream}", plan.capture))))
    }

    /// Waits until the lines that procs have printed before this call are on the console, at most for `bound`.
    pub fn flush_output(&self, bound: Duration) {
        for s in self.procs.lock().procs.values().flat_map(|p| &p.streams) {
            self.output.read_soon(s);
        }
        self.output.flush(bound, false);
    }

    /// Counts the lines of these procs together in windows from now on, or shows them one by one again. `done` is called when the lines
    /// counted until now are on the console, at the latest after `FLUSH`.
    ///
    /// With a viewer, a client on another host, the lines are shown there too.
    pub fn aggregate(&self, procs: &[ProcUid], window: Option<Duration>, viewer: Option<ProcUid>, done: impl FnOnce() + Send + 'static) {
        let Some(node) = self.local.node() else { return };
        let send = viewer.filter(|v| *v != node.uid).map(|v| to_viewer(&node, v));
        let state = self.procs.lock();
        let mut streams = vec![];
        for p in procs.iter().filter_map(|p| state.procs.get(p)) {
            let tag = format!("[{} {}] ", self.options.host, p.name);
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
        let host = format!("[{}] ", self.options.host).into_bytes();
        let reports =
            send.map(|s| -> viewer::Send { Arc::new(move |stream, lines, may_wait| s(stream, [&host[..], &lines].concat(), may_wait)) });
        self.output.regroup_streams(streams, window, reports, once);
    }

    /// Handles the message of another host's agent about the output of its procs: `LINES` or `UNSHOWN`.
    pub fn printed(&self, kind: u16, body: &[u8]) {
        if kind == LINES { self.show(body) } else { self.on_unshown_report(body) }
    }

    /// Writes lines of procs of another host. The body is the number of the stream, then whole lines.
    fn show(&self, body: &[u8]) {
        if let Some((stream, lines)) = body.split_first() {
            let console = lock(&self.consoles)[usize::from(*stream == 2)];
            if console >= 0 {
                self.output.show(console, lines.to_vec());
            }
        }
    }
}

/// Bytes of a console's identity: device and inode.
const IDENTITY: usize = 16;
/// Limit of unsent bytes to a viewer: beyond it, the output thread waits, and so do the procs that print.
const BEHIND: usize = 4 << 20;
/// Limit of one such wait, so a viewer that does not read cannot stop the procs.
const HELD: Duration = Duration::from_secs(3);

/// The function that sends lines to the client `viewer`.
fn to_viewer(node: &Arc<Node>, viewer: ProcUid) -> viewer::Send {
    let node = Arc::downgrade(node);
    Arc::new(move |stream, lines, may_wait| {
        let Some(node) = node.upgrade() else { return };
        let deadline = Instant::now() + HELD;
        while may_wait && node.peers.waiting_for(viewer) > BEHIND && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut body = vec![stream];
        body.extend_from_slice(&lines);
        node.replies.send_system(viewer, LINES, CallId::NONE, body);
    })
}

/// The identity of the file that a descriptor refers to. Processes that have inherited the same console get the same value. Zeros if the
/// descriptor is not open.
fn identity(fd: libc::c_int) -> [u8; IDENTITY] {
    // SAFETY: zeros are a value of the structure, and the pointer to it is valid.
    let (found, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat) == 0, stat)
    };
    let mut bytes = [0; IDENTITY];
    if found {
        bytes[..8].copy_from_slice(&stat.st_dev.to_le_bytes());
        bytes[8..].copy_from_slice(&stat.st_ino.to_le_bytes());
    }
    bytes
}

/// The destination of lines that are written to a console of this process, as text for the user.
fn destination(fd: libc::c_int) -> String {
    match std::fs::read_link(format!("/proc/self/fd/{fd}")) {
        Ok(path) if path.is_absolute() => path.display().to_string(),
        Ok(_) => format!("the output of the worker (pid {})", std::process::id()),
        Err(_) => "nowhere".to_owned(),
    }
}
