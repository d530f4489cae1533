//! The state of all procs of a host, for `monarch ps` and other inspections. The agent asks every proc, waits a short time, and combines
//! the answers. A proc that does not answer delays no other one, and its row has the state that the kernel reports.
//!
//! What it needs: the table of procs and their jobs, the other hosts of a client, and the recordings.
//!
//! What always holds:
//! - An inspection is answered once, at the latest when its time is over.
//! - A proc that a signal has stopped is not asked, so it uses up no time.
//! - A client of another host sees the rows of its own procs only.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::lock::lock;
use serde::Serialize;
use serde_json::value::RawValue;
use wire::{CallId, Control, ProcUid, Status};

use crate::agent::kernel_state::{kernel_state, resident, seconds, why_unresponsive};
use crate::agent::options::AgentOptions;
use crate::agent::proc_jobs::{AGENT, ProcJobs};
use crate::agent::processor::{ProcessorTimes, processor_times};
use crate::agent::procs::{Proc, Procs};
use crate::agent::recordings::{RecordingRow, Recordings};
use crate::agent::starter::Starter;
use crate::gateway::Member;
use crate::inspection::{INSPECT_STACKS, hex};
use crate::local::Local;
use crate::tasks;

/// The time that procs have for their stacks. It is longer than a proc takes that has to read them without the GIL.
const FOR_STACKS: Duration = Duration::from_millis(2000);
/// Stacks take some milliseconds of a processor, so of many procs these are asked at a time, or an eighth of all: the next one when one has
/// answered, and as many again after each `TURN` in any case. Asked all at once, hundreds would answer too late together.
const AT_A_TIME: usize = 64;
const PART: usize = 8;
/// An eighth of `FOR_STACKS`.
const TURN: Duration = Duration::from_millis(250);
/// The time for the state, which a proc has at hand.
const FOR_STATE: Duration = Duration::from_millis(700);
/// The additional time for other hosts, which wait for their own procs.
const FOR_HOSTS: Duration = Duration::from_millis(1000);

/// The kernel's state letter of a process that a signal has stopped. A traced process has another letter, and goes on by itself.
const STOPPED: char = 'T';

/// The receiver of an inspection.
pub enum Requester {
    /// A process at the other end of a link, and the number of its request.
    Peer(ProcUid, u64),
    /// A call of this process.
    Local(CallId),
    /// This agent, for the stacks of a proc that has become unresponsive.
    Watch(ProcUid, Box<dyn FnOnce(Vec<u8>) + Send>),
}

/// The row of a proc, from the agent's table, the kernel and the proc's own answer.
#[derive(Serialize)]
struct ProcRow {
    pub uid: String,
    pub owner: String,
    pub pid: u32,
    pub name: String,
    /// `starting`, `running`, `stopping` or `unresponsive`.
    pub state: &'static str,
    /// Age of the proc in seconds.
    pub age: f64,
    /// The time for which the proc has been unresponsive, in seconds.
    pub silent: Option<f64>,
    /// The probable reason why the proc is unresponsive.
    #[serde(rename = "evidence")]
    pub silence_reason: Option<&'static str>,
    /// The stacks of an unresponsive proc.
    pub stacks: Option<Box<RawValue>>,
    /// The kernel's state letter of the main thread; `T`: stopped by a signal.
    pub kernel: Option<char>,
    /// Resident memory in bytes.
    pub rss: Option<u64>,
    /// Its processor time, in an inspection of stacks.
    pub times: Option<ProcessorTimes>,
    /// The memory cgroup of the proc at the last check.
    pub cgroup: Option<String>,
    /// The number of bytes and of lines that the proc has printed.
    pub printed: (u64, u64),
    /// The path of the files with the proc's output, without `.stdout` and `.stderr`.
    pub captured_in: Option<PathBuf>,
    /// The proc's own answer.
    pub answer: Option<Box<RawValue>>,
}

