//! The casts of this process: their groups, and the calls that wait for their answers.
//!
//! The process hands a cast to the agent of its host, which is the root of the cast's tree; the client is its own agent. The answers return
//! as runs of equal answers, and become the outcomes of a pending call. Each rank gets an outcome: an answer, the end of its process, or
//! after `GRACE` the loss of its host. The caster needs the peers and their routes, the pending calls, and the numbers of frames to other
//! hosts, which casts share with all other frames of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use net::RecvPart;
use net::lock::lock;
use wire::cast::{CastBody, CastFrame, CastMode, Reduced};
use wire::cursor::Cursor;
use wire::frame::{CAST, begin, finish};
use wire::runs::{ENDED, SEPARATE, UNREACHED};
use wire::{CallId, Cast, GroupId, GroupSlice, MailboxId, Part, ProcUid, Status};

use crate::calls::pending_call::{Mode, Outcome};
use crate::calls::{Calls, INCOMPLETE};
use crate::cast::Source;
use crate::mailboxes::credit::OVERHEAD;
use crate::peers::Peers;
use crate::peers::ended::host_end;
use crate::peers::peer::{Head, Peer, View};
use crate::transfers::payload::Payload;
use crate::transfers::rank_payloads::RankPayloads;

/// Larger payloads are sent directly to each target: a relay holds a cast until all targets have answered.
pub const MAX_PAYLOAD: u64 = 1 << 20;
/// The smallest number of remote targets for a cast: a message to one target is sent directly.
const MIN_TARGETS: usize = 2;
/// How long the caller waits for the end of a target that no relay could reach; then the target counts as lost.
const GRACE: Duration = Duration::from_secs(30);

/// The casts of one process.
pub struct Caster {
    peers: Arc<Peers>,
    calls: Arc<Calls>,
    source: Arc<Mutex<Source>>,
    /// The calls that wait for answers, by group and number of the cast.
    waiting: Mutex<HashMap<(GroupId, u64), Waiting>>,
    /// Held while a cast is numbered and handed over, so that casts reach the agent in the order of their numbers.
    handing: Mutex<()>,
    me: Weak<Caster>,
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

/// The targets of a handle that a cast reaches.
pub struct Group {
    caster: Weak<Caster>,
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
            && let Some(caster) = self.caster.upgrade()
        {
            let (poller, id) = (caster.peers.poller.clone(), self.id);
            poller.spawn(Box::new(move || caster.forget_group(id)));
        }
    }
}

impl Caster {
    pub(crate) fn new(peers: &Arc<Peers>, calls: &Arc<Calls>, source: Arc<Mutex<Source>>) -> Arc<Self> {
        Arc::new_cyclic(|me| Caster {
            peers: peers.clone(),
            calls: calls.clone(),
            source,
            waiting: Mutex::default(),
            handing: Mutex::default(),
            me: me.clone(),
        })
    }

