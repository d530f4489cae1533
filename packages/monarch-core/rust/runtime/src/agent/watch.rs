//! The periodic check of the procs: whether Python runs in each, and in which cgroup each one is.

use std::time::Instant;

use net::lock::lock;
use serde_json::value::RawValue;
use wire::{Control, ProcUid};

use crate::agent::process_table::{self, ProcRow, Requester};
use crate::agent::responsiveness::{self, Check};
use crate::agent::zygote::Zygote;
use crate::agent::{Agent, Proc};
use crate::inspection::{self, hex};
use crate::system::SystemEvent;

/// The number of cgroups kept for a proc: the present one and the one before. With version 1 of the interface, a process that was just
/// killed is shown in the root cgroup.
const CGROUPS: usize = 2;

impl Proc {
    /// Sets the cgroup in which the proc's memory is counted, if it is known.
    pub(crate) fn is_in(&mut self, cgroup: Option<String>) {
        let Some(cgroup) = cgroup.filter(|c| self.cgroups.first() != Some(c)) else { return };
        self.cgroups.insert(0, cgroup);
        self.cgroups.truncate(CGROUPS);
    }
}

impl Agent {
    /// Starts the periodic check of all procs and of this process.
    pub(crate) fn watch(&self) {
        if std::mem::replace(&mut lock(&self.state).watching, true) {
            return;
        }
        self.watch_again();
    }

    fn watch_again(&self) {
        let Some(node) = self.node() else { return };
        let me = self.weak();
        node.poller.later(
            responsiveness::PERIOD,
            Box::new(move || {
                if let Some(a) = me.upgrade().filter(|a| !lock(&a.state).closing) {
                    a.check();
                    a.watch_again();
                }
            }),
        );
    }

    fn check(&self) {
        let Some(node) = self.node() else { return };
        // For this process. Procs check for lost wake-ups when they are pinged.
        node.inspections.check_for_lost_wakeups();
        let now = Instant::now();
        let (mut ask, mut lost) = (vec![], vec![]);
        let pids: Vec<(ProcUid, u32)>;
        {
            let mut state = lock(&self.state);
            if state.procs.is_empty() {
                return;
            }
            pids = state.procs.iter().filter(|(_, p)| p.started).map(|(uid, p)| (*uid, p.pid)).collect();
            let note = |uid: ProcUid, pid: u32, check: Check, lost: &mut Vec<(ProcUid, u32)>, ask: &mut Vec<ProcUid>| match check {
                Check::Ping => ask.push(uid),
                Check::Unresponsive => lost.push((uid, pid)),
                Check::Wait => {}
            };
            for (uid, p) in state.procs.iter_mut().filter(|(_, p)| p.started) {
                note(*uid, p.pid, p.responsiveness.tick(now), &mut lost, &mut ask);
            }
            note(node.uid, std::process::id(), state.responsiveness.tick(now), &mut lost, &mut ask);
        }
        self.check_cgroups(pids);
        for uid in ask {
            if uid == node.uid {
                node.inspections.pinged(uid, 0);
            } else {
                node.peers.peer_unlinked(uid).0.send_control(Control::Ping { seq: 0 });
            }
        }
        for (uid, pid) in lost {
            if let Some(p) = lock(&self.state).procs.get_mut(&uid) {
                p.silence_reason = Some(process_table::why_unresponsive(pid));
            }
            self.ask(Requester::Watch(uid), inspection::INSPECT_STACKS, vec![uid], None, vec![]);
        }
    }

    /// Reads the cgroups of the procs again: a proc may be moved at any time, and the kernel does not notify the agent.
    fn check_cgroups(&self, procs: Vec<(ProcUid, u32)>) {
        for (uid, pid) in procs {
            let cgroup = self.cgroups.watch(pid);
            if let Some(p) = lock(&self.state).procs.get_mut(&uid) {
                p.is_in(cgroup);
            }
        }
    }

    /// Reports that a proc has become unresponsive, with its stacks. The housekeeping thread makes the report known.
    pub(crate) fn report_unresponsive(&self, uid: ProcUid, stacks: Vec<u8>) {
        let Some(node) = self.node() else { return };
        let cause = {
            let mut state = lock(&self.state);
            let Some(p) = state.procs.get_mut(&uid).filter(|p| p.responsiveness.unresponsive_since().is_some()) else { return };
            p.stacks = String::from_utf8(stacks.clone()).ok().and_then(|text| RawValue::from_string(text).ok());
            p.silence_reason.unwrap_or_default().to_owned()
        };
        node.system.push(SystemEvent::Unresponsive { uid, cause, stacks });
    }

    /// Handles the answer to a ping. If the process was unresponsive, this is reported as over.
    pub fn ponged(&self, from: ProcUid) {
        let Some(node) = self.node() else { return };
        let mut state = lock(&self.state);
        let back = match state.procs.get_mut(&from) {
            Some(p) => {
                (p.silence_reason, p.stacks) = (None, None);
                p.responsiveness.answered()
            }
            None => from == node.uid && state.responsiveness.answered(),
        };
        drop(state);
        if back {
            node.system.push(SystemEvent::Unresponsive { uid: from, cause: String::new(), stacks: vec![] });
        }
    }

    /// The time for which this process has been unresponsive, in seconds, and the probable reason.
    pub(crate) fn own_silence(&self) -> (Option<f64>, Option<&'static str>) {
        let silent = lock(&self.state).responsiveness.unresponsive_since().map(process_table::seconds);
        (silent, silent.map(|_| process_table::why_unresponsive(std::process::id())))
    }

    pub(crate) fn started(&self) -> Vec<ProcUid> {
        lock(&self.state).procs.iter().filter(|(_, p)| p.started).map(|(u, _)| *u).collect()
    }

    /// The rows of all procs, sorted by name.
    pub(crate) fn rows(&self) -> Vec<(ProcUid, ProcRow)> {
        let state = lock(&self.state);
        let row = |(uid, p): (&ProcUid, &Proc)| {
            let silent = p.responsiveness.unresponsive_since().map(process_table::seconds);
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
                age: process_table::seconds(p.born),
                silent,
                silence_reason: p.silence_reason,
                stacks: p.stacks.clone(),
                kernel: None,
                rss: None,
                cgroup: p.cgroups.first().cloned(),
                captured_in: p.streams.iter().find_map(|s| s.captured_in()).map(|path| path.with_extension("")),
                answer: None,
            };
            (*uid, row)
        };
        let mut rows: Vec<_> = state.procs.iter().map(row).collect();
        rows.sort_by(|(_, a), (_, b)| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
        rows
    }

    /// Notifies the process `from` of the end of `target`, now or when it ends.
    pub(crate) fn watch_proc(&self, from: ProcUid, target: ProcUid) {
        let Some(node) = self.node() else { return };
        let mut state = lock(&self.state);
        let Some(ended) = node.peers.end_of(target) else {
            state.watched.entry(target).or_default().insert(from);
            return;
        };
        drop(state);
        node.peers.peer_unlinked(from).0.send_control(Control::ProcsEnded { ends: vec![(target, ended.end.clone())] });
    }

    pub(crate) fn age(&self) -> f64 {
        process_table::seconds(self.born)
    }

    /// The procs in the table, with their pids.
    pub fn alive(&self) -> Vec<(ProcUid, u32)> {
        lock(&self.state).procs.iter().map(|(u, p)| (*u, p.pid)).collect()
    }

    pub fn zygote_pid(&self) -> Option<u32> {
        lock(&self.state).zygote.as_ref().map(Zygote::pid)
    }
}
