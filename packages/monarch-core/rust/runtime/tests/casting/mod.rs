//! Hosts with their relays, the channels between them, and their faults. The test draws the order of all events.

mod call;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use runtime::cast::record::LARGE;
use runtime::cast::{Delivery, Effect, InOrder, Relay, Source};
use wire::cast::{CastBody, CastFrame, CastMode};
use wire::values::Piece;
use wire::{CallId, Cast, GroupId, GroupSlice, MailboxId, ProcUid, Status, Values};

use call::CastCall;

/// A message between two hosts.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A frame of a cast, encoded as on a connection.
    Cast(Vec<u8>),
    Direct {
        source: usize,
        order: u64,
        proc: ProcUid,
        id: u32,
    },
}

/// A message whose turn has come at a host.
enum Item {
    Cast(Delivery),
    Direct { proc: ProcUid, id: u32 },
}

pub struct Host {
    pub uid: ProcUid,
    pub relay: Relay,
    order: InOrder<Item>,
    pub alive: bool,
    pub procs: Vec<ProcUid>,
}

/// A cast that a proc has received and not answered.
struct Pending {
    host: usize,
    proc: ProcUid,
    cast_id: u64,
    index: u32,
    reduces: bool,
    id: u32,
}

pub struct Call {
    pub source: usize,
    pub group: GroupId,
    pub number: u64,
    pub id: u32,
    pub call: Option<CastCall>,
    pub taken: bool,
    pub targets: Vec<ProcUid>,
}

pub struct Caller {
    pub uid: ProcUid,
    pub host: usize,
    pub source: Source,
    pub groups: Vec<GroupId>,
    /// The messages that the caller has sent to each proc, in order.
    pub sent: BTreeMap<ProcUid, Vec<u32>>,
}

pub struct World {
    pub now: Duration,
    pub hosts: Vec<Host>,
    pub channels: BTreeMap<(usize, usize), VecDeque<Frame>>,
    pub callers: Vec<Caller>,
    pub calls: Vec<Call>,
    pending: Vec<Pending>,
    /// Reports that a host has not received yet: the receiving host, the ended host or proc, and whether it is a host.
    news: Vec<(usize, ProcUid, bool)>,
    pub dead_procs: BTreeSet<ProcUid>,
    /// Lost links that a host has not noticed yet: the host, and the host that it cannot reach.
    links_lost: Vec<(usize, usize)>,
    /// Pairs of hosts, the lower first, that cannot reach each other.
    cut: BTreeSet<(usize, usize)>,
    /// The messages that each proc has received from each source.
    pub got: BTreeMap<(ProcUid, ProcUid), Vec<u32>>,
    next_id: u32,
}

/// The answer of the target with this index. There are only a few different answers, so that runs form; some are errors, and a few are
/// large.
pub fn answer(id: u32, index: u32) -> (Status, Vec<u8>) {
    let mix = (id.wrapping_mul(31) ^ (index / 2).wrapping_mul(7)) % 11;
    match mix {
        0 | 1 => (Status::Error, vec![mix as u8; 3]),
        2 => (Status::Ok, vec![index as u8; LARGE + 1]),
        3 => (Status::Error, vec![index as u8; LARGE + 1]),
        _ => (Status::Ok, vec![(mix % 3) as u8]),
    }
}

/// Whether this cast has values.
fn has_values(id: u32) -> bool {
    !id.is_multiple_of(3)
}

/// Two pieces for each target: one for it alone, and one for every fifth target.
fn values(targets: u32) -> Values {
    let piece = |n: u32| Piece { count: 1, bytes: Arc::from(n.to_le_bytes()) };
    Values::new(2, (0..targets).flat_map(|index| [index, targets + index % 5]).collect(), (0..targets + 5).map(piece).collect())
}

/// A frame has the values of the targets of its span, and no others.
fn check_values(cast: &Cast, members: &GroupSlice) {
    let Some(values) = &cast.values else { return };
    let (first, end) = (members.first(cast.span.start), members.first(cast.span.end));
    assert_eq!(values.targets(), end - first);
    let others = (first..end).map(|index| index % 5).collect::<BTreeSet<_>>().len() as u32;
    assert_eq!(values.pieces().len() as u32, end - first + others);
}

