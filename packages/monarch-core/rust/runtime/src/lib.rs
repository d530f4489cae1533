//! The runtime of a process of a job, without Python: calls, agents, hosts, failures.
//!
//! | file or folder | noun |
//! |---|---|
//! | `node` | the table of the components of one process |
//! | `incoming` | the frames that arrive |
//! | `ends` | the order in which components are notified of ends |
//! | `inspection`, `recording` | the state and the events of a process, for observers |
//! | `caster` | the casts of a process |
//! | `streams` | bulk streams between processes |
//! | `messages` | messages and their answers |
//! | `calls` | pending calls |
//! | `mailboxes` | the queues of actors and ports |
//! | `peers` | other processes: links, routes, ends |
//! | `transfers` | large parts of messages |
//! | `system` | events for the housekeeping thread |
//! | `operations` | what threads of a program call: sends, waits, receives, the exit |
//! | `roles` | the agent and the gateway, as the components know them |
//! | `agent` | the host agent: starts, links, watches and ends procs |
//! | `gateway` | this process as a member of jobs that span hosts |
//! | `local` | this process and its procs, as the components of the agent and of the gateway see them |
//! | `cast` | casts over hosts: order, trees, answers |
//! | `supervision` | ownership, and the receivers of failures: decisions only |
//! | `membership` | the hosts of a job: joins and failure detection; decisions only |
//! | `tombstones` | the ends of processes and actors |
//! | `sync` | locks, replaceable for exploring interleavings |
//! | `due_table` | entries with a time, and one timer for all of them |
//! | `tasks` | tasks of components for the I/O thread |
//! | `threads` | the start of threads |

pub mod agent;
pub mod calls;
pub mod cast;
pub mod caster;
mod due_table;
mod ends;
pub mod gateway;
mod incoming;
pub mod inspection;
mod local;
pub mod mailboxes;
pub mod membership;
pub mod messages;
pub mod node;
pub mod operations;
pub mod peers;
pub mod recording;
pub mod roles;
pub mod streams;
pub mod supervision;
mod sync;
pub mod system;
mod tasks;
pub mod threads;
mod tombstones;
pub mod transfers;

pub use agent::Agent;
pub use calls::pending_call::{Mode, Outcome, PendingCall};
pub use gateway::Gateway;
pub use mailboxes::mailbox::{Incoming, Mailbox};
pub use node::Node;
pub use peers::peer::Peer;
pub use supervision::Supervision;
pub use system::SystemEvent;
pub use transfers::payload::Payload;
