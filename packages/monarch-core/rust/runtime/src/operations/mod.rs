//! The operations that threads of a program call: sends, waits, receives, and the exit. The bridge converts their arguments and results.
//!
//! | file | noun |
//! |---|---|
//! | `interpreter` | what operations need from the interpreter |
//! | `wait` | waits, in which the interpreter runs other threads and signal handlers |
//! | `signals` | signals that arrive during a wait |
//! | `exit` | threads and the exit code at the end of the process |
//! | `shield` | the protection of a thread from `pthread_exit` |
//! | `sender` | the actor whose code a thread runs |
//! | `send` | one message, and the wait for credit |
//! | `targets` | the actors that a call addresses |
//! | `outgoing` | the checks of a message before it is sent |
//! | `port` | the sends and receives of ports |
//! | `proc_requests` | requests to agents about procs |
//! | `housekeeping` | the events of the housekeeping thread |
//! | `drain` | the waits before the end of a process |
//! | `loop_sleep` | the sleep of an event loop |
//! | `agent_query` | the inspection of a job from outside |
//!
//! An operation runs on a thread that holds the lock of the interpreter. It calls the interpreter through `Interpreter` only, and never
//! while it holds a lock of this crate. No other component uses operations.

pub mod agent_query;
pub mod drain;
pub mod exit;
pub mod housekeeping;
pub mod interpreter;
pub mod loop_sleep;
pub mod outgoing;
pub mod port;
pub mod proc_requests;
pub mod send;
pub mod sender;
mod shield;
pub mod signals;
pub mod targets;
pub mod wait;

pub use interpreter::Interpreter;
