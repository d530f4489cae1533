//! Events of a process in a ring of shared memory.
//!
//! | file | noun |
//! |---|---|
//! | `table` | the types of events, with fields and units; from it come the functions that emit them |
//! | `layout` | the layout of the memory of a ring |
//! | `memory` | the mapping of a ring |
//! | `ring` | the writing end |
//! | `text` | names, which are kept for ever, and texts, which are overwritten like events |
//! | `trace` | the current trace of a thread |
//! | `reader` | the reading end, in any process that has the descriptor |
//! | `batch` | events that were read, and their texts |
//! | `columns` | the events of one type of a batch, column by column |
//! | `facts` | facts that are recorded again when recording begins |
//! | `recorder` | the ring of this process: on, off, and inert in a forked child |
//!
//! A writer reserves a slot by one addition, marks it as being written, stores the record and publishes it: no lock, no system call, no
//! allocation. The slot's sequence number shows readers whether a record is whole, unfinished or overwritten. See docs/event-ring.md.

mod batch;
mod columns;
mod facts;
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
pub use facts::{actor_begins, actor_has_ended, mesh_begins, mesh_has_ended, proc_begins, record_facts};
pub use layout::{DEFAULT_CAPACITY, capacity};
pub use reader::{Reader, Record, Value};
pub use recorder::{change, is_on, now, now_if_on, start, stop};
pub use ring::Ring;
pub use table::*;
pub use trace::{in_trace, set_trace, trace};