fn host_uid(at: usize) -> ProcUid {
    ProcUid(1000 + at as u64)
}

impl World {
    /// Hosts with these numbers of procs. The first caller is on host 0, which does not end, the second on host 1.
    pub fn new(procs: &[usize], fan_out: u32) -> Self {
        let mut next = 1;
        let mut proc = || {
            next += 1;
            ProcUid(next)
        };
        let host = |(at, n): (usize, &usize)| Host {
            uid: host_uid(at),
            relay: Relay::with_fan_out(host_uid(at), fan_out),
            order: InOrder::default(),
            alive: true,
            procs: (0..*n).map(|_| proc()).collect(),
        };
        let hosts: Vec<Host> = procs.iter().enumerate().map(host).collect();
        let caller = |host: usize| {
            let uid = ProcUid(500 + host as u64);
            Caller { uid, host, source: Source::new(uid), groups: vec![], sent: BTreeMap::new() }
        };
        World {
            now: Duration::ZERO,
            callers: vec![caller(0), caller(1.min(hosts.len() - 1))],
            hosts,
            channels: BTreeMap::new(),
            calls: vec![],
            pending: vec![],
            news: vec![],
            dead_procs: BTreeSet::new(),
            cut: BTreeSet::new(),
            links_lost: vec![],
            got: BTreeMap::new(),
            next_id: 0,
        }
    }

    fn at(&self, uid: ProcUid) -> usize {
        (uid.0 - 1000) as usize
    }

    pub fn caller_lives(&self, caller: usize) -> bool {
        self.hosts[self.callers[caller].host].alive
    }

    pub fn lives(&self, proc: ProcUid) -> bool {
        !self.dead_procs.contains(&proc) && self.hosts.iter().any(|h| h.alive && h.procs.contains(&proc))
    }

    // ---- actions of callers

    /// A handle to some hosts: all procs of each, or the first ones only.
    pub fn group(&mut self, caller: usize, hosts: &[usize], all: bool) {
        if !self.caller_lives(caller) || hosts.is_empty() {
            return;
        }
        let mut rank = 0;
        let members: Vec<_> = hosts
            .iter()
            .map(|at| {
                let host = &self.hosts[*at];
                let procs = host.procs.iter().take(if all { host.procs.len() } else { 1 });
                let ranked = procs.map(|p| {
                    rank += 1;
                    (*p, rank - 1)
                });
                (host.uid, ranked.collect())
            })
            .collect();
        let root = self.hosts[self.callers[caller].host].uid;
        let c = &mut self.callers[caller];
        let id = c.source.group(GroupSlice::whole(MailboxId(7), root, members));
        c.groups.push(id);
    }

