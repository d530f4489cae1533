//! Outgoing connections to another host, from the first packet until both sides are authenticated, and incoming ones from the accept on.
//!
//! The poller drives the handshake, and the caller bounds its duration.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use wire::greeting::LIMIT;
use wire::join_tree::JoinFailureKind;

use crate::address::{self, Address};
use crate::lock::lock;
use crate::poller::{Poller, Source};
use crate::stream::Stream;
use crate::trust::{AuthHandshake, DialTrust, Opened, Progress, Refused, Target};

/// The reason why a handshake has produced no stream.
#[derive(Debug)]
pub enum NoStream {
    /// No process listens at the address: the port refuses connections, or the socket file is missing.
    NotListening(String),
    /// Another error of the network: host unreachable, unknown name.
    Network(String),
    /// The connection was established and ended before the handshake was complete.
    Broken(String),
    /// The connection was not established in time.
    TimedOut,
    /// The connection was established, and the other side did not answer in time.
    Unanswered,
    /// An error of the gateway in front of the host.
    Gateway(String),
    /// The gateway in front of the host did not answer in time.
    SilentGateway,
    /// The gateway in front of the host is lost for good.
    LostGateway(String),
    /// The kernel does not watch the connection: it lacks memory or watches.
    Unwatched(String),
    /// The other side failed the authentication, or refused this side.
    Refused(Refused),
}

/// The error text for a missing answer.
const NO_ANSWER: &str = "no answer";

impl NoStream {
    /// The reason for a connection that `epoll_ctl` does not add, with the limit that was reached.
    pub fn unwatched(e: &io::Error) -> NoStream {
        let limit = if e.raw_os_error() == Some(libc::ENOSPC) { ", see fs.epoll.max_user_watches" } else { "" };
        NoStream::Unwatched(format!("the kernel does not watch the connection to it: {}{limit}", error_text(e)))
    }

    /// The kind of failed join that the error causes.
    pub fn kind(&self) -> JoinFailureKind {
        match self {
            NoStream::Refused(Refused::Version { .. }) => JoinFailureKind::Version,
            NoStream::Refused(
                Refused::Secret | Refused::Certificate(_) | Refused::Job(_) | Refused::Authority(_) | Refused::User(_) | Refused::Denied(_),
            ) => JoinFailureKind::Authentication,
            _ => JoinFailureKind::Other,
        }
    }

    /// Whether the error is the absence of an answer, which has no cause in its text.
    pub fn is_timeout(&self) -> bool {
        matches!(self, NoStream::TimedOut | NoStream::Unanswered | NoStream::SilentGateway)
    }

    /// Whether the other side accepted the connection.
    pub fn was_open(&self) -> bool {
        matches!(self, NoStream::Broken(_) | NoStream::Unanswered | NoStream::Refused(_))
    }

    /// Whether no process listens at the address.
    pub fn is_refusal(&self) -> bool {
        matches!(self, NoStream::NotListening(_))
    }

    /// Whether a later attempt can succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            NoStream::LostGateway(_) => false,
            NoStream::Refused(why) => why.is_transient(),
            _ => true,
        }
    }
}

impl std::fmt::Display for NoStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoStream::NotListening(why) | NoStream::Network(why) | NoStream::Broken(why) | NoStream::Unwatched(why) => f.write_str(why),
            NoStream::TimedOut | NoStream::Unanswered => f.write_str(NO_ANSWER),
            NoStream::Gateway(why) | NoStream::LostGateway(why) => write!(f, "the gateway: {why}"),
            NoStream::SilentGateway => write!(f, "the gateway: {NO_ANSWER}"),
            NoStream::Refused(why) => write!(f, "{why}"),
        }
    }
}

/// An authenticated stream. `answer` is the other side's answer to the greeting (empty for an incoming stream); `early` are the bytes
/// received after it.
pub struct Ready {
    pub opened: Opened,
    pub answer: Vec<u8>,
    pub early: Vec<u8>,
}

/// Receives the outcome of a handshake.
pub type Done = Box<dyn FnOnce(Result<Ready, NoStream>) + Send>;

/// Requests a certificate for a public key. The receiver of the request answers with `Handshake::certified`.
pub type Certify = Box<dyn FnOnce(Vec<u8>, Weak<Handshake>) + Send>;