/// The answer to an inspection, as JSON.
#[derive(Serialize)]
struct Answer {
    host: String,
    version: &'static str,
    agent_pid: u32,
    zygote_pid: Option<u32>,
    procs: Vec<ProcRow>,
    /// The interpreters with imported modules, from which procs are forked.
    preloaded: Vec<PreloadedRow>,
    /// Client only: its other hosts.
    hosts: Vec<HostRow>,
    /// Agent only: the clients of other hosts that have a job here, by their own descriptions.
    clients: Vec<String>,
    /// Notes on services of this host that failed or are failing.
    notes: Vec<String>,
    /// The processes whose events are recorded or were recorded.
    recordings: Vec<RecordingRow>,
}

/// The row of a preloaded interpreter.
#[derive(Serialize)]
struct PreloadedRow {
    pid: u32,
    /// Resident memory in bytes.
    rss: Option<u64>,
    /// Its state and modules, as the zygote has described them.
    description: Box<RawValue>,
}

/// The row of another host of a client.
#[derive(Serialize)]
struct HostRow {
    /// The id of the host in this job.
    id: String,
    host: String,
    /// `joining`, `joined` or `lost`.
    state: &'static str,
    /// The answer of the host's agent about this client's procs; without one, `error` has the reason.
    answer: Option<Box<RawValue>>,
    error: Option<String>,
}

/// An inspection whose answers have not all arrived.
pub(crate) struct Inspection {
    asker: Requester,
    what: u8,
    /// The job that the inspection is limited to, by the id of this host in it; none: all procs of this host.
    only: Option<ProcUid>,
    hosts: Vec<Member>,
    answers: HashMap<ProcUid, Vec<u8>>,
    /// The processes that have not been asked yet.
    unasked: Vec<ProcUid>,
    /// The number of answers that are expected.
    wanted: usize,
}

/// The inspections of an agent. The agent owns it.
pub(crate) struct HostInspections {
    pub local: Arc<Local>,
    pub options: Arc<AgentOptions>,
    pub procs: Arc<Procs>,
    pub jobs: Arc<ProcJobs>,
    pub starter: Arc<Starter>,
    pub recordings: Arc<Recordings>,
    pub born: Instant,
    pub open: Mutex<HashMap<u64, Inspection>>,
    /// The number of the next inspection.
    pub next: AtomicU64,
    /// The notes of the answer, by the name of the service.
    pub notes: Mutex<BTreeMap<String, String>>,
}

impl HostInspections {
    /// Asks every proc, this process itself, and a client's other hosts. A client of another host receives the rows of its own procs only.
    pub fn inspect_all(self: &Arc<Self>, asker: Requester, what: u8) {
        let gateway = self.jobs.gateway();
        let only = match &asker {
            Requester::Peer(from, _) => gateway.and_then(|g| g.jobs.own_id_in(*from)),
            _ => None,
        };
        let mut procs: Vec<ProcUid> = self.procs.started();
        procs.retain(|uid| only.is_none_or(|here| self.jobs.is_in_job(*uid, here)) && !self.is_stopped(*uid));
        procs.insert(0, self.local.uid);
        let hosts = if only.is_some() { vec![] } else { gateway.map_or(vec![], |g| g.jobs.members()) };
        self.ask(asker, what, procs, only, hosts);
    }

    /// Whether a signal has stopped this proc: it cannot answer before another process continues it.
    fn is_stopped(&self, uid: ProcUid) -> bool {
        let pid = self.procs.lock().procs.get(&uid).map(|p| p.pid);
        pid.and_then(kernel_state) == Some(STOPPED)
    }

