//! This host's part in the casts of its jobs: events for the relays, and the effects that they have decided (`cast_relay`).
//!
//! What it needs: this process and its jobs, the connections, the delivery of casts here, and the ways of large answers to their callers.
//!
//! What always holds:
//! - Deliveries to procs of this host happen on the I/O thread only.
//! - A cast of a proc is taken only if the proc is its source.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use net::forwarder::reserve_part_numbers;
use net::lock::lock;
use net::{Link, RecvPart};
use wire::cast::{CastBody, CastFrame};
use wire::exit::ProcEnd;
use wire::frame::{CAST, REPLY, begin, finish, put_reply_head};
use wire::{CallId, Cast, Control, Part, ProcUid, Reply, Route, Status};

use super::cast_relay::CastRelay;
use super::connections::Connections;
use super::deliveries::{CastReports, Deliveries};
use super::forward::Forward;
use super::job::Job;
use super::jobs::Jobs;
use super::parts::Parts;
use crate::cast::{Delivery, Effect, decode_cast_call_id};
use crate::local::Local;
use crate::node::Node;
use crate::tasks;
use crate::transfers::payload::Payload;

/// The result of an answer whose large parts could not be forwarded.
const LOST: &[u8] = b"parts of the answer were lost on the way";

/// Takes part in casts.
pub(super) struct Casts {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub connections: Arc<Connections>,
    pub deliveries: Arc<Deliveries>,
    pub parts: Arc<Parts>,
    pub forward: Arc<Forward>,
}

impl Casts {
    // ---- events for the relay

    fn relay(self: &Arc<Self>, job: &Arc<Job>, event: impl FnOnce(&mut CastRelay, Duration) -> Vec<Effect>) {
        let now = self.local.poller.now().saturating_duration_since(job.started_at);
        let wake_in = lock(&job.casts).update(now, |casts| event(casts, now));
        if let Some(delay) = wake_in {
            tasks::later_for(&self.local.poller, delay, self, job, |me, job| {
                me.relay(job, CastRelay::on_time);
                me.act(job, true);
            });
        }
    }

    /// Adds a cast of this process, in order. `send` carries out the effects.
    pub fn add(self: &Arc<Self>, cast: Cast) {
        if let Some(job) = self.jobs.by_own_id(self.local.uid) {
            self.relay(&job, |c, now| c.relay.on_source(now, cast));
        }
    }

    /// Carries out the effects of casts of this process.
    pub fn send(self: &Arc<Self>) {
        if let Some(job) = self.jobs.by_own_id(self.local.uid) {
            self.act(&job, false);
        }
    }

    /// Handles a cast of a proc of this host.
    pub fn of_proc(self: &Arc<Self>, proc: ProcUid, frame: &[u8]) {
        let Some(node) = self.local.node() else { return };
        let Some(agent) = node.roles.agent() else { return };
        let Ok(CastFrame::Cast(cast)) = CastFrame::decode(frame) else {
            return events::frame_refused(proc.0, b"cast", frame.len() as u64);
        };
        let Some(job) = agent.job_of(proc).and_then(|here| self.jobs.by_own_id(here)) else { return };
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
    pub fn on_frame(self: &Arc<Self>, job: &Arc<Job>, from: ProcUid, frame: &[u8]) {
        let Ok(frame) = CastFrame::decode(frame) else {
            return events::frame_refused(from.0, b"cast", frame.len() as u64);
        };
        self.relay(job, |c, now| c.relay.on_frame(now, from, frame));
        self.act(job, true);
    }

    /// The job of the cast that a process of this host answers. The process may take part in the casts of several jobs.
    fn job_of_cast(self: &Arc<Self>, proc: ProcUid, cast_id: u64) -> Option<Arc<Job>> {
        self.jobs.all().into_iter().find(|j| {
            let casts = lock(&j.casts);
            casts.members.contains(&proc) && casts.relay.has_delivered(cast_id)
        })
    }

    /// Handles the answer of a proc of this host to a cast.
    pub fn reply(self: &Arc<Self>, proc: ProcUid, reply: Reply, link: &Arc<Link>) {
        let (cast_id, index) = decode_cast_call_id(reply.call_id);
        let Some(job) = self.job_of_cast(proc, cast_id) else { return };
        if reply.parts.iter().any(|p| matches!(p, Part::Shared { .. })) {
            let call_id = reply.call_id;
            if self.answer_directly(&job, cast_id, index, reply, link).is_none() {
                // The cast is over, or the parts cannot be forwarded.
                return self.answer(proc, call_id, Status::Undelivered, Payload::small(LOST).encode());
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
        self.answer(proc, reply.call_id, reply.status, bytes);
    }

    /// Sends a large answer directly to the caller. Its parts are passed on by reference, so no host on the tree holds them. Returns none
    /// if that fails.
    fn answer_directly(self: &Arc<Self>, job: &Arc<Job>, cast_id: u64, index: u32, reply: Reply, link: &Arc<Link>) -> Option<()> {
        let (to, to_host, call_id, rank) = {
            let casts = lock(&job.casts);
            let (cast, rank, root) = casts.relay.request_of(cast_id, index)?;
            (cast.group.source, root, CastBody::decode(&cast.body).ok()?.call_id, rank)
        };
        self.local.route(to, to_host, job.own_id);
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
                    self.parts.forward(&route, number, RecvPart::accept(shared, Some(link))?);
                }
            }
        }
        finish(&mut frame, at, 0);
        self.forward.send(&route, &[&frame]);
        Some(())
    }

