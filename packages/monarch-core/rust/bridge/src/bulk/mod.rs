//! `monarch._core._native.bulk`: memory, buffers and operations, for wheels that transfer large memory.
//!
//! | file | noun |
//! |---|---|
//! | `memory` | memory of this process: that of a Python object, or of an arena |
//! | `registry` | the registrations and transfers of this process |
//! | `handle` | a buffer of any process |
//! | `fabric` | the opening of bulk streams to processes of other hosts |
//! | `exchange` | large parts of messages between hosts |
//! | `plan` | operations that are submitted together |
//! | `ending` | the outcome of an operation as a pending call, an exception, or a message |

mod ending;
pub mod exchange;
mod fabric;
mod handle;
mod memory;
mod plan;
mod registry;

pub use ending::{BulkFailed, Message};
pub use handle::Handle;
pub use memory::{BufferMemory, SharedMemory};
pub use plan::Plan;
pub use registry::Bulk;
