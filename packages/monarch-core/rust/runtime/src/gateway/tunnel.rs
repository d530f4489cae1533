//! Tunnels of this agent as the gateway of clients: a client that dials one agent only reaches all other hosts through it.
//!
//! For each connection to another host the client opens one to this agent (`route_gateway`), which dials the host and forwards bytes.
//!
//! What it needs: the jobs of the clients, and the audit log.
//!
//! What always holds:
//! - A tunnel belongs to a client that has a job here. Its tunnels end after the job.
//! - A client has at most `most()` tunnels, those included that are being opened.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use net::Poller;
use net::address::Address;
use net::connect;
use net::dial::{self, greeting_frame};
use net::lock::lock;
use net::splice::Splice;
use net::stream::Stream;
use net::trust::{Opened, Subject};
use wire::ProcUid;
use wire::greeting::{self, RefusalReason, Unreached, Welcome};

use super::audit::AuditLog;
use super::jobs::Jobs;
use crate::tasks;

/// Limit of names that are resolved at the same time, each on a thread of its own. A request beyond it fails, and the client tries again.
const LOOK_UPS: usize = 64;
/// The time for which the tunnels of a client are kept after its end: its last notices to other hosts are still forwarded.
const LINGER: Duration = Duration::from_secs(10);
/// Limit of the tunnels of one client: two to each of 4,096 hosts, and as many again while connections are opened again.
const MOST: usize = 16 << 10;
/// The names that are being resolved.
static LOOKING_UP: AtomicUsize = AtomicUsize::new(0);

/// Forwards the tunnels of clients.
pub(super) struct Tunnels {
    pub poller: Arc<Poller>,
    pub jobs: Arc<Jobs>,
    pub audit: Arc<AuditLog>,
    /// The tunnels of each client, by its uid.
    of_clients: Mutex<HashMap<ProcUid, ClientTunnels>>,
}

impl Tunnels {
    pub fn new(poller: &Arc<Poller>, jobs: &Arc<Jobs>, audit: &Arc<AuditLog>) -> Arc<Tunnels> {
        Arc::new(Tunnels { poller: poller.clone(), jobs: jobs.clone(), audit: audit.clone(), of_clients: Mutex::default() })
    }

    /// Handles a client's request for a tunnel to the host `name` and `port`.
    pub fn asked(self: &Arc<Self>, peer: &str, mut opened: Opened, name: String, port: u16, places: Vec<SocketAddr>, within: Duration) {
        let (job, to) = (ProcUid(opened.job.0), format!("tcp://{name}:{port}"));
        // Agents dial each other without a gateway. A certificate of the site or a socket does not show whether its owner is the client, so
        // these requests are served too.
        let may = matches!(opened.subject, Subject::Client | Subject::Site(_) | Subject::Unnamed) && self.jobs.get(job).is_some();
        if !may || self.jobs.is_closing() {
            self.audit.refused(peer, format!("it asks for a tunnel to {to}"));
            return answer(&mut opened.stream, &Welcome::Refused(RefusalReason::NoSession));
        }
        let most = most();
        if !lock(&self.of_clients).entry(job).or_default().take_place(most) {
            let why = format!("the gateway has {most} tunnels for this client already, and no more; `ulimit -n` there is a part of it");
            self.audit.refused(peer, format!("it asks for a tunnel to {to}, and has {most}"));
            return answer(&mut opened.stream, &Welcome::Unreached { cause: Unreached::Failed, why });
        }
        let asked = Asked { tunnels: Arc::downgrade(self), job, peer: peer.to_owned(), to, within };
        if !places.is_empty() {
            return self.connect(asked, opened, places);
        }
        if let Ok(number) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
            return self.connect(asked, opened, vec![(number, port).into()]);
        }
        if LOOKING_UP.fetch_add(1, Ordering::AcqRel) >= LOOK_UPS {
            LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
            let why = "too many names at a time".to_owned();
            return answer(&mut opened.stream, &Welcome::Unreached { cause: Unreached::Failed, why });
        }
        let poller = self.poller.clone();
        let found = tasks::callback(self, move |me, found: io::Result<Vec<SocketAddr>>| match found {
            Ok(places) => me.connect(asked, opened, places),
            Err(e) => {
                let why = format!("name not found: {}", dial::error_text(&e));
                answer(&mut opened.stream, &Welcome::Unreached { cause: Unreached::Failed, why });
            }
        });
        let look_up = move || {
            let places = Address::Tcp { host: name, port }.resolve();
            LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
            poller.spawn(Box::new(move || found(places)));
        };
        // A name is resolved on a thread of its own, since the resolver may block and this thread polls the sockets. If no thread can be
        // made, the connection closes and the client's attempt fails.
        if std::thread::Builder::new().name("monarch-names".to_owned()).spawn(look_up).is_err() {
            LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn connect(self: &Arc<Self>, asked: Asked, mut opened: Opened, places: Vec<SocketAddr>) {
        let (all, within) = (VecDeque::from(places.clone()), asked.within);
        let connected = tasks::callback(self, move |me, result: io::Result<(OwnedFd, SocketAddr)>| match result {
            Ok((fd, first)) => {
                let mut places = places;
                // The address that answered comes first: the client, and the agents that receive the host's entry from it, dial it first
                // the next time.
                places.sort_by_key(|p| *p != first);
                answer(&mut opened.stream, &Welcome::Tunnel { places });
                me.start(&asked, opened, fd);
            }
            Err(e) => answer(&mut opened.stream, &Welcome::Unreached { cause: cause(&e), why: dial::error_text(&e) }),
        });
        connect::connect(&self.poller, all, within, Box::new(connected));
    }

    fn start(&self, asked: &Asked, opened: Opened, fd: OwnedFd) {
        let mut tunnels = lock(&self.of_clients);
        if self.jobs.get(asked.job).is_none() {
            return;
        }
        self.audit.add("tunnel", &asked.peer, asked.to.clone());
        // If the process has no descriptor left, both ends of the tunnel are closed.
        if let Ok(splice) = Splice::start(&self.poller, opened.stream, Stream::plain(fd)) {
            tunnels.entry(asked.job).or_default().open.push(Arc::downgrade(&splice));
        }
    }

    /// Ends the tunnels of a client that has ended. Frames that it has sent before are still forwarded for `LINGER`.
    pub fn end(&self, job: ProcUid) {
        let left = lock(&self.of_clients).remove(&job).unwrap_or_default().open;
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

/// The tunnels that an agent forwards for one client.
#[derive(Default)]
struct ClientTunnels {
    open: Vec<Weak<Splice>>,
    /// The number of tunnels that are being opened.
    asked: usize,
}

impl ClientTunnels {
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
    tunnels: Weak<Tunnels>,
    job: ProcUid,
    peer: String,
    to: String,
    within: Duration,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(tunnels) = self.tunnels.upgrade()
            && let Some(of_client) = lock(&tunnels.of_clients).get_mut(&self.job)
        {
            of_client.asked = of_client.asked.saturating_sub(1);
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
    use super::super::route_gateway::unreached;
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
