//! A job's authority: it is made in the client's memory, certifies the hosts that join, and ends with the client.
//!
//! What ends a certificate is that its job is forgotten where it could be shown (`HostTrust::forget`), and that nobody can make
//! another one once the client is gone; the dates are a second line. 90 days outlive the time limits of schedulers, and a
//! host that joins again gets a new one, so jobs may take longer. The first day lies in the past because clocks of hosts differ.

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
/// An uncompressed point of P-256.
pub const PUBLIC_KEY: usize = 65;

/// When a certificate is good.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Lifetime {
    pub fn usual() -> Lifetime {
        let now = SystemTime::now();
        Lifetime { from: now - DAY, until: now + 90 * DAY }
    }
}

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

    /// For the client itself: it dials, and nobody dials it.
    pub fn client(&self, lifetime: Lifetime) -> io::Result<Identity> {
        let pair = new_pair()?;
        let certificate = self.issue(&client_name(self.job), &[ExtendedKeyUsagePurpose::ClientAuth], lifetime, &pair)?;
        Identity::of_pair(certificate, &pair)
    }

    /// For a host, which is dialled, and dials other hosts of the job. That the host has the key shows when it uses it.
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

fn params(name: &str, lifetime: Lifetime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = lifetime.from.into();
    params.not_after = lifetime.until.into();
    params
}

struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}
