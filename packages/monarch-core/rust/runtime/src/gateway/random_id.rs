//! The ids of jobs, hosts and sessions, which no other process may have.

use std::io;

use net::dial::error_text;
use net::sys;

/// A new random id, never 0. An error if the kernel gives no random number: another id could belong to another job.
pub fn random_id() -> io::Result<u64> {
    let bytes = sys::random().map_err(|e| io::Error::new(e.kind(), format!("no random number: {}", error_text(&e))))?;
    Ok(u64::from_le_bytes(bytes).max(1))
}
