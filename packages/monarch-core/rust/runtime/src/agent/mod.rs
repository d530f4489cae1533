//! The host agent: starts, links, watches and ends procs.
//!
//! The agent of the client's host is a part of the client. Procs have no listening socket: a proc that sends to another proc of the host
//! for the first time requests a link from its agent, and the agent makes a socket pair and sends each proc an end.
//!
//! | file | noun |
//! |---|---|
//! | `zygote` | the interpreter that procs are forked from |
//! | `proc_links` | sockets between procs of a host |
//! | `watch` | the periodic check of the procs |
//! | `responsiveness` | the responsiveness check of the Python interpreter of a proc |
//! | `cgroup` | the procs that the kernel killed for lack of memory |
//! | `cleanup` | procs that end while an actor runs its `__cleanup__` |
//! | `remote_jobs` | procs of jobs of other hosts' clients |
//! | `process_table` | the state of all procs of a host |
//! | `recordings` | the rings of the processes of a host, which outlive them |
//! | `output` | lines that procs print |
//! | `aggregation` | counts of lines that are equal up to numbers |
//! | `viewer` | lines that are shown at the client too |
//! | `console` | the destination of the lines of procs |
//! | `capture` | files with the output of procs |
//! | `external` | external processes |
//! | `simulated` | procs that are nodes of this process, for tests |
//! | `role` | the agent as the components of its process know it |

pub mod aggregation;
pub mod capture;
pub mod cgroup;
mod cleanup;
mod console;
mod external;
pub mod output;
mod proc_links;
pub mod process_table;
pub mod recordings;
mod remote_jobs;
pub mod responsiveness;
mod role;
pub mod simulated;
pub mod viewer;
mod watch;
pub mod zygote;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use net::control_socket;
use net::lock::lock;
use net::sys;
use serde_json::value::RawValue;
use wire::control::{DrainLimits, ProcPlan};
use wire::exit::{ExitReason, ProcEnd};
use wire::{Control, ProcUid};

use crate::agent::cgroup::Cgroups;
use crate::agent::cleanup::Cleanups;
use crate::agent::output::{Output, Stream, Tail};
use crate::agent::process_table::{HostInspections, Requester};
use crate::agent::recordings::{Recordings, note_end};
use crate::agent::responsiveness::Responsiveness;
use crate::agent::simulated::Launcher;
use crate::agent::zygote::{Report, Zygote, from_status};
use crate::gateway::Gateway;
use crate::node::Node;
use crate::peers::external_process::ControlSocketListener;
use crate::streams::UNKNOWN;

/// A proc whose link has ended while its process still runs is killed after this time: it has closed its descriptors.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// The time that a console gets to show counted lines before a flush is reported as done.
pub(crate) const FLUSH: Duration = Duration::from_secs(3);

/// The values that the Python side gives to the agent.
pub struct AgentOptions {
    pub host: String,
    pub zygote: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The number of last lines of a proc that its end contains.
    pub tail_lines: usize,
    /// The descriptors to which procs' stdout and stderr are written; -1: lines are dropped.
    pub consoles: [libc::c_int; 2],
}

/// A proc of this host, from the request to start it until its end is handled. The agent's `State` owns it.
pub(crate) struct Proc {
    pub owner: ProcUid,
    /// The id of this host in the job of the proc.
    pub here: ProcUid,
    /// The ids of this host in other jobs whose processes the service of this process answers.
    pub serves: HashSet<ProcUid>,
    pub name: String,
    pub born: Instant,
    pub responsiveness: Responsiveness,
    /// The probable reason why the proc does not answer, found when it became unresponsive.
    pub silence_reason: Option<&'static str>,
    pub stacks: Option<Box<RawValue>>,
    pub pid: u32,
    pub started: bool,
    /// The reason of the stop, if the proc has been asked to stop.
    pub stopping: Option<String>,
    /// The reason why the agent has ended a proc that was not ready in time.
    start_failure: Option<String>,
    kill_at: Option<Instant>,
    /// The proc runs a clean-up that has until this time: it is not killed before.
    cleanup_until: Option<Instant>,
    cleanups: Cleanups,
    /// The memory cgroup of the proc, and the one before it.
    pub cgroups: Vec<String>,
    tail: Arc<Tail>,
    pub streams: Vec<Arc<Stream>>,
}

