//! The runtime of this process as a Python object.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::agent::AgentOptions;
use runtime::agent::process_table::Requester;
use runtime::agent::simulated::Launcher;
use runtime::operations::housekeeping::{self, Housekeeping};
use runtime::operations::{drain, proc_requests, signals};
use runtime::peers::routes::Place;
use runtime::supervision::Member;
use runtime::transfers::offers::{NEVER, UNDECIDED};
use runtime::{Agent, Mode, Node};
use wire::control::ProcPlan;
use wire::{CallId, Control, MailboxId, ProcUid, Status};

use crate::bulk::exchange::PartExchange;
use crate::fork;
use crate::gil::{self, Gil};
use crate::pending_call::{PendingCall, mode};
use crate::process_end::ProcessEnd;
use crate::supervision::Supervision;
use crate::system_event::{drain_limits, event};
use crate::timeline::Timeline;
use ::bulk::bulk::Jobs;

/// The longest time of a timer. A longer time means never, but a clock must be able to represent it.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// The runtime of this process: its node, and what only Python uses.
#[pyclass(frozen)]
pub struct Process {
    pub node: Arc<Node>,
    /// The agent, in a client and in a worker.
    pub agent: Option<Arc<Agent>>,
    housekeeping: Housekeeping,
    pub exchanging: Arc<PartExchange>,
    /// The jobs whose processes may reach the memory of this process.
    pub jobs: Jobs,
}

pub fn failed(e: std::io::Error) -> PyErr {
    PyOSError::new_err(format!("cannot start the runtime: {e}"))
}

/// A proc to start: uid, setup, exec, ready in ms, prefix of output lines, name, file for the output.
type Plan = (u64, Vec<u8>, bool, u64, String, String, String);

#[pymethods]
impl Process {
    /// Makes a client's runtime. `zygote` is the zygote's command; `consoles` get the lines of procs' stdout and stderr (-1: none).
    #[staticmethod]
    fn client(
        uid: u64,
        host: String,
        zygote: Vec<String>,
        env: Vec<(String, String)>,
        tail_lines: usize,
        consoles: [i32; 2],
    ) -> PyResult<Self> {
        let node = Node::start(ProcUid(uid), ProcUid(uid)).map_err(failed)?;
        let agent = Agent::new(&node, AgentOptions { host, zygote, env, tail_lines, consoles }).map_err(failed)?;
        Ok(Process::of(node, Some(agent)))
    }

    /// Makes the runtime of a proc; `fd` is its link to its agent. It records `events` events from the first message on; 0: none.
    #[staticmethod]
    fn proc(uid: u64, agent: u64, fd: i32, events: u32) -> PyResult<Self> {
        let node = Node::start(ProcUid(uid), ProcUid(agent)).map_err(failed)?;
        let peer = node.peers.peer(ProcUid(agent));
        peer.send_control(Control::Hello { version: wire::VERSION, uid: ProcUid(uid), pid: std::process::id() });
        if events > 0 {
            node.recording.keep(events);
        }
        // SAFETY: the caller passes the ownership of the descriptor.
        peer.link.attach(unsafe { OwnedFd::from_raw_fd(fd) }).map_err(failed)?;
        Ok(Process::of(node, None))
    }

    /// Makes the client of a simulated world, whose procs are nodes of this process.
    #[staticmethod]
    fn simulated_client(timeline: &Timeline, uid: u64, host: String) -> PyResult<Self> {
        let node = Node::on(timeline.poller()?, ProcUid(uid), ProcUid(uid));
        let agent =
            Agent::new(&node, AgentOptions { host, zygote: vec![], env: vec![], tail_lines: 0, consoles: [1, 2] }).map_err(failed)?;
        agent.simulate(Launcher::new(&node));
        Ok(Process::of(node, Some(agent)))
    }

