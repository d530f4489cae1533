//! Links between processes, authenticated streams between hosts, the poller that reads them, and the arena for large parts.
//!
//! | file | noun |
//! |---|---|
//! | `sys` | the system calls, made safe |
//! | `waiter` | a thread that waits for something to arrive |
//! | `poller` | who reads the sockets: leader and follower |
//! | `allowance` | the processor time of peers that have not proved who they are |
//! | `timers` | what is due later |
//! | `delay` | how long frames are held, for tests |
//! | `timeline` | simulated time of threads that really run |
//! | `lock` | locks that survive a panic |
//! | `lent` | blocks that the peer of a link holds, and segments that it knows |
//! | `link` | a framed, ordered connection to one process |
//! | `carrier` | how frames get to processes without a socket of their own |
//! | `stream` | a byte stream to another process, plain or encrypted |
//! | `socket` | a socket that remembers how it failed |
//! | `tls` | the encryption of a stream |
//! | `address` | where an agent listens, and how it is reached |
//! | `control_socket` | a unix socket that only processes of this user can reach |
//! | `connect` | a connection to the first place that takes it |
//! | `dial` | a stream to another host, from the first packet until both sides know each other |
//! | `splice` | two streams whose bytes are passed on: a tunnel, in the middle |
//! | `listener` | where streams come in |
//! | `trust` | who may open a stream: secrets, certificates, the exchange that proves them |
//! | `channel` | frames that survive the end of their stream: numbers, acknowledgements, replay |
//! | `lanes` | large parts that wait for their turn, and what must not overtake them |
//! | `records` | TLS records by themselves, for a process that gets a stream which another one has opened |
//! | `traffic` | what the kernel counts of a connection |
//! | `trunk` | what two agents have between them |
//! | `still` | a connection that a test has cut |
//! | `heart` | the heartbeat stream of a trunk |
//! | `chunk` | what a link has still to write |
//! | `readdressed` | frames that were made for a socket, and go to another host |
//! | `fork` | a child of a process that uses the runtime, which is inert |
//! | `arena` | the sender's shared memory for large parts |
//! | `segment` | the receiver's view of a sender's arena |

pub mod address;
mod allowance;
pub mod arena;
pub mod carrier;
pub mod channel;
mod chunk;
pub mod connect;
pub mod control_socket;
pub mod delay;
pub mod dial;
pub mod fork;
pub mod heart;
pub mod lanes;
mod lent;
pub mod link;
pub mod listener;
pub mod lock;
pub mod poller;
mod readdressed;
pub mod records;
pub mod segment;
mod socket;
pub mod splice;
mod still;
pub mod stream;
pub mod sys;
pub mod timeline;
pub mod timers;
pub mod tls;
pub mod traffic;
pub mod trunk;
pub mod trust;
pub mod waiter;

pub use arena::{Arena, Block};
pub use carrier::{Carrier, LinkDown};
pub use link::{Link, LinkHandler};
pub use poller::{Poller, Source, WaitEnd};
pub use segment::{Mapping, RecvPart};
pub use stream::Stream;
pub use timeline::Timeline;
pub use waiter::Waiter;