/// The progress of a handshake.
enum Phase {
    Connecting(OwnedFd, Box<dyn FnOnce(OwnedFd) -> io::Result<AuthHandshake> + Send>),
    AuthHandshake(AuthHandshake),
    /// The greeting was sent, and its answer has not arrived completely.
    Answer(Opened, Vec<u8>),
    Over,
}

/// The mutable state of a handshake, under its lock.
struct State {
    phase: Phase,
    done: Option<Done>,
    writes: bool,
    awaits_answer: bool,
    /// Set on hosts that dial on behalf of the client.
    certify: Option<Certify>,
}

/// A greeting or an answer with its length in front.
pub fn greeting_frame(body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(body);
    out
}

/// The handshake of one stream.
pub struct Handshake {
    me: Weak<Handshake>,
    poller: Arc<Poller>,
    token: u64,
    fd: RawFd,
    state: Mutex<State>,
}

/// The text of a network error, without the error number that the standard library adds.
pub fn error_text(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// Whether the error of a connection attempt shows that no process listens at the address.
pub fn is_refusal(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT))
}

fn network(e: &io::Error) -> NoStream {
    if is_refusal(e) { NoStream::NotListening(error_text(e)) } else { NoStream::Network(error_text(e)) }
}

/// Dials a host. `done` is called once: here if the connection fails at once, otherwise on the poller's thread.
#[allow(clippy::too_many_arguments)]
pub fn dial(
    poller: &Arc<Poller>,
    to: &Address,
    addresses: &[SocketAddr],
    trust: &Arc<DialTrust>,
    target: Target,
    hello: Vec<u8>,
    bound: Duration,
    certify: Option<Certify>,
    done: Done,
) {
    let fd = match (to.is_unix(), addresses.first()) {
        (true, _) => to.connect_unix(),
        (false, Some(address)) => address::connect_tcp(address),
        (false, None) => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
    };
    let fd = match fd {
        Ok(fd) => fd,
        Err(e) => return done(Err(network(&e))),
    };
    let trust = trust.clone();
    let open = Box::new(move |fd| AuthHandshake::dial(fd, &trust, target, hello));
    Handshake::start(poller, Phase::Connecting(fd, open), bound, certify, done, true);
}

/// Dials a host over a stream to a gateway, which forwards all bytes.
pub fn dial_through(
    poller: &Arc<Poller>,
    gateway: Stream,
    trust: &Arc<DialTrust>,
    target: Target,
    hello: Vec<u8>,
    bound: Duration,
    done: Done,
) {
    match AuthHandshake::over(Stream::through(gateway), trust, target, hello) {
        Ok(auth) => drop(Handshake::start(poller, Phase::AuthHandshake(auth), bound, None, done, true)),
        Err(e) => done(Err(network(&e))),
    }
}

/// Starts the handshake of an accepted stream.
pub fn take_in(poller: &Arc<Poller>, auth: AuthHandshake, bound: Duration, done: Done) -> Arc<Handshake> {
    Handshake::start(poller, Phase::AuthHandshake(auth), bound, None, done, false)
}

impl Handshake {
    fn start(
        poller: &Arc<Poller>,
        phase: Phase,
        bound: Duration,
        certify: Option<Certify>,
        done: Done,
        awaits_answer: bool,
    ) -> Arc<Handshake> {
        let (fd, writes) = match &phase {
            Phase::Connecting(fd, _) => (fd.as_raw_fd(), true),
            // The dialling side sends first.
            Phase::AuthHandshake(o) => (o.fd(), awaits_answer || o.wants_write()),
            Phase::Answer(..) | Phase::Over => (-1, false),
        };
        // An incoming peer counts as unauthenticated until the handshake is over.
        let token = if awaits_answer { poller.token() } else { poller.unauthenticated_token() };
        let me = Arc::new_cyclic(|me| Handshake {
            me: me.clone(),
            poller: poller.clone(),
            token,
            fd,
            state: Mutex::new(State { phase, done: Some(done), writes, awaits_answer, certify }),
        });
        if let Err(e) = poller.add(token, fd, Arc::new(HandshakeSource(me.clone()))) {
            me.end(Err(NoStream::unwatched(&e)));
            return me;
        }
        poller.want_write(token, fd, writes);
        let late = Arc::downgrade(&me);
        poller.later(
            bound,
            Box::new(move || {
                if let Some(me) = late.upgrade() {
                    me.give_up();
                }
            }),
        );
        me
    }

