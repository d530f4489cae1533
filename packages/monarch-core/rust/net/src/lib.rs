//! Links between processes, authenticated streams between hosts, the poller that reads them, and the arena for large parts.
//!
//! | file | noun |
//! |---|---|
//! | `sys` | the system calls behind safe functions |
//! | `waiter` | a thread that waits for an event |
//! | `poller` | the epoll loop over all sockets: leader and followers |
//! | `allowance` | the limit on the processor time of unauthenticated peers |
//! | `thread_limit` | the limit of threads, in the errors of those that do not start |
//! | `timers` | tasks that are due later |
//! | `delay` | how long frames are held, for tests |
//! | `timeline` | simulated time of real threads |
//! | `lock` | locks that stay usable after a panic |
//! | `shared_blocks` | blocks that the peer of a link holds, and segments that it knows |
//! | `link` | a framed, ordered connection to one process |
//! | `forwarder` | transport of frames to processes without a socket of their own |
//! | `stream` | a byte stream to another process, plain or encrypted |
//! | `socket` | a socket that keeps its first error |
//! | `tls` | the encryption of a stream |
//! | `address` | the address of an agent |
//! | `control_socket` | a unix socket that only processes of this user can reach |
//! | `connect` | a connection to the first address that accepts it |
//! | `dial` | a connection to another host, from the first packet until both sides are authenticated |
//! | `splice` | two connections whose bytes are forwarded: a tunnel, in the middle |
//! | `listener` | incoming connections |
//! | `trust` | authentication: secrets, certificates, the handshake that proves them |
//! | `channel` | frames that survive the end of their connection: numbers, acknowledgements, replay |
//! | `send_queues` | send queues of large parts, and frames that must not overtake them |
//! | `records` | TLS records without a stream, for a process that gets a connection from its agent |
//! | `traffic` | the kernel's counters of a connection |
//! | `session` | a session between two agents |
//! | `pause` | a connection that a test has paused |
//! | `heartbeat_stream` | the heartbeat stream of a session |
//! | `chunk` | bytes that a link has yet to write |
//! | `rerouted` | frames that were encoded for a socket and go to another host instead |
//! | `forked_child` | the forked child of a process that uses the runtime: it is inert |
//! | `arena` | the sender's shared memory for large parts |
//! | `segment` | the receiver's view of a sender's arena |

pub mod address;
mod allowance;
pub mod arena;
pub mod channel;
mod chunk;
pub mod connect;
pub mod control_socket;
pub mod delay;
pub mod dial;
pub mod forked_child;
pub mod forwarder;
pub mod heartbeat_stream;
pub mod link;
pub mod listener;
pub mod lock;
mod pause;
pub mod poller;
pub mod records;
mod rerouted;
pub mod segment;
pub mod send_queues;
pub mod session;
mod shared_blocks;
mod socket;
pub mod splice;
pub mod stream;
pub mod sys;
pub mod thread_limit;
pub mod timeline;
pub mod timers;
pub mod tls;
pub mod traffic;
pub mod trust;
pub mod waiter;

pub use arena::{Arena, Block};
pub use forwarder::{Forwarder, LinkDown};
pub use link::{Link, LinkHandler};
pub use poller::{Poller, Source, WaitEnd};
pub use segment::{Mapping, RecvPart};
pub use stream::Stream;
pub use timeline::Timeline;
pub use waiter::Waiter;
