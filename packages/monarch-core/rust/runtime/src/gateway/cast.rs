//! This host's part in the casts of a job: its relay, and the order of the frames of each process.
//!
//! A relay decides under its lock, and its effects are carried out after that: they wait in a queue, and a thread that finds no other
//! thread at the queue carries them out, one after the other. Incoming frames are put in order in the same way.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::forwarder::reserve_part_numbers;
use net::lock::lock;
use net::{Link, RecvPart};
use wire::cast::{CastBody, CastFrame};
use wire::exit::ProcEnd;
use wire::frame::{CAST, Head, MESSAGE, REPLY, begin, finish, put_reply_head};
use wire::{CallId, Cast, Control, Part, ProcUid, Reply, Route, Status};

use super::{Gateway, Job};
use crate::cast::{Delivery, Effect, InOrder, Relay};
use crate::cast::{cast_call_id, decode_cast_call_id};
use crate::node::Node;
use crate::transfers::payload::Payload;

/// The result of an answer whose large parts could not be forwarded.
const LOST: &[u8] = b"parts of the answer were lost on the way";

/// For tests: an environment variable with the number of children in the tree of a cast. A small number makes trees with interior hosts out
/// of few hosts.
const FAN_OUT: &str = "MONARCH_CAST_FAN_OUT";

/// The relay of a job on this host, and its effects that are not carried out yet. The job owns it.
pub(super) struct Casts {
    relay: Relay,
    effects: VecDeque<Effect>,
    /// A thread carries out the effects.
    busy: bool,
    /// When `Relay::on_time` is scheduled, as time since the job was made.
    wake_at: Option<Duration>,
    /// The processes of this host to which casts have been delivered.
    members: HashSet<ProcUid>,
}

/// A frame whose turn has come.
enum Due {
    /// A numbered frame that was sent directly.
    Direct(Route, Box<[u8]>),
    /// A cast that came down the tree.
    Cast(Delivery),
    /// The frame that is being handled: it was not copied.
    This,
}

#[derive(Default)]
/// The incoming frames of a job: those whose turn has not come (`order`), and those to be delivered now (`due`). While `busy`, a thread
/// delivers them.
pub(super) struct Arrivals {
    order: InOrder<Due>,
    due: VecDeque<Due>,
    busy: bool,
}

/// The numbers of records that are kept for casts, and of frames that were sent for them.
#[derive(Clone, Copy, Default, Debug)]
pub struct CastCounts {
    pub records: usize,
    pub groups: usize,
    /// Frames that wait for an earlier frame.
    pub held: usize,
    pub sent: u64,
}

impl Casts {
    pub fn new(here: ProcUid) -> Self {
        let fan_out = std::env::var(FAN_OUT).ok().and_then(|n| n.parse().ok());
        let relay = fan_out.map_or_else(|| Relay::new(here), |n: u32| Relay::with_fan_out(here, n.max(1)));
        Casts { relay, effects: VecDeque::new(), busy: false, wake_at: None, members: HashSet::new() }
    }
}

impl Job {
    pub fn cast_counts(&self) -> CastCounts {
        let (records, groups) = {
            let casts = lock(&self.casts);
            (casts.relay.records(), casts.relay.groups())
        };
        CastCounts { records, groups, held: lock(&self.arrivals).order.held(), sent: self.casts_sent.load(Ordering::Relaxed) }
    }
}

impl Gateway {
    // ---- inputs of the relay

    fn relay(&self, job: &Arc<Job>, tell: impl FnOnce(&mut Casts, Duration) -> Vec<Effect>) {
        let now = self.poller.now().saturating_duration_since(job.started_at);
        let wake_at = {
            let mut casts = lock(&job.casts);
            let effects = tell(&mut casts, now);
            casts.effects.extend(effects);
            let at = casts.relay.deadline().filter(|at| casts.wake_at.is_none_or(|wake_at| *at < wake_at));
            if at.is_some() {
                casts.wake_at = at;
            }
            at
        };
        if let Some(at) = wake_at {
            self.wake_relay(job, at.saturating_sub(now));
        }
    }

    fn wake_relay(&self, job: &Arc<Job>, delay: Duration) {
        let (me, job) = (self.me.clone(), Arc::downgrade(job));
        let ring = move || {
            if let (Some(g), Some(job)) = (me.upgrade(), job.upgrade()) {
                g.relay(&job, |c, now| {
                    c.wake_at = None;
                    c.relay.on_time(now)
                });
                g.act(&job, true);
            }
        };
        self.poller.later(delay, Box::new(ring));
    }

