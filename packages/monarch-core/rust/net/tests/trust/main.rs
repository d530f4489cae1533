//! The connections that are accepted, and those that are refused. All files form one program, which is linked once.

mod cost;
#[path = "../ends/mod.rs"]
mod ends;
mod refusals;
#[path = "../rogue/mod.rs"]
mod rogue;
mod secret;
mod site;
