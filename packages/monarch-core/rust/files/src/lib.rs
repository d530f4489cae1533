//! Directories and files of this machine, for the comparison of a tree with an earlier state of it. No Python here.
//!
//! | file | noun |
//! |---|---|
//! | `listing` | the entries of a directory with their attributes, as bytes that are equal if nothing has changed |
//! | `digest` | the digests of a file's contents, piece by piece |
//! | `worker_pool` | threads that share a list of such tasks |

pub mod digest;
pub mod listing;
pub mod worker_pool;

pub use digest::{FileDigest, digest_files};
pub use listing::list_directories;
