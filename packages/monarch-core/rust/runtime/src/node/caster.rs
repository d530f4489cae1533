//! The casts of this process, and the sequence numbers of all frames that it sends to other hosts.
//!
//! The process hands a cast to the agent of its host, which is the root of the cast's tree; in the client that is this process. The answers
//! come back as runs of equal answers, and become the outcomes of a pending call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use net::lock::lock;
use net::{Link, RecvPart};
use wire::cast::{Attachment, CastBody, CastFrame, CastMode, Reduced};
use wire::cursor::Cursor;
use wire::frame::{CAST, begin, finish};
use wire::runs::{AHEAD, GONE, PASSED_OVER};
use wire::{Cast, GroupId, GroupSlice, MailboxId, Part, ProcUid, Reply, SlotId, Status};

use crate::cast::Source;
use crate::gateway::host_end;
use crate::node::Node;
use crate::node::cell::{Mode, Outcome};
use crate::node::credit::OVERHEAD;
use crate::node::payload::Payload;
use crate::node::peer::{Head, Peer};

/// Set in the slot of a message whose answer goes to the agent of this host.
pub const BY_TREE: u64 = 1 << 63;
/// The slot then says which cast of the agent's it is, and which of its targets.
const INDEX_SHIFT: u32 = 40;
const TOKEN: u64 = (1 << INDEX_SHIFT) - 1;

/// More bytes than this go straight to each target: whoever passes a cast on holds it until all have answered.
pub const MOST: u64 = 1 << 20;
/// A message to one goes straight.
const FEWEST: usize = 2;
/// Who was passed over by a host that could not reach it, and is not known to have ended, counts as lost after this.
const GRACE: Duration = Duration::from_secs(30);

pub fn tree_slot(token: u64, index: u32) -> SlotId {
    SlotId(BY_TREE | u64::from(index) << INDEX_SHIFT | token & TOKEN)
}

/// The token and the index that `tree_slot` was made of.
pub(crate) fn tree_place(slot: SlotId) -> (u64, u32) {
    (slot.0 & TOKEN, ((slot.0 & !BY_TREE) >> INDEX_SHIFT) as u32)
}

pub struct Caster {
    state: Mutex<State>,
    /// Casts reach the agent in the order of their numbers.
    handing: Mutex<()>,
}

struct State {
    source: Source,
    calls: HashMap<(GroupId, u64), Waiting>,
}

/// What answers of a cast are for.
struct Waiting {
    slot: SlotId,
    /// By index.
    targets: Arc<[Target]>,
}

#[derive(Clone, Copy)]
struct Target {
    proc: ProcUid,
    /// Among all that were addressed.
    rank: u32,
}

impl Caster {
    pub fn new(me: ProcUid) -> Self {
        Caster { state: Mutex::new(State { source: Source::new(me), calls: HashMap::new() }), handing: Mutex::default() }
    }

    /// Of the next frame to a host; never 0.
    pub fn number(&self, host: ProcUid) -> u64 {
        lock(&self.state).source.order.next(host) + 1
    }

    /// The next frame to this host is the first one.
    pub(crate) fn restart(&self, host: ProcUid) {
        lock(&self.state).source.order.restart(host);
    }

    fn waiting(&self) -> usize {
        lock(&self.state).calls.len()
    }
}

/// The targets of a handle that casts reach.
pub struct Group {
    node: Weak<Node>,
    id: GroupId,
    mailbox: MailboxId,
    targets: Arc<[Target]>,
    /// Positions among all that are addressed of those that are sent to directly.
    pub near: Vec<usize>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever drops a handle may hold anything.
        if !net::forked_child::is_child()
            && let Some(node) = self.node.upgrade()
        {
            let (poller, id) = (node.poller.clone(), self.id);
            poller.spawn(Box::new(move || node.forget_group(id)));
        }
    }
}

