//! Large parts of messages and answers.
//!
//! | file | noun |
//! |---|---|
//! | `payload` | the parts of one outgoing message: in the frame, or in a block of the arena |
//! | `rank_payloads` | the parts of a message that has other values for each receiver |
//! | `assembly` | the frames of a sender on another host that wait for their large parts |
//! | `offers` | rendezvous transfers: the receiver pulls large parts from the sender |
//!
//! A large part is copied once into the arena of its sender. On one host the frame names its block; to another host it goes out of band
//! beside the frame, or the receiver pulls it. These types need links and the arena, and know no other component.

pub mod assembly;
pub mod offers;
pub mod payload;
pub mod rank_payloads;

/// The largest message to another host, which leaves room for the head of its frame.
pub const MAX_REMOTE_MESSAGE: u64 = (4 << 30) - (16 << 20);
