//! This process as a member of jobs that span hosts: a client, or the agent of a host.
//!
//! Procs have a link to their agent only: the agent forwards their frames to other hosts, and delivers the frames from other hosts to them.
//! Between agents, and between a client and its agents, there are sessions; a client dials, and agents dial each other when they have
//! frames to send. The client chooses the id of a host in its job before the host has joined, so the host can be addressed at once.
//!
//! `Gateway` is the table of the components, without logic of its own. A component has references to those that it needs, which stand
//! before it in this table; where one reports to a later one, it has a trait for that.
//!
//! | file | noun |
//! |---|---|
//! | `jobs`, `job`, `host` | the jobs of this process, their hosts, and the sessions with these |
//! | `audit`, `refusals` | the events for the audit log; which refused connections are counted |
//! | `route_gateway` | the gateway through which a client reaches its hosts |
//! | `membership_events` | the events of hosts, about which `membership` decides |
//! | `dialler` | one connection to a host |
//! | `connections`, `redial` | the connections that this process opens, and the times of the attempts |
//! | `join_tree` | the tree by which hosts have joined, and the frames along it |
//! | `introductions` | the introduction of new hosts to the others |
//! | `renewals` | the renewal of certificates |
//! | `join` | the join of one host |
//! | `join_list`, `worker_list` | joins of many hosts at once, by a tree, and the state of such a list |
//! | `deliveries`, `arrivals` | the delivery of frames to processes of this host, and their order |
//! | `parts`, `part_fragments` | large parts of frames, and the fragments that have arrived |
//! | `forward` | frames on their way to other hosts |
//! | `casts`, `cast_relay` | this host's part in casts, and the state of its relay |
//! | `bulk` | streams for bulk data, which are handed to processes |
//! | `tunnel` | tunnels of this agent as the gateway of clients |
//! | `heartbeats` | heartbeats of hosts, direct and indirect ones |
//! | `job_ends` | the end of a client's work here |
//! | `control` | the messages of the members of a job |
//! | `actions` | the actions that `membership` has decided |
//! | `session_events` | the events of sessions |
//! | `accept` | connections that come in |
//! | `closing` | the end of this process's part in its jobs |
//! | `pauses` | pauses of sessions, for tests |
//! | `role` | the gateway as other components of its process know it |
//! | `random_id` | ids of jobs, hosts and sessions |

mod accept;
mod actions;
mod arrivals;
mod audit;
mod bulk;
mod cast_relay;
mod casts;
mod closing;
mod connections;
mod control;
mod deliveries;
mod dialler;
mod forward;
mod heartbeats;
mod host;
mod introductions;
mod job;
mod job_ends;
mod jobs;
mod join;
mod join_list;
mod join_tree;
mod membership_events;
mod part_fragments;
mod parts;
mod pauses;
mod random_id;
mod redial;
mod refusals;
mod renewals;
mod role;
mod route_gateway;
mod session_events;
mod tunnel;
mod worker_list;

use std::sync::{Arc, Mutex, OnceLock, Weak};

use net::session::SessionHandler;

use self::accept::Accept;
use self::actions::Actions;
pub use self::audit::AuditLog;
use self::bulk::BulkStreams;
pub use self::cast_relay::CastCounts;
use self::casts::Casts;
use self::closing::Closing;
use self::connections::Connections;
use self::control::Controls;
use self::deliveries::{CastReports, Deliveries};
use self::dialler::Dialler;
use self::forward::Forward;
use self::heartbeats::Heartbeats;
pub use self::host::{Host, Member};
use self::introductions::Introductions;
pub use self::job::{Job, RELEASE};
use self::job_ends::JobEnds;
pub use self::jobs::Jobs;
pub use self::join::Wanted;
use self::join::{Joins, ListOutcomes};
use self::join_list::JoinLists;
use self::join_tree::JoinTree;
use self::membership_events::{CarryOut, MembershipEvents};
use self::parts::Parts;
use self::pauses::Pauses;
pub use self::random_id::random_id;
use self::renewals::Renewals;
pub use self::route_gateway::ClientGateway;
use self::route_gateway::RouteGateway;
use self::session_events::{Receivers, SessionEvents};
use self::tunnel::Tunnels;
use crate::local::Local;
use crate::node::Node;
pub use crate::system::Audit;

/// Connects this process to other hosts. The agent owns it; in a process without an agent, the node's roles do.
pub struct Gateway {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) bulk: Arc<BulkStreams>,
    local: Arc<Local>,
    route_gateway: Arc<RouteGateway>,
    renewals: Arc<Renewals>,
    joins: Arc<Joins>,
    lists: Arc<JoinLists>,
    parts: Arc<Parts>,
    forward: Arc<Forward>,
    casts: Arc<Casts>,
    controls: Arc<Controls>,
    accept: Arc<Accept>,
    closing: Closing,
    pauses: Pauses,
    /// Referred to by `MembershipEvents`.
    _actions: Arc<Actions>,
    /// Referred to by the handlers of sessions.
    _receivers: Arc<Receivers>,
}

