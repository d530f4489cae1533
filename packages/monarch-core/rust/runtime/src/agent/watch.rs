//! The periodic check of the procs: whether Python runs in each, and in which cgroup each one is.
//!
//! What it needs: the table of procs, the cgroups, and the stacks of an unresponsive proc, which an inspection gets.
//!
//! What always holds: a proc that does not answer is reported once, and once more when it answers again.

use std::sync::Arc;
use std::time::Instant;

use serde_json::value::RawValue;
use wire::{Control, ProcUid};

use crate::agent::cgroup::Cgroups;
use crate::agent::kernel_state::why_unresponsive;
use crate::agent::process_table::{HostInspections, Requester};
use crate::agent::procs::Procs;
use crate::agent::responsiveness::{self, Check};
use crate::inspection;
use crate::local::Local;
use crate::system::SystemEvent;
use crate::tasks;

/// Checks procs.
pub(crate) struct Watch {
    pub local: Arc<Local>,
    pub procs: Arc<Procs>,
    pub cgroups: Arc<Cgroups>,
    pub inspections: Arc<HostInspections>,
}

impl Watch {
    /// Starts the periodic check of all procs and of this process.
    pub fn begin(self: &Arc<Self>) {
        if std::mem::replace(&mut self.procs.lock().watching, true) {
            return;
        }
        self.watch_again();
    }

    fn watch_again(self: &Arc<Self>) {
        tasks::later(&self.local.poller, responsiveness::PERIOD, self, |me| {
            if !me.procs.lock().closing {
                me.check();
                me.watch_again();
            }
        });
    }

    fn check(self: &Arc<Self>) {
        let Some(node) = self.local.node() else { return };
        // For this process. Procs check for lost wake-ups when they are pinged.
        node.inspections.check_for_lost_wakeups();
        let now = Instant::now();
        let (mut ask, mut lost) = (vec![], vec![]);
        let pids: Vec<(ProcUid, u32)>;
        {
            let mut state = self.procs.lock();
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
            self.procs.with(uid, |p| p.silence_reason = Some(why_unresponsive(pid)));
            let report = tasks::callback(self, move |me, stacks| me.report_unresponsive(uid, stacks));
            self.inspections.ask(Requester::Watch(uid, Box::new(report)), inspection::INSPECT_STACKS, vec![uid], None, vec![]);
        }
    }

    /// Reads the cgroups of the procs again: a proc may be moved at any time, and the kernel does not notify the agent.
    fn check_cgroups(&self, procs: Vec<(ProcUid, u32)>) {
        for (uid, pid) in procs {
            let cgroup = self.cgroups.watch(pid);
            self.procs.with(uid, |p| p.is_in(cgroup));
        }
    }

    /// Reports that a proc has become unresponsive, with its stacks. The housekeeping thread makes the report known.
    fn report_unresponsive(&self, uid: ProcUid, stacks: Vec<u8>) {
        let Some(node) = self.local.node() else { return };
        let cause = {
            let mut state = self.procs.lock();
            let Some(p) = state.procs.get_mut(&uid).filter(|p| p.responsiveness.unresponsive_since().is_some()) else { return };
            p.stacks = String::from_utf8(stacks.clone()).ok().and_then(|text| RawValue::from_string(text).ok());
            p.silence_reason.unwrap_or_default().to_owned()
        };
        node.system.push(SystemEvent::Unresponsive { uid, cause, stacks });
    }

    /// Handles the answer to a ping. If the process was unresponsive, this is reported as over.
    pub fn ponged(&self, from: ProcUid) {
        let Some(node) = self.local.node() else { return };
        let mut state = self.procs.lock();
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

    /// Notifies the process `from` of the end of `target`, now or when it ends.
    pub fn watch_proc(&self, from: ProcUid, target: ProcUid) {
        let Some(node) = self.local.node() else { return };
        let mut state = self.procs.lock();
        let Some(ended) = node.peers.end_of(target) else {
            state.watched.entry(target).or_default().insert(from);
            return;
        };
        drop(state);
        node.peers.peer_unlinked(from).0.send_control(Control::ProcsEnded { ends: vec![(target, ended.end.clone())] });
    }
}
