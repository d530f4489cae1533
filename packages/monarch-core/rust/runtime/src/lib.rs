//! The runtime of a process of a job, without Python: calls, agents, hosts, failures.
//!
//! | file or folder | noun |
//! |---|---|
//! | `node` | this process: its peers, its mailboxes, its pending calls |
//! | `agent` | the host agent: starts, links, watches and ends procs |
//! | `gateway` | this process as a member of jobs that span hosts |
//! | `cast` | casts over hosts: order, trees, answers, and notices of ended processes |
//! | `supervision` | ownership, and the receivers of failures: decisions only |
//! | `membership` | the hosts of a job: joins and failure detection; decisions only |
//! | `clock` | time, real or simulated |
//! | `sync` | locks, replaceable for exploring interleavings |

pub mod agent;
pub mod cast;
pub mod clock;
pub mod gateway;
pub mod membership;
pub mod node;
pub mod supervision;
mod sync;

pub use agent::Agent;
pub use gateway::Gateway;
pub use node::Node;
pub use node::mailbox::{Incoming, Mailbox};
pub use node::payload::Payload;
pub use node::peer::Peer;
pub use node::pending_call::{Mode, Outcome, PendingCall};
pub use node::system::SystemEvent;
pub use supervision::Supervision;
