//! The algorithms and TLS settings of both ends: TLS 1.3 only, ring only, no session resumption.
//!
//! A resumed session would not check certificates, and a forgotten host could return.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};

/// The protocol name (ALPN) of a join, sent unencrypted.
pub const JOIN: &[u8] = b"monarch-join/1";
/// The protocol name (ALPN) of a channel.
pub const CHANNEL: &[u8] = b"monarch/1";

/// The algorithms. AES is several times faster than ChaCha20 on processors with AES instructions, and slower on others. 128 bits suffice.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let made = PROVIDER.get_or_init(|| {
        let mut suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
        if !has_aes() {
            suites.reverse();
        }
        // Peers with certificates of a site may require this suite.
        suites.push(cipher_suite::TLS13_AES_256_GCM_SHA384);
        Arc::new(CryptoProvider { cipher_suites: suites, ..ring::default_provider() })
    });
    Arc::clone(made)
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

pub fn client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<Arc<CertifiedKey>>,
    protocol: &[u8],
) -> io::Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]).map_err(failed)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    // A stream may be handed to a proc together with its keys.
    config.enable_secret_extraction = true;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

pub fn server_config(
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    identity: Arc<CertifiedKey>,
    protocol: &[u8],
) -> io::Result<Arc<ServerConfig>> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]).map_err(failed)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

/// The error for own keys or certificates that cannot be used.
pub fn failed(e: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, e.to_string())
}
