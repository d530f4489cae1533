//! Who may open a stream, and who may not. One program, so that it is linked once.

mod cost;
#[path = "../ends/mod.rs"]
mod ends;
mod refusals;
#[path = "../rogue/mod.rs"]
mod rogue;
mod secret;
mod site;
