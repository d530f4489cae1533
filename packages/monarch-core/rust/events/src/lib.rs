//! Events of a process in a ring of shared memory.
//!
//! | file | noun |
//! |---|---|
//! | `table` | the types of events, with fields and units; from it come the functions that emit them |
//! | `layout` | what lies where in the memory of a ring |
//! | `memory` | the mapping of a ring |
//! | `ring` | the writing end |
//! | `text` | names, kept once and for all, and texts, overwritten like events |
//! | `trace` | the trace that the events of this thread belong to |
//! | `reader` | the reading end, in any process that has the descriptor |
//! | `batch` | events that were drained, and their texts |
//! | `columns` | the events of one type of a batch, column by column |
//! | `introductions` | what is recorded again when recording begins |
//! | `recorder` | the ring of this process: on, off, and inert in a forked child |
//!
//! A writer reserves a slot with one addition, marks it as being written, stores the record and publishes it: no lock, no system call, no
//! allocation. Readers see by the slot's sequence number whether a record is whole, unfinished or overwritten. docs/events.md has the rest.

mod batch;
mod columns;
mod introductions;
mod layout;
mod memory;
mod reader;
mod recorder;
mod ring;
mod table;
mod text;
mod trace;

pub use batch::{Batch, LOST, Texts};
pub use columns::{Column, Columns};
pub use introductions::{actor_begins, actor_is_gone, introduce, mesh_begins, mesh_is_gone, proc_begins};
pub use layout::{DEFAULT_CAPACITY, capacity};
pub use reader::{Reader, Record, Value};
pub use recorder::{change, is_on, now, now_if_on, start, stop};
pub use ring::Ring;
pub use table::*;
pub use trace::{in_trace, set_trace, trace};
