//! The delivery of frames from other hosts to this process and the procs of this host, each when its turn has come.
//!
//! What it needs: this process, and the receiver of reports on delivered casts (`CastReports`), which is set once.
//!
//! What always holds: the frames of a sender arrive in the order in which it has sent them, casts and other frames alike (`arrivals`).

use std::sync::{Arc, OnceLock, Weak};

use net::lock::lock;
use wire::cast::CastBody;
use wire::frame::{Head, MESSAGE, begin, finish};
use wire::{ProcUid, Route};

use super::arrivals::{Due, Turn};
use super::job::Job;
use crate::cast::{Delivery, cast_call_id};
use crate::local::Local;

/// Receives the reports on casts that have been delivered here and that no process answers.
pub(super) trait CastReports: Send + Sync {
    fn taken(self: Arc<Self>, job: &Arc<Job>, delivery: &Delivery);
}

/// Delivers frames.
pub(super) struct Deliveries {
    pub local: Arc<Local>,
    pub reports: OnceLock<Weak<dyn CastReports>>,
}

impl Deliveries {
    /// Handles a frame for this process or for a proc of this host, which was sent directly.
    pub fn arrived(&self, job: &Arc<Job>, head: &Route, body: &[u8]) {
        self.local.route(head.from, head.from_host, job.own_id);
        if head.seq == 0 {
            return self.local.deliver(job.own_id, head, &[body]);
        }
        let turn = lock(&job.arrivals).direct(head, body);
        if turn == Turn::This {
            self.local.deliver(job.own_id, head, &[body]);
        }
        self.deliver_due(job, turn);
    }

    /// Handles a cast that came down the tree.
    pub fn arrived_by_tree(&self, job: &Arc<Job>, delivery: Delivery) {
        let turn = lock(&job.arrivals).cast(delivery);
        self.deliver_due(job, turn);
    }

    fn deliver_due(&self, job: &Arc<Job>, turn: Turn) {
        let next = || if turn == Turn::Wait { None } else { lock(&job.arrivals).next() };
        while let Some(due) = next() {
            match due {
                Due::This => {}
                Due::Direct(head, body) => self.local.deliver(job.own_id, &head, &[&body]),
                Due::Cast(delivery) => self.deliver_cast(job, &delivery),
            }
        }
    }

    fn deliver_cast(&self, job: &Arc<Job>, d: &Delivery) {
        let decoded = CastBody::decode(&d.body).ok();
        let Some((body, count, parts)) = decoded.and_then(|b| b.parts.split_first_chunk().map(|(count, parts)| (b, count, parts))) else {
            return events::frame_refused(d.group.source.0, b"cast", d.body.len() as u64);
        };
        let count = u32::from_le_bytes(*count);
        self.local.route(d.group.source, d.root, job.own_id);
        // This process has another id in each job.
        let member = |proc: ProcUid| if proc == job.own_id { self.local.uid } else { proc };
        lock(&job.casts).members.extend(d.targets.iter().map(|t| member(t.proc)));
        for target in &d.targets {
            let own = match &d.values {
                Some((values, first)) => values.of(target.index.saturating_sub(*first)),
                None => Some(vec![]),
            };
            let Some(own) = own else {
                events::frame_refused(d.group.source.0, b"cast", d.body.len() as u64);
                continue;
            };
            let call_id = if d.mode.reduces() { cast_call_id(d.cast_id, target.index) } else { body.call_id };
            let mut start = Vec::with_capacity(64 + body.method.len() + body.extent.len());
            let at = begin(&mut start, MESSAGE);
            let CastBody { sender, flags, trace, left, method, extent, .. } = body;
            Head { dest: d.mailbox, sender, call_id, rank: target.rank, flags, trace, left, method, extent, ..Head::default() }
                .put(&mut start, own.iter().fold(count, |all, piece| all.saturating_add(piece.count)));
            own.iter().for_each(|piece| start.extend_from_slice(&piece.bytes));
            finish(&mut start, at, parts.len());
            let head = Route { from: d.group.source, from_host: d.root, to: target.proc, to_host: job.own_id, seq: 0 };
            self.local.deliver(job.own_id, &head, &[&start, parts]);
        }
        if !d.mode.reduces()
            && let Some(reports) = self.reports.get().and_then(Weak::upgrade)
        {
            reports.taken(job, d);
        }
    }
}