    /// Adds a cast of this process, in order. `send_casts` carries out the effects.
    pub(crate) fn cast_here(&self, cast: Cast) {
        let Some(node) = self.node() else { return };
        if let Some(job) = self.job_by_own_id(node.uid) {
            self.relay(&job, |c, now| c.relay.on_source(now, cast));
        }
    }

    /// Carries out the effects of casts of this process.
    pub(crate) fn send_casts(&self) {
        let Some(node) = self.node() else { return };
        if let Some(job) = self.job_by_own_id(node.uid) {
            self.act(&job, false);
        }
    }

    /// Handles a cast of a proc of this host, if the proc is its source: no process can send in the name of another one.
    pub(crate) fn cast_of_proc(&self, proc: ProcUid, frame: &[u8]) {
        let Some(node) = self.node() else { return };
        let Some(agent) = node.roles.agent() else { return };
        let Ok(CastFrame::Cast(cast)) = CastFrame::decode(frame) else {
            return events::frame_refused(proc.0, b"cast", frame.len() as u64);
        };
        let Some(job) = agent.job_of(proc).and_then(|here| self.job_by_own_id(here)) else { return };
        if cast.group.source != proc || cast.slice.as_ref().is_some_and(|s| s.root != job.own_id) {
            return;
        }
        if let Some(slice) = &cast.slice {
            slice.hosts.iter().for_each(|host| agent.note_exchange(proc, *host));
        }
        self.relay(&job, |c, now| c.relay.on_source(now, cast));
        self.act(&job, true);
    }

    /// Handles a frame of another host's relay.
    pub(super) fn cast_frame(&self, job: &Arc<Job>, from: ProcUid, frame: &[u8]) {
        let Ok(frame) = CastFrame::decode(frame) else {
            return events::frame_refused(from.0, b"cast", frame.len() as u64);
        };
        self.relay(job, |c, now| c.relay.on_frame(now, from, frame));
        self.act(job, true);
    }

    /// The job of the cast that a process of this host answers. The process may take part in the casts of several jobs.
    fn job_of_cast(&self, proc: ProcUid, cast_id: u64) -> Option<Arc<Job>> {
        self.jobs().into_iter().find(|j| {
            let casts = lock(&j.casts);
            casts.members.contains(&proc) && casts.relay.has_delivered(cast_id)
        })
    }

    /// Handles the answer of a proc of this host to a cast.
    pub(crate) fn cast_reply(&self, proc: ProcUid, reply: Reply, link: &Arc<Link>) {
        let (cast_id, index) = decode_cast_call_id(reply.call_id);
        let Some(job) = self.job_of_cast(proc, cast_id) else { return };
        if reply.parts.iter().any(|p| matches!(p, Part::Shared { .. })) {
            let call_id = reply.call_id;
            if self.answer_directly(&job, cast_id, index, reply, link).is_none() {
                // The cast is over, or the parts cannot be forwarded.
                return self.cast_answer(proc, call_id, Status::Undelivered, Payload::small(LOST).encode());
            }
            self.relay(&job, |c, now| c.relay.on_answered_directly(now, cast_id, index));
            return self.act(&job, false);
        }
        let mut bytes = (reply.parts.len() as u32).to_le_bytes().to_vec();
        for part in reply.parts {
            if let Part::Inline { data, readonly } = part {
                put_part(&mut bytes, &data, readonly);
            }
        }
        self.cast_answer(proc, reply.call_id, reply.status, bytes);
    }

    /// Sends a large answer directly to the caller. Its parts are passed on by reference, so no host on the tree holds them. Returns none
    /// if that fails.
    fn answer_directly(&self, job: &Arc<Job>, cast_id: u64, index: u32, reply: Reply, link: &Arc<Link>) -> Option<()> {
        let (to, to_host, call_id, rank) = {
            let casts = lock(&job.casts);
            let (cast, rank, root) = casts.relay.request_of(cast_id, index)?;
            (cast.group.source, root, CastBody::decode(&cast.body).ok()?.call_id, rank)
        };
        let node = self.node()?;
        node.peers.route(to, to_host, job.own_id);
        let route = Route { from: job.own_id, from_host: job.own_id, to, to_host, seq: 0 };
        let mut frame = Vec::with_capacity(1024);
        let at = begin(&mut frame, REPLY);
        put_reply_head(&mut frame, call_id, rank, reply.status, reply.parts.len() as u32);
        for part in reply.parts {
            match part {
                Part::Inline { data, readonly } => put_part(&mut frame, &data, readonly),
                shared => {
                    let (number, len, readonly) = (reserve_part_numbers(1), shared.len(), shared.readonly());
                    Part::put_out_of_band(&mut frame, number, len, readonly);
                    self.forward_part(&route, number, RecvPart::accept(shared, Some(link))?);
                }
            }
        }
        finish(&mut frame, at, 0);
        self.forward(&route, &[&frame]);
        Some(())
    }