    /// Begins an inspection of these processes and hosts. Its answer is complete when all have answered, or when the time is over.
    pub fn ask(self: &Arc<Self>, asker: Requester, what: u8, procs: Vec<ProcUid>, only: Option<ProcUid>, hosts: Vec<Member>) {
        let Some(node) = self.local.node() else { return };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let there: Vec<ProcUid> = hosts.iter().filter(|h| h.why.is_none()).map(|h| h.id).collect();
        let wanted = procs.len() + there.len();
        let at_a_time = if what == INSPECT_STACKS { AT_A_TIME.max(procs.len() / PART) } else { procs.len() };
        let bound = if what == INSPECT_STACKS { FOR_STACKS } else { FOR_STATE } + if there.is_empty() { Duration::ZERO } else { FOR_HOSTS };
        let unasked = procs.into_iter().rev().collect();
        lock(&self.open).insert(id, Inspection { asker, what, only, hosts, answers: HashMap::new(), unasked, wanted });
        for host in there {
            node.peers.peer(host).send_control(Control::Inspect { id, what });
        }
        tasks::later(&self.local.poller, bound, self, move |me| me.conclude(id));
        self.ask_in_turns(id, at_a_time);
    }

    /// Asks so many of the processes that have not been asked, and after a while as many again.
    fn ask_in_turns(self: &Arc<Self>, id: u64, number: usize) {
        if self.ask_next(id, number) {
            tasks::later(&self.local.poller, TURN, self, move |me| me.ask_in_turns(id, number));
        }
    }

    /// Asks so many of the processes that have not been asked. Whether there are more.
    fn ask_next(&self, id: u64, number: usize) -> bool {
        let Some(node) = self.local.node() else { return false };
        let (what, next, more) = {
            let mut open = lock(&self.open);
            let Some(o) = open.get_mut(&id) else { return false };
            let next = o.unasked.split_off(o.unasked.len().saturating_sub(number));
            (o.what, next, !o.unasked.is_empty())
        };
        for p in next.into_iter().rev() {
            if p == node.uid {
                node.inspections.inspect(p, id, what);
            } else {
                node.peers.peer_unlinked(p).0.send_control(Control::Inspect { id, what });
            }
        }
        more
    }

    /// Handles the answer of a process or host to an inspection.
    pub fn inspected(&self, from: ProcUid, id: u64, body: Vec<u8>) {
        let complete = {
            let mut open = lock(&self.open);
            let Some(o) = open.get_mut(&id) else { return };
            o.answers.insert(from, body);
            o.answers.len() == o.wanted
        };
        if complete {
            self.conclude(id);
        } else {
            self.ask_next(id, 1);
        }
    }

    fn conclude(&self, id: u64) {
        let Some(mut o) = lock(&self.open).remove(&id) else { return };
        let Some(node) = self.local.node() else { return };
        if let Requester::Watch(uid, report) = o.asker {
            return report(o.answers.remove(&uid).unwrap_or_default());
        }
        let mut rows = self.rows();
        rows.retain(|(uid, _)| o.only.is_none_or(|here| self.jobs.is_in_job(*uid, here)));
        rows.insert(0, self.own_row(if o.only.is_some() { AGENT } else { self.jobs.own_name() }));
        let json = |body: Vec<u8>| String::from_utf8(body).ok().and_then(|text| RawValue::from_string(text).ok());
        let mut hosts = vec![];
        for member in o.hosts {
            let answer = o.answers.remove(&member.id).and_then(json);
            let error = if answer.is_some() { None } else { Some(member.why.unwrap_or_else(|| "no answer".to_owned())) };
            hosts.push(HostRow { id: hex(member.id.0), host: member.name, state: member.state, answer, error });
        }
        for (uid, row) in &mut rows {
            row.answer = o.answers.remove(uid).and_then(json);
            (row.kernel, row.rss) = (kernel_state(row.pid), resident(row.pid));
            row.times = if o.what == INSPECT_STACKS { processor_times(row.pid, self.born) } else { None };
        }
        let recordings = self.recordings.rows(o.only.and_then(|here| self.jobs.client_of(here)));
        let answer = Answer {
            host: self.options.host.clone(),
            version: env!("CARGO_PKG_VERSION"),
            agent_pid: std::process::id(),
            zygote_pid: self.starter.zygote_pid(),
            procs: rows.into_iter().map(|(_, row)| row).collect(),
            preloaded: self.preloaded(o.only),
            hosts,
            clients: self.jobs.gateway().map_or(vec![], |g| g.jobs.clients()),
            notes: lock(&self.notes).iter().map(|(name, text)| format!("{name}: {text}")).collect(),
            recordings,
        };
        let body = serde_json::to_vec(&answer).unwrap_or_default();
        match o.asker {
            Requester::Peer(uid, id) => node.peers.peer_unlinked(uid).0.send_control(Control::Inspected { id, body }),
            Requester::Watch(..) => {}
            Requester::Local(call_id) => node.replies.send_bytes(node.uid, call_id, 0, Status::Ok, &body),
        }
    }

