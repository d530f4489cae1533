//! The rings of the processes of a host. Their agent has the descriptors, so they outlive the processes, and end with the agent: a ring is
//! a memory file without a name, and no process has to clean up after another.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use events::{Reader, Record};
use net::lock::lock;
use wire::exit::{ExitReason, ProcEnd};
use wire::{Control, Frame, ProcUid};

use crate::agent::Agent;
use crate::node::Node;

/// So many events go with the news of a proc's end.
pub const RECENT: usize = 32;
/// Rings of ended procs that are kept, some megabytes each.
const KEPT: usize = 16;

/// A process of this host whose events are recorded, or were.
pub struct Recording {
    pub proc: ProcUid,
    pub pid: u32,
    /// The descriptor in the agent.
    pub fd: i32,
    pub ended: bool,
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
    ended: VecDeque<(ProcUid, u32, OwnedFd)>,
}

impl Recordings {
    pub fn add(&self, proc: ProcUid, fd: OwnedFd) {
        lock(&self.rings).live.insert(proc, fd);
    }

    /// The last events of a proc that has ended otherwise than it should, in bytes for `decode`; empty if it did not record.
    pub(crate) fn ended(&self, proc: ProcUid, pid: u32, reason: &ExitReason) -> Vec<u8> {
        let mut rings = lock(&self.rings);
        let Some(fd) = rings.live.remove(&proc) else { return vec![] };
        let recent = match reason {
            // Of which many may be remembered, and nobody asks.
            ExitReason::Returned | ExitReason::Stopped(_) => vec![],
            _ => last(&fd).map_or_else(|_| vec![], |records| postcard::to_stdvec(&records).unwrap_or_default()),
        };
        rings.ended.push_back((proc, pid, fd));
        if rings.ended.len() > KEPT {
            rings.ended.pop_front();
        }
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

/// Records the end of a proc in the ring of its agent.
pub(crate) fn note_end(uid: ProcUid, end: &ProcEnd) {
    let (kind, number, detail): (&str, i32, &str) = match &end.reason {
        ExitReason::Returned => ("returned", 0, ""),
        ExitReason::ExitCode(n) => ("exit_code", *n, ""),
        ExitReason::Signal { signal, .. } => ("signal", *signal, ""),
        ExitReason::Stopped(why) => ("stopped", 0, why),
        ExitReason::NotStarted(why) => ("not_started", 0, why),
        ExitReason::HostLost(why) => ("host_lost", 0, why),
        ExitReason::Oom { signal, cgroup } => ("oom", *signal, cgroup),
        ExitReason::LinkLost(why) => ("link_lost", 0, why),
    };
    // A stop's reason has its bounds before it.
    let detail = detail.rsplit('\n').next().unwrap_or_default();
    events::proc_end(uid.0, kind.as_bytes(), number as u64, u64::from(end.pid), detail.as_bytes());
}

impl Node {
    /// This process records for itself: no observer that goes ends it.
    pub fn keep_recording(&self, events: u32) {
        self.flight_recorder.store(true, Ordering::Release);
        self.record(events);
    }

    /// Records this process's events from now on, in a ring for at least so many that its agent keeps; 0: no longer. A process without
    /// memory for it goes on without.
    pub(crate) fn record(&self, events: u32) {
        if events == 0 {
            if !self.flight_recorder.load(Ordering::Acquire) {
                events::stop();
            }
            return;
        }
        let Ok(Some(fd)) = events::start(self.uid.0, events as usize) else { return };
        match self.agent() {
            Some(agent) => agent.recordings.add(self.uid, fd),
            None => {
                let frame = Frame::Control(Control::Recording).encode();
                let _ = self.peer_unlinked(self.agent_uid).0.link.send(&[&frame], vec![fd]);
            }
        }
    }
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
            node.peer_unlinked(uid).0.send_control(Control::Record { events });
        }
    }

    /// The rings of this process, of the procs, and of procs that have ended, in this order.
    pub fn recorded(&self) -> Vec<Recording> {
        let Some(node) = self.node() else { return vec![] };
        let pids: HashMap<ProcUid, u32> = self.alive().into_iter().collect();
        let rings = lock(&self.recordings.rings);
        let pid = |proc: &ProcUid| if *proc == node.uid { std::process::id() } else { pids.get(proc).copied().unwrap_or(0) };
        let live = |(proc, fd): (&ProcUid, &OwnedFd)| Recording { proc: *proc, pid: pid(proc), fd: fd.as_raw_fd(), ended: false };
        let mut all: Vec<Recording> = rings.live.iter().map(live).collect();
        all.sort_by_key(|r| (r.proc != node.uid, r.pid));
        all.extend(rings.ended.iter().map(|(proc, pid, fd)| Recording { proc: *proc, pid: *pid, fd: fd.as_raw_fd(), ended: true }));
        all
    }
}