    /// Makes a group of these targets; `None` if too few of them are on other hosts.
    pub fn group(&self, targets: &[(ProcUid, MailboxId)]) -> Option<Group> {
        let mailbox = targets.first()?.1;
        let mut hosts: Vec<(ProcUid, Vec<(ProcUid, u32)>)> = Vec::new();
        let mut places: HashMap<ProcUid, usize> = HashMap::new();
        let (mut direct_ranks, mut root) = (Vec::new(), None);
        for (rank, (proc, _)) in targets.iter().enumerate() {
            let Some(place) = self.peers.routes.place(*proc) else {
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
        let root = root.filter(|root| targets.len() - direct_ranks.len() >= MIN_TARGETS && *root == self.peers.agent_uid)?;
        let targets = hosts.iter().flat_map(|(_, procs)| procs).map(|(proc, rank)| Target { proc: *proc, rank: *rank }).collect();
        let id = lock(&self.source).group(GroupSlice::whole(mailbox, root, hosts));
        Some(Group { caster: self.me.clone(), id, mailbox, targets, direct_ranks })
    }

    /// Casts one message to the remote targets of the group (`peers` by rank), with `values` that differ between them; false if the caller
    /// has to send it to each target.
    pub fn cast(
        &self,
        group: &Group,
        peers: &[Arc<Peer>],
        head: &Head<'_>,
        mode: Option<Mode>,
        payload: &Payload<'_>,
        values: Option<&RankPayloads<'_>>,
    ) -> bool {
        let how = match mode {
            // Relays would keep the answers of a call that expires, and the caller reports those that have come.
            Some(_) if head.left.is_some() => CastMode::Taken,
            Some(Mode::FirstError) => CastMode::FirstError,
            Some(Mode::Gather) => CastMode::Gather,
            Some(Mode::Stream) => return false,
            None => CastMode::Taken,
        };
        let remote = || group.targets.iter().map(|t| &peers[t.rank as usize]);
        // Without credit for every target the caller sends the messages one by one, and each of them waits for credit.
        let fits = payload.len() <= MAX_PAYLOAD && values.is_none_or(RankPayloads::fit_cast);
        if !fits || !remote().all(|p| p.has_credit(group.mailbox)) {
            return false;
        }
        let own = |t: &Target| values.map_or(0, |values| values.own_len(t.rank as usize));
        group.targets.iter().for_each(|t| peers[t.rank as usize].spend(group.mailbox, payload.len() + own(t) + OVERHEAD));
        let bytes = payload.len() + group.targets.iter().map(own).sum::<u64>() / group.targets.len().max(1) as u64;
        let values = values.map(|values| Arc::new(values.of_targets(group.targets.iter().map(|t| t.rank as usize))));
        let parts = payload.encode();
        let Head { sender, call_id, flags, trace, left, method, extent, .. } = *head;
        let body = CastBody { sender, call_id, flags, trace, left, method, extent, parts: &parts }.encode();
        let in_order = lock(&self.handing);
        let Some(cast) = lock(&self.source).cast(group.id, how, body, values) else { return false };
        if how.reduces() {
            lock(&self.waiting).insert((group.id, cast.number), Waiting { call_id: head.call_id, targets: group.targets.clone() });
        }
        let (View { offset, dims }, targets) = (head.view, group.targets.len() as u64);
        let sent = || events::cast_sent(group.mailbox.0, method, targets, call_id.0, bytes, head.parent, sender.0, offset, dims);
        events::in_trace(trace.words(), sent);
        let drain = self.hand_over(cast);
        drop(in_order);
        drain();
        true
    }

    /// Hands a cast to the agent of this host. The returned function flushes the link, and may run on many threads at once.
    fn hand_over(&self, cast: Cast) -> impl FnOnce() + use<'_> {
        let gateway = self.peers.roles.gateway();
        if let Some(gateway) = gateway {
            gateway.cast_here(cast);
        } else {
            let mut start = Vec::with_capacity(64);
            let at = begin(&mut start, CAST);
            cast.put_head(&mut start);
            finish(&mut start, at, cast.body.len());
            let _ = self.peers.peer_unlinked(self.peers.agent_uid).0.link.send_soon(&[&start, &cast.body]);
        }
        move || {
            if let Some(gateway) = gateway {
                gateway.send_casts();
            }
        }
    }

    /// The number of casts whose answers have not all arrived.
    pub fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// Removes the group of a dropped handle, here and at all relays.
    fn forget_group(&self, id: GroupId) {
        let in_order = lock(&self.handing);
        let forget = lock(&self.source).forget(id);
        let Some(cast) = forget else { return };
        let drain = self.hand_over(cast);
        drop(in_order);
        drain();
    }

    /// Takes a frame about casts, from a proc of this host, or from the agent of this process.
    pub(crate) fn on_frame(&self, from: ProcUid, frame: &[u8]) {
        if let Some(gateway) = self.peers.roles.gateway() {
            gateway.cast_of_proc(from, frame);
        } else if from == self.peers.agent_uid {
            match CastFrame::decode(frame) {
                Ok(frame) => self.on_answers(frame),
                Err(_) => events::frame_refused(from.0, b"cast", frame.len() as u64),
            }
        }
    }

    /// Takes an answer to a cast of this process.
    pub(crate) fn on_answers(&self, frame: CastFrame) {
        match frame {
            CastFrame::Answer(a) => {
                let found = lock(&self.waiting).get(&(a.group, a.number)).map(|w| (w.call_id, w.targets.clone()));
                if let Some((call_id, targets)) = found
                    && let Some(target) = targets.get(a.index as usize)
                {
                    self.answered(call_id, target, a.status, &a.bytes);
                }
            }
            CastFrame::Reduced(r) => self.on_reduced(r),
            _ => {}
        }
    }

    /// Completes one rank of a call with an answer, or with an error if the answer is malformed.
    fn answered(&self, call_id: CallId, target: &Target, status: Status, bytes: &[u8]) {
        let outcome = match parts(bytes) {
            Some(parts) => Arc::new(Outcome { rank: target.rank, sender_rank: None, status, parts }),
            None => {
                events::frame_refused(target.proc.0, b"answer", bytes.len() as u64);
                Outcome::new(target.rank, Status::Undelivered, INCOMPLETE)
            }
        };
        self.calls.complete(call_id, outcome);
    }

    /// Completes a call with the merged answers of its cast.
    fn on_reduced(&self, r: Reduced) {
        let Some(waiting) = lock(&self.waiting).remove(&(r.group, r.number)) else { return };
        let mut at = 0;
        for run in r.runs.iter() {
            let end = (at + run.count as usize).min(waiting.targets.len());
            let targets = &waiting.targets[at..end];
            at = end;
            match (run.status, Status::from_u8(run.status)) {
                (SEPARATE, _) => {}
                (ENDED | UNREACHED, _) => self.unreached(waiting.call_id, targets),
                (_, Ok(status)) => {
                    targets.iter().for_each(|target| self.answered(waiting.call_id, target, status, run.bytes));
                }
                (_, Err(_)) => {}
            }
        }
    }

    /// Handles targets that have ended or that no relay could reach. Their host reports how they ended; a target without such a report
    /// counts as lost after `GRACE`.
    fn unreached(&self, call_id: CallId, targets: &[Target]) {
        let unknown: Vec<Target> =
            targets.iter().filter(|t| self.peers.known_peer(t.proc).is_none_or(|p| p.ended().is_none())).copied().collect();
        if unknown.is_empty() {
            return;
        }
        for target in &unknown {
            // An empty send opens the route: the agent there reports processes that have ended.
            let _ = self.peers.peer(target.proc).link.send(&[], Vec::new());
        }
        let me = self.me.clone();
        let task = move || {
            if let Some(me) = me.upgrade() {
                let end = postcard::to_stdvec(&host_end("", "a host on the way to it could not reach it")).unwrap_or_default();
                unknown.iter().for_each(|t| me.complete_if_waiting(call_id, t.rank, &end));
            }
        };
        self.peers.poller.later(GRACE, Box::new(task));
    }

    /// Completes one rank of a call with the end of its process, unless the rank has an outcome.
    fn complete_if_waiting(&self, call_id: CallId, rank: u32, end: &[u8]) {
        if self.calls.unanswered(call_id).contains(&rank) {
            self.calls.complete(call_id, Outcome::new(rank, Status::ProcEnded, end));
        }
    }
}

/// Decodes the parts of a payload; `None` if they are malformed.
fn parts(bytes: &[u8]) -> Option<Vec<RecvPart>> {
    let all = Part::read_all(&mut Cursor::new(bytes)).ok()?;
    all.into_iter().map(|p| RecvPart::accept(p, None)).collect()
}
