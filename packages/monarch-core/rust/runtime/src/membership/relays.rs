//! The relays of a job: the tree by which its hosts have joined, and the routes along it, as one process of the job sees them.
//!
//! A *relayed* host is one that another host, its relay, has joined on the client's behalf: the frames between the relayed host and the
//! client are forwarded from host to host along the tree. From a direct connection on, the host is like one that the client has joined
//! itself.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use wire::ProcUid;

use super::detector::Role;

/// The routes of one process of a job along the join tree. The job of the gateway owns it.
pub struct Relays {
    role: Role,
    client: ProcUid,
    /// Agent only: the relay of this host, from which the client's messages along the tree arrive; none for a host with a direct
    /// connection.
    parent: Option<ProcUid>,
    /// Agent only: the hosts that this agent has joined for the client.
    children: BTreeSet<ProcUid>,
    /// The relayed hosts, and for each the next host on the route to it. In the client, hosts with a direct connection are not in this
    /// table.
    next_hops: HashMap<ProcUid, ProcUid>,
    /// Agent only: when the last heartbeat of each host relayed by a child was received, by the reports of the children.
    heartbeats: HashMap<ProcUid, Instant>,
    /// Client only: the host that has joined each host, for all hosts that joined in a tree.
    joined_by: HashMap<ProcUid, ProcUid>,
    /// Agent only: when this agent last sent its children the age of the client's last heartbeat.
    client_age_sent_at: Option<Instant>,
}

/// The hosts of a client that have lost their relay.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Orphans {
    /// The relayed hosts whose route led through the lost host: they need direct connections.
    pub relayed: Vec<ProcUid>,
    /// The hosts that the lost host has joined itself: it may not have passed on the last messages.
    pub joined: Vec<ProcUid>,
}

impl Relays {
    pub fn new(role: Role, client: ProcUid) -> Self {
        Relays {
            role,
            client,
            parent: None,
            children: BTreeSet::new(),
            next_hops: HashMap::new(),
            heartbeats: HashMap::new(),
            joined_by: HashMap::new(),
            client_age_sent_at: None,
        }
    }

    // ---- events

    /// Takes a message of the client that the relay `via` has passed on.
    pub fn on_relay(&mut self, via: ProcUid) {
        self.parent = Some(via);
    }

    /// Takes the join of a host by this process.
    pub fn on_joined(&mut self, own_id: ProcUid, host: ProcUid) {
        if self.role == Role::Client {
            self.joined_by.insert(host, own_id);
        } else {
            self.children.insert(host);
            self.next_hops.remove(&host);
        }
    }

    /// Client only: takes the join of a host by the host `by`, which `via` has reported. The route leads through a host that the client has
    /// a connection to.
    pub fn on_relayed_join(&mut self, host: ProcUid, via: ProcUid, by: ProcUid) {
        let next_hop = self.next_hops.get(&via).copied().unwrap_or(via);
        self.next_hops.insert(host, next_hop);
        self.joined_by.insert(host, by);
    }

    /// Agent only: takes a child's report that these hosts have joined.
    pub fn on_reported_joins(&mut self, via: ProcUid, hosts: impl IntoIterator<Item = ProcUid>) {
        if self.role == Role::Agent {
            self.next_hops.extend(hosts.into_iter().map(|host| (host, via)));
        }
    }

    /// Agent only: takes a sign of a host behind `via`. A known route stays as it is.
    pub fn on_frame(&mut self, host: ProcUid, via: ProcUid) {
        self.next_hops.entry(host).or_insert(via);
    }

    /// Agent only: takes a report of `via` about a host: when its last heartbeat was received.
    pub fn on_heartbeat(&mut self, host: ProcUid, via: ProcUid, at: Instant) {
        self.on_frame(host, via);
        let last = self.heartbeats.entry(host).or_insert(at);
        *last = at.max(*last);
    }

    /// Client only: a direct connection replaces the route to the host; true if the host was relayed.
    pub fn on_direct_connection(&mut self, host: ProcUid) -> bool {
        self.role == Role::Client && self.next_hops.remove(&host).is_some()
    }

    /// Takes the end of a host. Returns the hosts that have lost their relay; none in an agent.
    pub fn on_end(&mut self, host: ProcUid) -> Orphans {
        if self.role == Role::Agent {
            self.parent = self.parent.filter(|parent| *parent != host);
            self.children.remove(&host);
            self.next_hops.retain(|id, via| *via != host && *id != host);
            self.heartbeats.remove(&host);
            return Orphans::default();
        }
        self.next_hops.remove(&host);
        let relayed = self.next_hops.keys().copied().filter(|id| self.is_behind(*id, host)).collect();
        let joined = self.joined_by.iter().filter(|(_, by)| **by == host).map(|(id, _)| *id).collect();
        Orphans { relayed, joined }
    }

    /// True if the host has joined through `relay`, directly or not. The loop takes as many steps as the tree is deep.
    fn is_behind(&self, host: ProcUid, relay: ProcUid) -> bool {
        std::iter::successors(self.joined_by.get(&host), |at| self.joined_by.get(*at)).any(|at| *at == relay)
    }

    /// Agent only: true if the age of the client's last heartbeat is to be sent to the children now, with `every` between two times.
    pub fn is_client_age_due(&mut self, every: Duration, now: Instant) -> bool {
        let is_due = self.client_age_sent_at.is_none_or(|at| now.saturating_duration_since(at) >= every);
        if is_due {
            self.client_age_sent_at = Some(now);
        }
        is_due
    }

    // ---- state

    /// True in the client if a host has joined in a tree.
    pub fn has_tree(&self) -> bool {
        !self.joined_by.is_empty()
    }

    /// The relayed hosts; none in an agent.
    pub fn relayed_hosts(&self) -> HashSet<ProcUid> {
        if self.role == Role::Client { self.next_hops.keys().copied().collect() } else { HashSet::new() }
    }

    /// True in the client if the host is relayed.
    pub fn is_relayed(&self, host: ProcUid) -> bool {
        self.role == Role::Client && self.next_hops.contains_key(&host)
    }

    pub fn parent(&self) -> Option<ProcUid> {
        self.parent
    }

    /// The hosts that this agent has joined for the client; none in the client.
    pub fn children(&self) -> Vec<ProcUid> {
        self.children.iter().copied().collect()
    }

    pub fn is_child(&self, host: ProcUid) -> bool {
        self.children.contains(&host)
    }

    /// The next host on the route to `to`.
    pub fn next_hop(&self, to: ProcUid) -> Option<ProcUid> {
        let relayed = self.next_hops.get(&to).copied();
        match self.role {
            Role::Client => Some(relayed.unwrap_or(to)),
            Role::Agent if to == self.client => self.parent,
            Role::Agent if self.children.contains(&to) => Some(to),
            Role::Agent => relayed,
        }
    }

    /// Agent only: the hosts relayed by children, with the time of the last heartbeat of each.
    pub fn heartbeats(&self) -> Vec<(ProcUid, Instant)> {
        self.next_hops.keys().filter_map(|id| Some((*id, *self.heartbeats.get(id)?))).collect()
    }
}