    /// Handles the answer of a process of this host whose parts are inline; `bytes` are the encoded parts.
    pub(crate) fn cast_answer(&self, proc: ProcUid, call_id: CallId, status: Status, bytes: Vec<u8>) {
        let (cast_id, index) = decode_cast_call_id(call_id);
        let Some(job) = self.job_of_cast(proc, cast_id) else { return };
        self.relay(&job, |c, now| c.relay.on_reply(now, cast_id, index, status, bytes.into()));
        self.act(&job, false);
    }

    /// Handles the ends of processes, here or elsewhere, and notifies the hosts that know a group of one of this host's procs.
    pub(crate) fn procs_ended(&self, ends: &[(ProcUid, ProcEnd)]) {
        let Some(node) = self.node() else { return };
        let procs: Vec<ProcUid> = ends.iter().map(|(uid, _)| *uid).collect();
        for job in self.jobs() {
            let audience = lock(&job.casts).relay.audience(&procs);
            self.relay(&job, |c, now| {
                c.members.retain(|member| !procs.contains(member));
                c.relay.on_procs_ended(now, &procs)
            });
            self.act(&job, true);
            for host in audience {
                node.peers.peer(host).send_control(Control::ProcsEnded { ends: ends.to_vec() });
            }
        }
    }

    /// Handles the loss of a host: frees the held frames of its processes, and notifies the relay.
    pub(super) fn cast_host_ended(&self, job: &Arc<Job>, host: ProcUid) {
        let there = self.node().map_or(vec![], |n| n.peers.routes.on(host));
        {
            let mut arrivals = lock(&job.arrivals);
            for proc in there {
                arrivals.order.forget(proc);
            }
        }
        self.relay(job, |c, now| c.relay.on_hosts_ended(now, &[host]));
        self.act(job, true);
    }

    // ---- effects of the relay

    /// Carries out the effects in the queue, unless another thread does so already. Deliveries to procs of this host happen on the I/O
    /// thread only.
    fn act(&self, job: &Arc<Job>, on_io: bool) {
        let Some(node) = self.node() else { return };
        if std::mem::replace(&mut lock(&job.casts).busy, true) {
            return;
        }
        loop {
            let effect = {
                let mut casts = lock(&job.casts);
                let next = casts.effects.pop_front();
                casts.busy = next.is_some();
                next
            };
            match effect {
                None => return,
                Some(Effect::Send { to, frame }) => self.send_cast(job, to, &frame),
                Some(Effect::Return { source, frame }) => return_to_source(&node, source, frame),
                Some(Effect::Deliver(delivery)) if on_io => self.arrived_by_tree(job, delivery),
                Some(Effect::Deliver(delivery)) => {
                    let (me, job) = (self.me.clone(), job.clone());
                    let task = move || {
                        if let Some(g) = me.upgrade() {
                            g.arrived_by_tree(&job, delivery);
                        }
                    };
                    self.poller.spawn(Box::new(task));
                }
            }
        }
    }

    fn send_cast(&self, job: &Arc<Job>, to: ProcUid, frame: &CastFrame) {
        // Frames for a host that has not joined wait in its session. The relay is notified of the loss of a host, so nothing is sent to a
        // lost one.
        let host = job.host_or_new(to, &self.me, &self.poller);
        if host.lost().is_some() {
            return;
        }
        job.casts_sent.fetch_add(1, Ordering::Relaxed);
        let mut start = Vec::with_capacity(64);
        let at = begin(&mut start, CAST);
        match frame {
            CastFrame::Reduced(all) => events::reduction_step(to.0, all.number, u64::from(all.span.len())),
            CastFrame::Answer(one) => events::reduction_step(to.0, one.number, 1),
            _ => {}
        }
        let body: &[u8] = if let CastFrame::Cast(cast) = frame {
            events::cast_step(to.0, cast.number, cast.body.len() as u64);
            cast.put_head(&mut start);
            &cast.body
        } else {
            frame.put(&mut start);
            &[]
        };
        finish(&mut start, at, body.len());
        let _ = host.session.send(&[&start, body]);
        if !host.session.is_up() {
            self.open_soon(job, &host);
        }
    }