impl Node {
    /// Names these targets for casts; none if not enough of them are on other hosts.
    pub fn cast_group(&self, targets: &[(ProcUid, MailboxId)]) -> Option<Group> {
        let mailbox = targets.first()?.1;
        let mut hosts: Vec<(ProcUid, Vec<(ProcUid, u32)>)> = Vec::new();
        let mut places: HashMap<ProcUid, usize> = HashMap::new();
        let (mut near, mut root) = (Vec::new(), None);
        for (rank, (proc, _)) in targets.iter().enumerate() {
            let Some(place) = self.routes.place(*proc) else {
                near.push(rank);
                continue;
            };
            let at = *places.entry(place.host).or_insert(hosts.len());
            if at == hosts.len() {
                hosts.push((place.host, Vec::new()));
            }
            hosts[at].1.push((*proc, rank as u32));
            root = Some(place.here);
        }
        // A worker has another name in each job; what it calls itself, it calls directly. So does a service, in jobs that it serves.
        let root = root.filter(|root| targets.len() - near.len() >= FEWEST && *root == self.agent_uid)?;
        let targets = hosts.iter().flat_map(|(_, procs)| procs).map(|(proc, rank)| Target { proc: *proc, rank: *rank }).collect();
        let id = lock(&self.caster.state).source.group(GroupSlice::whole(mailbox, root, hosts));
        Some(Group { node: Arc::downgrade(&self.arc()), id, mailbox, targets, near })
    }

    /// Sends one message to all targets of the group that are on other hosts, `peers` by rank; false if it has to go to each by itself.
    pub fn cast(&self, group: &Group, peers: &[Arc<Peer>], head: &Head<'_>, mode: Option<Mode>, payload: &Payload<'_>) -> bool {
        let how = match mode {
            Some(Mode::FirstError) => CastMode::FirstError,
            Some(Mode::Gather) => CastMode::Gather,
            Some(Mode::Stream) => return false,
            None => CastMode::Taken,
        };
        let remote = || group.targets.iter().map(|t| &peers[t.rank as usize]);
        // Who is behind is waited for, as all are that are sent to by themselves.
        if payload.len() > MOST || !remote().all(|p| p.has_credit(group.mailbox)) {
            return false;
        }
        remote().for_each(|p| p.spend(group.mailbox, payload.len() + OVERHEAD));
        let parts = payload.encode();
        let Head { sender, slot, flags, trace, method, extent, .. } = *head;
        let body = CastBody { sender, slot, flags, trace, method, extent, parts: &parts }.encode();
        let _in_order = lock(&self.caster.handing);
        let cast = {
            let mut state = lock(&self.caster.state);
            let attachments: Arc<[Attachment]> = Arc::new([]);
            let Some(cast) = state.source.cast(group.id, how, body, attachments) else { return false };
            if how.reduces() {
                state.calls.insert((group.id, cast.number), Waiting { slot: head.slot, targets: group.targets.clone() });
            }
            cast
        };
        let sent = || events::cast_sent(group.mailbox.0, method, group.targets.len() as u64, slot.0, payload.len(), head.parent, sender.0);
        events::in_trace(trace.words(), sent);
        let drain = self.hand_over(cast);
        drop(_in_order);
        drain();
        true
    }

    /// Gives a cast to the agent of this host; the returned function may run on many threads at once.
    fn hand_over(&self, cast: Cast) -> impl FnOnce() + use<> {
        let gateway = self.gateway().cloned();
        if let Some(gateway) = &gateway {
            gateway.cast_here(cast);
        } else {
            let mut start = Vec::with_capacity(64);
            let at = begin(&mut start, CAST);
            cast.put_head(&mut start);
            finish(&mut start, at, cast.body.len());
            let _ = self.peer_unlinked(self.agent_uid).0.link.send_soon(&[&start, &cast.body]);
        }
        move || {
            if let Some(gateway) = gateway {
                gateway.send_casts();
            }
        }
    }

    /// Casts whose answers are not all here.
    pub fn casts_waiting(&self) -> usize {
        self.caster.waiting()
    }

    fn forget_group(&self, id: GroupId) {
        let in_order = lock(&self.caster.handing);
        let forget = lock(&self.caster.state).source.forget(id);
        let Some(cast) = forget else { return };
        let drain = self.hand_over(cast);
        drop(in_order);
        drain();
    }

