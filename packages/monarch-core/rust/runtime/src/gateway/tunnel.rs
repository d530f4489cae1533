//! Tunnels: a client that dials one agent only, its gateway, reaches all other hosts through it.
//!
//! For each connection to another host the client first opens one to the gateway, which dials the host and forwards bytes; the two ends
//! then authenticate each other as they do without a gateway, so the gateway can neither read nor forge. The gateway belongs to a job of
//! its own. The same agent may also be a host of the client's job, and is then reached through itself.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use net::address::Address;
use net::connect;
use net::dial::{self, Done, NoStream, Ready, greeting_frame};
use net::lock::lock;
use net::splice::Splice;
use net::stream::Stream;
use net::trust::{DialTrust, Kind, Opened, Subject, Target};
use wire::greeting::{self, Greeting, JobSettings, RefusalReason, Unreached, Welcome};
use wire::{CallId, ProcUid};

use super::refusals::refusal;
use super::{Gateway, Host, Job, Wanted, random_id};
use crate::membership::Event;

/// Limit of names that are resolved at the same time, each on a thread of its own. A request beyond it fails, and the client tries again.
const LOOK_UPS: usize = 64;
/// The time for which the tunnels of a client are kept after its end: its last notices to other hosts are still forwarded.
const LINGER: Duration = Duration::from_secs(10);
/// Limit of the tunnels of one client: two to each of 4,096 hosts, and as many again while connections are opened again.
const MOST: usize = 16 << 10;
/// The gateway's time limit is shorter than the client's by this margin, so its answer arrives before the client gives up.
const MARGIN: Duration = Duration::from_millis(200);

/// The names that are being resolved.
static LOOKING_UP: AtomicUsize = AtomicUsize::new(0);

/// The gateway through which this client reaches its hosts.
pub struct ClientGateway {
    /// The job that has only the gateway as a host.
    pub job: Arc<Job>,
    pub host: Arc<Host>,
    /// The address as the user gave it, for error texts.
    pub address: String,
}

impl Gateway {
    // ---- in the client

    /// Makes the job that has only the gateway as a host.
    pub fn start_gateway_job(&self, settings: JobSettings) -> std::io::Result<Arc<Job>> {
        let id = ProcUid(random_id()?);
        let job = Job::new(id, id, settings, self.poller.now());
        self.add_job(job.clone());
        Ok(job)
    }

    /// Joins the agent at this address as the gateway. The outcome answers the call `call_id`, as with `join`. Hosts are reached through
    /// the gateway from now on.
    pub fn use_gateway(&self, job: &Arc<Job>, text: &str, from: &str, wanted: Wanted, call_id: CallId, bound: Duration) {
        self.announce(job, &[wanted.host]);
        let host = job.host_or_new(wanted.host, &self.me, &self.poller);
        *lock(&self.route_gateway) = Some(Arc::new(ClientGateway { job: job.clone(), host, address: text.to_owned() }));
        self.join(job, from, wanted, call_id, bound);
    }

    pub fn route_gateway(&self) -> Option<Arc<ClientGateway>> {
        lock(&self.route_gateway).clone()
    }

    /// Removes a gateway that has not joined: hosts are dialled directly again.
    pub fn forget_gateway(&self) {
        if let Some(route_gateway) = lock(&self.route_gateway).take() {
            self.drop_job(&route_gateway.job);
            route_gateway.host.session.close();
        }
    }

    /// True for the job that has only the gateway as a host.
    pub(super) fn is_gateway_job(&self, job: &Job) -> bool {
        self.route_gateway().is_some_and(|w| w.job.id == job.id)
    }

    /// The gateway through which hosts of the job are reached; none if they are dialled directly.
    pub(super) fn gateway_of(&self, job: &Job) -> Option<Arc<ClientGateway>> {
        self.route_gateway().filter(|w| w.job.id != job.id && job.is_clients())
    }

