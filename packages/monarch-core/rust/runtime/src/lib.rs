//! The runtime of a process of a job, without Python: calls, agents, hosts, failures.
//!
//! | file | noun |
//! |---|---|
//! | `node` | this process: its peers, its mailboxes, its pending calls |
//! | `incomplete` | messages and answers whose large parts are missing |
//! | `ended_peers` | the outcome of calls to processes that have ended |
//! | `peer` | another process, and the sending end towards it |
//! | `credit` | flow control: the bytes that a sender may have unhandled in one mailbox |
//! | `mailbox` | the queue of an actor or a port |
//! | `caster` | the casts of this process |
//! | `cast` | casts over hosts: order, trees, answers, and notices of ended processes |
//! | `cell` | a pending call |
//! | `payload` | the parts of one outgoing message |
//! | `system` | events for the process's own housekeeping thread |
//! | `assembly` | frames of a process of another host that wait for their large parts |
//! | `lending` | rendezvous transfers: large parts that their receiver pulls |
//! | `agent` | the host agent: starts, links, watches and ends procs |
//! | `cgroup` | which procs the kernel killed because memory had run out |
//! | `graves` | tombstones of actors |
//! | `tombs` | tombstones of processes |
//! | `guest` | external processes: of the same user, and started by another agent or by none |
//! | `tenant` | procs of jobs of other hosts' clients |
//! | `gateway` | this process as a member of jobs that span hosts |
//! | `routes` | the host of each remote process |
//! | `cleanup` | procs that die while an actor there runs its `__cleanup__` |
//! | `zygote` | the interpreter that procs are forked from |
//! | `supervision` | ownership, and the receivers of failures: decisions only |
//! | `simulated` | procs that are nodes of this process, for tests |
//! | `outgoing` | sending of messages and answers |
//! | `output` | lines that procs print |
//! | `viewer` | lines that are shown at the client too |
//! | `console` | the destination of the lines of procs |
//! | `aggregation` | lines that are alike, counted |
//! | `capture` | files with the output of procs |
//! | `inspection` | the state of one process, for `monarch ps` and `monarch stack` |
//! | `census` | the state of all procs of a host |
//! | `pulse` | heartbeats of the Python interpreter of a proc |
//! | `recordings` | the rings of the processes of a host, which outlive them |
//! | `watch` | the agent's regular look at its procs |
//! | `proc_links` | sockets between procs of a host |
//! | `bulk_streams` | connections between processes of different hosts, opened by their agents |
//! | `bulk_pipes` | the same by messages, where no connection can be opened |
//! | `detector` | the failure detector of hosts: decisions only |
//! | `clock` | time, real or simulated |
//! | `sync` | locks, replaceable for exploring interleavings |

pub mod agent;
pub mod aggregation;
pub mod assembly;
mod bulk_pipes;
pub mod bulk_streams;
pub mod capture;
pub mod cast;
pub mod caster;
pub mod cell;
pub mod census;
pub mod cgroup;
mod cleanup;
pub mod clock;
mod console;
pub mod credit;
pub mod detector;
mod ended_peers;
pub mod gateway;
mod graves;
pub mod guest;
mod incomplete;
pub mod inspection;
pub mod lending;
pub mod mailbox;
pub mod node;
mod outgoing;
pub mod output;
pub mod payload;
pub mod peer;
mod proc_links;
pub mod pulse;
pub mod recordings;
pub mod routes;
pub mod simulated;
pub mod supervision;
mod sync;
pub mod system;
mod tenant;
pub mod tombs;
pub mod viewer;
mod watch;
pub mod zygote;

pub use agent::Agent;
pub use cell::{Cell, Mode, Outcome};
pub use gateway::Gateway;
pub use mailbox::{Incoming, Mailbox};
pub use node::Node;
pub use payload::Payload;
pub use peer::Peer;
pub use supervision::Supervision;
pub use system::SystemEvent;
