//! One-sided copies between the memories of processes. No Python here.
//!
//! The owner of memory registers a range of it and gives away the id, which is random: who has it may read, or write. A thread of the
//! owner answers those who come with an id, whatever its Python does. From then on the owner takes no part: each side sees a table of
//! epochs, in which a registration ends, and a page of hazards, in which the other says what it is using.
//!
//! | file | noun |
//! |---|---|
//! | `sys` | the system calls, made safe |
//! | `failure` | why an operation failed, as data |
//! | `frames` | what is said on a control connection |
//! | `shared` | words of memory that two processes see: epochs and hazards |
//! | `registry` | the owner's side: which ids stand for which memory |
//! | `exports` | memory that devices know |
//! | `arena` | memory that can be mapped by others |
//! | `server` | the owner's thread |
//! | `gate` | one at a time, but not longer than one's own time |
//! | `connection` | the other side: one owner, as seen from here |
//! | `remote` | memory of any owner, by its id |
//! | `copy` | the loops that move bytes |
//! | `staging` | copies by way of a ring, where the kernel refuses direct ones |
//! | `transfer` | operations, and their life from submit to the end |
//! | `pool` | the threads that copy |
//! | `answers` | what the owner says of its memory |
//! | `far` | memory of processes of other hosts |
//! | `bulk` | all of it, for one process |

mod answers;
pub mod arena;
pub mod bulk;
pub mod connection;
pub mod copy;
pub mod exports;
pub mod failure;
pub mod far;
pub mod frames;
mod gate;
pub mod pool;
pub mod registry;
pub mod remote;
mod server;
pub mod shared;
mod staging;
pub mod sys;
pub mod transfer;

pub use bulk::Bulk;
pub use failure::{Failure, Kind, Path};
pub use registry::{Id, Range};
pub use remote::Remote;
pub use transfer::{Job, Op, Operation};
