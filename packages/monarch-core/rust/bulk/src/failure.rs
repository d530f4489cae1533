//! The reason for which an operation failed, as data. Texts are made where they are shown.

use std::io;

/// The kind of a failure, which selects the exception in Python.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The buffer has ended.
    Released = 1,
    /// The owner's process has died, or its host is lost.
    PeerLost = 2,
    /// The handle does not permit the operation, or the owner refuses the process.
    Access = 3,
    /// The deadline has passed.
    TimedOut = 4,
    /// The transport has failed.
    Transfer = 5,
    /// The operation is impossible for this memory or this process.
    Unsupported = 6,
    /// This process cannot set up its side.
    Init = 7,
}

/// The transport of the bytes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Path {
    /// Not decided yet.
    None = 0,
    /// Memory of this process.
    Local = 1,
    /// Shared memory that this process has mapped.
    Shm = 2,
    /// Direct copies by the kernel (`process_vm_readv`, cross-memory attach).
    Cma = 3,
    /// A ring in shared memory.
    Staged = 4,
    /// A stream to another host.
    Tcp = 5,
    /// A bulk pipe: messages through the agents.
    Routed = 6,
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Path::None => "none",
            Path::Local => "local",
            Path::Shm => "shm",
            Path::Cma => "cma",
            Path::Staged => "shm-staged",
            Path::Tcp => "tcp",
            Path::Routed => "routed",
        }
    }
}

/// A failed operation, with the facts for its error text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub kind: Kind,
    pub path: Path,
    /// The buffer has been opened.
    pub opened: bool,
    pub done: u64,
    pub asked: u64,
    /// The process that owns the memory.
    pub owner: u64,
    pub pid: i32,
    pub detail: String,
    /// The owner has announced the end of its process.
    pub exited: bool,
}

impl Failure {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Failure { kind, path: Path::None, opened: false, done: 0, asked: 0, owner: 0, pid: 0, detail: detail.into(), exited: false }
    }

    pub fn timed_out() -> Self {
        Failure::new(Kind::TimedOut, "")
    }

    pub fn lost() -> Self {
        Failure::new(Kind::PeerLost, "")
    }

    /// The failure after the goodbye of the owner.
    pub fn exited() -> Self {
        Failure { exited: true, ..Failure::new(Kind::Released, "its process has exited") }
    }

    /// The failure of a system call that is not expected to fail.
    pub fn system(what: &str, e: &io::Error) -> Self {
        Failure::new(Kind::Transfer, format!("{what}: {e}"))
    }

    /// Encodes kind, path, opened; done, asked, owner as 64 bits; pid as 32; the detail. All little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.kind as u8, self.path as u8, u8::from(self.opened)];
        for n in [self.done, self.asked, self.owner] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.extend_from_slice(self.detail.as_bytes());
        out
    }
}

/// The result of an operation on a buffer.
pub type Outcome<T> = Result<T, Failure>;
