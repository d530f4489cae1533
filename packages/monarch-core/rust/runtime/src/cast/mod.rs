//! Casts over hosts: decisions only, no input, no output, no clock.
//!
//! | file | noun |
//! |---|---|
//! | `order` | one sequence of frames from a process to a host |
//! | `lanes` | what waits for large attachments, per mailbox |
//! | `fan_out` | how a span of hosts is divided |
//! | `source` | the process that casts |
//! | `call` | what the caller knows of the answers |
//! | `relay` | a host's part in the trees of all sources |
//! | `group` | what a relay knows of a group |
//! | `record` | one cast at one host |
//! | `repair` | what a relay does when others are gone |
//! | `notice` | who has ended, told along a tree |
//! | `join` | how workers join in a tree |

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
