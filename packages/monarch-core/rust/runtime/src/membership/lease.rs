//! The lease of a client at an agent: the agent ends the client's work when no heartbeat of the client has arrived for the lease.

use std::time::{Duration, Instant};

use super::detector::{Role, SUSPECT, Settings};

/// An agent ends the work of a silent client this long before the lease is over, so the clean-up is finished at the end of the lease.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// The time from the last heartbeat of a client to the end of its work, for a lease of this length.
fn work_limit(length: Duration) -> Duration {
    length - CLEAN_UP.min(length / 5)
}

/// The time for which a member waits for a broken link, after the suspicion. A client does not wait for a host that has ended its work by
/// then: a longer `channel_reconnect_timeout` has no effect on links of the client.
pub(super) fn reconnect_limit(settings: Settings, lease: Duration) -> Duration {
    if settings.role == Role::Agent || lease.is_zero() {
        return settings.reconnect;
    }
    settings.reconnect.min(work_limit(lease).saturating_sub(SUSPECT * settings.beat()))
}

/// The lease of one client. It begins anew with each heartbeat of the client, direct or indirect.
pub struct Lease {
    /// None for a lease without an end.
    length: Option<Duration>,
    last_heartbeat: Instant,
}

impl Lease {
    /// A lease that begins at `now`. A lease of length zero has no end.
    pub fn new(length: Duration, now: Instant) -> Self {
        Lease { length: Some(length).filter(|length| !length.is_zero()), last_heartbeat: now }
    }

    /// Takes a heartbeat of the client from this time. An earlier heartbeat than the last one changes nothing.
    pub fn renew(&mut self, at: Instant) {
        self.last_heartbeat = self.last_heartbeat.max(at);
    }

    pub fn last_heartbeat(&self) -> Instant {
        self.last_heartbeat
    }

    /// The time at which the work of the client ends if no further heartbeat arrives.
    pub fn end(&self) -> Option<Instant> {
        self.length.map(|length| self.last_heartbeat + work_limit(length))
    }

    pub fn is_over(&self, now: Instant) -> bool {
        self.end().is_some_and(|end| end <= now)
    }
}
