//! Pure data that travels between processes: ids, frames, control messages, exit reasons.
//!
//! Nothing here does I/O. Decoding never panics, and what it allocates is bounded by a multiple of the input's length,
//! whatever counts the input claims.

pub mod control;
pub mod cursor;
pub mod exit;
pub mod frame;
pub mod greeting;
pub mod ids;
pub mod part;
pub mod routed;

pub use control::Control;
pub use exit::ExitReason;
pub use frame::{Frame, Message, Reply, Status};
pub use ids::{BlockId, MailboxId, ProcUid, SlotId};
pub use part::Part;
pub use routed::{Route, Routed};

/// Raised when two builds must not talk; bumped on every incompatible change.
pub const VERSION: u32 = 1;
