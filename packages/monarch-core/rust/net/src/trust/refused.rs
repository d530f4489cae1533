//! The reason for which a connection was refused, for this process's log and errors. The peer is notified of the refusal, not of the
//! reason.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use crate::trust::policy::JobId;
use crate::trust::preface::Release;
use crate::trust::verifier::Untrusted;

/// The reason for which a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The other end is not a Monarch process, or not one of the expected kind.
    #[error("not the expected protocol: {0}")]
    Protocol(String),
    /// The versions of the two ends are incompatible.
    #[error("version {theirs} at the other end, {ours} here")]
    Version { ours: Release, theirs: Release },
    /// The other end does not know the job secret.
    #[error("wrong job secret")]
    Secret,
    /// The certificate of the other end is invalid.
    #[error("certificate: {0}")]
    Certificate(String),
    /// The job is unknown here or was forgotten.
    #[error("unknown job {0}")]
    Job(JobId),
    /// The job has the authority of another client.
    #[error("job {0} belongs to another client")]
    Authority(JobId),
    /// The other end of a unix socket belongs to another user.
    #[error("the process at the other end belongs to user {0}")]
    User(u32),
    /// The other end has refused; its log has the reason. The text names the TLS alert, if it is not the usual one.
    #[error("refused by the other end{0}")]
    Denied(String),
    /// The other end has closed the connection during the handshake.
    #[error("closed by the other end before it was open")]
    Closed,
    /// Another error of the network.
    #[error("{0}")]
    Io(io::Error),
}

impl Refused {
    pub(crate) fn protocol(why: impl Into<String>) -> Refused {
        Refused::Protocol(why.into())
    }

    pub(crate) fn denied() -> Refused {
        Refused::Denied(String::new())
    }

    /// Whether a retry could help: the connection failed, and no side refused.
    pub fn is_transient(&self) -> bool {
        matches!(self, Refused::Closed | Refused::Io(_))
    }
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        match e {
            Error::InvalidCertificate(CertificateError::Other(e)) => match e.0.downcast_ref::<Untrusted>() {
                Some(why) => Refused::Certificate(why.0.clone()),
                None => Refused::Certificate(e.0.to_string()),
            },
            Error::InvalidCertificate(e) => Refused::Certificate(format!("{e:?}")),
            Error::NoCertificatesPresented => Refused::Certificate("the peer sent none".into()),
            Error::AlertReceived(AlertDescription::AccessDenied) => Refused::denied(),
            Error::AlertReceived(other) => Refused::Denied(format!(" (TLS alert {other:?})")),
            other => Refused::Protocol(other.to_string()),
        }
    }
}

impl From<io::Error> for Refused {
    fn from(e: io::Error) -> Refused {
        if let Some(e) = e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return e.clone().into();
        }
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Refused::Closed,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => Refused::Closed,
            _ => Refused::Io(e),
        }
    }
}