    /// Makes a proc of this simulated client that its agent has requested; `None` if the proc was killed meanwhile.
    fn simulated_proc(&self, uid: u64, group: u64, pid: u32) -> PyResult<Option<Process>> {
        let Some((node, link)) = self.agent.as_ref().and_then(|a| a.launcher()).and_then(|l| l.node(ProcUid(uid), group)) else {
            return Ok(None);
        };
        let peer = node.peers.peer(self.node.uid);
        peer.send_control(Control::Hello { version: wire::VERSION, uid: ProcUid(uid), pid });
        peer.link.attach(link).map_err(failed)?;
        Ok(Some(Process::of(node, None)))
    }

    /// Reports to the agent that a simulated proc of this client has ended, with a wait status.
    fn simulated_exit(&self, uid: u64, status: i32) {
        if let Some(l) = self.agent.as_ref().and_then(|a| a.launcher()) {
            l.exited(ProcUid(uid), status);
        }
    }

    /// Ends the runtime of a simulated client.
    fn end(&self) {
        self.node.end();
    }

    #[getter]
    fn uid(&self) -> u64 {
        self.node.uid.0
    }

    #[getter]
    fn agent_uid(&self) -> u64 {
        self.node.agent_uid.0
    }

    /// Starts the zygote before it is needed.
    fn warm_up(&self) {
        if let Some(a) = &self.agent {
            a.warm_up();
        }
    }

    /// Sets the descriptors for lines that later procs print to stdout and stderr.
    fn set_consoles(&self, out: i32, err: i32) {
        if let Some(a) = &self.agent {
            a.set_consoles([out, err]);
        }
    }

    /// Requests procs from the agent of a host; 0: from the agent of this host.
    fn spawn_procs(&self, host: u64, procs: Vec<Plan>) -> PyResult<()> {
        fork::check_not_forked()?;
        let plan = |(uid, setup, exec, ready_ms, prefix, name, capture)| {
            let command = if exec { vec!["exec".to_owned()] } else { vec![] };
            (ProcUid(uid), ProcPlan { command, setup, ready_ms, prefix, name, capture, ..ProcPlan::default() })
        };
        let procs: Vec<(ProcUid, ProcPlan)> = procs.into_iter().map(plan).collect();
        proc_requests::spawn(&self.node, ProcUid(host), procs);
        Ok(())
    }

    fn stop_proc(&self, uid: u64, grace: f64, drain: (f64, f64), reason: String) -> PyResult<()> {
        fork::check_not_forked()?;
        let (uid, drain) = (ProcUid(uid), Some(drain_limits(drain)));
        self.node.peers.to_agent_of(self.node.peers.host_of(uid), Control::StopProc { uid, grace_ms: (grace * 1e3) as u64, drain, reason });
        Ok(())
    }

    /// Asks the agent not to kill this proc, which is being stopped, for `grace` seconds.
    fn extend_stop(&self, grace: f64) {
        self.node.peers.to_agent(Control::Extend { grace_ms: (grace * 1e3) as u64 });
    }

    /// Reports to the agent that an actor of this mesh begins its `__cleanup__`, or has ended it.
    fn note_cleanup(&self, mesh: u64, begins: bool) {
        self.node.peers.to_agent(Control::Cleanup { mesh: MailboxId(mesh), begins });
    }

    fn spawn_actor(&self, proc: u64, mailbox: u64, spec: Vec<u8>) -> PyResult<()> {
        fork::check_not_forked()?;
        self.node.messages.spawn_actor(ProcUid(proc), MailboxId(mailbox), spec);
        Ok(())
    }

    /// A pending call that the given procs answer by its call id; a failure of a proc is a failure of `mesh`.
    #[pyo3(signature = (how, size, procs=None, mesh=0))]
    fn cell(&self, how: i32, size: usize, procs: Option<Vec<u64>>, mesh: u64) -> PyResult<PendingCall> {
        fork::check_not_forked()?;
        let procs: Vec<_> = procs.unwrap_or_default().into_iter().map(ProcUid).collect();
        let call = proc_requests::start_call(&self.node, mode(how)?.unwrap_or(Mode::Gather), size, &procs, MailboxId(mesh));
        Ok(PendingCall::new(&self.node, call))
    }