    /// Continues the handshake, and ends it if it is complete or has failed.
    fn step(&self) {
        let mut state = lock(&self.state);
        match self.advance(&mut state) {
            Ok(None) => {}
            Ok(Some(ready)) => {
                drop(state);
                self.end(Ok(ready));
            }
            Err(why) => {
                drop(state);
                self.end(Err(why));
            }
        }
    }

    /// Goes through the phases as far as possible.
    fn advance(&self, state: &mut State) -> Result<Option<Ready>, NoStream> {
        loop {
            match std::mem::replace(&mut state.phase, Phase::Over) {
                Phase::Connecting(fd, open) => {
                    address::connected(fd.as_raw_fd()).map_err(|e| network(&e))?;
                    state.phase = Phase::AuthHandshake(open(fd).map_err(|e| network(&e))?);
                }
                Phase::AuthHandshake(mut auth) => {
                    let progress = auth.drive().map_err(NoStream::Refused)?;
                    if let Some(key) = auth.uncertified()
                        && let Some(certify) = state.certify.take()
                    {
                        certify(key, self.me.clone());
                    }
                    let writes = auth.wants_write();
                    match progress {
                        Progress::Done(opened) if state.awaits_answer => state.phase = Phase::Answer(opened, Vec::new()),
                        Progress::Done(opened) => return Ok(Some(Ready { opened, answer: Vec::new(), early: Vec::new() })),
                        Progress::Pending => state.phase = Phase::AuthHandshake(auth),
                    }
                    if writes != state.writes {
                        state.writes = writes;
                        self.poller.want_write(self.token, self.fd, writes);
                    }
                    if matches!(state.phase, Phase::AuthHandshake(_)) {
                        return Ok(None);
                    }
                }
                Phase::Answer(mut opened, mut buf) => {
                    let end = read_answer(&mut opened, &mut buf)?;
                    let Some(end) = end else {
                        state.phase = Phase::Answer(opened, buf);
                        return Ok(None);
                    };
                    let early = buf.split_off(end);
                    buf.drain(..4);
                    return Ok(Some(Ready { opened, answer: buf, early }));
                }
                Phase::Over => return Ok(None),
            }
        }
    }

    /// Continues with the certificate that the handshake waits for.
    pub fn certified(&self, certificate: Vec<u8>) {
        if let Phase::AuthHandshake(auth) = &mut lock(&self.state).phase {
            auth.certified(certificate);
        }
        self.step();
    }

    /// Ends the handshake with a time-out, if it has not ended.
    pub fn give_up(&self) {
        self.end(Err(self.timeout_error()));
    }

    fn timeout_error(&self) -> NoStream {
        match lock(&self.state).phase {
            Phase::Connecting(..) => NoStream::TimedOut,
            _ => NoStream::Unanswered,
        }
    }

    pub fn is_over(&self) -> bool {
        lock(&self.state).done.is_none()
    }

    fn end(&self, result: Result<Ready, NoStream>) {
        let (phase, done) = {
            let mut state = lock(&self.state);
            (std::mem::replace(&mut state.phase, Phase::Over), state.done.take())
        };
        if let Some(done) = done {
            // The socket leaves the poller before its descriptor is closed or gets another owner.
            self.poller.remove(self.token, self.fd);
            drop(phase);
            done(result);
        }
    }
}

/// The offset at which the answer ends; `None` while it is incomplete.
fn read_answer(opened: &mut Opened, buf: &mut Vec<u8>) -> Result<Option<usize>, NoStream> {
    loop {
        if let Some(head) = buf.get(..4).and_then(|b| <[u8; 4]>::try_from(b).ok()) {
            let len = u32::from_le_bytes(head) as usize;
            if len > LIMIT {
                return Err(NoStream::Network("its answer is malformed".to_owned()));
            }
            if buf.len() >= 4 + len {
                return Ok(Some(4 + len));
            }
        }
        match opened.stream.read(buf, LIMIT) {
            Ok(0) => return Err(NoStream::Broken("closed by the other side".to_owned())),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(NoStream::Broken(error_text(&e))),
        }
    }
}

/// The handshake as a source of the poller.
struct HandshakeSource(Arc<Handshake>);

impl Source for HandshakeSource {
    fn ready(&self, _events: u32) {
        self.0.step();
    }
}
