//! What a process of the job does besides running user code. No Python here.
//!
//! | file | noun |
//! |---|---|
//! | `node` | this process: its peers, mailboxes and calls in flight |
//! | `incomplete` | messages and answers whose large parts have not come with them |
//! | `ended_peers` | what becomes of calls when others are gone |
//! | `peer` | another process, and what may be sent to it |
//! | `credit` | how far a sender may run ahead of a mailbox |
//! | `mailbox` | what an actor or port has not handled yet |
//! | `caster` | the casts of this process |
//! | `cast` | casts over hosts: order, trees, answers, and what is told along trees |
//! | `cell` | what a call is waiting for |
//! | `payload` | the parts of one outgoing message |
//! | `system` | events for the process's own housekeeping thread |
//! | `assembly` | frames of a process of another host, and the large parts that they name |
//! | `lending` | large parts that their receiver fetches, on another host |
//! | `agent` | the host agent: starts, links, watches and ends procs |
//! | `cgroup` | which procs the kernel killed because memory had run out |
//! | `graves` | actors that are gone |
//! | `guest` | a process of the same user that another agent started |
//! | `tenant` | procs of jobs of other hosts' clients |
//! | `gateway` | this process as a member of jobs that span hosts |
//! | `routes` | which host a process is on |
//! | `cleanup` | procs that die while an actor there runs its `__cleanup__` |
//! | `zygote` | the interpreter that procs are forked from |
//! | `supervision` | who owns what, and who is told of failures: decisions only |
//! | `simulated` | procs that are nodes of this process, for tests |
//! | `outgoing` | messages and answers on their way out |
//! | `output` | lines that procs print |
//! | `viewer` | lines that are shown at the client too |
//! | `console` | where an agent puts what its procs print |
//! | `aggregation` | lines that are alike, counted |
//! | `capture` | files with what procs print |
//! | `inspection` | what a process tells about itself |
//! | `census` | what an agent tells about its procs |
//! | `pulse` | is Python running in a proc? |
//! | `recordings` | the rings of the processes of a host, which outlive them |
//! | `watch` | the agent looks after its procs |
//! | `bulk_pipes` | such streams where none can be opened, by messages |
//! | `bulk_streams` | streams between processes of different hosts, handed to them by their agents |
//! | `detector` | which hosts are lost: decisions only |
//! | `clock` | time, real or simulated |

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
