//! The end of this process's part in its jobs: a client notifies its hosts that the job is over, an agent notifies its peers that it
//! leaves.
//!
//! What it needs: the jobs and their ends, the connections, the listener, and the audit log.
//!
//! What always holds: the notices are sent before the sessions are closed, and waits for their acknowledgement are bounded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::lock::lock;
use wire::Control;

use super::accept::Accept;
use super::audit::AuditLog;
use super::connections::Connections;
use super::host::Host;
use super::job_ends::JobEnds;
use super::jobs::Jobs;
use crate::local::Local;

/// The reason for the end of a job whose agent closes.
const AGENT_ENDED: &str = "its host's agent has ended";
/// The pause between two looks at the sessions that have not acknowledged a notice.
const LOOK: Duration = Duration::from_millis(2);

/// The last notice to a peer.
struct Notice {
    host: Arc<Host>,
    /// A session with the peer is opened again when it has no connection: a session between a client and a host.
    reopens: bool,
}

/// Ends the part of this process in its jobs.
pub(super) struct Closing {
    pub local: Arc<Local>,
    pub jobs: Arc<Jobs>,
    pub connections: Arc<Connections>,
    pub accept: Arc<Accept>,
    pub ends: Arc<JobEnds>,
    pub audit: Arc<AuditLog>,
}

impl Closing {
    /// Closes all sessions. Waits at most `bound` until the notices are acknowledged.
    ///
    /// A session between a client and a host may have no connection at this moment, or lose it while the notice is under way. The client
    /// opens another one. So the notice waits, and the listener of an agent stays open. A peer that does not connect costs half of `bound`.
    pub fn close(&self, bound: Duration) {
        if !self.jobs.close() {
            return;
        }
        // A relay may end before it has forwarded the last frames of this agent. The client then connects to this agent directly, as long
        // as the listener is open. The relays are notified only then that this agent leaves.
        let clients = self.jobs.all().into_iter().filter(|j| !j.is_clients()).filter_map(|j| j.host(j.id));
        let carried: Vec<Notice> = clients.filter(|c| c.session.is_routed()).map(|host| Notice { host, reopens: false }).collect();
        wait(bound / 2, &carried, |client, _| !client.host.session.is_settled());
        self.audit.report_refusals();
        let notices = self.send_notices();
        // The other side acknowledges with its next heartbeat, or by closing the connection.
        wait(bound, &notices, |Notice { host, reopens }, passed| match reopens {
            true => host.has_pending_notice() && (host.session.is_up() || passed < bound / 2),
            false => host.session.is_up() && !host.session.is_settled(),
        });
        self.accept.close();
        for Notice { host, .. } in notices {
            lock(&host.state).notice_pending = false;
            host.session.close();
        }
        for job in self.jobs.all().into_iter().filter(|j| !j.is_clients()) {
            self.ends.end(&job, AGENT_ENDED);
        }
    }

    /// Sends the last notice to each peer. A worker whose join is under way may have made the job already: it receives the notice as soon
    /// as it has joined.
    fn send_notices(&self) -> Vec<Notice> {
        let mut notices = vec![];
        for (job, host) in self.jobs.all().into_iter().flat_map(|j| j.hosts().into_iter().map(move |h| (j.clone(), h))) {
            let (word, reopens) = match job.is_clients() {
                true => (Control::JobEnded, host.membership().may_have_job()),
                false => (Control::Leaving, host.id == job.id && host.lost().is_none()),
            };
            let is_up = host.session.is_up();
            let may_open = {
                let mut state = lock(&host.state);
                state.notice_pending = job.is_clients() && reopens;
                // A client that was never connected is refused when it connects.
                reopens && (!is_up && state.was_up || job.is_clients() && !state.was_up)
            };
            // The relay between this process and the host passes the notice on.
            if !may_open && (host.lost().is_some() || !is_up || host.session.is_routed()) {
                continue;
            }
            self.local.send(host.id, word);
            if may_open && job.is_clients() {
                self.connections.open_soon(&job, &host);
            }
            notices.push(Notice { host, reopens });
        }
        notices
    }
}

/// Sends heartbeats, which the other sides answer with their acknowledgements, while a notice is pending, at most for `bound`. `is_pending`
/// gets the time that has passed.
fn wait(bound: Duration, notices: &[Notice], is_pending: impl Fn(&Notice, Duration) -> bool) {
    let begin = Instant::now();
    while begin.elapsed() < bound && notices.iter().any(|notice| is_pending(notice, begin.elapsed())) {
        notices.iter().for_each(|notice| notice.host.ping());
        std::thread::sleep(LOOK);
    }
}
