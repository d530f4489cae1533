//! The proof that a peer knows the job secret: HMAC-SHA256 over its role, the job, its authority, and key material of this TLS session.
//!
//! The session's exporter differs for every session and for both legs of a man in the middle, so a proof is good for one
//! session between the two ends that made it. The label keeps one side from echoing the other's. The digest of the authority's certificate
//! is in it because another host may join a worker on behalf of the client: the worker takes a certificate of that authority only.

use ring::{digest, hmac};
use rustls::Connection;

use crate::trust::policy::JobId;
use crate::trust::secret::Secret;

pub const PROOF: usize = 32;
/// SHA-256 of the authority's certificate.
pub const DIGEST: usize = 32;
const LABEL: &[u8] = b"EXPORTER-monarch-join";

#[derive(Clone, Copy)]
pub enum Role {
    Dialler,
    Worker,
}

impl Role {
    fn label(self) -> &'static [u8] {
        match self {
            Role::Dialler => b"monarch join/2 dialler",
            Role::Worker => b"monarch join/2 worker",
        }
    }
}

/// What an authority is known by in a join.
pub fn digest(authority: &[u8]) -> [u8; DIGEST] {
    let mut out = [0; DIGEST];
    out.copy_from_slice(digest::digest(&digest::SHA256, authority).as_ref());
    out
}

/// What a proof is over.
pub struct Claim(Vec<u8>);

impl Claim {
    pub fn new(role: Role, job: JobId, authority: &[u8; DIGEST], connection: &Connection) -> Result<Claim, rustls::Error> {
        let session = connection.export_keying_material([0u8; 32], LABEL, Some(&job.0.to_le_bytes()))?;
        let mut text = role.label().to_vec();
        text.push(0);
        text.extend_from_slice(&job.0.to_le_bytes());
        text.extend_from_slice(authority);
        text.extend_from_slice(&session);
        Ok(Claim(text))
    }

    pub fn prove(&self, secret: &Secret) -> Vec<u8> {
        hmac::sign(&secret.key(), &self.0).as_ref().to_vec()
    }

    /// In constant time.
    pub fn holds(&self, secret: &Secret, proof: &[u8]) -> bool {
        hmac::verify(&secret.key(), &self.0, proof).is_ok()
    }
}
