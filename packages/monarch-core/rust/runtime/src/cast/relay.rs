//! The role of one host in the trees of all sources: it accepts casts, delivers them to its procs, passes them on to other hosts, and
//! returns the answers. The relay of the source's own host is the root of the tree; it receives the group's members from the source.
//!
//! **Asks.** A cast names the span that its receiver has to answer for. The receiver becomes the head of this span and has a *task*, whose
//! parent is the sender. When a host dies while it handles a cast, the parent asks the next live host of the span. This host may have
//! received the cast from the dead one already. Then it delivers nothing again, but asks the hosts of the wider span anew, and each of them
//! repeats the answers that it has. So a host can have tasks of several parents at once; tasks of dead parents are dropped. No host has to
//! remember what it has forwarded, and reports of ended hosts may arrive in any order.
//!
//! **Kept state.** A host keeps the answers of its procs to a cast until the root reports that the cast is finished: all live targets have
//! answered it or taken it. The report is part of the next cast to the group, or is sent alone after `QUIET`. Large answers and the cast
//! itself are kept too, so one slow rank delays the release of memory in the whole tree.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wire::cast::{Answer, CastFrame, CastMode, Reduced, Taken};
use wire::{Cast, GroupId, GroupSlice, MailboxId, ProcUid, Runs, Span, Status, Values};

use super::fan_out::{FAN_OUT, divide, head};
use super::group::{Group, pass_on, unreached};
use super::record::{Child, LARGE, Own, Record, Task};

/// The delay of `Taken` frames. Broadcasts follow each other closely, and no process waits for these frames, so one frame reports many
/// casts.
pub const TAKEN_DELAY: Duration = Duration::from_millis(2);
/// The time without another cast after which the root reports the finished casts.
pub const QUIET: Duration = Duration::from_millis(100);

/// The cast ids of all relays of this process. A proc may answer casts of several jobs, and its answer names the cast by the cast id alone.
static NEXT_CAST_ID: AtomicU64 = AtomicU64::new(1);

/// One cast for the procs of this host. The caller restores its order among the other frames of its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    pub group: GroupId,
    /// The host of the source.
    pub root: ProcUid,
    pub number: u64,
    /// Its number in the sequence of frames from the source to this host.
    pub order: u64,
    /// Names this cast in `Relay::on_reply` and `Relay::on_taken`.
    pub cast_id: u64,
    pub mode: CastMode,
    pub mailbox: MailboxId,
    pub targets: Vec<Target>,
    pub body: Arc<[u8]>,
    /// The values of the cast, and the index of their first target.
    pub values: Option<(Arc<Values>, u32)>,
}

/// A target of a cast on this host: its proc, its rank in the call, and its index in the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    pub proc: ProcUid,
    pub rank: u32,
    pub index: u32,
}

/// An action of the relay for its caller, the gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send a frame to another host.
    Send {
        to: ProcUid,
        frame: CastFrame,
    },
    /// Send `Reduced`, `Answer` or `Taken` to a source on this host.
    Return {
        source: ProcUid,
        frame: CastFrame,
    },
    Deliver(Delivery),
}

/// The relay of one host in one job: its groups, and the hosts and procs whose end it knows.
pub struct Relay {
    me: ProcUid,
    fan_out: u32,
    pub(super) groups: HashMap<GroupId, Group>,
    /// The groups that their sources have asked to forget, and that are removed.
    pub(super) forgotten: HashSet<GroupId>,
    /// The group and the number of the cast with each cast id.
    cast_ids: HashMap<u64, (GroupId, u64)>,
    pub(super) dead: HashSet<ProcUid>,
    pub(super) ended: HashSet<ProcUid>,
    /// The taken casts to report, by the host that asked (`None`: the source).
    pub(super) taken: BTreeMap<Option<ProcUid>, Vec<Taken>>,
    taken_at: Option<Duration>,
    /// The earliest time at which a group has finished casts to report.
    report_at: Option<Duration>,
}

impl Relay {
    pub fn new(me: ProcUid) -> Self {
        Relay::with_fan_out(me, FAN_OUT)
    }

    /// For tests and measurements of other trees.
    pub fn with_fan_out(me: ProcUid, fan_out: u32) -> Self {
        Relay {
            me,
            fan_out,
            groups: HashMap::new(),
            forgotten: HashSet::new(),
            cast_ids: HashMap::new(),
            dead: HashSet::new(),
            ended: HashSet::new(),
            taken: BTreeMap::new(),
            taken_at: None,
            report_at: None,
        }
    }

