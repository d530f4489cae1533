//! A job's authority. It is made in the client's memory, certifies the hosts that join, and ends with the client.
//!
//! Two facts end a certificate: hosts forget its job (`HostTrust::forget`), and no process can issue another one after the end of the
//! client. The dates are a second protection. 90 days are longer than the time limits of schedulers, and a host that joins again gets a new
//! certificate, so jobs may run longer. The first day lies in the past because the clocks of hosts differ.

use std::io;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SignatureAlgorithm,
};
use rustls::pki_types::CertificateDer;

use crate::trust::identity::{Identity, client_name, host_name, new_pair};
use crate::trust::policy::JobId;
use crate::trust::provider::failed;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The length of an uncompressed point of P-256.
pub const PUBLIC_KEY: usize = 65;

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Lifetime {
    /// The lifetime of all certificates of hosts and clients.
    pub fn usual() -> Lifetime {
        let now = SystemTime::now();
        Lifetime { from: now - DAY, until: now + 90 * DAY }
    }
}

/// The signing key of one job, with its certificate. The client's `DialTrust` owns it.
pub struct Authority {
    job: JobId,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub fn new(job: JobId) -> io::Result<Authority> {
        let pair = new_pair()?;
        let now = SystemTime::now();
        let mut params = params(&format!("authority of job {job}"), Lifetime { from: now - DAY, until: now + 3650 * DAY });
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&pair).map_err(failed)?.der().clone();
        Ok(Authority { job, issuer: Issuer::new(params, pair), certificate })
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Issues the client's own certificate, for dialling only: no process dials the client.
    pub fn client(&self, lifetime: Lifetime) -> io::Result<Identity> {
        let pair = new_pair()?;
        let certificate = self.issue(&client_name(self.job), &[ExtendedKeyUsagePurpose::ClientAuth], lifetime, &pair)?;
        Identity::of_pair(certificate, &pair)
    }

    /// Issues the certificate of a host, for being dialled and for dialling other hosts of the job. The first handshake with it proves that
    /// the host has the key.
    pub fn host(&self, host: u64, public_key: &[u8], lifetime: Lifetime) -> io::Result<CertificateDer<'static>> {
        if public_key.len() != PUBLIC_KEY || public_key[0] != 4 {
            return Err(failed("not a public key"));
        }
        let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&host_name(self.job, host), &usages, lifetime, &PublicKey(public_key))
    }

    fn issue(
        &self,
        name: &str,
        usages: &[ExtendedKeyUsagePurpose],
        lifetime: Lifetime,
        key: &impl PublicKeyData,
    ) -> io::Result<CertificateDer<'static>> {
        let mut params = params(name, lifetime);
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().map_err(failed)?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer).map_err(failed)?.der().clone())
    }
}

pub fn params(name: &str, lifetime: Lifetime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = lifetime.from.into();
    params.not_after = lifetime.until.into();
    params
}

/// A public key of P-256 that another process has made.
struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}
