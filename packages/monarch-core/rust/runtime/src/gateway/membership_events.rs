//! The events of a job's hosts on their way to the membership, which decides, and its ticks.
//!
//! What it needs: a component that carries out the actions (`CarryOut`), which is set once.
//!
//! What always holds:
//! - The actions of an event are carried out by the thread that has reported the event, in their order, and without a lock.
//! - While a host is watched, one tick is scheduled.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use net::Poller;
use net::lock::lock;
use wire::ProcUid;

use super::host::Host;
use super::job::Job;
use super::route_gateway::RouteGateway;
use crate::membership::{Action, Event, LinkEnd};
use crate::tasks;

/// Carries out what the membership has decided.
pub(super) trait CarryOut: Send + Sync {
    fn carry_out(&self, job: &Arc<Job>, action: Action);
    /// The time of a tick: heartbeats of others are reported now.
    fn ticked(&self, job: &Arc<Job>);
}

/// Passes events to the membership of jobs.
pub(super) struct MembershipEvents {
    pub poller: Arc<Poller>,
    pub route_gateway: Arc<RouteGateway>,
    pub actions: OnceLock<Weak<dyn CarryOut>>,
}

impl MembershipEvents {
    pub fn report(&self, job: &Arc<Job>, event: Event) {
        let now = self.poller.now();
        let actions = lock(&job.membership).on(event, now);
        if let Some(to) = self.receiver() {
            actions.into_iter().for_each(|action| to.carry_out(job, action));
        }
    }

    fn receiver(&self) -> Option<Arc<dyn CarryOut>> {
        self.actions.get().and_then(Weak::upgrade)
    }

    /// Lets the detector watch this host from now on.
    pub fn watch(self: &Arc<Self>, job: &Arc<Job>, host: ProcUid) {
        self.report(job, Event::Watched { host });
        self.tick_later(job);
    }

    fn tick_later(self: &Arc<Self>, job: &Arc<Job>) {
        let now = self.poller.now();
        let Some(delay) = lock(&job.membership).next(now) else { return };
        if !job.ticking.swap(true, Ordering::AcqRel) {
            tasks::later_for(&self.poller, delay, self, job, |me, job| me.tick(job));
        }
    }

    fn tick(self: &Arc<Self>, job: &Arc<Job>) {
        job.ticking.store(false, Ordering::Release);
        self.report(job, Event::Tick { remark: self.route_gateway.remark(job) });
        if let Some(to) = self.receiver() {
            to.ticked(job);
        }
        self.tick_later(job);
    }

    /// Bytes of a host have arrived: they count as a heartbeat.
    pub fn heartbeat(&self, job: &Arc<Job>, host: ProcUid) {
        self.report(job, Event::Heartbeat { host });
    }

    /// All connections to a host have ended, or it cannot be dialled.
    pub fn link_down(&self, job: &Arc<Job>, host: &Host, cause: LinkEnd) {
        self.report(job, Event::LinkDown { host: host.id, cause });
    }

    /// The host is alive, but no route leads to it. In this process it counts as lost; a client does not use it any more.
    pub fn link_lost(&self, job: &Arc<Job>, host: &Host, why: &str) {
        self.report(job, Event::LinkLost { host: host.id, why: self.with_remark(job, why) });
    }

    /// Ends a host in this process, although its agent may still run: its processes have ended, and it is not admitted again with this id.
    pub fn lost(&self, job: &Arc<Job>, host: &Host, why: &str) {
        self.report(job, Event::Lost { host: host.id, why: self.with_remark(job, why), is_end_known: false, notify: true });
    }

    /// Ends a host whose agent has ended.
    pub fn ended(&self, job: &Arc<Job>, host: &Host, why: &str) {
        self.report(job, Event::Lost { host: host.id, why: self.with_remark(job, why), is_end_known: true, notify: true });
    }

    /// The reason of a host's loss, with a remark if the gateway before the host is silent too.
    fn with_remark(&self, job: &Job, why: &str) -> String {
        self.route_gateway.remark(job).map_or_else(|| why.to_owned(), |remark| format!("{why}; {remark}"))
    }
}
