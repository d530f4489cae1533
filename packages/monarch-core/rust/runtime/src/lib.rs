//! What a process of the job does besides running user code. No Python here.
//!
//! | file or folder | noun |
//! |---|---|
//! | `node` | this process: its peers, mailboxes and calls in flight |
//! | `agent` | the host agent: starts, links, watches and ends procs |
//! | `gateway` | this process as a member of jobs that span hosts |
//! | `cast` | casts over hosts: order, trees, answers, and what is told along trees |
//! | `supervision` | who owns what, and who is told of failures: decisions only |
//! | `detector` | which hosts are lost: decisions only |
//! | `clock` | time, real or simulated |
//! | `sync` | locks that the tests of interleavings replace |

pub mod agent;
pub mod cast;
pub mod clock;
pub mod detector;
pub mod gateway;
pub mod node;
pub mod supervision;
mod sync;

pub use agent::Agent;
pub use gateway::Gateway;
pub use node::Node;
pub use node::cell::{Cell, Mode, Outcome};
pub use node::mailbox::{Incoming, Mailbox};
pub use node::payload::Payload;
pub use node::peer::Peer;
pub use node::system::SystemEvent;
pub use supervision::Supervision;
