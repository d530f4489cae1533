//! Heartbeats of hosts, and indirect heartbeats along the join tree.
//!
//! A relay has a heartbeat connection with each host that it has joined. With every heartbeat to its own relay or to the client, it sends
//! the age of the last heartbeat of these hosts and of the relayed hosts behind them. The client thus knows the age of the last heartbeat
//! of every host, and its detector decides by that age as it does for a direct session. A late report is about an earlier time, so it makes
//! no host look alive. If a host is suspected by its age, because the host or a relay is silent, the client probes it over a direct
//! connection. In the other direction, the age of the client's last heartbeat goes down the tree, and renews leases.
//!
//! What it needs: the events of membership, and a call of `report` with each tick.
//!
//! What always holds: a report about a third host renews only what the receiver has no connection of its own to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::Poller;
use net::lock::lock;
use wire::ProcUid;
use wire::greeting::Heartbeat;

use super::host::Host;
use super::job::Job;
use super::membership_events::MembershipEvents;
use crate::membership::Event;

/// Hosts in one message. A message has 16 KiB at most.
const HOSTS_PER_MESSAGE: usize = 900;
/// The age of the client's last heartbeat is sent down the tree with every third heartbeat: leases are much longer than that.
const CLIENT_AGE_EVERY: u32 = 3;

fn ms(ago: Duration) -> u64 {
    ago.as_millis() as u64
}

/// Takes and sends heartbeats.
pub(super) struct Heartbeats {
    pub poller: Arc<Poller>,
    pub events: Arc<MembershipEvents>,
}

impl Heartbeats {
    /// Handles a message of the heartbeat connection, or one that relays have forwarded.
    pub fn take(&self, job: &Arc<Job>, host: &Host, beat: Heartbeat) {
        match beat {
            Heartbeat::Ping { received } => {
                acknowledge(host, &received);
                host.session.send_heartbeat(&Heartbeat::Pong { received: vec![host.session.received()] });
            }
            Heartbeat::Pong { received } => acknowledge(host, &received),
            Heartbeat::Probe { about } => {
                let now = self.poller.now();
                let ago = lock(&job.membership).on_probe(about, now);
                host.session.send_heartbeat(&Heartbeat::Probed { about, since_ms: ago.map(ms) });
            }
            Heartbeat::Probed { about, since_ms } => {
                self.events.report(job, Event::ProbeAnswered { about, via: host.id, age: since_ms.map(Duration::from_millis) });
            }
            Heartbeat::Relayed { hosts } => self.on_relayed(job, host, hosts),
            Heartbeat::Client { since_ms } => self.on_client_age(job, Duration::from_millis(since_ms)),
        }
    }

    /// Sends the ages of the last heartbeats: those of relayed hosts towards the client, and that of the client to the relayed hosts.
    pub fn report(&self, job: &Arc<Job>) {
        let now = self.poller.now();
        let every = CLIENT_AGE_EVERY * Duration::from_millis(job.settings.loss_ms) / 40;
        let (children, relayed, due) = {
            let mut relays = lock(&job.relays);
            let children = relays.children();
            if children.is_empty() {
                return;
            }
            (children, relays.heartbeats(), relays.is_client_age_due(every, now))
        };
        let mut ages: Vec<(ProcUid, u64)> = {
            let membership = lock(&job.membership);
            children.iter().filter_map(|id| Some((*id, ms(membership.heartbeat_age(*id, now)?)))).collect()
        };
        ages.extend(relayed.into_iter().map(|(id, at)| (id, ms(now.saturating_duration_since(at)))));
        if let Some(relay) = job.host(job.relay()) {
            ages.chunks(HOSTS_PER_MESSAGE).for_each(|part| relay.session.send_heartbeat(&Heartbeat::Relayed { hosts: part.to_vec() }));
        }
        if due && job.has_client_heartbeat() {
            send_client_age(job, now);
        }
    }

    /// Handles the ages that a host reports about relayed hosts.
    fn on_relayed(&self, job: &Arc<Job>, from: &Host, hosts: Vec<(ProcUid, u64)>) {
        let now = self.poller.now();
        if !job.is_clients() {
            let mut relays = lock(&job.relays);
            for (id, ago) in hosts.into_iter().filter(|(id, _)| *id != job.own_id) {
                if let Some(at) = now.checked_sub(Duration::from_millis(ago)) {
                    relays.on_heartbeat(id, from.id, at);
                }
            }
            return;
        }
        for (id, ago) in hosts {
            // The client probes a host that it has connections to itself: the report of a third host does not make it look alive.
            if job.is_relayed(id) {
                self.events.report(job, Event::IndirectHeartbeat { host: id, age: Duration::from_millis(ago) });
            }
        }
    }

    /// Handles the age of the client's last heartbeat that the relay has sent, and passes it on to the children at once.
    fn on_client_age(&self, job: &Arc<Job>, ago: Duration) {
        if job.is_clients() || job.has_client_heartbeat() {
            return;
        }
        self.events.report(job, Event::IndirectHeartbeat { host: job.id, age: ago });
        send_client_age(job, self.poller.now());
    }
}

fn acknowledge(host: &Host, received: &[u64]) {
    if let Some(n) = received.first() {
        let _ = host.session.acked(*n);
    }
}

fn send_client_age(job: &Job, now: Instant) {
    let children = lock(&job.relays).children();
    let Some(last) = lock(&job.membership).last_client_heartbeat() else { return };
    let since_ms = ms(now.saturating_duration_since(last));
    children.into_iter().filter_map(|id| job.host(id)).for_each(|h| h.session.send_heartbeat(&Heartbeat::Client { since_ms }));
}
