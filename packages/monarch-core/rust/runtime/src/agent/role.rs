//! The agent as others know it: the components of its process (`LocalAgent`), and those that start and end the agent. This is the one place
//! that delegates to its components.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use net::lock::lock;
use wire::control::DrainLimits;
use wire::exit::ProcEnd;
use wire::{Control, ProcUid};

use crate::agent::Agent;
use crate::agent::process_table::Requester;
use crate::agent::recordings::Recording;
use crate::agent::simulated::Launcher;
use crate::agent::starter::ProcReports;
use crate::agent::zygote::Report;
use crate::gateway::Gateway;
use crate::roles::LocalAgent;
use crate::streams::UNKNOWN;
use crate::tasks;

impl LocalAgent for Agent {
    fn control(&self, from: ProcUid, c: Control) {
        match c {
            Control::Hello { pid, .. } => self.spawns.hello(from, pid),
            Control::Connect { target } => self.links.connect(from, target),
            Control::SpawnProcs { owner, procs } => {
                if let Some(here) = self.jobs.job_of(from) {
                    self.spawns.spawn_soon(owner, here, procs);
                }
            }
            // On the I/O thread, after a spawn of the same proc that may wait there.
            Control::StopProc { uid, grace_ms, drain, reason } => tasks::spawn(&self.local.poller, &self.ends, move |ends| {
                ends.stop_proc(uid, Duration::from_millis(grace_ms), drain, &reason);
            }),
            Control::Pong { .. } => self.watch.ponged(from),
            Control::Inspect { id, what } => self.inspections.inspect_all(Requester::Peer(from, id), what),
            Control::Watch { target } => self.watch.watch_proc(from, target),
            Control::BulkDial { number, from: ours, to, to_host } => match (self.jobs.gateway(), self.local.node()) {
                (Some(gateway), _) => gateway.bulk.dial(from, number, ours, (to, to_host)),
                (None, Some(node)) => node.streams.refuse(ours, number, UNKNOWN.to_owned()),
                (None, None) => {}
            },
            Control::Extend { grace_ms } => self.ends.extend_cleanup(from, Duration::from_millis(grace_ms)),
            Control::Cleanup { mesh, begins } => drop(self.procs.with(from, |p| p.cleanups.note(mesh, begins))),
            _ => {}
        }
    }

    fn printed(&self, kind: u16, body: &[u8]) {
        self.console.printed(kind, body);
    }

    fn owners_ended(&self, ends: &[(ProcUid, ProcEnd)]) {
        self.ends.owners_ended(ends);
    }

    fn link_down(&self, peer: ProcUid) {
        self.links.down(peer);
    }

    fn inspected(&self, from: ProcUid, id: u64, body: Vec<u8>) {
        self.inspections.inspected(from, id, body);
    }

    fn ponged(&self, from: ProcUid) {
        self.watch.ponged(from);
    }

    fn shares_a_job(&self, proc: ProcUid, asker: ProcUid) -> Option<bool> {
        self.jobs.has_proc(proc).then(|| self.jobs.share_a_job(proc, asker))
    }

    fn is_in_job(&self, proc: ProcUid, here: ProcUid) -> bool {
        self.jobs.is_in_job(proc, here)
    }

    fn job_of(&self, requester: ProcUid) -> Option<ProcUid> {
        self.jobs.job_of(requester)
    }

    fn end_of(&self, proc: ProcUid) -> Option<ProcEnd> {
        Some(self.local.node()?.peers.end_of(proc)?.end.clone())
    }

    fn note_exchange(&self, a: ProcUid, b: ProcUid) {
        self.procs.note_exchange(a, b);
    }

    fn started(&self) -> Vec<ProcUid> {
        self.procs.started()
    }

    fn host_ended(&self, host: ProcUid, end: &ProcEnd) {
        self.ends.host_ended(host, end);
    }

    fn host_left(&self, host: ProcUid, here: ProcUid, end: &ProcEnd) {
        self.ends.host_left(host, here, end);
    }

    fn job_ended(&self, here: ProcUid, why: &str) {
        self.ends.job_ended(here, why);
    }

    fn host(&self) -> String {
        self.options.host.clone()
    }

    fn keep_ring(&self, of: ProcUid, ring: OwnedFd) {
        self.recordings.add(of, ring);
    }

    fn close_in_child(&self) {
        self.console.output.poller.close_in_child();
    }
}

impl Agent {
    /// The gateway of this process to other hosts, which is made at the first call.
    pub fn open_gateway(&self) -> io::Result<Arc<Gateway>> {
        let node = self.local.node().ok_or(io::ErrorKind::NotConnected)?;
        Ok(self.jobs.gateway.get_or_init(|| Gateway::new(&node)).clone())
    }

    /// Makes new procs nodes of this process, for simulations.
    pub fn simulate(&self, launcher: Arc<Launcher>) {
        self.starter.simulate(launcher);
    }