    pub fn cast(&mut self, caller: usize, group: usize, mode: CastMode) {
        if !self.caller_lives(caller) || self.callers[caller].groups.is_empty() {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let parts = id.to_le_bytes();
        let body = CastBody { sender: MailboxId(1), call_id: CallId(9), method: b"m", parts: &parts, ..CastBody::default() };
        let c = &mut self.callers[caller];
        let group = c.groups[group % c.groups.len()];
        let members = c.source.members(group).unwrap().clone();
        let values = has_values(id).then(|| Arc::new(values(members.procs.len() as u32)));
        let cast = c.source.cast(group, mode, body.encode(), values).unwrap();
        for proc in &members.procs {
            c.sent.entry(*proc).or_default().push(id);
        }
        let mut call = mode.reduces().then(|| CastCall::new(members.procs.len() as u32));
        // The caller knows already which targets have ended.
        let (host, known) = (c.host, self.news.clone());
        for (index, p) in members.procs.iter().enumerate() {
            let notified = !known.iter().any(|(at, who, _)| *at == host && (who == p || self.hosts[self.host_of(*p)].uid == *who));
            if let (Some(call), false, true) = (&mut call, self.lives(*p), notified) {
                call.on_outcome(index as u32, Status::ProcEnded, b"");
            }
        }
        self.calls.push(Call { source: caller, group, number: cast.number, id, call, taken: false, targets: members.procs.clone() });
        let out = self.hosts[host].relay.on_source(self.now, cast);
        self.effects(host, out);
    }

    pub fn direct(&mut self, caller: usize, proc: usize) {
        if !self.caller_lives(caller) {
            return;
        }
        let procs: Vec<ProcUid> = self.hosts.iter().flat_map(|h| h.procs.iter().copied()).collect();
        let Some(proc) = procs.get(proc % procs.len().max(1)).copied() else { return };
        let to = self.host_of(proc);
        let (uid, id) = (self.hosts[to].uid, self.next_id);
        self.next_id += 1;
        let c = &mut self.callers[caller];
        let (order, from) = (c.source.order.next(uid), c.host);
        c.sent.entry(proc).or_default().push(id);
        self.send(from, to, Frame::Direct { source: caller, order, proc, id });
    }

    pub fn forget(&mut self, caller: usize, group: usize) {
        if !self.caller_lives(caller) || self.callers[caller].groups.is_empty() {
            return;
        }
        let c = &mut self.callers[caller];
        let group = c.groups.remove(group % c.groups.len());
        let host = c.host;
        if let Some(cast) = c.source.forget(group) {
            let out = self.hosts[host].relay.on_source(self.now, cast);
            self.effects(host, out);
        }
    }

    // ---- events

    fn host_of(&self, proc: ProcUid) -> usize {
        self.hosts.iter().position(|h| h.procs.contains(&proc)).unwrap()
    }

    fn send(&mut self, from: usize, to: usize, frame: Frame) {
        if from == to {
            self.arrive(from, to, frame);
        } else if self.hosts[to].alive && !self.cut.contains(&(from.min(to), from.max(to))) {
            self.channels.entry((from, to)).or_default().push_back(frame);
        }
    }

    fn effects(&mut self, at: usize, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Send { to, frame } => {
                    assert_ne!(to, self.hosts[at].uid, "a relay sends to itself");
                    let to = self.at(to);
                    if let CastFrame::Cast(cast) = &frame
                        && let Some(caller) = self.callers.iter().find(|c| c.uid == cast.group.source)
                        && let Some(members) = caller.source.members(cast.group)
                    {
                        check_values(cast, members);
                    }
                    self.send(at, to, Frame::Cast(frame.encode()));
                }
                Effect::Return { source, frame } => self.returned(source, frame),
                Effect::Deliver(d) => {
                    let source = d.group.source;
                    self.ordered(at, source, d.order, Item::Cast(d));
                }
            }
        }
    }

    fn ordered(&mut self, at: usize, source: ProcUid, order: u64, item: Item) {
        let mut due = vec![];
        self.hosts[at].order.accept(source, order, item, |item| due.push(item));
        for item in due {
            match item {
                Item::Direct { proc, .. } if !self.lives(proc) => {}
                Item::Direct { proc, id } => self.got.entry((proc, source)).or_default().push(id),
                Item::Cast(d) => {
                    let body = CastBody::decode(&d.body).unwrap();
                    let id = u32::from_le_bytes(body.parts.try_into().unwrap());
                    assert_eq!(d.values.is_some(), has_values(id));
                    let total = self.targets(source, d.group);
                    for t in d.targets.iter().filter(|t| !self.dead_procs.contains(&t.proc)) {
                        if let Some((values, first)) = &d.values {
                            let own = values.of(t.index - first).unwrap();
                            let own: Vec<_> = own.iter().map(|p| u32::from_le_bytes((*p.bytes).try_into().unwrap())).collect();
                            assert!(own[0] == t.index && total.is_none_or(|n| own[1] == n + t.index % 5), "values of another target");
                        }
                        self.got.entry((t.proc, source)).or_default().push(id);
                        let reduces = d.mode.reduces();
                        self.pending.push(Pending { host: at, proc: t.proc, cast_id: d.cast_id, index: t.index, reduces, id });
                    }
                }
            }
        }
    }

    /// The number of targets of a group, unless it is forgotten.
    fn targets(&self, source: ProcUid, group: GroupId) -> Option<u32> {
        let caller = self.callers.iter().find(|c| c.uid == source)?;
        Some(caller.source.members(group)?.procs.len() as u32)
    }

    fn returned(&mut self, source: ProcUid, frame: CastFrame) {
        let Some(caller) = self.callers.iter().position(|c| c.uid == source) else { return };
        fn find(calls: &mut [Call], caller: usize, group: GroupId, number: u64) -> &mut CastCall {
            let call = calls.iter_mut().find(|c| (c.source, c.group, c.number) == (caller, group, number));
            call.and_then(|c| c.call.as_mut()).expect("answers of a call that was made")
        }
        match frame {
            CastFrame::Reduced(r) => {
                let call = find(&mut self.calls, caller, r.group, r.number);
                call.on_reduced(r);
            }
            CastFrame::Answer(a) => {
                let call = find(&mut self.calls, caller, a.group, a.number);
                call.on_outcome(a.index, a.status, &a.bytes);
            }
            CastFrame::Taken(all) => {
                for t in all {
                    for number in t.first..t.first + t.count {
                        if let Some(c) = self.calls.iter_mut().find(|c| (c.source, c.group, c.number) == (caller, t.group, number)) {
                            assert!(c.call.is_none() && !c.taken, "taken twice");
                            c.taken = true;
                        }
                    }
                }
            }
            other => panic!("{other:?} is not for a source"),
        }
    }

    fn arrive(&mut self, from: usize, to: usize, frame: Frame) {
        if !self.hosts[to].alive {
            return;
        }
        match frame {
            Frame::Cast(bytes) => {
                let frame = CastFrame::decode(&bytes).unwrap();
                let uid = self.hosts[from].uid;
                let out = self.hosts[to].relay.on_frame(self.now, uid, frame);
                self.effects(to, out);
            }
            Frame::Direct { source, order, proc, id } => {
                let source = self.callers[source].uid;
                self.ordered(to, source, order, Item::Direct { proc, id });
            }
        }
    }

    /// Delivers the next frame of one of the channels that have frames.
    pub fn step(&mut self, pick: usize) -> bool {
        let busy: Vec<_> = self.channels.iter().filter(|(_, q)| !q.is_empty()).map(|(k, _)| *k).collect();
        let Some((from, to)) = busy.get(pick % busy.len().max(1)).copied() else { return false };
        let Some(frame) = self.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        self.arrive(from, to, frame);
        true
    }

    /// Sends a frame twice, as a host does that does not know of its arrival.
    pub fn duplicate(&mut self, pick: usize) {
        let casts: Vec<_> = self.channels.iter().filter(|(_, q)| matches!(q.front(), Some(Frame::Cast(_)))).map(|(k, _)| *k).collect();
        if let Some(queue) = casts.get(pick % casts.len().max(1)).and_then(|k| self.channels.get_mut(k))
            && let Some(frame) = queue.front().cloned()
        {
            queue.push_back(frame);
        }
    }

    /// A proc answers a cast, or acknowledges it.
    pub fn work(&mut self, pick: usize) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let p = self.pending.swap_remove(pick % self.pending.len());
        if !self.lives(p.proc) {
            return true;
        }
        let relay = &mut self.hosts[p.host].relay;
        let out = if p.reduces {
            let (status, bytes) = answer(p.id, p.index);
            relay.on_reply(self.now, p.cast_id, p.index, status, bytes.into())
        } else {
            relay.on_taken(self.now, p.cast_id, p.index)
        };
        self.effects(p.host, out);
        true
    }

    /// A host ends, and a part of the frames that it has sent is lost. Host 0 does not end.
    pub fn kill_host(&mut self, at: usize, keep: usize) {
        if at == 0 || at >= self.hosts.len() || !self.hosts[at].alive {
            return;
        }
        self.hosts[at].alive = false;
        self.pending.retain(|p| p.host != at);
        self.channels.retain(|(_, to), _| *to != at);
        for (_, queue) in self.channels.iter_mut().filter(|((from, _), _)| *from == at) {
            queue.truncate(keep % 4);
        }
        self.news.retain(|(who, ..)| *who != at);
        let uid = self.hosts[at].uid;
        self.news.extend((0..self.hosts.len()).filter(|h| self.hosts[*h].alive).map(|h| (h, uid, true)).collect::<Vec<_>>());
    }

    /// Two hosts cannot reach each other any more, and a part of the frames under way is lost. The hosts of callers are not among them: a
    /// host that a caller cannot reach has ended for the caller.
    pub fn cut_link(&mut self, a: usize, b: usize, keep: usize) {
        let (a, b) = (a.min(b), a.max(b));
        if a < 2 || a == b || b >= self.hosts.len() || !self.hosts[a].alive || !self.hosts[b].alive || !self.cut.insert((a, b)) {
            return;
        }
        for (from, to) in [(a, b), (b, a)] {
            if let Some(queue) = self.channels.get_mut(&(from, to)) {
                queue.truncate(keep % 4);
            }
            self.links_lost.push((to, from));
        }
    }

    /// A host notices that a link is lost.
    pub fn notice_link(&mut self, pick: usize) -> bool {
        if self.links_lost.is_empty() {
            return false;
        }
        let (at, other) = self.links_lost.remove(pick % self.links_lost.len());
        if self.hosts[at].alive {
            for frame in self.channels.remove(&(other, at)).unwrap_or_default() {
                self.arrive(other, at, frame);
            }
            let uid = self.hosts[other].uid;
            let out = self.hosts[at].relay.on_hosts_ended(self.now, &[uid]);
            self.effects(at, out);
        }
        true
    }

    pub fn kill_proc(&mut self, pick: usize) {
        let procs: Vec<ProcUid> = self.hosts.iter().flat_map(|h| h.procs.iter().copied()).filter(|p| self.lives(*p)).collect();
        let Some(proc) = procs.get(pick % procs.len().max(1)).copied() else { return };
        self.dead_procs.insert(proc);
        self.news.extend((0..self.hosts.len()).filter(|h| self.hosts[*h].alive).map(|h| (h, proc, false)).collect::<Vec<_>>());
    }

    /// A host receives the report of an end: its relay, and the caller on it.
    pub fn notice_end(&mut self, pick: usize) -> bool {
        if self.news.is_empty() {
            return false;
        }
        let (at, who, host) = self.news.remove(pick % self.news.len());
        let gone = if host { self.hosts[self.at(who)].procs.clone() } else { vec![who] };
        // Frames that a link has delivered before its end count.
        if host {
            let from = self.at(who);
            for frame in self.channels.remove(&(from, at)).unwrap_or_default() {
                self.arrive(from, at, frame);
            }
        }
        let out = if host { self.hosts[at].relay.on_hosts_ended(self.now, &[who]) } else { vec![] };
        self.effects(at, out);
        let sources: Vec<ProcUid> = self.callers.iter().filter(|c| host && self.hosts[c.host].uid == who).map(|c| c.uid).collect();
        for source in &sources {
            self.hosts[at].order.forget(*source);
        }
        let ended: Vec<ProcUid> = gone.iter().chain(&sources).copied().collect();
        let out = self.hosts[at].relay.on_procs_ended(self.now, &ended);
        self.effects(at, out);
        for call in self.calls.iter_mut().filter(|c| self.callers[c.source].host == at) {
            let Some(cell) = &mut call.call else { continue };
            for (index, _) in call.targets.iter().enumerate().filter(|(_, p)| gone.contains(p)) {
                cell.on_outcome(index as u32, Status::ProcEnded, b"");
            }
        }
        true
    }

    /// Moves the time to the next deadline of a relay.
    pub fn wait(&mut self) -> bool {
        let Some(at) = self.hosts.iter().filter(|h| h.alive).filter_map(|h| h.relay.deadline()).min() else { return false };
        self.now = self.now.max(at);
        for host in 0..self.hosts.len() {
            if self.hosts[host].alive {
                let out = self.hosts[host].relay.on_time(self.now);
                self.effects(host, out);
            }
        }
        true
    }

    /// Runs until no event is left; fails if that does not happen.
    pub fn settle(&mut self) {
        for round in 0..200_000usize {
            if !(self.step(round) || self.notice_end(round) || self.notice_link(round) || self.work(round) || self.wait()) {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    pub fn held(&self, host: usize) -> usize {
        self.hosts[host].order.held()
    }
}
