//! One-sided copies between the memories of processes. No Python here.
//!
//! The owner of memory registers a range of it and distributes the id, which is random: a process that has the id may read, or also write.
//! A thread of the owner answers requests with an id, whatever Python does there. After that the owner takes no part in copies on its host.
//! Each side sees a table of epochs, which shows the end of a registration, and a page of hazards, which names the memory that the other
//! side uses.
//!
//! | file | noun |
//! |---|---|
//! | `sys` | the system calls behind safe functions |
//! | `failure` | the reason for which an operation failed, as data |
//! | `frames` | requests and answers on a control connection |
//! | `shared` | words of memory that two processes see: epochs and hazards |
//! | `registry` | the owner's registrations, by id |
//! | `exports` | memory that devices can reach |
//! | `arena` | memory that other processes can map |
//! | `server` | the owner's thread |
//! | `deadline_lock` | a lock with a deadline |
//! | `connection` | the connection to one owner of this host |
//! | `buffer` | memory of any owner, by its id |
//! | `grid` | runs of bytes at equal distances |
//! | `spans` | sections of grids, and how far a copy has come |
//! | `copy` | the loops that move bytes |
//! | `staging` | copies by way of a ring, where the kernel refuses direct ones |
//! | `transfer` | operations, from submission to outcome |
//! | `pool` | the threads that copy |
//! | `answers` | the owner's answers to requests |
//! | `remote` | memory of processes of other hosts |
//! | `bulk` | registry, server and transfers of one process |

mod answers;
pub mod arena;
pub mod buffer;
pub mod bulk;
pub mod connection;
pub mod copy;
mod deadline_lock;
pub mod exports;
pub mod failure;
pub mod frames;
pub mod grid;
pub mod pool;
pub mod registry;
pub mod remote;
mod server;
pub mod shared;
pub mod spans;
mod staging;
pub mod sys;
pub mod transfer;

pub use buffer::Buffer;
pub use bulk::Bulk;
pub use failure::{Failure, Kind, Path};
pub use frames::Id;
pub use grid::Grid;
pub use registry::Range;
pub use transfer::{Job, Op, Operation};
