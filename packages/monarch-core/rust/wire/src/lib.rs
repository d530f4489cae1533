//! Pure data that travels between processes: ids, frames, control messages, exit reasons, casts.
//!
//! Nothing here does I/O. Decoding never panics, and what it allocates is bounded by a multiple of the input's length,
//! whatever counts the input claims.

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
pub mod notice;
pub mod part;
pub mod part_fragment;
pub mod routed;
pub mod runs;
pub mod trace;

pub use cast::Cast;
pub use control::Control;
pub use exit::ExitReason;
pub use frame::{Frame, Message, Reply, Status};
pub use group::{GroupId, GroupSlice, Span};
pub use ids::{BlockId, MailboxId, ProcUid, SlotId};
pub use part::{Bytes, Part};
pub use routed::{Route, Routed};
pub use runs::Runs;
pub use trace::Trace;

/// Raised when two builds must not talk; bumped on every incompatible change.
pub const VERSION: u32 = 3;
