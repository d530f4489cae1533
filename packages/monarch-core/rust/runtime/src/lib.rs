//! What a process of the job does besides running user code. No Python here.
//!
//! | file | noun |
//! |---|---|
//! | `node` | this process: its peers, mailboxes and calls in flight |
//! | `peer` | another process, and what may be sent to it |
//! | `credit` | how far a sender may run ahead of a mailbox |
//! | `mailbox` | what an actor or port has not handled yet |
//! | `cell` | what a call is waiting for |
//! | `payload` | the parts of one outgoing message |
//! | `system` | events for the process's own housekeeping thread |
//! | `agent` | the host agent: starts, links, watches and ends procs |
//! | `guest` | a process of the same user that another agent started |
//! | `zygote` | the interpreter that procs are forked from |
//! | `simulated` | procs that are nodes of this process, for tests |
//! | `output` | lines that procs print |
//! | `clock` | time, real or simulated |

pub mod agent;
pub mod cell;
pub mod clock;
pub mod credit;
pub mod guest;
pub mod mailbox;
pub mod node;
pub mod output;
pub mod payload;
pub mod peer;
pub mod simulated;
mod sync;
pub mod system;
pub mod zygote;

pub use agent::Agent;
pub use cell::{Cell, Mode, Outcome};
pub use mailbox::{Incoming, Mailbox};
pub use node::Node;
pub use payload::Payload;
pub use peer::Peer;
pub use system::SystemEvent;