    /// Sends a request to the housekeeping thread of a process.
    #[pyo3(signature = (to, kind, body, slot=0))]
    fn request(&self, to: u64, kind: u16, body: Vec<u8>, slot: u64) -> PyResult<()> {
        fork::check_not_forked()?;
        self.node.replies.send_system(ProcUid(to), kind, CallId(slot), body);
        Ok(())
    }

    /// Reports to the process `to`, the owner of the mesh, that an actor of this process has failed.
    fn report_failure(&self, to: u64, mesh: u64, rank: u32, failure: &[u8]) {
        self.node.replies.report_failure(ProcUid(to), Member { mesh: MailboxId(mesh), rank }, failure);
    }

    /// Answers a pending call with bytes: status 0 for a value, 1 for an exception, 2 for a failure, 4 for closed.
    fn reply(&self, to: u64, slot: u64, rank: u32, status: u8, body: &[u8]) -> PyResult<()> {
        fork::check_not_forked()?;
        let status = Status::from_u8(status).map_err(|e| pyo3::exceptions::PyValueError::new_err(e.to_string()))?;
        self.node.replies.send_bytes(ProcUid(to), CallId(slot), rank, status, body);
        Ok(())
    }

    /// The next event for the housekeeping thread; `None` after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn next_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        fork::exit_forked_child(py, None);
        let next = self.housekeeping.next_event(&Gil(py), timeout.map(Duration::from_secs_f64))?;
        next.map(|e| event(py, e)).transpose()
    }

    /// The meshes that this process owns, and the receivers of their failures.
    #[getter]
    fn supervision(&self) -> Supervision {
        Supervision::of(&self.node)
    }

    /// Notes that the failure of the last event has reached the actors concerned.
    fn failure_handled(&self) {
        self.node.system.failure_handled();
    }

    /// Waits until the housekeeping thread has handled all failures that have arrived. On that thread itself it returns at once.
    fn settle(&self, py: Python<'_>) {
        housekeeping::settle(&Gil(py), &self.node.system);
    }

    /// The end of a proc; `None` if this process knows of no end.
    fn ended(&self, proc: u64) -> Option<ProcessEnd> {
        let peer = self.node.peers.known_peer(ProcUid(proc))?;
        peer.ended().map(|ended| ProcessEnd(ended.end.clone()))
    }

    /// The end of a proc that ended so long ago that only the fact is known; `None` for all other procs.
    fn ended_long_ago(&self, proc: u64) -> Option<ProcessEnd> {
        self.node.peers.end_of_old(ProcUid(proc)).map(|ended| ProcessEnd(ended.end.clone()))
    }

    /// True if this process knows the uid as that of a host.
    fn is_host(&self, uid: u64) -> bool {
        self.node.peers.routes.is_host(ProcUid(uid))
    }

    /// Decodes the answer to a call whose process ended.
    #[staticmethod]
    fn decode_end(body: &[u8]) -> PyResult<ProcessEnd> {
        let end = postcard::from_bytes(body).map_err(|e| pyo3::exceptions::PyValueError::new_err(e.to_string()))?;
        Ok(ProcessEnd(end))
    }

    /// Accepts processes of the same user that this agent has not started.
    fn open_control_socket(&self) -> PyResult<()> {
        self.agent.as_ref().map_or(Ok(()), |a| a.open_control_socket()).map_err(failed)
    }

    /// Makes processes of another client's job reachable; `places` has the host of each process.
    fn join(&self, py: Python<'_>, client: u64, places: Vec<(u64, u64)>) -> PyResult<()> {
        fork::check_not_forked()?;
        let places: Vec<_> = places.into_iter().map(|(proc, host)| (ProcUid(proc), ProcUid(host))).collect();
        gil::blocking(py, || self.node.ends.join(ProcUid(client), &places));
        Ok(())
    }

    /// Stops the procs of this agent that external processes have spawned.
    fn stop_external_procs(&self, grace: f64, drain: (f64, f64), reason: &str) {
        if let Some(agent) = &self.agent {
            agent.stop_external_procs(Duration::from_secs_f64(grace), drain_limits(drain), reason);
        }
    }

    /// Sets the hosts of processes; returns those whose host is lost, with its end. `here`: this host's uid in their job; 0: in its own.
    #[pyo3(signature = (procs, here=0))]
    fn route(&self, procs: Vec<(u64, u64)>, here: u64) -> PyResult<Vec<(u64, ProcessEnd)>> {
        fork::check_not_forked()?;
        let here = if here == 0 { self.node.agent_uid } else { ProcUid(here) };
        let mut lost = vec![];
        for (proc, host) in procs {
            let place = Place { host: ProcUid(host), here };
            self.node.peers.route(ProcUid(proc), place.host, place.here);
            lost.extend(self.node.peers.routes.lost(place).map(|end| (proc, ProcessEnd(end))));
        }
        Ok(lost)
    }

    /// Lets a proc of this agent serve the job of `asker` too. Returns the job; `None` if the asker or the proc has ended.
    fn serve(&self, proc: u64, asker: u64) -> Option<u64> {
        self.agent.as_ref()?.add_served_job(ProcUid(proc), ProcUid(asker)).map(|job| job.0)
    }

    /// Admits a job whose processes may have handles to memory of this process, which serves their requests.
    fn admit_job(&self, job: u64) {
        self.jobs.add(job);
    }

    /// In an agent: the uid of this host in the job that `asker` belongs to and in which another host has the uid `host`.
    fn own_id_beside(&self, host: u64, asker: u64) -> Option<u64> {
        self.agent.as_ref()?.own_id_beside(ProcUid(host), ProcUid(asker)).map(|here| here.0)
    }

    /// In an agent: the uid of this host in the job of that process.
    fn job_of(&self, asker: u64) -> Option<u64> {
        self.agent.as_ref()?.job_of(ProcUid(asker)).map(|here| here.0)
    }

    /// In an agent: the job in which this host has this uid.
    fn client_of(&self, here: u64) -> Option<u64> {
        self.agent.as_ref()?.client_of(ProcUid(here)).map(|job| job.0)
    }

    /// Sets a line of this agent's inspection report; an empty text removes it.
    fn note(&self, name: String, text: String) {
        if let Some(agent) = &self.agent {
            agent.note(name, text);
        }
    }

    /// The uid and the pid of each proc of this agent.
    fn alive_procs(&self) -> Vec<(u64, u32)> {
        self.agent.as_ref().map_or(vec![], |a| a.alive().into_iter().map(|(u, p)| (u.0, p)).collect())
    }

    fn zygote_pid(&self) -> Option<u32> {
        self.agent.as_ref().and_then(|a| a.zygote_pid())
    }

    /// Waits until this agent has no procs; false if some are left after `bound` seconds.
    fn wait_idle(&self, py: Python<'_>, bound: f64) -> bool {
        let Some(a) = &self.agent else { return true };
        gil::blocking(py, || a.wait_idle(Duration::from_secs_f64(bound)))
    }

    /// Kills a proc of this agent.
    fn kill_proc(&self, uid: u64) {
        if let Some(a) = &self.agent {
            a.kill(ProcUid(uid));
        }
    }

    /// Ends the agent: its procs and its zygote have ended, and all output is on the console.
    fn close_agent(&self, py: Python<'_>, bound: f64) {
        if let Some(a) = &self.agent {
            gil::blocking(py, || a.close(Duration::from_secs_f64(bound)));
        }
    }

    fn flush_output(&self, py: Python<'_>, bound: f64) {
        if let Some(a) = &self.agent {
            gil::blocking(py, || a.flush_output(Duration::from_secs_f64(bound)));
        }
    }

    /// Sets the directory for the output of later procs.
    fn set_log_dir(&self, path: std::path::PathBuf) {
        if let Some(a) = &self.agent {
            a.set_log_dir(path);
        }
    }

    /// Counts equal lines of these procs of this agent together, in windows of `window` seconds; `None` ends the counting. The call `slot`
    /// is answered when the earlier counts are on the console, or after 3 s. A `viewer` is a client elsewhere that gets the lines too.
    #[pyo3(signature = (procs, window, to, slot, rank, viewer=None))]
    fn aggregate_output(&self, procs: Vec<u64>, window: Option<f64>, to: u64, slot: u64, rank: u32, viewer: Option<u64>) {
        let node = self.node.clone();
        let done = move || node.replies.send_bytes(ProcUid(to), CallId(slot), rank, Status::Ok, b"");
        let procs: Vec<_> = procs.into_iter().map(ProcUid).collect();
        let window = window.map(|w| Duration::try_from_secs_f64(w).unwrap_or(LONGEST).min(LONGEST));
        match &self.agent {
            Some(a) => a.aggregate(&procs, window, viewer.map(ProcUid), done),
            None => done(),
        }
    }

    /// The ranks that the call with this id waits for; empty if it is done or dropped.
    fn unanswered(&self, slot: u64) -> Vec<u32> {
        self.node.calls.unanswered(CallId(slot))
    }

    /// The packed errors of endpoints whose calls are held and were not read; each is returned once.
    fn take_unread_errors<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.node.calls.take_unread_errors().iter().map(|answer| PyBytes::new(py, answer)).collect()
    }

    /// Sends a request to this process's own housekeeping thread after `delay` seconds.
    fn request_later(&self, delay: f64, kind: u16, body: Vec<u8>) {
        let node = Arc::downgrade(&self.node);
        let send = move || {
            if let Some(n) = node.upgrade() {
                n.replies.send_system(n.uid, kind, CallId::NONE, body);
            }
        };
        self.node.poller.later(Duration::try_from_secs_f64(delay).unwrap_or(LONGEST).min(LONGEST), Box::new(send));
    }

    /// Waits until the sockets have accepted all queued frames; false after `bound` seconds.
    fn flush_links(&self, py: Python<'_>, bound: f64) -> bool {
        drain::flush_links(&Gil(py), &self.node.peers, Duration::from_secs_f64(bound))
    }

    /// Sets the size in bytes from which receivers on other hosts pull large parts; `None`: parts are sent; -1: not decided yet.
    fn set_offer_size(&self, bytes: Option<i64>) {
        self.node.offers.set_min_size(match bytes {
            None => NEVER,
            Some(bytes) => usize::try_from(bytes).map_or(UNDECIDED, |n| n.clamp(runtime::transfers::payload::SHARED_FROM, UNDECIDED - 1)),
        });
    }

    /// The number of message parts that receivers have not pulled yet.
    fn offered_parts(&self) -> usize {
        self.node.offers.offered()
    }

    /// Waits until receivers have pulled all offered parts; false if some are left after `bound` seconds, if no receiver makes progress for
    /// `pause` seconds, or if the agent has ended.
    fn wait_pulled(&self, py: Python<'_>, bound: f64, pause: f64) -> bool {
        let (bound, pause) = (Duration::from_secs_f64(bound), Duration::from_secs_f64(pause));
        drain::wait_pulled(&Gil(py), &self.node.peers, &self.node.offers, bound, pause)
    }

    /// True if this process knows a process of the job. An agent knows all processes of its host, for the job of `asker`.
    fn knows(&self, uid: u64, asker: u64) -> bool {
        self.node.peers.knows(ProcUid(uid), ProcUid(asker))
    }

    /// Requests a report of the process's end from the agent of its host.
    fn watch_proc(&self, uid: u64, host: u64) {
        proc_requests::watch(&self.node, ProcUid(uid), ProcUid(host));
    }

    /// Fails the pending and later calls to this mesh of another owner.
    fn fail_mesh(&self, mesh: u64, procs: Vec<u64>, reason: &[u8]) {
        let procs: Vec<ProcUid> = procs.into_iter().map(ProcUid).collect();
        self.node.calls.fail_mesh(MailboxId(mesh), &procs, reason);
    }

    /// For tests: delays the frames of all links by `nanos` nanoseconds, in both directions.
    fn hold_frames(&self, nanos: u64) {
        self.node.poller.delay.set(Duration::from_nanos(nanos));
    }

    /// True if a holder of a call to this mesh may still see the call's failure.
    fn failure_may_be_seen(&self, mesh: u64) -> bool {
        self.node.calls.failure_may_be_seen(MailboxId(mesh))
    }

    /// Sets the name of this process in inspections. Stacks without the GIL are written to the descriptor `fd` when `signal` is sent.
    fn set_inspection(&self, name: String, fd: i32, signal: i32) {
        self.node.inspections.set_name(name);
        self.node.inspections.set_stack_handler((fd >= 0).then_some((fd, signal)));
    }

    /// The state of this process as JSON.
    fn state(&self) -> Vec<u8> {
        self.node.inspections.state_json()
    }

    /// Takes the stacks that an event requested, as JSON.
    fn stacks_taken(&self, ticket: u64, body: Vec<u8>) {
        self.node.inspections.stacks_taken(ticket, body);
    }

    /// The name of the host of a process, if it is another one, and the seconds since its last heartbeat, as far as this process knows.
    fn silence(&self, proc: u64) -> (String, Option<f64>) {
        let host = self.node.peers.routes.place(ProcUid(proc)).map(|place| place.host);
        match host.and_then(|host| self.node.silence(host)) {
            Some((name, age)) => (name, Some(age.as_secs_f64())),
            None => (String::new(), None),
        }
    }

    /// Takes the line of code of a message in progress that an event asked for; "" if it is unknown.
    fn place_found(&self, number: u64, place: String) {
        self.node.messages.place_found(number, place);
    }

    /// Inspects all procs of this agent: 0 for their state, 1 for their stacks. The answer is JSON.
    fn inspect(&self, what: u8) -> PyResult<PendingCall> {
        let inner = self.node.calls.start(Mode::Gather, 1, Arc::default());
        match &self.agent {
            Some(a) => a.inspect_all(Requester::Local(inner.call_id), what),
            None => return Err(PyOSError::new_err("this process has no procs of its own")),
        }
        Ok(PendingCall::new(&self.node, inner))
    }

    /// Records the events of this process from now on, in a ring for at least `events` of them.
    fn record(&self, events: u32) {
        self.node.recording.keep(events);
    }

    /// Records the events of this agent and all its procs, later ones included; 0 ends it, except where a process records for itself.
    fn record_host(&self, events: u32) {
        if let Some(agent) = &self.agent {
            agent.record(events);
        }
    }

    /// The processes of this agent whose events are or were recorded: (proc, pid, file, ended, name, job), this process first.
    fn recorded(&self) -> Vec<(u64, u32, String, bool, String, u64)> {
        let own = std::process::id();
        let row = |r: runtime::agent::recordings::Recording| {
            (r.of.proc.0, r.of.pid, format!("/proc/{own}/fd/{}", r.fd), r.end.is_some(), r.of.name, r.of.job.0)
        };
        self.agent.as_ref().map_or(vec![], |a| a.recorded().into_iter().map(row).collect())
    }

    /// Numbers for tests: pending calls, reserved bytes of the arena, dropped replies.
    fn stats(&self) -> (usize, u64, u64) {
        let dropped = self.node.calls.dropped_replies();
        (self.node.calls.in_flight(), self.node.arena.reserved(), dropped)
    }
}

/// Makes this process, a fork of `parent`, inert. `process` was the runtime of the parent; `leave()` ends a child whose user code returns
/// to the runtime.
#[pyfunction]
#[pyo3(signature = (parent, leave, process=None))]
pub fn after_fork_in_child(py: Python<'_>, parent: u32, leave: Py<PyAny>, process: Option<&Process>) {
    fork::become_child(py, parent, leave);
    signals::forget_in_child(&Gil(py));
    if let Some(p) = process {
        p.node.close_in_child();
    }
}

impl Process {
    fn of(node: Arc<Node>, agent: Option<Arc<Agent>>) -> Self {
        let housekeeping = Housekeeping::new(&node.poller, &node.system, &node.inspections);
        let exchanging = PartExchange::start(&node);
        Process { node, agent, housekeeping, exchanging, jobs: Jobs::default() }
    }
}
