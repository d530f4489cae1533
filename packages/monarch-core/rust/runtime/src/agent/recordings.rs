//! The rings of the processes of a host, in which they record events. The agent holds the descriptors, so a ring outlives its process and
//! ends with the agent. A ring is a memory file without a name, so no process has to remove it.
//!
//! What it needs: the table of procs and their jobs, for the identities of the processes.
//!
//! What always holds: the rings of the last `KEPT` procs that have ended are kept, and those of all processes that run.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use events::{Reader, Record};
use net::lock::lock;
use serde::Serialize;
use wire::exit::{ExitReason, ProcEnd};
use wire::{Control, Frame, ProcUid};

use crate::agent::proc_jobs::ProcJobs;
use crate::agent::procs::Procs;
use crate::agent::starter::Starter;
use crate::inspection::hex;
use crate::local::Local;

/// The number of last events in the report of a proc's end.
pub const RECENT: usize = 32;
/// Limit of rings of ended procs that are kept. A ring has some megabytes.
const KEPT: usize = 16;

/// The identity of a process in recordings.
#[derive(Clone)]
pub struct Recorded {
    pub proc: ProcUid,
    pub pid: u32,
    /// The display name of a proc; in the agent or the client, its role.
    pub name: String,
    /// The uid of the client of the process's job.
    pub job: ProcUid,
}

/// A process whose events are recorded or were recorded.
pub struct Recording {
    pub of: Recorded,
    /// The descriptor of the ring, in the agent.
    pub fd: i32,
    /// The reason of the process's end; none while it runs.
    pub end: Option<ExitReason>,
}

/// A recording in the answer to an inspection.
#[derive(Serialize)]
pub struct RecordingRow {
    proc: String,
    pid: u32,
    name: String,
    /// The path by which another process of the same user can open the ring.
    file: String,
    ended: bool,
    kind: &'static str,
    number: i32,
    detail: String,
}

/// The rings of this host. The agent owns them.
pub(crate) struct Recordings {
    pub local: Arc<Local>,
    pub procs: Arc<Procs>,
    pub jobs: Arc<ProcJobs>,
    pub starter: Arc<Starter>,
    /// The number of events for which each ring has room at least; 0: events are not recorded.
    pub wanted: AtomicU32,
    pub rings: Mutex<Rings>,
}

/// The descriptors of the rings.
#[derive(Default)]
pub(crate) struct Rings {
    /// The rings of the processes that run.
    live: HashMap<ProcUid, OwnedFd>,
    /// The rings of the last processes that have ended.
    ended: VecDeque<(Recorded, ExitReason, OwnedFd)>,
}

impl Recordings {
    /// Adds the ring that a process has sent.
    pub fn add(&self, proc: ProcUid, fd: OwnedFd) {
        lock(&self.rings).live.insert(proc, fd);
        events::change();
    }

    /// Moves the ring of a proc to those of ended procs. Returns the last events of a proc that has failed, in bytes for `decode`; empty if
    /// it did not record.
    pub fn ended(&self, of: Recorded, reason: &ExitReason) -> Vec<u8> {
        let mut rings = lock(&self.rings);
        let Some(fd) = rings.live.remove(&of.proc) else { return vec![] };
        let recent = match reason {
            // Normal ends can be many, and their last events are not used.
            ExitReason::Returned | ExitReason::Stopped(_) => vec![],
            _ => last(&fd).map_or_else(|_| vec![], |records| postcard::to_stdvec(&records).unwrap_or_default()),
        };
        rings.ended.push_back((of, reason.clone(), fd));
        if rings.ended.len() > KEPT {
            rings.ended.pop_front();
        }
        drop(rings);
        events::change();
        recent
    }

    pub fn close(&self) {
        *lock(&self.rings) = Rings::default();
    }
}

/// The last events in a ring.
fn last(fd: &OwnedFd) -> io::Result<Vec<Record>> {
    let mut reader = Reader::open(fd.as_raw_fd())?;
    reader.skip_to_last(RECENT);
    Ok(reader.read(RECENT, true))
}

/// Decodes the last events in the report of a proc's end.
pub fn decode(recent: &[u8]) -> Vec<Record> {
    postcard::from_bytes(recent).unwrap_or_default()
}

