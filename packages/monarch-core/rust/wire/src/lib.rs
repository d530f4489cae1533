//! Data types that are sent between processes: ids, frames, control messages, exit reasons, casts.
//!
//! No code here does I/O. Decoding never panics. The memory that it allocates is bounded by a multiple of the input's length, whatever
//! counts the input contains.

pub mod cast;
pub mod control;
pub mod cursor;
pub mod exit;
pub mod frame;
pub mod frame_fragment;
pub mod greeting;
pub mod group;
pub mod ids;
pub mod join_tree;
pub mod part;
pub mod part_fragment;
pub mod routed;
pub mod runs;
pub mod trace;
pub mod values;

pub use cast::Cast;
pub use control::Control;
pub use exit::ExitReason;
pub use frame::{Frame, Message, Reply, Status};
pub use group::{GroupId, GroupSlice, Span};
pub use ids::{BlockId, CallId, MailboxId, ProcUid};
pub use part::{Bytes, Part};
pub use routed::{Route, Routed};
pub use runs::Runs;
pub use trace::Trace;
pub use values::Values;

/// The version of the protocol. It is raised on every incompatible change, so that incompatible builds refuse each other.
pub const VERSION: u32 = 7;
