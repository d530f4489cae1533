//! The job secret. Every process that knows it can join a worker to a job and run code there.
//!
//! The secret travels over a channel that the launcher trusts (stdin of ssh, a file, a Kubernetes secret), never in arguments or variables.
//! It should be 32 random bytes: a dialling process sends a proof of it to any process that answers, so a short secret could be guessed
//! offline.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use ring::hmac;

use crate::sys;

/// Least length in bytes: 128 bits. Launchers make 256 bits.
const SHORTEST: usize = 16;
/// Most bytes of a secret file. A longer file was most likely named by mistake.
const LONGEST: u64 = 4096;

/// The bytes of a secret, which are overwritten with zeros on drop.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Secret> {
        if bytes.len() < SHORTEST {
            let text = format!("the job secret has {} bytes, at least {SHORTEST} are needed", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Secret(bytes.to_vec()))
    }

    /// Reads a secret from a file; fails if other users could have read or written it. White space around the secret is ignored.
    pub fn from_file(path: &Path) -> io::Result<Secret> {
        let refuse = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, format!("secret file {}: {why}", path.display()));
        let named = |e: io::Error| io::Error::new(e.kind(), format!("secret file {}: {e}", path.display()));
        // Non-blocking, because the open of a FIFO without a writer would wait.
        let mut options = std::fs::OpenOptions::new();
        let file: File = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path).map_err(named)?;
        let meta = file.metadata().map_err(named)?;
        if !meta.is_file() {
            return Err(refuse("not a regular file".into()));
        }
        if meta.uid() != sys::user() && meta.uid() != 0 {
            return Err(refuse(format!("belongs to user {}, not to user {}", meta.uid(), sys::user())));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(refuse(format!("others may use it (mode {:04o}); chmod 600 it", meta.mode() & 0o7777)));
        }
        if meta.len() > LONGEST {
            return Err(refuse(format!("has {} bytes, which is too long for a secret", meta.len())));
        }
        // The capacity is sufficient from the start: a reallocation would leave a copy of the secret in memory.
        let mut bytes = Secret(Vec::with_capacity(LONGEST as usize + 1));
        file.take(LONGEST).read_to_end(&mut bytes.0).map_err(named)?;
        let text = bytes.0.trim_ascii();
        if text.is_empty() {
            return Err(refuse("is empty".into()));
        }
        Secret::from_bytes(text).map_err(named)
    }

    pub(crate) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        for byte in &mut self.0 {
            // SAFETY: a byte of this value. The volatile write is not optimised away.
            unsafe { std::ptr::write_volatile(byte, 0) };
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}
