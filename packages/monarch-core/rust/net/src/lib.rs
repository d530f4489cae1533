//! Links between processes, authenticated streams between hosts, the poller that reads them, and the arena for large parts.
//!
//! | file | noun |
//! |---|---|
//! | `sys` | the system calls, made safe |
//! | `waiter` | a thread that waits for something to arrive |
//! | `poller` | who reads the sockets: leader and follower |
//! | `timers` | what is due later |
//! | `delay` | how long frames are held, for tests |
//! | `timeline` | simulated time of threads that really run |
//! | `lock` | locks that survive a panic |
//! | `link` | a framed, ordered connection to one process |
//! | `stream` | a byte stream to another process, plain or encrypted |
//! | `tls` | the encryption of a stream |
//! | `trust` | who may open a stream: secrets, certificates, the exchange that proves them |
//! | `arena` | the sender's shared memory for large parts |
//! | `segment` | the receiver's view of a sender's arena |

pub mod arena;
pub mod delay;
pub mod link;
pub mod lock;
pub mod poller;
pub mod segment;
pub mod stream;
pub mod sys;
pub mod timeline;
pub mod timers;
pub mod tls;
pub mod trust;
pub mod waiter;

pub use arena::{Arena, Block};
pub use link::{Link, LinkDown, LinkHandler};
pub use poller::{Poller, Source, WaitEnd};
pub use segment::{Mapping, RecvPart};
pub use stream::Stream;
pub use timeline::Timeline;
pub use waiter::Waiter;