    /// A proc of this host casts, or its agent brings what comes back.
    pub(crate) fn on_cast(&self, from: ProcUid, frame: &[u8]) {
        if let Some(gateway) = self.gateway() {
            gateway.cast_of_proc(from, frame);
        } else if from == self.agent_uid
            && let Ok(frame) = CastFrame::decode(frame)
        {
            self.on_cast_frame(frame);
        }
    }

    /// A proc of this host answers a cast.
    pub(crate) fn on_tree_reply(&self, link: &Arc<Link>, reply: Reply) {
        if let Some(gateway) = self.gateway() {
            gateway.cast_reply(link.peer, reply, link);
        }
    }

    /// This process, an agent, answers one itself; false if it is none.
    pub(crate) fn answer_tree(&self, slot: SlotId, status: Status, parts: &Payload<'_>) -> bool {
        let Some(gateway) = self.gateway() else { return false };
        gateway.cast_answer(self.uid, slot, status, parts.encode());
        true
    }

    /// Something comes back for a cast of this process.
    pub(crate) fn on_cast_frame(&self, frame: CastFrame) {
        match frame {
            CastFrame::Answer(a) => {
                let found = lock(&self.caster.state).calls.get(&(a.group, a.number)).map(|w| (w.slot, w.targets.clone()));
                if let Some((slot, targets)) = found
                    && let Some(target) = targets.get(a.index as usize)
                {
                    self.complete(
                        slot,
                        Arc::new(Outcome { rank: target.rank, sender_rank: None, status: a.status, parts: parts(&a.bytes) }),
                    );
                }
            }
            CastFrame::Reduced(r) => self.on_reduced(r),
            _ => {}
        }
    }

    fn on_reduced(&self, r: Reduced) {
        let Some(waiting) = lock(&self.caster.state).calls.remove(&(r.group, r.number)) else { return };
        let mut at = 0;
        for run in r.runs.iter() {
            let end = (at + run.count as usize).min(waiting.targets.len());
            let targets = &waiting.targets[at..end];
            at = end;
            match (run.status, Status::from_u8(run.status)) {
                (AHEAD, _) => {}
                (GONE | PASSED_OVER, _) => self.passed_over(waiting.slot, targets),
                (_, Ok(status)) => {
                    for target in targets {
                        let parts = parts(run.bytes);
                        self.complete(waiting.slot, Arc::new(Outcome { rank: target.rank, sender_rank: None, status, parts }));
                    }
                }
                (_, Err(_)) => {}
            }
        }
    }

    /// Targets that have ended, as others say. Their host says how; whoever cannot be asked counts as lost after a while.
    fn passed_over(&self, slot: SlotId, targets: &[Target]) {
        let unknown: Vec<Target> =
            targets.iter().filter(|t| self.known_peer(t.proc).is_none_or(|p| p.ended().is_none())).copied().collect();
        if unknown.is_empty() {
            return;
        }
        for target in &unknown {
            // Nothing but an address: the agent there answers for those that have ended.
            let _ = self.peer(target.proc).link.send(&[], Vec::new());
        }
        let node = Arc::downgrade(&self.arc());
        let task = move || {
            if let Some(node) = node.upgrade() {
                let end = postcard::to_stdvec(&host_end("", "a host on the way to it could not reach it")).unwrap_or_default();
                unknown.iter().for_each(|t| node.complete_if_waiting(slot, t.rank, &end));
            }
        };
        self.poller.later(GRACE, Box::new(task));
    }

    fn complete_if_waiting(&self, slot: SlotId, rank: u32, end: &[u8]) {
        if self.unanswered(slot).contains(&rank) {
            self.complete(slot, Outcome::new(rank, Status::ProcEnded, end));
        }
    }
}

/// Encoded parts, as they were sent.
fn parts(bytes: &[u8]) -> Vec<RecvPart> {
    let all = Part::read_all(&mut Cursor::new(bytes)).unwrap_or_default();
    all.into_iter().filter_map(|p| RecvPart::adopt(p, None)).collect()
}