    /// Handles the answer of a process of this host whose parts are inline; `bytes` are the encoded parts.
    pub fn answer(self: &Arc<Self>, proc: ProcUid, call_id: CallId, status: Status, bytes: Vec<u8>) {
        let (cast_id, index) = decode_cast_call_id(call_id);
        let Some(job) = self.job_of_cast(proc, cast_id) else { return };
        self.relay(&job, |c, now| c.relay.on_reply(now, cast_id, index, status, bytes.into()));
        self.act(&job, false);
    }

    /// Handles the ends of processes, here or elsewhere, and notifies the hosts that know a group of one of this host's procs.
    pub fn procs_ended(self: &Arc<Self>, ends: &[(ProcUid, ProcEnd)]) {
        let procs: Vec<ProcUid> = ends.iter().map(|(uid, _)| *uid).collect();
        for job in self.jobs.all() {
            let audience = lock(&job.casts).relay.audience(&procs);
            self.relay(&job, |c, now| {
                c.members.retain(|member| !procs.contains(member));
                c.relay.on_procs_ended(now, &procs)
            });
            self.act(&job, true);
            for host in audience {
                self.local.send(host, Control::ProcsEnded { ends: ends.to_vec() });
            }
        }
    }

    /// Handles the loss of a host: frees the held frames of its processes, and notifies the relay.
    pub fn host_ended(self: &Arc<Self>, job: &Arc<Job>, host: ProcUid) {
        let there = self.local.node().map_or(vec![], |n| n.peers.routes.on(host));
        {
            let mut arrivals = lock(&job.arrivals);
            for proc in there {
                arrivals.forget(proc);
            }
        }
        self.relay(job, |c, now| c.relay.on_hosts_ended(now, &[host]));
        self.act(job, true);
    }

    // ---- effects of the relay

    /// Carries out the effects in the queue, unless another thread does so already. Deliveries to procs of this host happen on the I/O
    /// thread only.
    fn act(self: &Arc<Self>, job: &Arc<Job>, on_io: bool) {
        let Some(node) = self.local.node() else { return };
        if !lock(&job.casts).begin() {
            return;
        }
        let next = || lock(&job.casts).next();
        while let Some(effect) = next() {
            match effect {
                Effect::Send { to, frame } => self.send_to(job, to, &frame),
                Effect::Return { source, frame } => return_to_source(&node, source, frame),
                Effect::Deliver(delivery) if on_io => self.deliveries.arrived_by_tree(job, delivery),
                Effect::Deliver(delivery) => {
                    let job = job.clone();
                    tasks::spawn(&self.local.poller, &self.deliveries, move |to| to.arrived_by_tree(&job, delivery));
                }
            }
        }
    }

    fn send_to(self: &Arc<Self>, job: &Arc<Job>, to: ProcUid, frame: &CastFrame) {
        // Frames for a host that has not joined wait in its session. The relay is notified of the loss of a host, so nothing is sent to a
        // lost one.
        let host = job.host_or_new(to);
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
            self.connections.open_soon(job, &host);
        }
    }
}

impl CastReports for Casts {
    fn taken(self: Arc<Self>, job: &Arc<Job>, d: &Delivery) {
        self.relay(job, |c, now| d.targets.iter().flat_map(|t| c.relay.on_taken(now, d.cast_id, t.index)).collect());
        self.act(job, true);
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
