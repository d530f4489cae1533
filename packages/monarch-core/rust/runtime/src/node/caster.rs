//! The casts of this process, and the sequence numbers of all frames that it sends to other hosts.
//!
//! The process hands a cast to the agent of its host, which is the root of the cast's tree; the client is its own agent. The answers return
//! as runs of equal answers, and become the outcomes of a pending call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use net::lock::lock;
use net::{Link, RecvPart};
use wire::cast::{Attachment, CastBody, CastFrame, CastMode, Reduced};
use wire::cursor::Cursor;
use wire::frame::{CAST, begin, finish};
use wire::runs::{ENDED, SEPARATE, UNREACHED};
use wire::{CallId, Cast, GroupId, GroupSlice, MailboxId, Part, ProcUid, Reply, Status};

use crate::cast::Source;
use crate::gateway::host_end;
use crate::node::Node;
use crate::node::credit::OVERHEAD;
use crate::node::payload::Payload;
use crate::node::peer::{Head, Peer, View};
use crate::node::pending_call::{Mode, Outcome};

/// A flag of the call id: the answer goes to the agent of this host, as part of a cast.
pub const CAST_ANSWER: u64 = 1 << 63;
/// With this flag, the call id contains the cast id of the agent's cast and the index of the target.
const INDEX_SHIFT: u32 = 40;
/// The bits of the call id that contain the cast id.
const CAST_ID_BITS: u64 = (1 << INDEX_SHIFT) - 1;

/// Larger payloads are sent directly to each target: a relay holds a cast until all targets have answered.
pub const MAX_PAYLOAD: u64 = 1 << 20;
/// The smallest number of remote targets for a cast: a message to one target is sent directly.
const MIN_TARGETS: usize = 2;
/// How long the caller waits for the end of a target that no relay could reach; then the target counts as lost.
const GRACE: Duration = Duration::from_secs(30);

/// The call id of a target's answer to a cast of the agent.
pub fn cast_call_id(cast_id: u64, index: u32) -> CallId {
    CallId(CAST_ANSWER | u64::from(index) << INDEX_SHIFT | cast_id & CAST_ID_BITS)
}

/// The cast id and the index that the call id of `cast_call_id` contains.
pub(crate) fn decode_cast_call_id(call_id: CallId) -> (u64, u32) {
    (call_id.0 & CAST_ID_BITS, ((call_id.0 & !CAST_ANSWER) >> INDEX_SHIFT) as u32)
}

/// The casts of one process. The node owns it.
pub struct Caster {
    state: Mutex<State>,
    /// Held while a cast is numbered and handed over, so that casts reach the agent in the order of their numbers.
    handing: Mutex<()>,
}

/// The groups and sequence numbers, and the calls that wait for answers, by group and number of the cast.
struct State {
    source: Source,
    calls: HashMap<(GroupId, u64), Waiting>,
}

/// The call that receives the answers of a cast.
struct Waiting {
    call_id: CallId,
    /// The targets by index.
    targets: Arc<[Target]>,
}

/// A target of a group.
#[derive(Clone, Copy)]
struct Target {
    proc: ProcUid,
    /// Its rank among all addressed targets of the call.
    rank: u32,
}

impl Caster {
    pub fn new(me: ProcUid) -> Self {
        Caster { state: Mutex::new(State { source: Source::new(me), calls: HashMap::new() }), handing: Mutex::default() }
    }

    /// The number of the next frame to a host; never 0.
    pub fn number(&self, host: ProcUid) -> u64 {
        lock(&self.state).source.order.next(host) + 1
    }

    /// Starts the numbers of frames to this host again.
    pub(crate) fn restart(&self, host: ProcUid) {
        lock(&self.state).source.order.restart(host);
    }

    /// The number of calls that wait for answers.
    fn waiting(&self) -> usize {
        lock(&self.state).calls.len()
    }
}

/// The targets of a handle that a cast reaches.
pub struct Group {
    node: Weak<Node>,
    id: GroupId,
    mailbox: MailboxId,
    targets: Arc<[Target]>,
    /// The ranks of the other targets, to which messages are sent directly.
    pub direct_ranks: Vec<usize>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // The thread that drops a handle may hold any lock.
        if !net::forked_child::is_child()
            && let Some(node) = self.node.upgrade()
        {
            let (poller, id) = (node.poller.clone(), self.id);
            poller.spawn(Box::new(move || node.forget_group(id)));
        }
    }
}

