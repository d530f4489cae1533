//! The credentials that an operator or a user has configured.

use std::fmt;

use crate::trust::secret::Secret;
use crate::trust::site::SitePki;

/// The work of one client, identified by the uid of the client process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The first connection between a client and a worker: the worker becomes a host of the job.
    Join = 1,
    /// A connection between members of the job.
    Channel = 2,
}

/// How the two ends of a connection authenticate each other.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Both ends prove that they know a job secret.
    Secret(Secret),
    /// Both ends have certificates of the site.
    Site(SitePki),
    /// Neither proof nor encryption: every process that reaches the port can connect.
    Insecure,
    /// A unix socket, whose other end belongs to the same user according to the kernel.
    SameUser,
}
