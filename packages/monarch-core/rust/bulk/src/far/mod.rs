//! Memory of processes of other hosts: streams from process to process, which their agents have opened.
//!
//! A stream has one side that asks and one that answers, each on a thread of its own that does nothing else meanwhile: bytes go from
//! memory to memory with nothing in between but the encryption, and no event loop, agent or interpreter is asked. Requests are answered
//! in order, so several can be under way.
//!
//! | file | noun |
//! |---|---|
//! | `line` | bytes over one stream, encrypted or not |
//! | `traffic` | how far one end of a stream is; the streams that are served |
//! | `inquiry` | whether a stream on which nothing moves is dead |
//! | `fabric` | where streams come from, and who has ended |
//! | `owner` | the asking side: one owner, and the streams to it |
//! | `answering` | the owner's side of the streams |
//! | `loan` | what a message says of a part that is fetched |
//! | `fetching` | such parts, on their way here |

pub mod answering;
pub mod fabric;
pub mod fetching;
pub mod inquiry;
pub mod line;
pub mod loan;
pub mod owner;
pub mod traffic;

pub use answering::Answering;
pub use fabric::{Fabric, NoStream, Opened};
pub use fetching::Fetching;
pub use line::{Broken, Line, Wait};
pub use loan::Loan;
pub use owner::{Far, Piece};
