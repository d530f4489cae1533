//! Casts to processes of many hosts. The state machines here have no input, no output and no clock; `node` and `gateway` act on their
//! effects.
//!
//! | file | noun |
//! |---|---|
//! | `order` | the sequence of frames from one process to one host |
//! | `call_id` | the call ids of answers to casts |
//! | `fan_out` | the division of a span of hosts among the children of a node of the tree |
//! | `source` | the process that casts |
//! | `relay` | the role of one host in the trees of all sources |
//! | `group` | the members of a group at a relay |
//! | `record` | the state of one cast at one host |
//! | `repair` | the replacement of lost hosts in the trees |

mod call_id;
pub mod fan_out;
mod group;
pub mod order;
pub mod record;
pub mod relay;
mod repair;
pub mod source;

pub(crate) use call_id::decode_cast_call_id;
pub use call_id::{CAST_ANSWER, cast_call_id};
pub use order::{InOrder, OutOrder};
pub use relay::{Delivery, Effect, Relay, Target};
pub use source::Source;
