//! The credentials that an operator or a user gave.

use std::fmt;

use crate::trust::secret::Secret;
use crate::trust::site::SitePki;

/// One client's work: the uid of the client process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The first one between a client and a worker: the worker becomes a host of the job.
    Join = 1,
    /// Between processes that belong to the job.
    Channel = 2,
}

#[derive(Clone, Debug)]
pub enum Policy {
    /// Both know a job secret, and nothing else is needed.
    Secret(Secret),
    /// Certificates that the site gave out.
    Site(SitePki),
    /// Neither proof nor encryption: whoever reaches the port comes in.
    Insecure,
    /// A unix socket, whose other end belongs to the same user by the word of the kernel.
    SameUser,
}
