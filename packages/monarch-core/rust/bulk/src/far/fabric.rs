//! The source of connections, and of the news of ended processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use net::records::Keys;

/// A stream whose other end is the process that was asked for.
pub struct Opened {
    pub fd: OwnedFd,
    /// None where streams are not encrypted.
    pub keys: Option<Keys>,
    /// It was opened from this side, which speaks first: whoever opened the stream for the other side is done with it then.
    pub dialled: bool,
    /// It goes by messages, because no other one can be opened.
    pub is_routed: bool,
    /// A test has cut it.
    pub still: Arc<AtomicBool>,
}

pub enum NoStream {
    Ended,
    TimedOut,
    Unreachable(String),
    /// It is of no use to try again.
    NoWay(String),
}

pub trait Fabric: Send + Sync {
    /// A new stream to a process of another host, which answers.
    fn open(&self, owner: u64, until: Instant) -> Result<Opened, NoStream>;

    /// As far as this process has heard.
    fn has_ended(&self, owner: u64) -> bool;

    /// Set while a test cuts off the host of that process.
    fn still(&self, _owner: u64) -> Arc<AtomicBool> {
        Arc::default()
    }
}
