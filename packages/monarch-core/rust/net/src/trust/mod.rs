//! Who may open a stream between hosts, and how both ends prove it.
//!
//! A client that dials a worker for the first time *joins*: over TLS whose certificate says nothing, both prove that they know
//! the job secret, bound to this very session. The worker then makes a key, and the client's authority, which lives in its
//! memory only, certifies it for this job and host. Every other stream of the job is a *channel*: TLS with certificates of
//! that authority on both ends. With a site's own certificates, over unix sockets and with `insecure` the same steps are taken
//! without that exchange, so that callers need not tell them apart.
//!
//! | file | noun |
//! |---|---|
//! | `policy` | what an operator or a user gave as proof of who may come in |
//! | `secret` | the job secret |
//! | `site` | certificates of the site |
//! | `authority` | a job's authority |
//! | `identity` | a key with its certificate, and the names in certificates |
//! | `verifier` | how certificates are checked, and what is said of those that fail |
//! | `provider` | algorithms and TLS settings |
//! | `dialler` | what a dialling process holds |
//! | `host` | what a listening process holds |
//! | `proof` | that somebody knows the secret, good for one TLS session |
//! | `preface` | versions, compared before anything else is said |
//! | `exchange` | small bounded frames over a stream that is not open yet |
//! | `opening` | a connection until it is open |
//! | `dialling`, `accepting` | its steps at either end |
//! | `refused` | why it was not opened |

mod accepting;
mod authority;
mod dialler;
mod dialling;
mod exchange;
mod host;
mod identity;
mod opening;
mod policy;
mod preface;
mod proof;
mod provider;
mod refused;
mod secret;
mod site;
mod verifier;

pub use authority::{Authority, Lifetime};
pub use dialler::{DialTrust, Target};
pub use exchange::MAX_HELLO;
pub use host::HostTrust;
pub use identity::{Identity, Who};
pub use opening::{Opened, Opening, Progress, handshakes};
pub use policy::{JobId, Kind, Policy};
pub use preface::{Release, set_python};
pub use refused::Refused;
pub use secret::Secret;
pub use site::SitePki;
