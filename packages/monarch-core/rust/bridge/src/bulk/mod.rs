//! `monarch._core._native.bulk`: what a package that moves large memory is made of.
//!
//! | file | noun |
//! |---|---|
//! | `memory` | memory of this process: lent by an object, or of an arena |
//! | `registry` | all of it, for this process |
//! | `handle` | a buffer of any process |
//! | `fabric` | streams to processes of other hosts |
//! | `exchange` | large parts of messages between hosts |
//! | `plan` | operations that are submitted together |
//! | `ending` | what becomes of an outcome: a cell, an exception, a message |

mod ending;
mod exchange;
mod fabric;
mod handle;
mod memory;
mod plan;
mod registry;

pub use ending::{BulkFailed, Message};
pub use exchange::Exchanging;
pub use handle::Handle;
pub use memory::{BufferMemory, SharedMemory};
pub use plan::Plan;
pub use registry::Bulk;