    // ---- frames for processes of this host

    /// Handles a numbered frame that was sent directly.
    pub(super) fn arrived_directly(&self, job: &Arc<Job>, head: &Route, body: &[u8]) {
        {
            let mut arrivals = lock(&job.arrivals);
            let Arrivals { order, due, busy } = &mut *arrivals;
            let number = head.seq - 1;
            let at_once = !*busy && order.is_due(head.from, number);
            let this = if at_once { Due::This } else { Due::Direct(*head, body.into()) };
            order.accept(head.from, number, this, |d| {
                if !matches!(d, Due::This) {
                    due.push_back(d);
                }
            });
            if *busy || !at_once && due.is_empty() {
                return;
            }
            *busy = true;
            if !at_once {
                drop(arrivals);
                return self.deliver_due(job);
            }
        }
        self.deliver_frame(job, head, &[body]);
        self.deliver_due(job);
    }

    fn arrived_by_tree(&self, job: &Arc<Job>, delivery: Delivery) {
        {
            let mut arrivals = lock(&job.arrivals);
            let Arrivals { order, due, busy } = &mut *arrivals;
            order.accept(delivery.group.source, delivery.order, Due::Cast(delivery), |d| due.push_back(d));
            if *busy || due.is_empty() {
                return;
            }
            *busy = true;
        }
        self.deliver_due(job);
    }

    fn deliver_due(&self, job: &Arc<Job>) {
        loop {
            let next = {
                let mut arrivals = lock(&job.arrivals);
                let next = arrivals.due.pop_front();
                arrivals.busy = next.is_some();
                next
            };
            match next {
                None => return,
                Some(Due::This) => {}
                Some(Due::Direct(head, body)) => self.deliver_frame(job, &head, &[&body]),
                Some(Due::Cast(delivery)) => self.deliver_cast(job, delivery),
            }
        }
    }

    fn deliver_cast(&self, job: &Arc<Job>, d: Delivery) {
        let Some(node) = self.node() else { return };
        let decoded = CastBody::decode(&d.body).ok();
        let Some((body, count, parts)) = decoded.and_then(|b| b.parts.split_first_chunk().map(|(count, parts)| (b, count, parts))) else {
            return events::frame_refused(d.group.source.0, b"cast", d.body.len() as u64);
        };
        let count = u32::from_le_bytes(*count);
        node.peers.route(d.group.source, d.root, job.own_id);
        // This process has another id in each job.
        let member = |proc| if proc == job.own_id { node.uid } else { proc };
        lock(&job.casts).members.extend(d.targets.iter().map(|t| member(t.proc)));
        for target in &d.targets {
            let call_id = if d.mode.reduces() { cast_call_id(d.cast_id, target.index) } else { CallId::NONE };
            let mut start = Vec::with_capacity(64 + body.method.len() + body.extent.len());
            let at = begin(&mut start, MESSAGE);
            let CastBody { sender, flags, trace, method, extent, .. } = body;
            Head { dest: d.mailbox, sender, call_id, rank: target.rank, flags, trace, method, extent, ..Head::default() }
                .put(&mut start, count);
            finish(&mut start, at, parts.len());
            let head = Route { from: d.group.source, from_host: d.root, to: target.proc, to_host: job.own_id, seq: 0 };
            self.deliver_frame(job, &head, &[&start, parts]);
        }
        if !d.mode.reduces() {
            self.relay(job, |c, now| d.targets.iter().flat_map(|t| c.relay.on_taken(now, d.cast_id, t.index)).collect());
            self.act(job, true);
        }
    }
}

fn put_part(out: &mut Vec<u8>, data: &[u8], readonly: bool) {
    Part::put_inline_head(out, data.len(), readonly);
    out.extend_from_slice(data);
}

/// Passes a frame to a process of this host that is the source of a cast.
fn return_to_source(node: &Arc<Node>, source: ProcUid, frame: CastFrame) {
    if source == node.uid {
        return node.caster.on_answers(frame);
    }
    // A proc does not wait for the acknowledgement of a cast.
    if !matches!(frame, CastFrame::Taken(_)) {
        let frame = wire::Frame::Cast(frame.encode().into()).encode();
        let _ = node.peers.peer_unlinked(source).0.link.send_soon(&[&frame]);
    }
}