    /// The number of casts that this relay keeps.
    pub fn records(&self) -> usize {
        self.groups.values().map(|g| g.casts.len()).sum()
    }

    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The hosts that have received groups of these sources, where this host is the root.
    pub fn audience(&self, sources: &[ProcUid]) -> HashSet<ProcUid> {
        let mine = |id: &GroupId, g: &Group| g.slice.root == self.me && sources.contains(&id.source);
        self.groups.iter().filter(|(id, g)| mine(id, g)).flat_map(|(_, g)| g.slice.hosts.iter().copied()).collect()
    }

    // ---- casts

    /// Takes a cast of a source on this host.
    pub fn on_source(&mut self, now: Duration, cast: Cast) -> Vec<Effect> {
        let mut out = Vec::new();
        if cast.mode == CastMode::Forget {
            if let Some(g) = self.groups.get_mut(&cast.group) {
                g.forget = Some(cast.clone());
                self.advance(now, cast.group, &mut out);
            }
        } else {
            self.on_cast(now, None, cast, &mut out);
        }
        out
    }

    /// Takes a frame about casts from another host.
    pub fn on_frame(&mut self, now: Duration, from: ProcUid, frame: CastFrame) -> Vec<Effect> {
        let mut out = Vec::new();
        match frame {
            CastFrame::Cast(cast) => self.on_cast(now, Some(from), cast, &mut out),
            CastFrame::Reduced(r) => self.on_reduced(now, from, r, &mut out),
            CastFrame::Answer(a) => self.on_answer(from, a, &mut out),
            CastFrame::Taken(all) => all.into_iter().for_each(|t| self.on_child_taken(now, from, t, &mut out)),
            CastFrame::Finished { group, span, below } => self.on_finished(group, span, below, &mut out),
        }
        out
    }

    /// True if the source of the group or the host `root` of the source has ended.
    fn source_gone(&self, group: GroupId, root: Option<ProcUid>) -> bool {
        self.ended.contains(&group.source) || root.is_some_and(|r| self.dead.contains(&r))
    }

    /// Takes a cast from a source of this host (`from` is `None`) or from another host.
    fn on_cast(&mut self, now: Duration, from: Option<ProcUid>, mut cast: Cast, out: &mut Vec<Effect>) {
        let id = cast.group;
        if let Some(slice) = cast.slice.take() {
            if self.forgotten.contains(&id) && cast.mode != CastMode::Forget {
                return;
            }
            self.learn(id, slice);
        }
        if self.source_gone(id, None) {
            return;
        }
        let Some(g) = self.groups.get_mut(&id).filter(|g| g.slice.span().covers(cast.span)) else {
            self.on_unknown(now, from, &cast);
            return;
        };
        if cast.number < g.finished {
            return;
        }
        if cast.finished > g.finished {
            g.finish(cast.finished, &mut self.cast_ids);
        }
        g.report_at = None;
        let (number, ask, span) = (cast.number, cast.ask, cast.span);
        match g.casts.get_mut(&number) {
            // This cast has a wider span than the kept one, so it has the sequence numbers of more hosts.
            Some(record) if span.covers(record.cast.span) => record.cast = cast,
            Some(_) => {}
            None => {
                let Some(record) = self.deliver(cast, out) else { return };
                if let Some(g) = self.groups.get_mut(&id) {
                    g.casts.insert(number, record);
                }
            }
        }
        self.request(now, id, number, Task::new(from, ask, span), out);
    }

    /// Makes the record of a cast, and delivers the cast to the targets of this host.
    fn deliver(&mut self, cast: Cast, out: &mut Vec<Effect>) -> Option<Record> {
        let g = self.groups.get(&cast.group)?;
        let cast_id = NEXT_CAST_ID.fetch_add(1, Ordering::Relaxed);
        let own = g.own.filter(|p| cast.mode != CastMode::Forget && cast.span.contains(*p));
        let mut record = Record::new(cast, cast_id);
        let Some(position) = own else { return Some(record) };
        let order = record.cast.order.get(position)?;
        let mut targets = Vec::new();
        for index in g.slice.indices(position) {
            let (proc, rank) = g.slice.target(index)?;
            let lives = !self.ended.contains(&proc);
            record.own.push(if lives { Own::Pending } else { Own::Gone });
            if lives {
                targets.push(Target { proc, rank, index });
            }
        }
        record.missing = targets.len();
        let first = g.slice.first(record.cast.span.start);
        let values = record.cast.values.clone().map(|values| (values, first));
        self.cast_ids.insert(cast_id, (record.cast.group, record.cast.number));
        out.push(Effect::Deliver(Delivery {
            group: record.cast.group,
            root: g.slice.root,
            number: record.cast.number,
            order,
            cast_id,
            mode: record.cast.mode,
            mailbox: g.slice.mailbox,
            targets,
            body: record.cast.body.clone(),
            values,
        }));
        Some(record)
    }

