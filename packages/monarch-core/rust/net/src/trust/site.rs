//! Certificates of the site, which replace a job secret.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::trust::identity::Identity;
use crate::trust::provider::failed;

/// The own key with its certificate, and the authorities that are trusted.
#[derive(Clone)]
pub struct SitePki {
    pub(crate) identity: Identity,
    pub(crate) roots: Arc<RootCertStore>,
}

impl SitePki {
    /// `private_key`: a key and the chain of its certificate. `ca`: the authorities that the chain of the other end may lead to.
    pub fn from_pem(private_key: &[u8], ca: &[u8]) -> io::Result<SitePki> {
        let key =
            PrivateKeyDer::from_pem_slice(private_key).map_err(|e| failed(format!("no private key in the PEM of private_key: {e}")))?;
        let chain = certificates(private_key, "private_key")?;
        let identity = Identity::from_der(chain, key).map_err(|e| failed(format!("key and certificate of private_key: {e}")))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(ca, "ca")? {
            roots.add(root).map_err(|e| failed(format!("a certificate of ca: {e}")))?;
        }
        Ok(SitePki { identity, roots: Arc::new(roots) })
    }
}

fn certificates(pem: &[u8], which: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(failed(format!("no certificate in the PEM of {which}"))),
        Err(e) => Err(failed(format!("the PEM of {which}: {e}"))),
    }
}

impl fmt::Debug for SitePki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SitePki")
    }
}
