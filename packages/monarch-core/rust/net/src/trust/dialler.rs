//! The credentials of a dialling process: of a client, or of an agent that dials another agent of the same job.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::lock::lock;
use crate::trust::authority::{Authority, Lifetime};
use crate::trust::identity::{host_name, server_name};
use crate::trust::policy::{JobId, Kind, Policy};
use crate::trust::provider::{CHANNEL, JOIN, client_config};
use crate::trust::secret::Secret;
use crate::trust::site::SitePki;
use crate::trust::verifier;

/// Age at which the client's own certificate is replaced: a third of its lifetime.
const RENEW: Duration = Duration::from_secs(30 * 24 * 3600);

/// The host that is dialled, and the purpose.
#[derive(Clone, Debug)]
pub struct Target {
    pub kind: Kind,
    /// The host's id in this job. A certificate of the job must be the one of this host.
    pub host: u64,
    /// The host name or address as dialled. A certificate of the site must contain it.
    pub name: String,
}

/// The credentials for connections of one job to other hosts.
pub struct DialTrust {
    job: JobId,
    /// Set when the job is forgotten; shared with the `HostTrust` that made this value.
    forgotten: Arc<AtomicBool>,
    credentials: Credentials,
}

/// The kind of the credentials.
pub(crate) enum Credentials {
    /// The credentials of the client of a job with a secret.
    Authority(Box<Client>),
    /// A host's certificate, issued by the job's authority.
    Member(Arc<ClientConfig>),
    /// The credentials of a host that joins other hosts on behalf of the client, which certifies them.
    Relay(Box<Relay>),
    /// Certificates of the site.
    Site(Arc<ClientConfig>),
    /// No credentials.
    Insecure,
    /// No credentials; the kernel names the user at the other end of a unix socket.
    SameUser,
}

/// The credentials of the client of a job with a secret.
pub(crate) struct Client {
    pub secret: Secret,
    pub authority: Authority,
    join: Arc<ClientConfig>,
    channel: Mutex<(Arc<ClientConfig>, SystemTime)>,
}

/// The credentials of a relay: the secret that it has as a worker, and the authority of its own certificate.
pub(crate) struct Relay {
    secret: Secret,
    authority: CertificateDer<'static>,
    join: Arc<ClientConfig>,
}

impl Client {
    fn new(job: JobId, secret: Secret) -> io::Result<Client> {
        let authority = Authority::new(job)?;
        let channel = Client::channel(&authority)?;
        let join = client_config(verifier::accept_any(), None, JOIN)?;
        Ok(Client { secret, authority, join, channel: Mutex::new((channel, SystemTime::now())) })
    }

    fn channel(authority: &Authority) -> io::Result<Arc<ClientConfig>> {
        let identity = authority.client(Lifetime::usual())?;
        let verifier = verifier::servers(verifier::roots(authority.certificate())?)?;
        client_config(verifier, Some(identity.certified()), CHANNEL)
    }

    /// The settings for channels, with a new certificate if the old one is too old.
    fn renewed(&self) -> io::Result<Arc<ClientConfig>> {
        let mut channel = lock(&self.channel);
        // If the clock went back, the age is unknown and the certificate stays.
        if channel.1.elapsed().is_ok_and(|age| age > RENEW) {
            *channel = (Client::channel(&self.authority)?, SystemTime::now());
        }
        Ok(Arc::clone(&channel.0))
    }
}

impl DialTrust {
    /// The credentials of a client. With a secret, this creates the job's authority.
    pub fn new_client(job: JobId, policy: Policy) -> io::Result<DialTrust> {
        let credentials = match policy {
            Policy::Secret(secret) => Credentials::Authority(Box::new(Client::new(job, secret)?)),
            Policy::Site(site) => Credentials::Site(site_config(&site)?),
            Policy::Insecure => Credentials::Insecure,
            Policy::SameUser => Credentials::SameUser,
        };
        Ok(DialTrust::of(job, credentials, Arc::default()))
    }

    pub(crate) fn of(job: JobId, credentials: Credentials, forgotten: Arc<AtomicBool>) -> DialTrust {
        DialTrust { job, forgotten, credentials }
    }

    pub fn job(&self) -> JobId {
        self.job
    }

    /// The authority of a client with a job secret; `None` for others.
    pub fn authority(&self) -> Option<&Authority> {
        self.client().map(|c| &c.authority)
    }

    pub(crate) fn client(&self) -> Option<&Client> {
        match &self.credentials {
            Credentials::Authority(client) => Some(client),
            _ => None,
        }
    }

    /// The credentials with which a host joins other hosts.
    pub(crate) fn relay(
        job: JobId,
        secret: Secret,
        authority: CertificateDer<'static>,
        forgotten: Arc<AtomicBool>,
    ) -> io::Result<DialTrust> {
        let join = client_config(verifier::accept_any(), None, JOIN)?;
        Ok(DialTrust::of(job, Credentials::Relay(Box::new(Relay { secret, authority, join })), forgotten))
    }

    /// The secret and the authority of a client or relay that joins hosts by a secret.
    pub(crate) fn joins_with(&self) -> Option<(&Secret, &CertificateDer<'static>)> {
        match &self.credentials {
            Credentials::Authority(client) => Some((&client.secret, client.authority.certificate())),
            Credentials::Relay(relay) => Some((&relay.secret, &relay.authority)),
            _ => None,
        }
    }

    pub(crate) fn is_same_user(&self) -> bool {
        matches!(self.credentials, Credentials::SameUser)
    }

    pub(crate) fn is_site(&self) -> bool {
        matches!(self.credentials, Credentials::Site(_))
    }

    /// The TLS settings and the expected name of the other side; `None` without encryption.
    pub(crate) fn tls(&self, target: &Target) -> io::Result<Option<(Arc<ClientConfig>, ServerName<'static>)>> {
        if self.forgotten.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("job {} was forgotten", self.job)));
        }
        let of_host = || server_name(&host_name(self.job, target.host));
        Ok(Some(match (&self.credentials, target.kind) {
            (Credentials::Insecure | Credentials::SameUser, _) => return Ok(None),
            (Credentials::Authority(client), Kind::Join) => (Arc::clone(&client.join), of_host()?),
            (Credentials::Authority(client), Kind::Channel) => (client.renewed()?, of_host()?),
            (Credentials::Member(config), Kind::Channel) => (Arc::clone(config), of_host()?),
            (Credentials::Relay(relay), Kind::Join) => (Arc::clone(&relay.join), of_host()?),
            (Credentials::Member(_), Kind::Join) | (Credentials::Relay(_), Kind::Channel) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "these credentials do not permit this kind of connection"));
            }
            (Credentials::Site(config), _) => (Arc::clone(config), server_name(&target.name)?),
        }))
    }
}

pub(crate) fn site_config(site: &SitePki) -> io::Result<Arc<ClientConfig>> {
    client_config(verifier::servers(Arc::clone(&site.roots))?, Some(site.identity.certified()), CHANNEL)
}
