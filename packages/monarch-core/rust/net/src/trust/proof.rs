//! The proof that a peer knows the job secret: HMAC-SHA256 over its role, the job, the digest of its authority, and key material of this
//! TLS session.
//!
//! The key material of the session's exporter differs for every session, and for both connections of a man in the middle. So a proof is
//! valid for one session between its two ends. The label prevents that one side returns the proof of the other. The proof covers the digest
//! of the authority's certificate because another host may join a worker on behalf of the client: the worker accepts only a certificate of
//! that authority.

use ring::{digest, hmac};
use rustls::Connection;

use crate::trust::policy::JobId;
use crate::trust::secret::Secret;

/// Bytes of a proof, an HMAC-SHA256.
pub const PROOF: usize = 32;
/// The length of the SHA-256 digest of the authority's certificate.
pub const DIGEST: usize = 32;
/// The exporter label of the key material (RFC 8446, section 7.5).
const LABEL: &[u8] = b"EXPORTER-monarch-join";

/// The end that makes a proof.
#[derive(Clone, Copy)]
pub enum Role {
    /// The client, or a relay on its behalf.
    Dialler,
    /// The worker that joins.
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

/// The digest of the authority's certificate, by which a join names the authority.
pub fn digest(authority: &[u8]) -> [u8; DIGEST] {
    let mut out = [0; DIGEST];
    out.copy_from_slice(digest::digest(&digest::SHA256, authority).as_ref());
    out
}

/// The bytes that a proof signs.
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

    /// Whether the proof is valid; the check takes constant time.
    pub fn verifies(&self, secret: &Secret, proof: &[u8]) -> bool {
        hmac::verify(&secret.key(), &self.0, proof).is_ok()
    }
}
