//! A connection from its first byte until both ends have authenticated and the hello of the dialling side has arrived.
//!
//! It is driven by readiness of its descriptor and never blocks; the caller bounds its duration. An unauthenticated peer can make this
//! process hold a bounded amount of memory: a TLS handshake message of 64 KiB in rustls, and one frame of `exchange`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::stream::Stream;
use crate::sys;
use crate::trust::accepting::Accepting;
use crate::trust::dialler::{DialTrust, Target};
use crate::trust::dialling::Dialling;
use crate::trust::exchange::Exchange;
use crate::trust::host::HostTrust;
use crate::trust::identity::Subject;
use crate::trust::policy::{JobId, Kind};
use crate::trust::refused::Refused;

/// The number of completed TLS handshakes.
static HANDSHAKES: AtomicU64 = AtomicU64::new(0);

/// TLS handshakes that this process has completed, at either end.
pub fn handshakes() -> u64 {
    HANDSHAKES.load(Ordering::Relaxed)
}

/// Counts a completed TLS handshake.
pub(crate) fn count(exchange: &Exchange) {
    if exchange.stream.is_encrypted() {
        HANDSHAKES.fetch_add(1, Ordering::Relaxed);
    }
}

/// The outcome of `drive`, if it is no error.
pub enum Progress {
    Pending,
    Done(Opened),
}

/// An authenticated stream. It may already hold received bytes: read before waiting.
pub struct Opened {
    pub stream: Stream,
    pub job: JobId,
    pub kind: Kind,
    /// The greeting of the dialling side, at the listening end; otherwise empty.
    pub hello: Vec<u8>,
    /// The identity of the other end, from its certificate.
    pub subject: Subject,
    /// Address and name of the other end, for the audit log.
    pub peer: String,
}

/// The outcome of one step: continue, wait for the descriptor, or complete.
pub(crate) enum Stepped {
    Next,
    Blocked,
    Done,
}

/// The state of the own end.
enum End {
    Dialling(Dialling),
    Accepting(Box<Accepting>),
}

/// One handshake; `None` after its end.
pub struct AuthHandshake(Option<(Exchange, End)>);

impl AuthHandshake {
    /// Starts the handshake of the dialling side. `fd` may still be connecting: call `drive` when it is writable.
    pub fn dial(fd: OwnedFd, trust: &Arc<DialTrust>, target: Target, hello: Vec<u8>) -> io::Result<AuthHandshake> {
        sys::set_nonblocking(fd.as_raw_fd())?;
        AuthHandshake::over(Stream::plain(fd), trust, target, hello)
    }

    /// Starts the handshake over a stream to a gateway.
    pub fn over(stream: Stream, trust: &Arc<DialTrust>, target: Target, hello: Vec<u8>) -> io::Result<AuthHandshake> {
        let (exchange, dialling) = Dialling::start(stream, trust, target, hello)?;
        Ok(AuthHandshake(Some((exchange, End::Dialling(dialling)))))
    }

    pub fn accept(fd: OwnedFd, trust: &Arc<HostTrust>, peer: String) -> io::Result<AuthHandshake> {
        sys::set_nonblocking(fd.as_raw_fd())?;
        let (exchange, accepting) = Accepting::start(fd, trust, peer);
        Ok(AuthHandshake(Some((exchange, End::Accepting(Box::new(accepting))))))
    }

    /// The descriptor; -1 after the end of the handshake.
    pub fn fd(&self) -> RawFd {
        self.0.as_ref().map_or(-1, |(exchange, _)| exchange.stream.fd())
    }

    /// Whether bytes wait to be sent. The handshake always wants to read.
    pub fn wants_write(&self) -> bool {
        self.0.as_ref().is_some_and(|(exchange, _)| exchange.wants_write())
    }

    /// A key that another process must certify before the handshake continues; returned once.
    pub fn uncertified(&mut self) -> Option<Vec<u8>> {
        match &mut self.0.as_mut()?.1 {
            End::Dialling(dialling) => dialling.uncertified(),
            End::Accepting(_) => None,
        }
    }

    /// Takes the certificate for that key; `drive` continues with it.
    pub fn certified(&mut self, certificate: Vec<u8>) {
        if let Some((_, End::Dialling(dialling))) = &mut self.0 {
            dialling.certified(certificate);
        }
    }

    /// Continues as far as possible. `Done` and `Refused` end the handshake.
    pub fn drive(&mut self) -> Result<Progress, Refused> {
        let Some((mut exchange, mut end)) = self.0.take() else { return Err(Refused::Closed) };
        match go(&mut exchange, &mut end) {
            Ok(false) => {
                self.0 = Some((exchange, end));
                Ok(Progress::Pending)
            }
            Ok(true) => Ok(Progress::Done(opened(exchange, end))),
            Err(refused) => {
                // A broken connection is no refusal, so none is sent: the dialling side retries.
                if let End::Accepting(accepting) = end
                    && !refused.is_transient()
                {
                    exchange.deny(accepting.is_before_tls());
                }
                Err(refused)
            }
        }
    }
}

/// Runs the steps of one end; true when the handshake is complete.
fn go(exchange: &mut Exchange, end: &mut End) -> Result<bool, Refused> {
    loop {
        let unsent = exchange.flush().err();
        let stepped = match end {
            End::Dialling(dialling) => dialling.step(exchange),
            End::Accepting(accepting) => accepting.step(exchange),
        };
        match (stepped, unsent) {
            (Ok(Stepped::Next), _) => {}
            // A peer may refuse and close while this side still sends. The refusal is the better error.
            (Err(refused), Some(unsent)) => return Err(if refused.is_transient() { unsent } else { refused }),
            (_, Some(unsent)) => return Err(unsent),
            (Err(refused), None) => return Err(refused),
            (Ok(Stepped::Blocked), None) => return Ok(false),
            (Ok(Stepped::Done), None) => return Ok(true),
        }
    }
}

fn opened(exchange: Exchange, end: End) -> Opened {
    let stream = exchange.stream;
    let (job, kind, hello, subject, peer) = match end {
        End::Dialling(d) => (d.job(), d.target.kind, Vec::new(), d.subject, d.target.name),
        End::Accepting(a) => (a.job, a.kind, a.hello, a.subject, a.peer),
    };
    let peer = match &subject {
        Subject::Client => format!("{peer}, client of job {job}"),
        Subject::Host(host) => format!("{peer}, host {host:016x} of job {job}"),
        Subject::Site(names) => format!("{peer}, {names}"),
        Subject::Unnamed => peer,
    };
    Opened { stream, job, kind, hello, subject, peer }
}
