//! A key with its certificate, and the names in certificates.

use std::io;
use std::sync::Arc;

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::CertifiedKey;

use crate::trust::policy::JobId;
use crate::trust::provider::{failed, provider};

/// The suffix of the names of jobs. The domain is reserved for private use, so no public authority certifies it.
const SUFFIX: &str = "monarch.internal";

/// The owner of a certificate, by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The client of the job.
    Client,
    /// A host of the job, by its id.
    Host(u64),
    /// A process that the site has certified, with the names in its certificate.
    Site(String),
    /// No certificate was needed.
    Unnamed,
}

/// The name of a host in its certificate. A dialling process requests it as the server name.
pub fn host_name(job: JobId, host: u64) -> String {
    format!("h{host:016x}.j{job}.{SUFFIX}")
}

pub fn client_name(job: JobId) -> String {
    format!("client.j{job}.{SUFFIX}")
}

/// Job and host of a name, if the name has exactly the form of `host_name`.
pub fn parse_host_name(name: &str) -> Option<(JobId, u64)> {
    let (host, rest) = name.strip_prefix('h')?.split_at_checked(16)?;
    let (job, _) = rest.strip_prefix(".j")?.split_at_checked(16)?;
    let (job, host) = (JobId(u64::from_str_radix(job, 16).ok()?), u64::from_str_radix(host, 16).ok()?);
    (host_name(job, host) == name).then_some((job, host))
}

pub fn server_name(name: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("not a host name: {name:?}")))
}

/// The DNS names in a certificate; empty if it cannot be parsed.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate);
    certificate.map(|c| c.valid_dns_names().map(str::to_owned).collect()).unwrap_or_default()
}

/// The owner of a certificate of the job; `None` if it names another job.
pub fn subject(job: JobId, certificate: &CertificateDer<'_>) -> Option<Subject> {
    names(certificate).iter().find_map(|name| match parse_host_name(name) {
        Some((of, host)) => (of == job).then_some(Subject::Host(host)),
        None => (*name == client_name(job)).then_some(Subject::Client),
    })
}

/// A key with its certificate and the chain from there to the authority.
#[derive(Clone)]
pub struct Identity(Arc<CertifiedKey>);

impl Identity {
    pub fn from_der(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> io::Result<Identity> {
        Ok(Identity(Arc::new(CertifiedKey::from_der(chain, key, &provider()).map_err(failed)?)))
    }

    pub(crate) fn of_pair(certificate: CertificateDer<'static>, pair: &KeyPair) -> io::Result<Identity> {
        Identity::from_der(vec![certificate], PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der())))
    }

    pub fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0)
    }
}

/// A new key. P-256 has the fastest signatures of those that every TLS library verifies.
pub fn new_pair() -> io::Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)
}