    /// The preloaded interpreters of a job, or of all jobs.
    fn preloaded(&self, only: Option<ProcUid>) -> Vec<PreloadedRow> {
        let state = self.procs.lock();
        let shown = state.preloaded.iter().filter(|(_, (here, _))| only.is_none_or(|wanted| wanted == *here));
        shown.map(|(pid, (_, description))| PreloadedRow { pid: *pid, rss: resident(*pid), description: description.clone() }).collect()
    }

    fn own_row(&self, name: &str) -> (ProcUid, ProcRow) {
        let (silent, silence_reason) = self.own_silence();
        let row = ProcRow {
            uid: hex(self.local.uid.0),
            owner: hex(0),
            pid: std::process::id(),
            name: name.to_owned(),
            state: if silent.is_some() { "unresponsive" } else { "running" },
            age: seconds(self.born),
            silent,
            silence_reason,
            stacks: None,
            kernel: None,
            rss: None,
            times: None,
            cgroup: None,
            printed: (0, 0),
            captured_in: None,
            answer: None,
        };
        (self.local.uid, row)
    }

    /// The time for which this process has been unresponsive, in seconds, and the probable reason.
    fn own_silence(&self) -> (Option<f64>, Option<&'static str>) {
        let silent = self.procs.lock().responsiveness.unresponsive_since().map(seconds);
        (silent, silent.map(|_| why_unresponsive(std::process::id())))
    }

    /// The rows of all procs, sorted by name.
    fn rows(&self) -> Vec<(ProcUid, ProcRow)> {
        let state = self.procs.lock();
        let row = |(uid, p): (&ProcUid, &Proc)| {
            let silent = p.responsiveness.unresponsive_since().map(seconds);
            let state = match (silent, &p.stopping, p.started) {
                (Some(_), ..) => "unresponsive",
                (None, Some(_), _) => "stopping",
                (None, None, false) => "starting",
                (None, None, true) => "running",
            };
            let row = ProcRow {
                uid: hex(uid.0),
                owner: hex(p.owner.0),
                pid: p.pid,
                name: p.name.clone(),
                state,
                age: seconds(p.born),
                silent,
                silence_reason: p.silence_reason,
                stacks: p.stacks.clone(),
                kernel: None,
                rss: None,
                times: None,
                cgroup: p.cgroups.first().cloned(),
                printed: p.streams.iter().map(|s| s.printed()).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1)),
                captured_in: p.streams.iter().find_map(|s| s.captured_in()).map(|path| path.with_extension("")),
                answer: None,
            };
            (*uid, row)
        };
        let mut rows: Vec<_> = state.procs.iter().map(row).collect();
        rows.sort_by(|(_, a), (_, b)| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
        rows
    }

    /// Sets a note of a service for inspections; an empty text removes it.
    pub fn note(&self, name: String, text: String) {
        let mut notes = lock(&self.notes);
        if text.is_empty() {
            notes.remove(&name);
        } else {
            notes.insert(name, text);
        }
    }
}
