//! The membership of hosts in a job, as one process of the job sees it: decisions only, without input, output, locks, threads and a clock.
//!
//! The caller, the gateway, passes each event with its time, and carries out the actions that are returned. So each decision can be tested
//! with simulated time and with random sequences of events. Nothing here uses the gateway or the node.
//!
//! | file | noun |
//! |---|---|
//! | `detector` | the failure detector: suspected hosts and lost hosts, from the times of heartbeats |
//! | `join` | the join tree of many workers |

pub mod detector;
pub mod join;

pub use detector::Detector;
pub use join::{Join, JoinEffect};
