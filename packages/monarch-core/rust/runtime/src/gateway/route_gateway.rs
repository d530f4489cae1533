//! The gateway through which a client reaches its hosts, if it does not dial them directly.
//!
//! For each connection to another host the client first opens one to the gateway, which dials the host and forwards bytes (`tunnel`); the
//! two ends then authenticate each other as they do without a gateway, so the gateway can neither read nor forge. The gateway belongs to a
//! job of its own. The same agent may also be a host of the client's job, and is then reached through itself.
//!
//! What it needs: the poller only. The gateway joins and is watched as every host is.
//!
//! What always holds: an agent has no gateway, and neither has the job of the gateway.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::Poller;
use net::address::Address;
use net::dial::{self, Done, NoStream, Ready};
use net::lock::lock;
use net::trust::{DialTrust, Kind, Target};
use wire::greeting::{self, Greeting, Unreached, Welcome};

use super::host::Host;
use super::job::Job;
use super::refusals::refusal;

/// The gateway's time limit is shorter than the client's by this margin, so its answer arrives before the client gives up.
const MARGIN: Duration = Duration::from_millis(200);
/// The reason why a host that has no TCP address is not reached.
pub(super) const ONLY_TCP: &str = "only tcp addresses are reached through a gateway";

/// The gateway through which this client reaches its hosts.
pub struct ClientGateway {
    /// The job that has only the gateway as a host.
    pub job: Arc<Job>,
    pub host: Arc<Host>,
    /// The address as the user gave it, for error texts.
    pub address: String,
}

/// A host to dial, with the credentials for it and the greeting.
pub(super) struct Dial {
    pub host: Arc<Host>,
    pub trust: Arc<DialTrust>,
    pub target: Target,
    pub hello: Vec<u8>,
    pub bound: Duration,
}

/// The gateway of this client; none if it dials its hosts directly.
pub(super) struct RouteGateway {
    pub poller: Arc<Poller>,
    pub gateway: Mutex<Option<Arc<ClientGateway>>>,
}

impl RouteGateway {
    pub fn get(&self) -> Option<Arc<ClientGateway>> {
        lock(&self.gateway).clone()
    }

    /// True for the job that has only the gateway as a host.
    pub fn is_own_job(&self, job: &Job) -> bool {
        self.get().is_some_and(|w| w.job.id == job.id)
    }

    /// The gateway through which hosts of the job are reached; none if they are dialled directly.
    pub fn before(&self, job: &Job) -> Option<Arc<ClientGateway>> {
        self.get().filter(|w| w.job.id != job.id && job.is_clients())
    }

    /// A remark on the loss of a host behind a gateway that is silent too.
    pub fn remark(&self, job: &Job) -> Option<String> {
        let gateway = self.before(job)?;
        let host = &gateway.host;
        let is_silent = host.lost().is_some() || !host.session.has_heartbeat() || host.membership().is_suspected();
        is_silent.then(|| format!("it is behind the gateway {}, which is silent too", gateway.address))
    }

    /// Dials a host through the gateway: opens a connection to the gateway, requests a tunnel to the host, and begins the handshake with
    /// the host.
    pub fn dial(&self, gateway: &ClientGateway, to: Dial, done: Done) {
        let failed = |why: &str| Err(NoStream::Gateway(why.to_owned()));
        let (info, at) = (to.host.info(), gateway.host.info());
        let Some(Address::Tcp { host: name, port }) = info.address else {
            return done(Err(NoStream::Network(ONLY_TCP.to_owned())));
        };
        let (joined, gateway_trust) = (gateway.host.is_joined(), lock(&gateway.host.state).trust.clone());
        if let Some(why) = gateway.host.lost() {
            return done(Err(NoStream::LostGateway(format!("lost: {why}"))));
        }
        let (Some(address), Some(gateway_trust), true) = (at.address, gateway_trust, joined) else {
            return done(failed("it has not answered yet"));
        };
        let bound = to.bound;
        let within = bound.saturating_sub(MARGIN.min(bound / 4));
        let ask = Greeting::Tunnel { host: name, port, places: info.resolved, within_ms: within.as_millis() as u64 };
        let (poller, deadline) = (self.poller.clone(), self.poller.now() + bound);
        let opened = move |result: Result<Ready, NoStream>| {
            let ready = match result {
                Ok(ready) => ready,
                Err(why) if why.is_timeout() => return done(Err(NoStream::SilentGateway)),
                Err(why) => return done(failed(&why.to_string())),
            };
            match greeting::decode(&ready.answer) {
                Some(Welcome::Tunnel { places }) if ready.early.is_empty() => {
                    lock(&to.host.info).resolved = places;
                    let left = deadline.saturating_duration_since(poller.now());
                    dial::dial_through(&poller, ready.opened.stream, &to.trust, to.target, to.hello, left, done);
                }
                Some(Welcome::Unreached { cause, why }) => done(Err(unreached(cause, why))),
                Some(Welcome::Refused(no)) => done(failed(refusal(no))),
                _ => done(failed("its answer is malformed")),
            }
        };
        let target = Target { name: address.name(), host: gateway.host.id.0, kind: Kind::Channel };
        dial::dial(&self.poller, &address, &at.resolved, &gateway_trust, target, greeting::encode(&ask), bound, None, Box::new(opened));
    }
}

/// The gateway's error, as the error of a client that dials the host itself.
pub(super) fn unreached(cause: Unreached, why: String) -> NoStream {
    match cause {
        Unreached::NotListening => NoStream::NotListening(why),
        Unreached::Silent => NoStream::TimedOut,
        Unreached::Failed => NoStream::Network(why),
    }
}