impl Node {
    /// Makes a group of these targets; `None` if too few of them are on other hosts.
    pub fn cast_group(&self, targets: &[(ProcUid, MailboxId)]) -> Option<Group> {
        let mailbox = targets.first()?.1;
        let mut hosts: Vec<(ProcUid, Vec<(ProcUid, u32)>)> = Vec::new();
        let mut places: HashMap<ProcUid, usize> = HashMap::new();
        let (mut direct_ranks, mut root) = (Vec::new(), None);
        for (rank, (proc, _)) in targets.iter().enumerate() {
            let Some(place) = self.routes.place(*proc) else {
                direct_ranks.push(rank);
                continue;
            };
            let at = *places.entry(place.host).or_insert(hosts.len());
            if at == hosts.len() {
                hosts.push((place.host, Vec::new()));
            }
            hosts[at].1.push((*proc, rank as u32));
            root = Some(place.here);
        }
        // A worker has another uid in each job, so it makes its own calls directly. So does a service, in the jobs that it serves.
        let root = root.filter(|root| targets.len() - direct_ranks.len() >= MIN_TARGETS && *root == self.agent_uid)?;
        let targets = hosts.iter().flat_map(|(_, procs)| procs).map(|(proc, rank)| Target { proc: *proc, rank: *rank }).collect();
        let id = lock(&self.caster.state).source.group(GroupSlice::whole(mailbox, root, hosts));
        Some(Group { node: Arc::downgrade(&self.arc()), id, mailbox, targets, direct_ranks })
    }

    /// Casts one message to the remote targets of the group (`peers` by rank); false if the caller has to send it to each target.
    pub fn cast(&self, group: &Group, peers: &[Arc<Peer>], head: &Head<'_>, mode: Option<Mode>, payload: &Payload<'_>) -> bool {
        let how = match mode {
            Some(Mode::FirstError) => CastMode::FirstError,
            Some(Mode::Gather) => CastMode::Gather,
            Some(Mode::Stream) => return false,
            None => CastMode::Taken,
        };
        let remote = || group.targets.iter().map(|t| &peers[t.rank as usize]);
        // Without credit for every target the caller sends the messages one by one, and each of them waits for credit.
        if payload.len() > MAX_PAYLOAD || !remote().all(|p| p.has_credit(group.mailbox)) {
            return false;
        }
        remote().for_each(|p| p.spend(group.mailbox, payload.len() + OVERHEAD));
        let parts = payload.encode();
        let Head { sender, call_id, flags, trace, method, extent, .. } = *head;
        let body = CastBody { sender, call_id, flags, trace, method, extent, parts: &parts }.encode();
        let _in_order = lock(&self.caster.handing);
        let cast = {
            let mut state = lock(&self.caster.state);
            let attachments: Arc<[Attachment]> = Arc::new([]);
            let Some(cast) = state.source.cast(group.id, how, body, attachments) else { return false };
            if how.reduces() {
                state.calls.insert((group.id, cast.number), Waiting { call_id: head.call_id, targets: group.targets.clone() });
            }
            cast
        };
        let (View { offset, dims }, targets, bytes) = (head.view, group.targets.len() as u64, payload.len());
        let sent = || events::cast_sent(group.mailbox.0, method, targets, call_id.0, bytes, head.parent, sender.0, offset, dims);
        events::in_trace(trace.words(), sent);
        let drain = self.hand_over(cast);
        drop(_in_order);
        drain();
        true
    }

    /// Hands a cast to the agent of this host. The returned function flushes the link, and may run on many threads at once.
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

    /// The number of casts whose answers have not all arrived.
    pub fn casts_waiting(&self) -> usize {
        self.caster.waiting()
    }

    /// Removes the group of a dropped handle, here and at all relays.
    fn forget_group(&self, id: GroupId) {
        let in_order = lock(&self.caster.handing);
        let forget = lock(&self.caster.state).source.forget(id);
        let Some(cast) = forget else { return };
        let drain = self.hand_over(cast);
        drop(in_order);
        drain();
    }