impl Gateway {
    /// Makes the gateway of a process, and gives it this role.
    pub fn new(node: &Arc<Node>) -> Arc<Self> {
        let (poller, arena) = (&node.poller, node.arena.clone());
        let (local, jobs) = (Local::new(node), Jobs::new(node.uid, poller));
        let audit = Arc::new(AuditLog { poller: poller.clone(), system: node.system.clone(), refusals: Mutex::default() });
        let route_gateway = Arc::new(RouteGateway { poller: poller.clone(), gateway: Mutex::default() });
        let events = Arc::new(MembershipEvents { poller: poller.clone(), route_gateway: route_gateway.clone(), actions: OnceLock::new() });
        let dialler = Arc::new(Dialler { poller: poller.clone(), route_gateway: route_gateway.clone(), trust: OnceLock::new() });
        let connections = Arc::new(Connections {
            poller: poller.clone(),
            jobs: jobs.clone(),
            events: events.clone(),
            dialler: dialler.clone(),
            route_gateway: route_gateway.clone(),
            audit: audit.clone(),
        });
        let tree = Arc::new(JoinTree { poller: poller.clone(), connections: connections.clone(), audit: audit.clone() });
        let introductions = Arc::new(Introductions { local: local.clone() });
        let renewals = Arc::new(Renewals { poller: poller.clone(), jobs: jobs.clone(), dialler: dialler.clone() });
        let joins = Arc::new(Joins {
            local: local.clone(),
            jobs: jobs.clone(),
            events: events.clone(),
            route_gateway: route_gateway.clone(),
            dialler: dialler.clone(),
            connections: connections.clone(),
            introductions: introductions.clone(),
            renewals: renewals.clone(),
            audit: audit.clone(),
            lists: OnceLock::new(),
        });
        let lists = Arc::new(JoinLists {
            local: local.clone(),
            events: events.clone(),
            route_gateway: route_gateway.clone(),
            joins: joins.clone(),
            introductions: introductions.clone(),
        });
        let deliveries = Arc::new(Deliveries { local: local.clone(), reports: OnceLock::new() });
        let parts = Arc::new(Parts { local: local.clone(), jobs: jobs.clone(), arena });
        let forward = Arc::new(Forward {
            local: local.clone(),
            jobs: jobs.clone(),
            connections: connections.clone(),
            deliveries: deliveries.clone(),
            parts: parts.clone(),
        });
        let casts = Arc::new(Casts {
            local: local.clone(),
            jobs: jobs.clone(),
            connections: connections.clone(),
            deliveries: deliveries.clone(),
            parts: parts.clone(),
            forward: forward.clone(),
        });
        let bulk = Arc::new(BulkStreams {
            local: local.clone(),
            jobs: jobs.clone(),
            route_gateway: route_gateway.clone(),
            dialler: dialler.clone(),
        });
        let heartbeats = Arc::new(Heartbeats { poller: poller.clone(), events: events.clone() });
        let tunnels = Tunnels::new(poller, &jobs, &audit);
        let ends = Arc::new(JobEnds {
            local: local.clone(),
            jobs: jobs.clone(),
            events: events.clone(),
            dialler: dialler.clone(),
            tunnels: tunnels.clone(),
            audit: audit.clone(),
        });
        let controls = Arc::new(Controls {
            local: local.clone(),
            jobs: jobs.clone(),
            events: events.clone(),
            connections: connections.clone(),
            ends: ends.clone(),
        });
        let actions = Arc::new(Actions {
            local: local.clone(),
            jobs: jobs.clone(),
            events: events.clone(),
            connections: connections.clone(),
            route_gateway: route_gateway.clone(),
            tree: tree.clone(),
            introductions: introductions.clone(),
            lists: lists.clone(),
            heartbeats: heartbeats.clone(),
            casts: casts.clone(),
            ends: ends.clone(),
            audit: audit.clone(),
        });
        let receivers = Arc::new(Receivers {
            poller: poller.clone(),
            jobs: jobs.clone(),
            events: events.clone(),
            route_gateway: route_gateway.clone(),
            connections: connections.clone(),
            deliveries: deliveries.clone(),
            parts: parts.clone(),
            casts: casts.clone(),
            tree: tree.clone(),
            lists: lists.clone(),
            heartbeats: heartbeats.clone(),
            controls: controls.clone(),
        });
        let accept = Arc::new(Accept {
            local: local.clone(),
            jobs: jobs.clone(),
            events: events.clone(),
            dialler: dialler.clone(),
            bulk: bulk.clone(),
            tunnels: tunnels.clone(),
            audit: audit.clone(),
            listener: Mutex::default(),
        });
        let closing = Closing {
            local: local.clone(),
            jobs: jobs.clone(),
            connections: connections.clone(),
            accept: accept.clone(),
            ends: ends.clone(),
            audit: audit.clone(),
        };
        let pauses =
            Pauses { local: local.clone(), jobs: jobs.clone(), route_gateway: route_gateway.clone(), connections: connections.clone() };
        set(&events.actions, &(actions.clone() as Arc<dyn CarryOut>));
        set(&joins.lists, &(lists.clone() as Arc<dyn ListOutcomes>));
        set(&deliveries.reports, &(casts.clone() as Arc<dyn CastReports>));
        let to = Arc::downgrade(&receivers);
        let handler = move |job: Weak<Job>| -> Arc<dyn SessionHandler> { Arc::new(SessionEvents { receivers: to.clone(), job }) };
        let _ = jobs.handler.set(Box::new(handler));
        let gateway = Arc::new(Gateway {
            jobs,
            audit,
            bulk,
            local,
            route_gateway,
            renewals,
            joins,
            lists,
            parts,
            forward,
            casts,
            controls,
            accept,
            closing,
            pauses,
            _actions: actions,
            _receivers: receivers,
        });
        node.roles.set_gateway(gateway.clone());
        gateway
    }
}

/// Sets the receiver of a component's reports.
fn set<T: ?Sized>(place: &OnceLock<Weak<T>>, receiver: &Arc<T>) {
    let _ = place.set(Arc::downgrade(receiver));
}