/// The kind, the code or signal, and the detail of an exit reason.
fn reason_fields(reason: &ExitReason) -> (&'static str, i32, &str) {
    let number = reason.exit_code().or(reason.signal()).unwrap_or(0);
    // Before the last line, the reason of a stop has its time limits.
    (reason.kind(), number, reason.detail().rsplit('\n').next().unwrap_or_default())
}

/// Records the end of a proc in the ring of its agent.
pub(crate) fn note_end(uid: ProcUid, end: &ProcEnd) {
    let (kind, number, detail) = reason_fields(&end.reason);
    events::proc_end(uid.0, kind.as_bytes(), number as u64, u64::from(end.pid), detail.as_bytes());
}

impl Recordings {
    /// Makes this process, all procs and later ones record their events, in rings for at least `events` of them; 0: they stop to record.
    pub fn record(&self, events: u32) {
        self.wanted.store(events, Ordering::Release);
        if let Some(node) = self.local.node() {
            node.recording.record(events);
        }
        self.procs.started().into_iter().for_each(|uid| self.request(uid, events));
    }

    /// Asks a proc that is being started to record, if events are recorded.
    pub fn record_proc(&self, uid: ProcUid) {
        let events = self.wanted.load(Ordering::Acquire);
        if events > 0 {
            self.request(uid, events);
        }
    }

    fn request(&self, uid: ProcUid, events: u32) {
        // Simulated procs are in this process.
        if let Some(node) = self.local.node().filter(|_| !self.starter.is_simulated()) {
            let frame = Frame::Control(Control::Record { events }).encode();
            // Ahead of the messages that wait for the new proc, so these are recorded too.
            let _ = node.peers.peer_unlinked(uid).0.link.send_first(&frame);
        }
    }

    /// The rings of this process, of the procs, and of procs that have ended, in this order.
    pub fn recorded(&self) -> Vec<Recording> {
        let known: HashMap<ProcUid, (u32, String, ProcUid)> =
            self.procs.lock().procs.iter().map(|(uid, p)| (*uid, (p.pid, p.name.clone(), p.here))).collect();
        let of = |proc: ProcUid| match known.get(&proc) {
            Some((pid, name, here)) => self.of(proc, *pid, name.clone(), *here),
            None if proc == self.local.uid => self.of(proc, std::process::id(), self.jobs.own_name().to_owned(), proc),
            // The process is about to end.
            None => self.of(proc, 0, String::new(), proc),
        };
        let rings = lock(&self.rings);
        let live = |(proc, fd): (&ProcUid, &OwnedFd)| Recording { of: of(*proc), fd: fd.as_raw_fd(), end: None };
        let mut all: Vec<Recording> = rings.live.iter().map(live).collect();
        all.sort_by_key(|r| (r.of.proc != self.local.uid, r.of.pid));
        let ended =
            |(of, why, fd): &(Recorded, ExitReason, OwnedFd)| Recording { of: of.clone(), fd: fd.as_raw_fd(), end: Some(why.clone()) };
        all.extend(rings.ended.iter().map(ended));
        all
    }

    /// The identity of a process in recordings. `here` is the id of this host in its job.
    pub fn of(&self, proc: ProcUid, pid: u32, name: String, here: ProcUid) -> Recorded {
        Recorded { proc, pid, name, job: self.jobs.client_of(here).unwrap_or(here) }
    }

    /// The rows of all recordings for an inspection; with `client`, only those of its job.
    pub fn rows(&self, client: Option<ProcUid>) -> Vec<RecordingRow> {
        let own = std::process::id();
        let row = |r: Recording| {
            let (kind, number, detail) = r.end.as_ref().map_or(("", 0, ""), reason_fields);
            RecordingRow {
                proc: hex(r.of.proc.0),
                pid: r.of.pid,
                name: r.of.name,
                file: format!("/proc/{own}/fd/{}", r.fd),
                ended: r.end.is_some(),
                kind,
                number,
                detail: detail.to_owned(),
            }
        };
        self.recorded().into_iter().filter(|r| client.is_none_or(|job| r.of.job == job)).map(row).collect()
    }
}