/// The table of this host's procs and of the relations between processes. The agent owns it.
#[derive(Default)]
pub(crate) struct State {
    pub procs: HashMap<ProcUid, Proc>,
    /// The external processes, and their pids.
    pub(crate) external_processes: HashMap<ProcUid, u32>,
    /// For each process, the processes with which it has a link or has exchanged frames. Each of them is notified of the other one's end.
    pub(crate) linked: HashMap<ProcUid, HashSet<ProcUid>>,
    /// The processes that have requested a link to a proc which is not known here yet, by that proc.
    pub link_requests: HashMap<ProcUid, Vec<ProcUid>>,
    /// Processes that have requested to be notified of the end of a proc, by that proc.
    pub(crate) watched: HashMap<ProcUid, HashSet<ProcUid>>,
    pub(crate) zygote: Option<Zygote>,
    /// The number of procs that are removed from `procs` and whose end is not reported yet.
    ending: usize,
    /// The number of spawn requests that the I/O thread has not handled yet.
    pub starting: usize,
    pub closing: bool,
    pub watching: bool,
    /// The responsiveness check of this process itself.
    pub responsiveness: Responsiveness,
}

/// The agent of a host. The node of the client or of the worker owns it.
pub struct Agent {
    node: Weak<Node>,
    pub(crate) options: AgentOptions,
    pub(crate) output: Output,
    pub(crate) cgroups: Cgroups,
    pub(crate) recordings: Recordings,
    /// The folder of the files with output.
    pub(crate) log_dir: Mutex<PathBuf>,
    pub(crate) state: Mutex<State>,
    /// Is notified whenever a proc has ended or started, for `wait_idle`.
    idle: Condvar,
    control_socket: Mutex<Option<ControlSocketListener>>,
    pub(crate) inspections: HostInspections,
    pub(crate) born: Instant,
    /// The descriptors to which the lines of procs are written: their stdout and their stderr.
    pub(crate) consoles: Mutex<[libc::c_int; 2]>,
    /// Simulation only: starts procs as nodes of this process.
    launcher: OnceLock<Arc<Launcher>>,
    gateway: OnceLock<Arc<Gateway>>,
    me: Weak<Agent>,
}

impl Agent {
    /// Makes the agent of a host in a process, and gives it this role.
    pub fn new(node: &Arc<Node>, options: AgentOptions) -> io::Result<Arc<Self>> {
        let output = Output::new()?;
        let consoles = Mutex::new(options.consoles);
        let agent = Arc::new_cyclic(|me| Agent {
            node: Arc::downgrade(node),
            options,
            output,
            cgroups: Cgroups::here(),
            recordings: Recordings::default(),
            log_dir: Mutex::default(),
            state: Mutex::default(),
            idle: Condvar::new(),
            control_socket: Mutex::new(None),
            inspections: HostInspections::default(),
            born: Instant::now(),
            consoles,
            launcher: OnceLock::new(),
            gateway: OnceLock::new(),
            me: me.clone(),
        });
        node.roles.set_agent(agent.clone());
        Ok(agent)
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.launcher.get().is_some()
    }

    pub fn launcher(&self) -> Option<&Arc<Launcher>> {
        self.launcher.get()
    }

    /// Starts the zygote ahead of the first proc, on the I/O thread.
    pub fn warm_up(&self) {
        if let (Some(node), Some(me)) = (self.node.upgrade(), self.me.upgrade()) {
            node.poller.spawn(Box::new(move || {
                drop(me.with_zygote(|_| ()));
                // The control socket serves inspections and external processes. Without it, everything else works.
                drop(me.open_control_socket());
                me.watch();
            }));
        }
    }