    /// Takes a frame about casts, from a proc of this host, or from the agent of this process.
    pub(crate) fn on_cast(&self, from: ProcUid, frame: &[u8]) {
        if let Some(gateway) = self.gateway() {
            gateway.cast_of_proc(from, frame);
        } else if from == self.agent_uid
            && let Ok(frame) = CastFrame::decode(frame)
        {
            self.on_cast_frame(frame);
        }
    }

    /// Takes the answer of a proc of this host to a cast.
    pub(crate) fn on_cast_reply(&self, link: &Arc<Link>, reply: Reply) {
        if let Some(gateway) = self.gateway() {
            gateway.cast_reply(link.peer, reply, link);
        }
    }

    /// Sends this process's own answer to a cast, if this process is an agent; false if it is not.
    pub(crate) fn answer_cast(&self, call_id: CallId, status: Status, parts: &Payload<'_>) -> bool {
        let Some(gateway) = self.gateway() else { return false };
        gateway.cast_answer(self.uid, call_id, status, parts.encode());
        true
    }

    /// Takes an answer to a cast of this process.
    pub(crate) fn on_cast_frame(&self, frame: CastFrame) {
        match frame {
            CastFrame::Answer(a) => {
                let found = lock(&self.caster.state).calls.get(&(a.group, a.number)).map(|w| (w.call_id, w.targets.clone()));
                if let Some((call_id, targets)) = found
                    && let Some(target) = targets.get(a.index as usize)
                {
                    self.complete(
                        call_id,
                        Arc::new(Outcome { rank: target.rank, sender_rank: None, status: a.status, parts: parts(&a.bytes) }),
                    );
                }
            }
            CastFrame::Reduced(r) => self.on_reduced(r),
            _ => {}
        }
    }

    /// Completes a call with the merged answers of its cast.
    fn on_reduced(&self, r: Reduced) {
        let Some(waiting) = lock(&self.caster.state).calls.remove(&(r.group, r.number)) else { return };
        let mut at = 0;
        for run in r.runs.iter() {
            let end = (at + run.count as usize).min(waiting.targets.len());
            let targets = &waiting.targets[at..end];
            at = end;
            match (run.status, Status::from_u8(run.status)) {
                (SEPARATE, _) => {}
                (ENDED | UNREACHED, _) => self.unreached(waiting.call_id, targets),
                (_, Ok(status)) => {
                    for target in targets {
                        let parts = parts(run.bytes);
                        self.complete(waiting.call_id, Arc::new(Outcome { rank: target.rank, sender_rank: None, status, parts }));
                    }
                }
                (_, Err(_)) => {}
            }
        }
    }

    /// Handles targets that have ended or that no relay could reach. Their host reports how they ended; a target without such a report
    /// counts as lost after `GRACE`.
    fn unreached(&self, call_id: CallId, targets: &[Target]) {
        let unknown: Vec<Target> =
            targets.iter().filter(|t| self.known_peer(t.proc).is_none_or(|p| p.ended().is_none())).copied().collect();
        if unknown.is_empty() {
            return;
        }
        for target in &unknown {
            // An empty send opens the route: the agent there reports processes that have ended.
            let _ = self.peer(target.proc).link.send(&[], Vec::new());
        }
        let node = Arc::downgrade(&self.arc());
        let task = move || {
            if let Some(node) = node.upgrade() {
                let end = postcard::to_stdvec(&host_end("", "a host on the way to it could not reach it")).unwrap_or_default();
                unknown.iter().for_each(|t| node.complete_if_waiting(call_id, t.rank, &end));
            }
        };
        self.poller.later(GRACE, Box::new(task));
    }

    /// Completes one rank of a call with the end of its process, unless the rank has an outcome.
    fn complete_if_waiting(&self, call_id: CallId, rank: u32, end: &[u8]) {
        if self.unanswered(call_id).contains(&rank) {
            self.complete(call_id, Outcome::new(rank, Status::ProcEnded, end));
        }
    }
}

/// Decodes the parts of a payload.
fn parts(bytes: &[u8]) -> Vec<RecvPart> {
    let all = Part::read_all(&mut Cursor::new(bytes)).unwrap_or_default();
    all.into_iter().filter_map(|p| RecvPart::accept(p, None)).collect()
}