    pub fn launcher(&self) -> Option<&Arc<Launcher>> {
        self.starter.launcher.get()
    }

    /// Starts the zygote ahead of the first proc, on the I/O thread.
    pub fn warm_up(&self) {
        let (starter, externals) = (self.starter.clone(), self.externals.clone());
        tasks::spawn(&self.local.poller, &self.watch, move |watch| {
            drop(starter.with_zygote(|_| ()));
            // The control socket serves inspections and external processes. Without it, everything else works.
            drop(externals.open());
            watch.begin();
        });
    }

    /// Handles a message of a proc, or of this process, to the agent.
    pub fn control(&self, from: ProcUid, c: Control) {
        LocalAgent::control(self, from, c);
    }

    /// Handles a report of the zygote about its children.
    pub fn report(&self, report: Report) {
        self.ends.clone().report(report);
    }

    /// Opens the control socket, for processes of the same user that this agent has not started.
    pub fn open_control_socket(&self) -> io::Result<()> {
        self.externals.open()
    }

    /// Asks a proc to stop, and kills it after `grace`. Without `drain`, the limits for its messages are its own.
    pub fn stop_proc(&self, uid: ProcUid, grace: Duration, drain: Option<DrainLimits>, reason: &str) {
        self.ends.stop_proc(uid, grace, drain, reason);
    }

    /// Stops the procs that external processes have spawned.
    pub fn stop_external_procs(&self, grace: Duration, drain: DrainLimits, reason: &str) {
        self.ends.stop_external_procs(grace, drain, reason);
    }

    pub fn kill(&self, uid: ProcUid) {
        self.starter.kill(uid);
    }

    /// The procs in the table, with their pids.
    pub fn alive(&self) -> Vec<(ProcUid, u32)> {
        self.procs.alive()
    }

    pub fn zygote_pid(&self) -> Option<u32> {
        self.starter.zygote_pid()
    }

    /// The id of this host in the job of the process `requester`.
    pub fn job_of(&self, requester: ProcUid) -> Option<ProcUid> {
        self.jobs.job_of(requester)
    }

    /// The uid of the client in whose job this host has the id `here`.
    pub fn client_of(&self, here: ProcUid) -> Option<ProcUid> {
        self.jobs.client_of(here)
    }

    /// The id of this host in the job that has the host `host` and the process `asker`.
    pub fn own_id_beside(&self, host: ProcUid, asker: ProcUid) -> Option<ProcUid> {
        self.jobs.own_id_beside(host, asker)
    }

    /// Lets a service of this agent answer the processes of the requesting process's job too. Returns the client's uid.
    pub fn add_served_job(&self, proc: ProcUid, requester: ProcUid) -> Option<ProcUid> {
        self.jobs.add_served_job(proc, requester)
    }

    /// Asks every proc, this process itself, and a client's other hosts.
    pub fn inspect_all(&self, asker: Requester, what: u8) {
        self.inspections.inspect_all(asker, what);
    }

    /// Sets a note of a service for inspections; an empty text removes it.
    pub fn note(&self, name: String, text: String) {
        self.inspections.note(name, text);
    }

    /// Makes this process, all procs and later ones record their events, in rings for at least `events` of them; 0: they stop to record.
    pub fn record(&self, events: u32) {
        self.recordings.record(events);
    }

    /// The rings of this process, of the procs, and of procs that have ended, in this order.
    pub fn recorded(&self) -> Vec<Recording> {
        self.recordings.recorded()
    }

    /// Sets the descriptors to which the lines of procs that start from now on are written.
    pub fn set_consoles(&self, consoles: [libc::c_int; 2]) {
        *lock(&self.console.consoles) = consoles;
    }

    /// Sets the folder of the captured output of procs that start from now on.
    pub fn set_log_dir(&self, path: PathBuf) {
        *lock(&self.console.log_dir) = path;
    }

    /// Waits until the lines that procs have printed before this call are on the console, at most for `bound`.
    pub fn flush_output(&self, bound: Duration) {
        self.console.flush_output(bound);
    }

    /// Counts the lines of these procs together in windows from now on, or shows them one by one again (`Console::aggregate`).
    pub fn aggregate(&self, procs: &[ProcUid], window: Option<Duration>, viewer: Option<ProcUid>, done: impl FnOnce() + Send + 'static) {
        self.console.aggregate(procs, window, viewer, done);
    }

    /// Waits until all procs have ended, at most for `bound`. Returns false if some still run.
    pub fn wait_idle(&self, bound: Duration) -> bool {
        self.procs.wait_idle(bound)
    }

    /// Shuts the agent down: no proc can be started any more, the zygote ends, and all lines are written to the console.
    pub fn close(&self, bound: Duration) {
        self.starter.close();
        self.externals.close();
        self.recordings.close();
        self.console.output.flush(bound, true);
    }
}