    fn with_zygote<T>(&self, f: impl FnOnce(&Zygote) -> T) -> io::Result<T> {
        let node = self.node.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let mut state = lock(&self.state);
        if state.closing {
            return Err(io::Error::other("the client is shutting down"));
        }
        if state.zygote.is_none() {
            state.zygote = Some(Zygote::start(&self.options, &node.poller, self.me.clone())?);
        }
        match &state.zygote {
            Some(z) => Ok(f(z)),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Handles a message of a proc, or of this process, to the agent.
    pub fn control(&self, from: ProcUid, c: Control) {
        match c {
            Control::Hello { pid, .. } => self.hello(from, pid),
            Control::Connect { target } => self.connect(from, target),
            Control::SpawnProcs { owner, procs } => {
                let Some(here) = self.job_of(from) else { return };
                lock(&self.state).starting += 1;
                self.on_io_thread(move |a| {
                    a.spawn_all(owner, here, procs);
                    lock(&a.state).starting -= 1;
                    a.idle.notify_all();
                });
            }
            // On the I/O thread, after a spawn of the same proc that may wait there.
            Control::StopProc { uid, grace_ms, drain, reason } => {
                self.on_io_thread(move |a| a.stop_proc(uid, Duration::from_millis(grace_ms), drain, &reason))
            }
            Control::Pong { .. } => self.ponged(from),
            Control::Inspect { id, what } => self.inspect_all(Requester::Peer(from, id), what),
            Control::Watch { target } => self.watch_proc(from, target),
            Control::BulkDial { number, from: ours, to, to_host } => {
                let Some(node) = self.node.upgrade() else { return };
                match self.gateway() {
                    Some(gateway) => gateway.bulk.dial(from, number, ours, (to, to_host)),
                    None => node.streams.refuse(ours, number, UNKNOWN.to_owned()),
                }
            }
            Control::Extend { grace_ms } => self.extend_cleanup(from, Duration::from_millis(grace_ms)),
            Control::Cleanup { mesh, begins } => {
                lock(&self.state).procs.get_mut(&from).into_iter().for_each(|p| p.cleanups.note(mesh, begins))
            }
            _ => {}
        }
    }

    fn on_io_thread(&self, f: impl FnOnce(&Agent) + Send + 'static) {
        if let (Some(node), Some(me)) = (self.node.upgrade(), self.me.upgrade()) {
            node.poller.spawn(Box::new(move || f(&me)));
        }
    }

    // ---- starting

    fn spawn_all(&self, owner: ProcUid, here: ProcUid, procs: Vec<(ProcUid, ProcPlan)>) {
        let mut failed = vec![];
        for (uid, plan) in procs {
            if let Err(e) = self.spawn(owner, here, uid, &plan) {
                let why = format!("cannot start a process: {e}");
                lock(&self.state).procs.remove(&uid);
                let end = ProcEnd {
                    pid: 0,
                    started: false,
                    host: self.options.host.clone(),
                    reason: ExitReason::NotStarted(why),
                    cleaning: vec![],
                    output: vec![],
                    recent: vec![],
                };
                failed.push((uid, end, owner));
            }
        }
        if !failed.is_empty() {
            self.ended(failed);
        }
    }

    fn spawn(&self, owner: ProcUid, here: ProcUid, uid: ProcUid, plan: &ProcPlan) -> io::Result<()> {
        let node = self.node.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        self.owner_lives(owner)?;
        let (ours, theirs) = sys::socketpair()?;
        let tail = Tail::new(self.options.tail_lines);
        let mut fds = vec![theirs];
        let mut streams = vec![];
        // A simulated proc prints to the output of this process.
        if self.launcher.get().is_none() {
            let consoles = *lock(&self.consoles);
            for (console, name) in consoles.into_iter().zip(["stdout", "stderr"]) {
                let (read, write) = sys::pipe()?;
                streams.push(self.stream((read, console), name, (here, uid), plan, tail.clone())?);
                fds.push(write);
            }
        }
        let waiting = {
            let mut state = lock(&self.state);
            // In one step with the new entry: the thread that handles the owner's end at the same time finds this proc and stops it.
            self.owner_lives(owner)?;
            state.procs.insert(
                uid,
                Proc {
                    owner,
                    here,
                    serves: HashSet::new(),
                    name: plan.name.clone(),
                    born: Instant::now(),
                    responsiveness: Responsiveness::default(),
                    silence_reason: None,
                    stacks: None,
                    pid: 0,
                    started: false,
                    stopping: None,
                    start_failure: None,
                    kill_at: None,
                    cleanup_until: None,
                    cleanups: Cleanups::default(),
                    cgroups: Vec::new(),
                    tail,
                    streams,
                },
            );
            state.link_requests.remove(&uid).unwrap_or_default()
        };
        self.record_proc(uid);
        node.peers.peer_unlinked(uid).0.link.attach(ours)?;
        match (self.launcher.get(), fds.len()) {
            (Some(l), 1) => l.start(uid, &plan.setup, fds.swap_remove(0)),
            _ => {
                self.with_zygote(|z| if plan.command.is_empty() { z.fork(uid, &plan.setup, fds) } else { z.exec(uid, &plan.setup, fds) })?
            }
        }
        waiting.into_iter().for_each(|from| self.connect(from, uid));
        if plan.ready_ms > 0 {
            let me = self.me.clone();
            let bound = Duration::from_millis(plan.ready_ms);
            node.poller.later(
                bound,
                Box::new(move || {
                    if let Some(a) = me.upgrade() {
                        a.give_up(uid, bound);
                    }
                }),
            );
        }
        Ok(())
    }

    fn give_up(&self, uid: ProcUid, bound: Duration) {
        let mut state = lock(&self.state);
        let Some(p) = state.procs.get_mut(&uid).filter(|p| !p.started) else { return };
        p.start_failure = Some(format!("not ready after {} s", bound.as_secs_f64()));
        drop(state);
        self.kill(uid);
        // The zygote may be stuck and report no exit. A proc that becomes ready after all finds its link closed.
        let (Some(node), me) = (self.node.upgrade(), self.me.clone()) else { return };
        let end = move || {
            if let Some(a) = me.upgrade() {
                a.exited(vec![(uid, ExitReason::NotStarted(String::new()))]);
            }
        };
        node.poller.later(LINGER, Box::new(end));
    }

    fn hello(&self, from: ProcUid, pid: u32) {
        // The command of the proc may have moved it to another cgroup after the fork.
        let cgroup = self.cgroups.watch(pid);
        let is_proc = lock(&self.state).procs.get_mut(&from).is_some_and(|p| {
            p.started = true;
            p.pid = pid;
            p.is_in(cgroup);
            true
        });
        if is_proc { self.record_proc(from) } else { self.admit_external(from, pid) }
    }

    fn owner_lives(&self, owner: ProcUid) -> io::Result<()> {
        if self.end_of(owner).is_some() { Err(io::Error::other("its owner is gone")) } else { Ok(()) }
    }

    // ---- ending

    /// Asks a proc to stop, and kills it after `grace`. Without `drain`, the limits for its messages are its own.
    pub fn stop_proc(&self, uid: ProcUid, grace: Duration, drain: Option<DrainLimits>, reason: &str) {
        let Some(node) = self.node.upgrade() else { return };
        {
            let mut state = lock(&self.state);
            let Some(p) = state.procs.get_mut(&uid) else { return };
            if p.stopping.is_none() {
                p.stopping = Some(reason.to_owned());
            }
        }
        let control = Control::StopProc { uid, grace_ms: grace.as_millis() as u64, drain, reason: reason.to_owned() };
        node.peers.peer_unlinked(uid).0.send_control(control);
        self.kill_later(uid, grace);
    }

    fn now(&self) -> Instant {
        self.node.upgrade().map_or_else(Instant::now, |n| n.poller.now())
    }

    fn kill_later(&self, uid: ProcUid, grace: Duration) {
        if let Some(p) = lock(&self.state).procs.get_mut(&uid) {
            p.kill_at = Some(self.now() + grace);
        }
        self.check_kill_later(uid, grace);
    }

    /// Postpones the kill of the proc, for this stop and for later ones: the proc runs a clean-up that may take `grace`.
    fn extend_cleanup(&self, uid: ProcUid, grace: Duration) {
        if let Some(p) = lock(&self.state).procs.get_mut(&uid) {
            p.cleanup_until = Some(self.now() + grace);
        }
        self.check_kill_later(uid, grace);
    }

    fn check_kill_later(&self, uid: ProcUid, delay: Duration) {
        let Some(node) = self.node.upgrade() else { return };
        let me = self.me.clone();
        node.poller.later(
            delay,
            Box::new(move || {
                if let Some(a) = me.upgrade() {
                    a.kill_if_due(uid);
                }
            }),
        );
    }

    fn kill_if_due(&self, uid: ProcUid) {
        let now = self.now();
        let is_due = |p: &Proc| p.kill_at.is_some_and(|at| at <= now) && p.cleanup_until.is_none_or(|until| until <= now);
        let due = lock(&self.state).procs.get(&uid).is_some_and(is_due);
        if due {
            self.kill(uid);
        }
    }

    pub fn kill(&self, uid: ProcUid) {
        lock(&self.state).procs.get_mut(&uid).into_iter().for_each(|p| p.cleanups.killed());
        if let Some(l) = self.launcher.get().cloned() {
            // On the I/O thread, after a spawn of the same proc that may wait there.
            return self.on_io_thread(move |_| l.kill(uid));
        }
        let state = lock(&self.state);
        if let (true, Some(z)) = (state.procs.contains_key(&uid), &state.zygote) {
            z.kill(uid, libc::SIGKILL);
        }
    }

    /// Handles a report of the zygote about its children.
    pub fn report(&self, r: Report) {
        match r {
            Report::Started { uid, pid } => {
                let cgroup = self.cgroups.watch(pid);
                if let Some(p) = lock(&self.state).procs.get_mut(&uid) {
                    p.pid = pid;
                    p.is_in(cgroup);
                }
            }
            Report::Exited { uid, status } => self.exited(vec![(uid, from_status(status))]),
            Report::Failed { uid, why } => self.exited(vec![(uid, ExitReason::NotStarted(why))]),
            Report::Gone => {
                let (zygote, procs) = {
                    let mut state = lock(&self.state);
                    (state.zygote.take(), state.procs.keys().copied().collect::<Vec<_>>())
                };
                // The link of the zygote may end a moment before the process can be reaped.
                if let Some(z) = zygote {
                    z.end();
                }
                // The kernel has sent SIGKILL to its children when it ended.
                let killed = ExitReason::Signal { signal: libc::SIGKILL, core_dumped: false };
                self.exited(procs.into_iter().map(|uid| (uid, killed.clone())).collect());
            }
        }
    }

    /// Handles the ends of processes that have the same cause.
    pub(crate) fn exited(&self, ends: Vec<(ProcUid, ExitReason)>) {
        // Frames that the processes have sent before are handled first.
        let node = self.node.upgrade();
        ends.iter().filter_map(|(uid, _)| node.as_ref()?.peers.known_peer(*uid)).for_each(|p| p.link.drain());
        ends.iter().for_each(|(uid, _)| control_socket::forget(&control_socket::of_buffers(uid.0)));
        let gone: Vec<(ProcUid, ExitReason, Proc)> = {
            let mut state = lock(&self.state);
            let gone: Vec<_> = ends.into_iter().filter_map(|(uid, why)| Some((uid, why, state.procs.remove(&uid)?))).collect();
            state.ending += gone.len();
            gone
        };
        let count = gone.len();
        let mut ends = Vec::with_capacity(count);
        for (uid, reason, p) in gone {
            p.streams.iter().for_each(|s| self.output.drain(s));
            let (reason, cleaning) = match p.start_failure {
                Some(why) => (ExitReason::NotStarted(why), vec![]),
                None => p.cleanups.outcome(p.stopping, || self.cgroups.explained(reason, &p.cgroups)),
            };
            let (host, output) = (self.options.host.clone(), p.tail.lines());
            let recent = self.recordings.ended(self.recorded_as(uid, p.pid, p.name, p.here), &reason);
            let end = ProcEnd { pid: p.pid, started: p.started, host, reason, cleaning, output, recent };
            note_end(uid, &end);
            ends.push((uid, end, p.owner));
        }
        self.ended(ends);
        lock(&self.state).ending -= count;
        self.idle.notify_all();
    }

    /// Notifies all processes that refer to these procs, and stops the procs that they owned.
    pub(crate) fn ended(&self, ends: Vec<(ProcUid, ProcEnd, ProcUid)>) {
        let Some(node) = self.node.upgrade() else { return };
        let mut reports: HashMap<ProcUid, Vec<(ProcUid, ProcEnd)>> = HashMap::new();
        let mut orphans: Vec<ProcUid> = vec![];
        {
            let mut state = lock(&self.state);
            for (uid, end, owner) in &ends {
                state.external_processes.remove(uid);
                let mut notified = state.linked.remove(uid).unwrap_or_default();
                notified.extend(state.link_requests.remove(uid).unwrap_or_default());
                notified.extend(state.watched.remove(uid).unwrap_or_default());
                notified.insert(*owner);
                notified.remove(&node.uid);
                for other in notified {
                    if let Some(s) = state.linked.get_mut(&other) {
                        s.remove(uid);
                    }
                    reports.entry(other).or_default().push((*uid, end.clone()));
                }
                // A proc that is being stopped has a deadline already.
                let is_orphan = |p: &Proc| p.owner == *uid && p.stopping.is_none();
                orphans.extend(state.procs.iter().filter(|(_, p)| is_orphan(p)).map(|(u, _)| *u));
                // The tombstone is inserted before another thread can request a link to the process.
                node.peers.insert_tombstone(*uid, end.clone());
            }
        }
        for (other, ends) in reports {
            node.peers.peer_unlinked(other).0.send_control(Control::ProcsEnded { ends });
        }
        node.ends.procs_ended(ends.into_iter().map(|(uid, end, _)| (uid, end)).collect());
        for o in orphans {
            self.stop_proc(o, LINGER, None, "its owner is gone");
        }
        self.idle.notify_all();
    }

    // ---- inspection and shutdown

    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade()
    }

    pub(crate) fn weak(&self) -> Weak<Agent> {
        self.me.clone()
    }

    pub(crate) fn host(&self) -> &str {
        &self.options.host
    }

    /// Waits until all procs have ended, at most for `bound`. Returns false if some still run.
    pub fn wait_idle(&self, bound: Duration) -> bool {
        let deadline = Instant::now() + bound;
        let mut state = lock(&self.state);
        while !state.procs.is_empty() || state.ending + state.starting > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.idle.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Shuts the agent down: no proc can be started any more, the zygote ends, and all lines are written to the console.
    pub fn close(&self, bound: Duration) {
        let zygote = {
            let mut state = lock(&self.state);
            state.closing = true;
            state.zygote.take()
        };
        if let Some(z) = zygote {
            z.end();
        }
        drop(lock(&self.control_socket).take());
        self.recordings.close();
        self.output.flush(bound, true);
    }
}
