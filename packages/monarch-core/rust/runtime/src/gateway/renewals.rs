//! The renewal of the certificates of a client's hosts: a session can outlive its certificate, and later connections need a valid one.
//!
//! What it needs: the dialler. A host that joins again, with the id of the same agent, gets a new certificate, and nothing else changes.
//!
//! What always holds: one renewal of a host is scheduled, from its join until its loss, if certificates are used at all.

use std::sync::Arc;
use std::time::Duration;

use net::Poller;
use net::dial::{NoStream, Ready};
use net::lock::lock;
use net::trust::Kind;
use wire::greeting::{self, Greeting, Welcome};

use super::dialler::{DIAL_TIMEOUT, Dialler};
use super::host::Host;
use super::job::Job;
use super::jobs::Jobs;
use crate::tasks;

/// The age at which a host's certificate is replaced: a third of its lifetime, so renewals may fail for 60 days.
const RENEW: Duration = Duration::from_secs(30 * 24 * 3600);
/// The pause after an attempt to replace a certificate that failed.
const RENEW_AGAIN: Duration = Duration::from_secs(3600);

/// Renews certificates.
pub(super) struct Renewals {
    pub poller: Arc<Poller>,
    pub jobs: Arc<Jobs>,
    pub dialler: Arc<Dialler>,
}

impl Renewals {
    /// Schedules the renewals of a host that has just joined.
    pub fn begin(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>) {
        self.renew_later(job, host, RENEW);
    }

    fn renew_later(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>, delay: Duration) {
        if lock(&host.state).trust.as_ref().is_some_and(|t| t.authority().is_some()) {
            let job = Arc::downgrade(job);
            tasks::later_for(&self.poller, delay, self, host, move |me, host| {
                if let Some(job) = job.upgrade() {
                    me.renew(&job, host);
                }
            });
        }
    }

    /// Renews a certificate now.
    pub fn renew(self: &Arc<Self>, job: &Arc<Job>, host: &Arc<Host>) {
        if self.jobs.is_closing() || host.lost().is_some() {
            return;
        }
        let hello = join_greeting(job, host, host.info().agent);
        let (job2, host2) = (job.clone(), host.clone());
        let done = tasks::callback(self, move |me, result: Result<Ready, NoStream>| {
            let joined = |ready: &Ready| matches!(greeting::decode(&ready.answer), Some(Welcome::Joined { .. }));
            let renewed = result.is_ok_and(|mut ready| {
                ready.opened.stream.close();
                joined(&ready)
            });
            me.renew_later(&job2, &host2, if renewed { RENEW } else { RENEW_AGAIN });
        });
        self.dialler.dial(job, host, Kind::Join, hello, DIAL_TIMEOUT, Box::new(done));
    }
}

/// The greeting with which a host is asked to join, if its agent has the uid `agent`; 0: any agent.
pub(super) fn join_greeting(job: &Job, host: &Host, agent: u64) -> Vec<u8> {
    greeting::encode(&Greeting::Join { host: host.id, agent, from: job.description_of_client(), settings: job.settings.clone() })
}