    /// Dials a host through the gateway: opens a connection to the gateway, requests a tunnel to the host, and begins the handshake with
    /// the host.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn dial_through_gateway(
        &self,
        route_gateway: &ClientGateway,
        host: &Arc<Host>,
        trust: Arc<DialTrust>,
        target: Target,
        hello: Vec<u8>,
        bound: Duration,
        done: Done,
    ) {
        let failed = |why: &str| Err(NoStream::Gateway(why.to_owned()));
        let (info, at) = (host.info(), route_gateway.host.info());
        let Some(Address::Tcp { host: name, port }) = info.address else {
            return done(Err(NoStream::Network("only tcp addresses are reached through a gateway".to_owned())));
        };
        let (joined, gateway_trust) = (route_gateway.host.is_joined(), lock(&route_gateway.host.state).trust.clone());
        if let Some(why) = route_gateway.host.lost() {
            return done(Err(NoStream::LostGateway(format!("lost: {why}"))));
        }
        let (Some(address), Some(gateway_trust), true) = (at.address, gateway_trust, joined) else {
            return done(failed("it has not answered yet"));
        };
        let gateway_name = if let Address::Tcp { host, .. } = &address { host.clone() } else { String::new() };
        let within = bound.saturating_sub(MARGIN.min(bound / 4));
        let ask = Greeting::Tunnel { host: name, port, places: info.resolved, within_ms: within.as_millis() as u64 };
        let (poller, host, deadline) = (self.poller.clone(), host.clone(), self.poller.now() + bound);
        let opened = move |result: Result<Ready, NoStream>| {
            let ready = match result {
                Ok(ready) => ready,
                Err(why) if why.is_timeout() => return done(Err(NoStream::SilentGateway)),
                Err(why) => return done(failed(&why.to_string())),
            };
            match greeting::decode(&ready.answer) {
                Some(Welcome::Tunnel { places }) if ready.early.is_empty() => {
                    lock(&host.info).resolved = places;
                    let left = deadline.saturating_duration_since(poller.now());
                    dial::dial_through(&poller, ready.opened.stream, &trust, target, hello, left, done);
                }
                Some(Welcome::Unreached { cause, why }) => done(Err(unreached(cause, why))),
                Some(Welcome::Refused(no)) => done(failed(refusal(no))),
                _ => done(failed("its answer is malformed")),
            }
        };
        let target = Target { name: gateway_name, host: route_gateway.host.id.0, kind: Kind::Channel };
        dial::dial(&self.poller, &address, &at.resolved, &gateway_trust, target, greeting::encode(&ask), bound, None, Box::new(opened));
    }

    /// A remark on the loss of a host behind a gateway that is silent too.
    pub(super) fn gateway_remark(&self, job: &Job) -> Option<String> {
        let route_gateway = self.gateway_of(job)?;
        let host = &route_gateway.host;
        let is_silent = host.lost().is_some() || !host.session.has_heartbeat() || host.membership().is_suspected();
        is_silent.then(|| format!("it is behind the gateway {}, which is silent too", route_gateway.address))
    }

    /// The reason of a host's loss with this remark.
    pub(super) fn with_gateway_remark(&self, job: &Job, why: &str) -> String {
        self.gateway_remark(job).map_or_else(|| why.to_owned(), |remark| format!("{why}; {remark}"))
    }

    /// Declares all hosts behind a lost gateway lost.
    pub(super) fn gateway_lost(&self, job: &Arc<Job>, why: &str) {
        let Some(route_gateway) = self.route_gateway().filter(|w| w.job.id == job.id) else { return };
        let Some(work) = self.node().and_then(|n| self.job(n.uid)) else { return };
        let why = format!("the gateway {} is lost: {why}", route_gateway.address);
        let (agent, is_gone) = (route_gateway.host.info().agent, route_gateway.host.unknown_end().is_none());
        for host in work.hosts() {
            // The agent of the gateway may be a host of this job too.
            let is_end_known = is_gone && host.info().agent == agent;
            self.on_event(&work, Event::Lost { host: host.id, why: why.clone(), is_end_known, notify: false });
        }
    }

    // ---- in the gateway's agent

    /// Handles a client's request for a tunnel to the host `name` and `port`.
    pub(super) fn tunnel_asked(&self, peer: &str, mut opened: Opened, name: String, port: u16, places: Vec<SocketAddr>, within: Duration) {
        let (job, to) = (ProcUid(opened.job.0), format!("tcp://{name}:{port}"));
        // Agents dial each other without a gateway. A certificate of the site or a socket does not show whether its owner is the client, so
        // these requests are served too.
        let may = matches!(opened.subject, Subject::Client | Subject::Site(_) | Subject::Unnamed) && self.job(job).is_some();
        if !may || self.is_closing() {
            self.refused(peer, format!("it asks for a tunnel to {to}"));
            return answer(&mut opened.stream, &Welcome::Refused(RefusalReason::NoSession));
        }
        let most = most();
        if !lock(&self.tunnels).entry(job).or_default().take_place(most) {
            let why = format!("the gateway has {most} tunnels for this client already, and no more; `ulimit -n` there is a part of it");
            self.refused(peer, format!("it asks for a tunnel to {to}, and has {most}"));
            return answer(&mut opened.stream, &Welcome::Unreached { cause: Unreached::Failed, why });
        }
        let asked = Asked { gateway: self.me.clone(), job, peer: peer.to_owned(), to, within };
        if !places.is_empty() {
            return self.tunnel_to(asked, opened, places);
        }
        if let Ok(number) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
            return self.tunnel_to(asked, opened, vec![(number, port).into()]);
        }
        if LOOKING_UP.fetch_add(1, Ordering::AcqRel) >= LOOK_UPS {
            LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
            let why = "too many names at a time".to_owned();
            return answer(&mut opened.stream, &Welcome::Unreached { cause: Unreached::Failed, why });
        }
        let (me, poller) = (self.me.clone(), self.poller.clone());
        let look_up = move || {
            let found = Address::Tcp { host: name, port }.resolve();
            LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
            poller.spawn(Box::new(move || match (me.upgrade(), found) {
                (Some(g), Ok(places)) => g.tunnel_to(asked, opened, places),
                (_, Err(e)) => {
                    let why = format!("name not found: {}", dial::error_text(&e));
                    answer(&mut opened.stream, &Welcome::Unreached { cause: Unreached::Failed, why });
                }
                (None, _) => {}
            }));
        };
        // A name is resolved on a thread of its own, since the resolver may block and this thread polls the sockets. If no thread can be
        // made, the connection closes and the client's attempt fails.
        if std::thread::Builder::new().name("monarch-names".to_owned()).spawn(look_up).is_err() {
            LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn tunnel_to(&self, asked: Asked, mut opened: Opened, places: Vec<SocketAddr>) {
        let (me, all, within) = (self.me.clone(), VecDeque::from(places.clone()), asked.within);
        let connected = move |result: io::Result<(OwnedFd, SocketAddr)>| {
            let Some(g) = me.upgrade() else { return };
            match result {
                Ok((fd, first)) => {
                    let mut places = places;
                    // The address that answered comes first: the client, and the agents that receive the host's entry from it, dial it
                    // first the next time.
                    places.sort_by_key(|p| *p != first);
                    answer(&mut opened.stream, &Welcome::Tunnel { places });
                    g.tunnel(&asked, opened, fd);
                }
                Err(e) => answer(&mut opened.stream, &Welcome::Unreached { cause: cause(&e), why: dial::error_text(&e) }),
            }
        };
        connect::connect(&self.poller, all, within, Box::new(connected));
    }

    fn tunnel(&self, asked: &Asked, opened: Opened, fd: OwnedFd) {
        let mut tunnels = lock(&self.tunnels);
        if self.job(asked.job).is_none() {
            return;
        }
        self.audit("tunnel", &asked.peer, asked.to.clone());
        // If the process has no descriptor left, both ends of the tunnel are closed.
        if let Ok(splice) = Splice::start(&self.poller, opened.stream, Stream::plain(fd)) {
            tunnels.entry(asked.job).or_default().open.push(Arc::downgrade(&splice));
        }
    }

    /// Ends the tunnels of a client that has ended. Frames that it has sent before are still forwarded for `LINGER`.
    pub(super) fn end_tunnels(&self, job: ProcUid) {
        let left = lock(&self.tunnels).remove(&job).unwrap_or_default().open;
        if !left.is_empty() {
            let close = move || left.iter().filter_map(Weak::upgrade).for_each(|t| t.close());
            self.poller.later(LINGER, Box::new(close));
        }
    }
}

