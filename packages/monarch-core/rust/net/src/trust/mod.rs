//! Authentication of the two ends of a connection between hosts.
//!
//! The first connection of a client to a worker is a *join*. Its TLS certificate proves nothing; both sides prove that they know the job
//! secret, bound to this TLS session. The worker then makes a key, and the client's authority, which exists only in the client's memory,
//! certifies it for this job and host. Every other connection of the job is a *channel*: TLS with certificates of that authority on both
//! ends. With a site's own certificates, over unix sockets and with `insecure` the same steps happen without the proofs, so callers treat
//! all policies alike.
//!
//! | file | noun |
//! |---|---|
//! | `policy` | the credentials that an operator or a user gave |
//! | `secret` | the job secret |
//! | `site` | certificates of the site |
//! | `authority` | a job's authority |
//! | `identity` | a key with its certificate, and the names in certificates |
//! | `verifier` | the check of certificates, and the reasons for which one fails |
//! | `provider` | algorithms and TLS settings |
//! | `dialler` | the credentials of a dialling process |
//! | `host` | the credentials of a listening process |
//! | `proof` | the proof of knowing the secret, good for one TLS session |
//! | `preface` | versions, compared before any other message |
//! | `exchange` | small bounded frames over a connection that is not authenticated yet |
//! | `auth_handshake` | a connection until its handshake is complete |
//! | `dialling`, `accepting` | the steps of the handshake at either end |
//! | `refused` | the reason for which a connection was refused |

mod accepting;
mod auth_handshake;
mod authority;
mod dialler;
mod dialling;
mod exchange;
mod host;
mod identity;
mod policy;
mod preface;
mod proof;
mod provider;
mod refused;
mod secret;
mod site;
mod verifier;

pub use auth_handshake::{AuthHandshake, Opened, Progress, handshakes};
pub use authority::{Authority, Lifetime};
pub use dialler::{DialTrust, Target};
pub use exchange::MAX_HELLO;
pub use host::HostTrust;
pub use identity::{Identity, Subject};
pub use policy::{JobId, Kind, Policy};
pub use preface::{Release, set_python};
pub use refused::Refused;
pub use secret::Secret;
pub use site::SitePki;
