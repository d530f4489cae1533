//! The credentials of a listening process: the policy of its operator, and its certificates for each job that it has joined.

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rcgen::KeyPair;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ClientHello;
use rustls::{ClientConfig, ServerConfig};

use crate::lock::lock;
use crate::sys;
use crate::trust::authority::{Lifetime, params};
use crate::trust::dialler::{Credentials, DialTrust, site_config};
use crate::trust::identity::{Identity, host_name, new_pair, parse_host_name, server_name};
use crate::trust::policy::{JobId, Kind, Policy};
use crate::trust::provider::{CHANNEL, JOIN, client_config, failed, server_config};
use crate::trust::refused::Refused;
use crate::trust::verifier;

/// The credentials of one listening process, for all its jobs.
pub struct HostTrust {
    policy: Policy,
    /// With a secret: the TLS settings for joins, with a certificate that proves nothing.
    join: Option<Arc<ServerConfig>>,
    /// With certificates of the site: the settings for listening and for dialling.
    site: Option<(Arc<ServerConfig>, Arc<ClientConfig>)>,
    jobs: Mutex<HashMap<JobId, Job>>,
}

/// A job of which this host is a member.
struct Job {
    /// The authority, with a secret.
    authority: Option<CertificateDer<'static>>,
    /// The TLS settings by host id: one agent may be several hosts of a job.
    hosts: HashMap<u64, Arc<ServerConfig>>,
    dial: Arc<DialTrust>,
    forgotten: Arc<AtomicBool>,
}

/// The decision about a ClientHello.
pub(crate) struct Selected {
    pub config: Arc<ServerConfig>,
    /// The kind of the connection, and the job for which its certificates are checked. `None` with certificates of the site, which leave
    /// both open.
    pub only: Option<(Kind, Option<JobId>)>,
}