/// The class of the error with which the gateway has failed to connect.
fn cause(e: &io::Error) -> Unreached {
    match e.kind() {
        _ if dial::is_refusal(e) => Unreached::NotListening,
        io::ErrorKind::TimedOut => Unreached::Silent,
        _ => Unreached::Failed,
    }
}

/// The gateway's error, as the error of a client that dials the host itself.
fn unreached(cause: Unreached, why: String) -> NoStream {
    match cause {
        Unreached::NotListening => NoStream::NotListening(why),
        Unreached::Silent => NoStream::TimedOut,
        Unreached::Failed => NoStream::Network(why),
    }
}

/// The tunnels that an agent forwards for one client.
#[derive(Default)]
pub(super) struct Tunnels {
    open: Vec<Weak<Splice>>,
    /// The number of tunnels that are being opened.
    asked: usize,
}

impl Tunnels {
    fn take_place(&mut self, most: usize) -> bool {
        if self.open.len() + self.asked >= most {
            self.open.retain(|t| t.upgrade().is_some_and(|t| !t.is_over()));
        }
        if self.open.len() + self.asked >= most {
            // Tunnels that the client has closed and the host has not closed yet make room for others.
            self.open.retain(|t| match t.upgrade().filter(|t| t.has_first_ended()) {
                Some(left) => {
                    left.close();
                    false
                }
                None => true,
            });
        }
        let has_room = self.open.len() + self.asked < most;
        self.asked += usize::from(has_room);
        has_room
    }
}

