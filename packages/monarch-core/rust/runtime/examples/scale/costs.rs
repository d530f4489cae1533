//! The costs of links and processors, as parameters of the simulation.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// All times are in microseconds. The defaults are estimates, to be replaced by measured values: `--costs FILE` sets some or all of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Costs {
    /// From the end of a send until the thread of the other host runs.
    pub hop: f64,
    /// Mean of the additional time of a hop, exponentially distributed.
    pub jitter: f64,
    /// CPU time for a frame that is sent to another host: the system call and the encryption of a short frame.
    pub send: f64,
    /// CPU time for a frame that is received from another host.
    pub receive: f64,
    /// CPU time for each byte, at both ends: encryption and copies at 2.5 GB/s.
    pub byte: f64,
    /// Time of a byte on the network, at 25 Gbit/s.
    pub wire_byte: f64,
    /// Time from an agent to a proc of its host, or back.
    pub local_hop: f64,
    /// CPU time of the agent for each frame to a proc of its host.
    pub local_send: f64,
    /// Time until an endpoint has answered.
    pub handle: f64,
    /// CPU time of a join and two connections, which are three TLS handshakes, at each end.
    pub handshake: f64,
    /// CPU time of the client for one certificate.
    pub sign: f64,
    /// Hosts notice the end of a neighbour within this time, evenly distributed. The time of the detector is not included.
    pub notice: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Costs {
            hop: 40.0,
            jitter: 5.0,
            send: 3.0,
            receive: 2.0,
            byte: 0.0004,
            wire_byte: 0.00032,
            local_hop: 20.0,
            local_send: 2.0,
            handle: 20.0,
            handshake: 1000.0,
            sign: 100.0,
            notice: 1000.0,
        }
    }
}

pub fn us(time: f64) -> Duration {
    Duration::from_nanos((time * 1000.0) as u64)
}

/// Pseudorandom numbers that are the same in each run (xorshift64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 up to 1, evenly distributed.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}
