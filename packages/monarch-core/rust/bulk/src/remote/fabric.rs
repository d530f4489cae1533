//! The source of connections, and of reports of ended processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use net::records::Keys;

/// A stream whose other end is the requested process.
pub struct Opened {
    pub fd: OwnedFd,
    /// `None` where streams are not encrypted.
    pub keys: Option<Keys>,
    /// This side has opened the stream and sends first: the process on the other side has the stream by then.
    pub dialled: bool,
    /// The stream is a bulk pipe over messages, because no other one can be opened.
    pub is_routed: bool,
    /// Set while a test cuts the stream.
    pub paused: Arc<AtomicBool>,
}

/// The reason for which no stream could be opened.
pub enum NoStream {
    /// The process has ended.
    Ended,
    /// The deadline has passed.
    TimedOut,
    /// The network has refused, for this reason.
    Unreachable(String),
    /// Another attempt is useless.
    Unsupported(String),
}

/// Opens streams to other processes and knows which of them have ended. The bridge implements it on the node of the process.
pub trait Fabric: Send + Sync {
    /// Opens a new stream to a process of another host, which answers requests.
    fn open(&self, owner: u64, until: Instant) -> Result<Opened, NoStream>;

    /// Whether the process has ended, as far as this process knows.
    fn has_ended(&self, owner: u64) -> bool;

    /// Set while a test cuts off the host of that process.
    fn paused(&self, _owner: u64) -> Arc<AtomicBool> {
        Arc::default()
    }
}