/// Limit of the tunnels of one client here. A tunnel takes two descriptors; half of the descriptors of the process are left for the agent
/// and for other clients.
fn most() -> usize {
    MOST.min(net::sys::descriptor_limit() / 4)
}

/// A tunnel that a client has requested. It counts as one of the client's tunnels while it is being opened.
struct Asked {
    gateway: Weak<Gateway>,
    job: ProcUid,
    peer: String,
    to: String,
    within: Duration,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(g) = self.gateway.upgrade()
            && let Some(tunnels) = lock(&g.tunnels).get_mut(&self.job)
        {
            tunnels.asked = tunnels.asked.saturating_sub(1);
        }
    }
}

fn answer(stream: &mut Stream, welcome: &Welcome) {
    // The socket's buffer takes so small an answer at once.
    let _ = stream.write(&[&greeting_frame(&greeting::encode(welcome))]);
    let _ = stream.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_reports_refusal_by_its_kind() {
        let error = |errno| io::Error::from_raw_os_error(errno);
        for (e, refuses, silent) in [
            (error(libc::ECONNREFUSED), true, false),
            (error(libc::ETIMEDOUT), false, true),
            (error(libc::EHOSTUNREACH), false, false),
            (io::Error::other("the name server refused"), false, false),
        ] {
            let Some(Welcome::Unreached { cause, why }) =
                greeting::decode(&greeting::encode(&Welcome::Unreached { cause: cause(&e), why: dial::error_text(&e) }))
            else {
                panic!("another answer")
            };
            let why = unreached(cause, why);
            assert_eq!((why.is_refusal(), why.is_timeout()), (refuses, silent), "{e}");
        }
    }
}