    /// Adds a task for a span, and asks the heads of its parts.
    fn request(&mut self, now: Duration, id: GroupId, number: u64, mut task: Task, out: &mut Vec<Effect>) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        let Some(record) = g.casts.get_mut(&number) else { return };
        if record.tasks.iter().any(|t| (t.parent, t.ask) == (task.parent, task.ask)) {
            return;
        }
        for part in divide(task.span, g.own, self.fan_out) {
            if let Some((head, span)) = head(part, |p| g.slice.host(p), |h| self.dead.contains(&h)) {
                task.children.push(Child { head, ask: record.next_ask, span, result: None });
                out.push(pass_on(record, g.finished, &g.slice, &mut g.sent_members, head, span));
            }
        }
        record.next_ask += 1;
        let first = g.own.map_or(0, |p| g.slice.first(p));
        for (own, index) in record.own.iter().zip(first..) {
            if let Own::Answered(status, bytes) = own
                && ahead(record.cast.mode, &mut task, *status, bytes)
            {
                out.push(send_ahead(&task, record.answer(index, *status, bytes.clone())));
            }
        }
        record.tasks.push(task);
        self.settle(now, id, number, out);
    }

    /// Sends the answers of the tasks that are complete.
    pub(super) fn settle(&mut self, now: Duration, id: GroupId, number: u64, out: &mut Vec<Effect>) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        let Some(record) = g.casts.get(&number) else { return };
        let mode = record.cast.mode;
        let due: Vec<usize> = (0..record.tasks.len()).filter(|i| !record.tasks[*i].done && record.is_complete(&record.tasks[*i])).collect();
        if due.is_empty() {
            return;
        }
        for i in &due {
            let task = &record.tasks[*i];
            if mode.reduces() {
                out.push(back(task, id, CastFrame::Reduced(record.reduce(task, &g.slice, g.own))));
            } else {
                let unreached = record.unreached(task, g.own);
                let all = self.taken.entry(task.parent).or_default();
                let follows = |t: &Taken| (t.group, t.ask, t.span) == (id, task.ask, task.span) && t.first + t.count == number;
                match all.last_mut() {
                    Some(t) if follows(t) && t.unreached == unreached => t.count += 1,
                    _ => all.push(Taken { group: id, ask: task.ask, span: task.span, first: number, count: 1, unreached }),
                }
                self.taken_at.get_or_insert(now + TAKEN_DELAY);
            }
        }
        let Some(record) = g.casts.get_mut(&number) else { return };
        due.into_iter().for_each(|i| record.tasks[i].done = true);
        let all_reported = record.tasks.iter().all(|t| t.done);
        if mode == CastMode::Forget && all_reported {
            self.drop_group(id);
            self.forgotten.insert(id);
        } else {
            self.advance(now, id, out);
        }
    }

    /// At the root: finds the casts that are finished, and plans their report.
    fn advance(&mut self, now: Duration, id: GroupId, out: &mut Vec<Effect>) {
        let Some(g) = self.groups.get_mut(&id).filter(|g| g.slice.root == self.me) else { return };
        let over = |r: &Record| r.tasks.iter().any(|t| t.parent.is_none() && t.done);
        let mut below = g.finished;
        while g.casts.get(&below).is_some_and(over) {
            below += 1;
        }
        if below > g.finished {
            g.finish(below, &mut self.cast_ids);
        }
        if !g.casts.is_empty() {
            return;
        }
        if let Some(cast) = g.forget.take() {
            g.report_at = None;
            let (number, span) = (cast.number, cast.span);
            g.casts.insert(number, Record::new(cast, 0));
            self.request(now, id, number, Task::new(None, 0, span), out);
        } else if g.reported < g.finished {
            g.report_at = Some(now + QUIET);
            self.report_at.get_or_insert(now + QUIET);
        }
    }

    // ---- groups

    /// Adds the members of a group, or a larger part of them.
    fn learn(&mut self, id: GroupId, slice: Arc<GroupSlice>) {
        if self.source_gone(id, Some(slice.root)) {
            return;
        }
        let own = slice.hosts.iter().position(|h| *h == self.me).map(|at| slice.start + at as u32);
        let g = self.groups.entry(id).or_insert_with(|| Group::new(slice.clone(), own));
        if slice.span().covers(g.slice.span()) {
            (g.slice, g.own) = (slice, own);
        }
    }

    /// Takes a cast to a group that this host does not have. A sender includes the members with its first cast, so this group was finished
    /// and removed here. The only reply is that a `Forget` has been taken.
    fn on_unknown(&mut self, now: Duration, from: Option<ProcUid>, cast: &Cast) {
        if cast.mode == CastMode::Forget && self.forgotten.contains(&cast.group) {
            let (ask, span, first) = (cast.ask, cast.span, cast.number);
            let taken = Taken { group: cast.group, ask, span, first, count: 1, unreached: vec![] };
            self.taken.entry(from).or_default().push(taken);
            self.taken_at.get_or_insert(now + TAKEN_DELAY);
        }
    }

    /// Takes the report of finished casts, and passes it on.
    fn on_finished(&mut self, id: GroupId, span: Span, below: u64, out: &mut Vec<Effect>) {
        let Some(g) = self.groups.get_mut(&id) else { return };
        if below > g.finished {
            g.finish(below, &mut self.cast_ids);
        }
        g.report_finished(id, span, below, self.fan_out, &self.dead, out);
    }

    /// Removes a group and its casts.
    pub(super) fn drop_group(&mut self, id: GroupId) {
        if let Some(g) = self.groups.remove(&id) {
            for r in g.casts.values() {
                self.cast_ids.remove(&r.cast_id);
            }
        }
    }

    // ---- answers

    /// Takes the answer of a proc of this host.
    pub fn on_reply(&mut self, now: Duration, cast_id: u64, index: u32, status: Status, bytes: Arc<[u8]>) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some((id, number)) = self.set_own(cast_id, index, Own::Answered(status, bytes.clone())) else { return out };
        if let Some(record) = self.groups.get_mut(&id).and_then(|g| g.casts.get_mut(&number)) {
            let answer = record.answer(index, status, bytes.clone());
            let mode = record.cast.mode;
            for task in record.tasks.iter_mut().filter(|t| !t.done) {
                if ahead(mode, task, status, &bytes) {
                    out.push(send_ahead(task, answer.clone()));
                }
            }
        }
        self.settle(now, id, number, &mut out);
        out
    }

    /// True if this relay has delivered the cast with this cast id and keeps its state.
    pub fn has_delivered(&self, cast_id: u64) -> bool {
        self.cast_ids.contains_key(&cast_id)
    }

    /// The request that a target of this host answers: the cast, the target's rank, and the host of the source.
    pub fn request_of(&self, cast_id: u64, index: u32) -> Option<(&Cast, u32, ProcUid)> {
        let (id, number) = self.cast_ids.get(&cast_id)?;
        let g = self.groups.get(id)?;
        Some((&g.casts.get(number)?.cast, g.slice.target(index)?.1, g.slice.root))
    }

    /// Notes that a proc of this host has sent its answer directly to the caller.
    pub fn on_answered_directly(&mut self, now: Duration, cast_id: u64, index: u32) -> Vec<Effect> {
        let mut out = Vec::new();
        if let Some((id, number)) = self.set_own(cast_id, index, Own::AnsweredDirectly) {
            self.settle(now, id, number, &mut out);
        }
        out
    }

    /// Notes that a proc of this host has taken a cast that needs no answer, or whose answers go directly to the caller.
    pub fn on_taken(&mut self, now: Duration, cast_id: u64, index: u32) -> Vec<Effect> {
        let mut out = Vec::new();
        if let Some((id, number)) = self.set_own(cast_id, index, Own::Taken) {
            self.settle(now, id, number, &mut out);
        }
        out
    }

    /// Sets the outcome of a target of this host, once; returns its group and cast.
    fn set_own(&mut self, cast_id: u64, index: u32, is: Own) -> Option<(GroupId, u64)> {
        let (id, number) = *self.cast_ids.get(&cast_id)?;
        let g = self.groups.get_mut(&id)?;
        let at = index.checked_sub(g.slice.first(g.own?))? as usize;
        let record = g.casts.get_mut(&number)?;
        let own = record.own.get_mut(at).filter(|own| matches!(own, Own::Pending))?;
        *own = is;
        record.missing -= 1;
        Some((id, number))
    }

    /// Takes the merged answers of a child.
    fn on_reduced(&mut self, now: Duration, from: ProcUid, r: Reduced, out: &mut Vec<Effect>) {
        let Some(g) = self.groups.get_mut(&r.group) else { return };
        if r.runs.targets() != g.slice.targets(r.span) {
            return;
        }
        let unreached = unreached(&g.slice, r.span, &r.runs);
        if g.on_child_result(r.number, (from, r.ask, r.span), &r.runs, &unreached, &self.dead, out) {
            self.settle(now, r.group, r.number, out);
        }
    }

    /// Takes an answer that a child has sent ahead, and passes it on.
    fn on_answer(&mut self, from: ProcUid, a: Answer, out: &mut Vec<Effect>) {
        let Some(g) = self.groups.get_mut(&a.group) else { return };
        let Some(record) = g.casts.get_mut(&a.number) else { return };
        for task in record.tasks.iter_mut().filter(|t| t.expects(from, a.ask)) {
            if ahead(record.cast.mode, task, a.status, &a.bytes) {
                out.push(send_ahead(task, a.clone()));
            }
        }
    }

    /// Takes the report of a child that its targets have taken casts.
    fn on_child_taken(&mut self, now: Duration, from: ProcUid, t: Taken, out: &mut Vec<Effect>) {
        let Some(g) = self.groups.get_mut(&t.group) else { return };
        let end = t.first.saturating_add(t.count);
        let mut hit: Vec<u64> = g.casts.range(t.first..end).filter(|(_, r)| !r.cast.mode.reduces()).map(|(number, _)| *number).collect();
        let child = (from, t.ask, t.span);
        hit.retain(|number| g.on_child_result(*number, child, &Runs::default(), &t.unreached, &self.dead, out));
        hit.into_iter().for_each(|number| self.settle(now, t.group, number, out));
    }

    // ---- time

    /// The time of the next call of `on_time`.
    pub fn deadline(&self) -> Option<Duration> {
        self.report_at.into_iter().chain(self.taken_at).min()
    }

    /// Sends the reports that are due now.
    pub fn on_time(&mut self, now: Duration) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.taken_at.is_some_and(|at| at <= now) {
            self.taken_at = None;
            for (parent, all) in std::mem::take(&mut self.taken) {
                match parent {
                    Some(to) => out.push(Effect::Send { to, frame: CastFrame::Taken(all) }),
                    None => {
                        out.extend(all.into_iter().map(|t| Effect::Return { source: t.group.source, frame: CastFrame::Taken(vec![t]) }))
                    }
                }
            }
        }
        if self.report_at.is_some_and(|at| at <= now) {
            for (id, g) in self.groups.iter_mut().filter(|(_, g)| g.report_at.is_some_and(|at| at <= now)) {
                g.report_at = None;
                let (span, below) = (g.slice.span(), g.finished);
                g.report_finished(*id, span, below, self.fan_out, &self.dead, &mut out);
            }
            self.report_at = self.groups.values().filter_map(|g| g.report_at).min();
        }
        out
    }
}

/// True if this answer is sent ahead of the other answers of a task: a large one, or the first error.
fn ahead(mode: CastMode, task: &mut Task, status: Status, bytes: &[u8]) -> bool {
    let warn = mode == CastMode::FirstError && status != Status::Ok && !task.warned;
    task.warned |= warn;
    mode.reduces() && (bytes.len() > LARGE || warn)
}

fn send_ahead(task: &Task, answer: Answer) -> Effect {
    back(task, answer.group, CastFrame::Answer(Answer { ask: task.ask, ..answer }))
}

/// Sends a frame to the parent of a task: another host, or the source on this host.
fn back(task: &Task, id: GroupId, frame: CastFrame) -> Effect {
    match task.parent {
        Some(to) => Effect::Send { to, frame },
        None => Effect::Return { source: id.source, frame },
    }
}
