//! The check of certificates. The reason of a failure goes to the own log; the peer receives "certificate unknown".

use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme};

use crate::trust::provider::{failed, provider};

/// The defect of a certificate, as a short text for the own log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Untrusted(pub String);

/// Checks the chain, the dates, the use, and the dialled name.
pub fn servers(roots: Arc<RootCertStore>) -> io::Result<Arc<dyn ServerCertVerifier>> {
    Ok(Arc::new(Servers(WebPkiServerVerifier::builder_with_provider(roots, provider()).build().map_err(failed)?)))
}

/// Checks the chain, the dates, and the use. Every client must send a certificate.
pub fn clients(roots: Arc<RootCertStore>) -> io::Result<Arc<dyn ClientCertVerifier>> {
    let inner = WebPkiClientVerifier::builder_with_provider(roots, provider()).clear_root_hint_subjects();
    Ok(Arc::new(Clients(inner.build().map_err(failed)?)))
}

/// A store with one trusted authority.
pub fn roots(authority: &CertificateDer<'static>) -> io::Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(failed)?;
    Ok(Arc::new(roots))
}

/// Accepts every certificate. In a join the secret is proved next, bound to the TLS session.
pub fn accept_any() -> Arc<dyn ServerCertVerifier> {
    Arc::new(AcceptAny)
}

/// The error with a reason for the own log.
fn explained(e: Error) -> Error {
    let Error::InvalidCertificate(e) = e else { return e };
    let days = |from: UnixTime, to: UnixTime| {
        let seconds = to.as_secs().saturating_sub(from.as_secs());
        if seconds < 2 * 86_400 { format!("{seconds} s") } else { format!("{} days", seconds / 86_400) }
    };
    let why = match &e {
        CertificateError::ExpiredContext { time, not_after } => format!("expired {} ago", days(*not_after, *time)),
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("not valid before {} from now (is the clock right?)", days(*time, *not_before))
        }
        CertificateError::Expired => "expired".into(),
        // The error also for an authority of the same name with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => "unknown issuer".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented = if presented.is_empty() { "no name".into() } else { presented.join(", ") };
            format!("name mismatch: for {presented}, not for {}", expected.to_str())
        }
        CertificateError::NotValidForName => "name mismatch".into(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => "not for this use".into(),
        CertificateError::BadEncoding => "malformed".into(),
        other => format!("{other:?}"),
    };
    untrusted(why)
}

fn untrusted(why: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Untrusted(why)))))
}

/// The error of the TLS 1.2 methods that the traits require. TLS 1.2 is not supported.
fn tls12_unsupported() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("tls 1.2".into()))
}

fn signature(message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Result<HandshakeSignatureValid, Error> {
    let checked = verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms);
    checked.map_err(|_| untrusted("the peer does not have its key".into()))
}

fn schemes() -> Vec<SignatureScheme> {
    provider().signature_verification_algorithms.supported_schemes()
}

/// The signature checks of every verifier, the same in both traits: TLS 1.3 only, with the algorithms of `provider`.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            tls12_unsupported()
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            schemes()
        }
    };
}

/// Checks the certificates of listening ends.
#[derive(Debug)]
struct Servers(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now).map_err(explained)
    }

    tls13_signatures!();
}

/// Checks the certificates of dialling ends.
#[derive(Debug)]
struct Clients(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now).map_err(explained)
    }

    tls13_signatures!();
}

/// Checks nothing: the verifier of a join.
#[derive(Debug)]
struct AcceptAny;

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    tls13_signatures!();
}
