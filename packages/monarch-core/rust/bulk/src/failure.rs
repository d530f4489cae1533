//! The reason for which an operation failed, as data. Texts are made where they are shown.

use std::io;

/// The kind of a failure, which selects the exception in Python.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Released = 1,
    PeerLost = 2,
    Access = 3,
    TimedOut = 4,
    Transfer = 5,
    Unsupported = 6,
    Init = 7,
}

/// The transport of the bytes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Path {
    /// Not decided yet.
    None = 0,
    Local = 1,
    Shm = 2,
    Cma = 3,
    Staged = 4,
    Tcp = 5,
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
}

impl Failure {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Failure { kind, path: Path::None, opened: false, done: 0, asked: 0, owner: 0, pid: 0, detail: detail.into() }
    }

    pub fn timed_out() -> Self {
        Failure::new(Kind::TimedOut, "")
    }

    pub fn lost() -> Self {
        Failure::new(Kind::PeerLost, "")
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

pub type Outcome<T> = Result<T, Failure>;
