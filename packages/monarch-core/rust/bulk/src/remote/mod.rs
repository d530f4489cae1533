//! Memory of processes of other hosts, over connections from process to process that their agents have opened.
//!
//! A connection has a requesting and an answering side. Each side has a thread of its own that does nothing else meanwhile: bytes go from
//! memory to memory with nothing in between but the encryption, and no event loop, agent or interpreter takes part. Requests are answered
//! in order, so several can be pending.
//!
//! | file | noun |
//! |---|---|
//! | `connection` | bytes over one connection, encrypted or not |
//! | `traffic` | the progress of one end of a connection; the connections that are served |
//! | `probe` | the check whether a connection without traffic is dead |
//! | `fabric` | the source of connections, and of reports of ended processes |
//! | `owner` | the requesting side: one owner, and the connections to it |
//! | `serving` | the owner's side of the connections |
//! | `offer` | the record in a message by which its receiver pulls a part |
//! | `pulls` | pulls of such parts |

pub mod connection;
pub mod fabric;
pub mod offer;
pub mod owner;
pub mod probe;
pub mod pulls;
pub mod serving;
pub mod traffic;

pub use connection::{Broken, RemoteConnection, Wait};
pub use fabric::{Fabric, NoStream, Opened};
pub use offer::Offer;
pub use owner::{Piece, RemoteOwner};
pub use pulls::Pulls;
pub use serving::RemoteServer;
