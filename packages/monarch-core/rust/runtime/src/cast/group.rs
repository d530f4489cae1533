//! A group at a relay: the processes that a source casts to, and the unfinished casts to them.
//!
//! The relay makes a group when a cast brings its members. The casts of a group have consecutive numbers, and all casts below `finished`
//! are removed. This module also takes the answers of other hosts to a cast, and asks hosts again that a child has passed over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use wire::cast::{CastFrame, CastMode};
use wire::runs::UNREACHED;
use wire::{Cast, GroupId, GroupSlice, ProcUid, Runs, Span};

use super::fan_out::{divide, head};
use super::record::{Child, Record};
use super::relay::Effect;

/// A group of processes at one relay, with the casts to it that are not finished. The relay owns it.
pub(super) struct Group {
    pub slice: Arc<GroupSlice>,
    /// The position of this host in the group.
    pub own: Option<u32>,
    /// All casts with a lower number are finished.
    pub finished: u64,
    /// At the root: the value of `finished` that other hosts have been sent.
    pub reported: u64,
    /// At the root: the time at which `finished` is reported without another cast.
    pub report_at: Option<Duration>,
    pub casts: BTreeMap<u64, Record>,
    /// The part of the group that each child has received.
    pub sent_members: HashMap<ProcUid, Span>,
    /// At the root: the request of the source to forget the group, which is passed on after the earlier casts.
    pub forget: Option<Cast>,
}

impl Group {
    pub fn new(slice: Arc<GroupSlice>, own: Option<u32>) -> Self {
        Group { slice, own, finished: 0, reported: 0, report_at: None, casts: BTreeMap::new(), sent_members: HashMap::new(), forget: None }
    }

    /// Removes the casts with a number lower than `below`: they are finished.
    pub fn finish(&mut self, below: u64, cast_ids: &mut HashMap<u64, (GroupId, u64)>) {
        self.finished = below;
        let rest = self.casts.split_off(&below);
        for record in std::mem::replace(&mut self.casts, rest).into_values() {
            cast_ids.remove(&record.cast_id);
        }
    }

    /// Takes the answers of a child (its uid, the ask, its span) to a cast; true if they were expected. The child may have passed over
    /// hosts that it could not reach. This host then asks those hosts itself, unless it knows that they have ended.
    pub fn on_child_result(
        &mut self,
        number: u64,
        child: (ProcUid, u32, Span),
        answers: &Runs,
        unreached: &[u32],
        dead: &HashSet<ProcUid>,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(record) = self.casts.get_mut(&number) else { return false };
        let (head, ask, whole) = child;
        let waits = |c: &Child| (c.head, c.ask, c.span) == child && c.result.is_none();
        let mut tasks = std::mem::take(&mut record.tasks);
        let mut waited = false;
        for task in &mut tasks {
            let Some(at) = task.children.iter().position(waits) else { continue };
            waited = true;
            if unreached.is_empty() {
                task.children[at].result = Some(answers.clone());
                continue;
            }
            task.children.swap_remove(at);
            let mut start = whole.start;
            let first = self.slice.first(start);
            for end in unreached.iter().copied().filter(|p| whole.contains(*p)).chain([whole.end]) {
                let span = Span::new(start, end);
                if !span.is_empty() {
                    let result = Some(answers.part(self.slice.first(start) - first, self.slice.first(end) - first));
                    task.children.push(Child { head, ask, span, result });
                }
                start = end + 1;
                let Some(other) = self.slice.host(end).filter(|h| end < whole.end && *h != head && !dead.contains(h)) else { continue };
                let span = Span::new(end, end + 1);
                task.children.push(Child { head: other, ask: record.next_ask, span, result: None });
                out.push(pass_on(record, self.finished, &self.slice, &mut self.sent_members, other, span));
                record.next_ask += 1;
            }
        }
        record.tasks = tasks;
        waited
    }

    /// Sends the number of finished casts to the hosts of a span.
    pub fn report_finished(
        &mut self,
        group: GroupId,
        span: Span,
        below: u64,
        fan_out: u32,
        dead: &HashSet<ProcUid>,
        out: &mut Vec<Effect>,
    ) {
        self.reported = below;
        for part in divide(span, self.own, fan_out) {
            if let Some((to, span)) = head(part, |p| self.slice.host(p), |h| dead.contains(&h)) {
                out.push(Effect::Send { to, frame: CastFrame::Finished { group, span, below } });
            }
        }
    }
}

/// The positions in a span of the hosts that were passed over, according to the answers of the head of the span.
pub(super) fn unreached(slice: &GroupSlice, span: Span, answers: &Runs) -> Vec<u32> {
    if answers.absent() == 0 {
        return vec![];
    }
    let mut at = slice.first(span.start);
    let mut ranges = Vec::new();
    for run in answers.iter() {
        let end = at.saturating_add(run.count);
        if run.status == UNREACHED {
            ranges.push(at..end);
        }
        at = end;
    }
    (span.start..span.end).filter(|p| ranges.iter().any(|r| r.contains(&slice.first(*p)))).collect()
}

/// The frame that passes the cast of a record on to the head of a part.
pub(super) fn pass_on(
    record: &Record,
    finished: u64,
    slice: &GroupSlice,
    sent_members: &mut HashMap<ProcUid, Span>,
    to: ProcUid,
    span: Span,
) -> Effect {
    let (cast, ask) = (&record.cast, record.next_ask);
    let known = sent_members.get(&to).is_some_and(|k| k.covers(span));
    // With `Forget`, the receiver may have removed the group for one part of the span already, so the frame has the members again.
    let members = (!known || ask > 0 && cast.mode == CastMode::Forget).then(|| Arc::new(slice.part(span)));
    if !known {
        sent_members.insert(to, span);
    }
    let order = cast.order.part(span);
    let index = |position: u32| slice.first(position).saturating_sub(slice.first(cast.span.start));
    let values = cast.values.as_ref().map(|values| Arc::new(values.part(index(span.start)..index(span.end))));
    let body = cast.body.clone();
    let (group, number, mode) = (cast.group, cast.number, cast.mode);
    Effect::Send { to, frame: CastFrame::Cast(Cast { group, number, finished, ask, span, mode, slice: members, order, body, values }) }
}
