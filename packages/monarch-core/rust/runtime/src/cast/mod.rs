//! Casts to processes of many hosts. The state machines here have no input, no output and no clock; `node` and `gateway` act on their
//! effects.
//!
//! | file | noun |
//! |---|---|
//! | `order` | the sequence of frames from one process to one host |
//! | `mailbox_order` | frames that wait for large parts, one queue for each source and mailbox |
//! | `fan_out` | the division of a span of hosts among the children of a node of the tree |
//! | `source` | the process that casts |
//! | `call` | the answers of a cast at its caller |
//! | `relay` | the role of one host in the trees of all sources |
//! | `group` | the members of a group at a relay |
//! | `record` | the state of one cast at one host |
//! | `repair` | the replacement of lost hosts in the trees |
//! | `notice` | notices of ended processes along a tree |

pub mod call;
pub mod fan_out;
mod group;
pub mod mailbox_order;
pub mod notice;
pub mod order;
pub mod record;
pub mod relay;
mod repair;
pub mod source;

pub use call::CastCall;
pub use mailbox_order::MailboxOrder;
pub use notice::{NoticeEffect, Notices};
pub use order::{InOrder, OutOrder};
pub use relay::{Delivery, Effect, Relay, Target};
pub use source::Source;
