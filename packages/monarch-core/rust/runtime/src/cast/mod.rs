//! Casts over hosts: decisions only, no input, no output, no clock.
//!
//! | file | noun |
//! |---|---|
//! | `order` | the sequence of frames from one process to one host |
//! | `lanes` | frames that wait for large attachments, by mailbox |
//! | `fan_out` | the division of a span of hosts |
//! | `source` | the process that casts |
//! | `call` | the answers of a cast at its caller |
//! | `relay` | the part of a host in the trees of all sources |
//! | `group` | the members of a group at a relay |
//! | `record` | one cast at one host |
//! | `repair` | a relay after the end of other hosts |
//! | `notice` | notices of ended processes along a tree |
//! | `join` | the join of many workers by a tree |

pub mod call;
pub mod fan_out;
mod group;
pub mod join;
pub mod lanes;
pub mod notice;
pub mod order;
pub mod record;
pub mod relay;
mod repair;
pub mod source;

pub use call::CastCall;
pub use join::{Join, JoinEffect};
pub use lanes::Lanes;
pub use notice::{NoticeEffect, Notices};
pub use order::{InOrder, OutOrder};
pub use relay::{Delivery, Effect, Relay, Target};
pub use source::Source;
