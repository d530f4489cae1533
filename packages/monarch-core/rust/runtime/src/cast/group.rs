//! What a relay knows of a group, and which of its casts are not over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use wire::cast::{CastFrame, CastMode};
use wire::{Cast, GroupId, GroupSlice, ProcUid, Span};

use super::record::Record;
use super::relay::Effect;
use super::tree::{divide, head};

pub(super) struct Group {
    pub slice: Arc<GroupSlice>,
    /// Our own position.
    pub own: Option<u32>,
    /// The casts below this number are over.
    pub finished: u64,
    /// What of this has been said, and when it will be: at the root.
    pub said: u64,
    pub say_at: Option<Duration>,
    pub casts: BTreeMap<u64, Record>,
    /// Which part of the group children know.
    pub knows: HashMap<ProcUid, Span>,
    /// The source wants it forgotten, after the casts before; at the root.
    pub forget: Option<Cast>,
}

impl Group {
    pub fn new(slice: Arc<GroupSlice>, own: Option<u32>) -> Self {
        Group { slice, own, finished: 0, said: 0, say_at: None, casts: BTreeMap::new(), knows: HashMap::new(), forget: None }
    }

    /// The casts below are over.
    pub fn finish(&mut self, below: u64, tokens: &mut HashMap<u64, (GroupId, u64)>) {
        self.finished = below;
        let rest = self.casts.split_off(&below);
        for record in std::mem::replace(&mut self.casts, rest).into_values() {
            tokens.remove(&record.token);
        }
    }

    /// Tells a part of the tree.
    pub fn say_finished(&mut self, group: GroupId, span: Span, below: u64, fan_out: u32, dead: &HashSet<ProcUid>, out: &mut Vec<Effect>) {
        self.said = below;
        for part in divide(span, self.own, fan_out) {
            if let Some((to, span)) = head(part, |p| self.slice.host(p), |h| dead.contains(&h)) {
                out.push(Effect::Send { to, frame: CastFrame::Finished { group, span, below } });
            }
        }
    }
}

/// The cast of a record for the head of a part.
pub(super) fn pass_on(
    record: &Record,
    finished: u64,
    slice: &GroupSlice,
    knows: &mut HashMap<ProcUid, Span>,
    to: ProcUid,
    span: Span,
) -> Effect {
    let (cast, ask) = (&record.cast, record.next_ask);
    let known = knows.get(&to).is_some_and(|k| k.covers(span));
    // Who has forgotten the group for a part of the span must know the rest to pass this on.
    let slice = (!known || ask > 0 && cast.mode == CastMode::Forget).then(|| Arc::new(slice.part(span)));
    if !known {
        knows.insert(to, span);
    }
    let order = cast.order.part(span);
    let (body, attachments) = (cast.body.clone(), cast.attachments.clone());
    let (group, number, mode) = (cast.group, cast.number, cast.mode);
    Effect::Send { to, frame: CastFrame::Cast(Cast { group, number, finished, ask, span, mode, slice, order, body, attachments }) }
}
