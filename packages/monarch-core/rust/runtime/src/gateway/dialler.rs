//! One connection to a host of a job: its address, the credentials, and the way to it.
//!
//! What it needs: the gateway before the job's hosts, if there is one.
//!
//! What always holds:
//! - A client shows what it was given for the host. An agent dials other agents with the credentials from its own join, and joins other
//!   hosts with the job's secret.
//! - No connection to a host is opened while a test pauses its session.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use net::Poller;
use net::dial::{self, Done, NoStream};
use net::lock::lock;
use net::trust::{HostTrust, JobId, Kind, Policy, Target};
use wire::join_tree::TreeMessage;

use super::host::Host;
use super::job::Job;
use super::route_gateway::{Dial, RouteGateway};

/// Limit of one attempt to open a connection.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens connections to hosts.
pub(super) struct Dialler {
    pub poller: Arc<Poller>,
    pub route_gateway: Arc<RouteGateway>,
    /// Agent only: the secret, certificates or policy that the operator gave to this host.
    pub trust: OnceLock<Arc<HostTrust>>,
}

impl Dialler {
    /// The credentials of this host, which listens. The first call sets the policy.
    pub fn host_trust(&self, policy: Policy) -> io::Result<Arc<HostTrust>> {
        let trust = Arc::new(HostTrust::new(policy)?);
        Ok(self.trust.get_or_init(|| trust).clone())
    }

    /// Forgets the credentials of a job that has ended.
    pub fn forget(&self, job: &Job) {
        if let Some(trust) = self.trust.get() {
            trust.forget(JobId(job.id.0));
        }
    }

    pub fn dial(&self, job: &Arc<Job>, host: &Arc<Host>, kind: Kind, hello: Vec<u8>, bound: Duration, done: Done) {
        if host.session.is_paused() {
            return done(Err(NoStream::Network("a test has cut it off".to_owned())));
        }
        let info = host.info();
        let Some(address) = info.address else { return done(Err(NoStream::Network("its address is not known".to_owned()))) };
        let target = Target { name: address.name(), host: host.id.0, kind };
        let given = lock(&host.state).trust.clone();
        let id = JobId(job.id.0);
        let relay = || self.trust.get().and_then(|t| t.relay(id).filter(|_| kind == Kind::Join).or_else(|| t.dial(id)));
        let Some(trust) = given.or_else(relay) else {
            return done(Err(NoStream::Network("there is nothing to show to it".to_owned())));
        };
        if let Some(gateway) = self.route_gateway.before(job) {
            return self.route_gateway.dial(&gateway, Dial { host: host.clone(), trust, target, hello, bound }, done);
        }
        let (job, id) = (job.clone(), host.id);
        let certify: dial::Certify = Box::new(move |key, handshake| {
            lock(&job.signing).insert(id, handshake);
            job.send_along_tree(job.id, &TreeMessage::Certify { host: id, key });
        });
        dial::dial(&self.poller, &address, &info.resolved, &trust, target, hello, bound, Some(certify), done);
    }
}
