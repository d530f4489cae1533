//! The rings of the processes of a host. Their agent has the descriptors, so they outlive the processes, and end with the agent: a ring is
//! a memory file without a name, and no process has to clean up after another.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use events::{Reader, Record};
use net::lock::lock;
use serde::Serialize;
use wire::exit::{ExitReason, ProcEnd};
use wire::{Control, Frame, ProcUid};

use crate::agent::Agent;
use crate::node::Node;
use crate::node::inspection::hex;

/// So many events go with the news of a proc's end.
pub const RECENT: usize = 32;
/// Rings of ended procs that are kept, some megabytes each.
const KEPT: usize = 16;

/// A process of this host, as recordings name it.
#[derive(Clone)]
pub struct Recorded {
    pub proc: ProcUid,
    pub pid: u32,
    /// Its display, or what the agent is.
    pub name: String,
    /// The client of its job.
    pub job: ProcUid,
}

/// A process whose events are recorded, or were.
pub struct Recording {
    pub of: Recorded,
    /// The descriptor in the agent.
    pub fd: i32,
    /// How the process ended, if it has.
    pub end: Option<ExitReason>,
}

/// The same for processes that look in.
#[derive(Serialize)]
pub struct RecordingRow {
    proc: String,
    pid: u32,
    name: String,
    file: String,
    ended: bool,
    kind: &'static str,
    number: i32,
    detail: String,
}

#[derive(Default)]
pub struct Recordings {
    /// What procs that come up are asked to record; 0: nothing.
    wanted: AtomicU32,
    rings: Mutex<Rings>,
}

#[derive(Default)]
struct Rings {
    live: HashMap<ProcUid, OwnedFd>,
    ended: VecDeque<(Recorded, ExitReason, OwnedFd)>,
}

impl Recordings {
    pub fn add(&self, proc: ProcUid, fd: OwnedFd) {
        lock(&self.rings).live.insert(proc, fd);
        events::change();
    }

    /// The last events of a proc that has ended otherwise than it should, in bytes for `decode`; empty if it did not record.
    pub(crate) fn ended(&self, of: Recorded, reason: &ExitReason) -> Vec<u8> {
        let mut rings = lock(&self.rings);
        let Some(fd) = rings.live.remove(&of.proc) else { return vec![] };
        let recent = match reason {
            // Of which many may be remembered, and nobody asks.
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

    pub(crate) fn close(&self) {
        *lock(&self.rings) = Rings::default();
    }
}

fn last(fd: &OwnedFd) -> io::Result<Vec<Record>> {
    let mut reader = Reader::open(fd.as_raw_fd())?;
    reader.skip_to_last(RECENT);
    Ok(reader.read(RECENT, true))
}

/// The events that go with the news of an end.
pub fn decode(recent: &[u8]) -> Vec<Record> {
    postcard::from_bytes(recent).unwrap_or_default()
}

/// Kind, code or signal, and detail of an exit reason.
fn words(reason: &ExitReason) -> (&'static str, i32, &str) {
    let number = reason.exit_code().or(reason.signal()).unwrap_or(0);
    // A stop's reason has its bounds before it.
    (reason.kind(), number, reason.detail().rsplit('\n').next().unwrap_or_default())
}

/// Records the end of a proc in the ring of its agent.
pub(crate) fn note_end(uid: ProcUid, end: &ProcEnd) {
    let (kind, number, detail) = words(&end.reason);
    events::proc_end(uid.0, kind.as_bytes(), number as u64, u64::from(end.pid), detail.as_bytes());
}

impl Agent {
    /// Has all procs record, those that come too, and this process; 0: none of them any longer.
    pub fn record(&self, events: u32) {
        self.recordings.wanted.store(events, Ordering::Release);
        let Some(node) = self.node() else { return };
        node.record(events);
        let procs: Vec<ProcUid> = lock(&self.state).procs.iter().filter(|(_, p)| p.started).map(|(uid, _)| *uid).collect();
        procs.into_iter().for_each(|uid| self.tell(&node, uid, events));
    }

    /// A proc has come up.
    pub(crate) fn record_proc(&self, uid: ProcUid) {
        let events = self.recordings.wanted.load(Ordering::Acquire);
        if let (true, Some(node)) = (events > 0, self.node()) {
            self.tell(&node, uid, events);
        }
    }

    fn tell(&self, node: &Node, uid: ProcUid, events: u32) {
        // Simulated procs are this process.
        if self.launcher().is_none() {
            let frame = Frame::Control(Control::Record { events }).encode();
            // Ahead of messages that wait for a proc that comes up: they are events too.
            let _ = node.peer_unlinked(uid).0.link.send_first(&frame);
        }
    }

    /// The rings of this process, of the procs, and of procs that have ended, in this order.
    pub fn recorded(&self) -> Vec<Recording> {
        let Some(node) = self.node() else { return vec![] };
        let known: HashMap<ProcUid, (u32, String, ProcUid)> =
            lock(&self.state).procs.iter().map(|(uid, p)| (*uid, (p.pid, p.name.clone(), p.here))).collect();
        let of = |proc: ProcUid| match known.get(&proc) {
            Some((pid, name, here)) => self.recorded_as(proc, *pid, name.clone(), *here),
            None if proc == node.uid => self.recorded_as(proc, std::process::id(), self.own_name(&node).to_owned(), proc),
            // It ends just now.
            None => self.recorded_as(proc, 0, String::new(), proc),
        };
        let rings = lock(&self.recordings.rings);
        let live = |(proc, fd): (&ProcUid, &OwnedFd)| Recording { of: of(*proc), fd: fd.as_raw_fd(), end: None };
        let mut all: Vec<Recording> = rings.live.iter().map(live).collect();
        all.sort_by_key(|r| (r.of.proc != node.uid, r.of.pid));
        let ended =
            |(of, why, fd): &(Recorded, ExitReason, OwnedFd)| Recording { of: of.clone(), fd: fd.as_raw_fd(), end: Some(why.clone()) };
        all.extend(rings.ended.iter().map(ended));
        all
    }

    /// `here`: what this host is called in its job.
    pub(crate) fn recorded_as(&self, proc: ProcUid, pid: u32, name: String, here: ProcUid) -> Recorded {
        Recorded { proc, pid, name, job: self.client_of(here).unwrap_or(here) }
    }

    /// The same for processes that look in; only of the job of this client, if it is one that asks.
    pub(crate) fn recording_rows(&self, client: Option<ProcUid>) -> Vec<RecordingRow> {
        let own = std::process::id();
        let row = |r: Recording| {
            let (kind, number, detail) = r.end.as_ref().map_or(("", 0, ""), words);
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