impl HostTrust {
    pub fn new(policy: Policy) -> io::Result<HostTrust> {
        let mut trust = HostTrust { policy, join: None, site: None, jobs: Mutex::default() };
        match &trust.policy {
            Policy::Secret(_) => {
                let pair = new_pair()?;
                let certificate = params("worker", Lifetime::usual()).self_signed(&pair).map_err(failed)?;
                trust.join = Some(server_config(None, Identity::of_pair(certificate.der().clone(), &pair)?.certified(), JOIN)?);
            }
            Policy::Site(site) => {
                let clients = verifier::clients(Arc::clone(&site.roots))?;
                trust.site = Some((server_config(Some(clients), site.identity.certified(), CHANNEL)?, site_config(site)?));
            }
            Policy::Insecure | Policy::SameUser => {}
        }
        Ok(trust)
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether the user at the other end of a socket may connect.
    pub(crate) fn admits_user(&self, fd: RawFd) -> Result<(), Refused> {
        match &self.policy {
            Policy::SameUser => {
                let user = sys::peer_user(fd)?;
                if user == sys::user() { Ok(()) } else { Err(Refused::User(user)) }
            }
            _ => Ok(()),
        }
    }

    pub fn jobs(&self) -> Vec<JobId> {
        lock(&self.jobs).keys().copied().collect()
    }

    pub fn has_job(&self, job: JobId) -> bool {
        lock(&self.jobs).contains_key(&job)
    }

    /// The credentials for dialling other hosts of the job; `None` for a job that has not joined.
    pub fn dial(&self, job: JobId) -> Option<Arc<DialTrust>> {
        lock(&self.jobs).get(&job).map(|j| Arc::clone(&j.dial))
    }

    /// The credentials for joining other hosts on behalf of the client; `None` where no secret is used.
    pub fn relay(&self, job: JobId) -> Option<Arc<DialTrust>> {
        let Policy::Secret(secret) = &self.policy else { return None };
        let (authority, forgotten) = {
            let jobs = lock(&self.jobs);
            let joined = jobs.get(&job)?;
            (joined.authority.clone()?, Arc::clone(&joined.forgotten))
        };
        DialTrust::relay(job, secret.clone(), authority, forgotten).ok().map(Arc::new)
    }

    /// Refuses all later handshakes of the job, in both directions. Streams that are already open stay open.
    pub fn forget(&self, job: JobId) {
        if let Some(job) = lock(&self.jobs).remove(&job) {
            job.forgotten.store(true, Ordering::Release);
        }
    }

    /// The TLS settings for a ClientHello: those of a join, of a job, or of the site.
    pub(crate) fn select(&self, hello: &ClientHello<'_>) -> Result<Selected, Refused> {
        if let Some((config, _)) = &self.site {
            return Ok(Selected { config: Arc::clone(config), only: None });
        }
        let Some(join) = &self.join else { return Err(Refused::protocol("the other end uses TLS")) };
        let offers = |protocol: &[u8]| hello.alpn().is_some_and(|mut all| all.any(|p| p == protocol));
        if offers(JOIN) {
            return Ok(Selected { config: Arc::clone(join), only: Some((Kind::Join, None)) });
        }
        if !offers(CHANNEL) {
            return Err(Refused::protocol("the other end uses TLS, but is not a monarch process"));
        }
        let (job, host) = hello.server_name().and_then(parse_host_name).ok_or_else(|| Refused::protocol("no job in the server name"))?;
        let jobs = lock(&self.jobs);
        let config = jobs.get(&job).and_then(|j| j.hosts.get(&host)).ok_or(Refused::Job(job))?;
        Ok(Selected { config: Arc::clone(config), only: Some((Kind::Channel, Some(job))) })
    }

    /// Checks that the job is known or, for a join, adds it.
    pub(crate) fn admit(&self, kind: Kind, job: JobId, membership: Option<Membership>) -> Result<(), Refused> {
        let mut jobs = lock(&self.jobs);
        if kind == Kind::Channel {
            return if jobs.contains_key(&job) { Ok(()) } else { Err(Refused::Job(job)) };
        }
        let authority = membership.as_ref().map(|m| m.authority.clone());
        let joined = jobs.get(&job);
        if joined.is_some_and(|j| j.authority != authority) {
            return Err(Refused::Authority(job));
        }
        let forgotten = joined.map(|j| Arc::clone(&j.forgotten)).unwrap_or_default();
        let credentials = match (&self.policy, &membership) {
            (Policy::Secret(_), Some(m)) => Credentials::Member(Arc::clone(&m.client)),
            (Policy::Site(_), None) => match &self.site {
                Some((_, config)) => Credentials::Site(Arc::clone(config)),
                None => return Err(Refused::Job(job)),
            },
            (Policy::Insecure, None) => Credentials::Insecure,
            (Policy::SameUser, None) => Credentials::SameUser,
            _ => return Err(Refused::Job(job)),
        };
        let dial = Arc::new(DialTrust::of(job, credentials, Arc::clone(&forgotten)));
        let entry = jobs.entry(job).or_insert_with(|| Job { authority, hosts: HashMap::new(), dial: Arc::clone(&dial), forgotten });
        entry.dial = dial;
        if let Some(m) = membership {
            entry.hosts.insert(m.host, m.server);
        }
        Ok(())
    }
}

/// The certificates that a host got from a job's authority.
pub(crate) struct Membership {
    host: u64,
    authority: CertificateDer<'static>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Membership {
    /// Accepts the certificate if other members of the job would accept it.
    pub fn new(job: JobId, host: u64, pair: &KeyPair, certificate: &[u8], authority: &[u8]) -> Result<Membership, Refused> {
        let (certificate, authority) = (CertificateDer::from(certificate.to_vec()), CertificateDer::from(authority.to_vec()));
        let wrong = |e: io::Error| Refused::Certificate(e.to_string());
        let roots = verifier::roots(&authority).map_err(wrong)?;
        let servers = verifier::servers(Arc::clone(&roots))?;
        servers.verify_server_cert(&certificate, &[], &server_name(&host_name(job, host))?, &[], UnixTime::now())?;
        let identity = Identity::of_pair(certificate, pair).map_err(wrong)?.certified();
        let server = server_config(Some(verifier::clients(roots)?), Arc::clone(&identity), CHANNEL)?;
        let client = client_config(servers, Some(identity), CHANNEL)?;
        Ok(Membership { host, authority, server, client })
    }
}
