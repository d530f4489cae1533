//! The events of the gateway for the audit log of this host, and among them the refused connections, one by one or counted.
//!
//! What it needs: the queue of the housekeeping thread, which writes the log. `refusals` decides which refusals are counted.

use std::sync::{Arc, Mutex};

use net::Poller;
use net::lock::lock;

use super::refusals::{Refusals, Report};
use crate::SystemEvent;
use crate::system::{Audit, SystemQueue};
use crate::tasks;

/// Kind of audit event: a connection was not admitted, or a peer did not get what it requested.
const REFUSED: &str = "refused";

/// Passes audit events to the housekeeping thread.
pub struct AuditLog {
    pub(super) poller: Arc<Poller>,
    pub(super) system: Arc<SystemQueue>,
    /// The refused connections of the present window.
    pub(super) refusals: Mutex<Refusals>,
}

impl AuditLog {
    pub(crate) fn add(&self, what: &'static str, peer: &str, detail: String) {
        self.push(Audit { what, peer: peer.to_owned(), detail, count: 1 });
    }

    fn push(&self, audit: Audit) {
        self.system.push(SystemEvent::Audit(audit));
    }

    /// Reports a refused connection, or counts it if there were many of them.
    pub(super) fn refused(self: &Arc<Self>, peer: &str, why: String) {
        let report = lock(&self.refusals).refused(peer, &why, self.poller.now());
        match report {
            Report::Now => self.add(REFUSED, peer, why),
            Report::Counted(None) => {}
            Report::Counted(Some(due)) => tasks::later(&self.poller, due, self, |log| log.report_refusals()),
        }
    }

    /// Reports the refusals that are only counted until now.
    pub(super) fn report_refusals(&self) {
        let (count, peer, detail) = lock(&self.refusals).collect();
        if count > 0 {
            self.push(Audit { what: REFUSED, peer, detail, count });
        }
    }
}
