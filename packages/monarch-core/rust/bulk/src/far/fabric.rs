//! Where streams come from, and who has ended.

use std::os::fd::OwnedFd;
use std::time::Instant;

use net::records::Keys;

/// A stream whose other end is the process that was asked for.
pub struct Opened {
    pub fd: OwnedFd,
    /// None where streams are not encrypted.
    pub keys: Option<Keys>,
}

pub enum NoStream {
    Ended,
    TimedOut,
    Unreachable(String),
}

pub trait Fabric: Send + Sync {
    /// A new stream to a process of another host, which answers.
    fn open(&self, owner: u64, until: Instant) -> Result<Opened, NoStream>;

    /// As far as this process has heard.
    fn has_ended(&self, owner: u64) -> bool;
}
