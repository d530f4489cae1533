//! What links and processors cost, as parameters of the simulation.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// All times in microseconds. The defaults are guesses to be replaced by what a real run shows: `--costs FILE` gives some or all.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Costs {
    /// From the end of a send until the other host's thread runs: the goal's hop.
    pub hop: f64,
    /// Mean of what comes on top of a hop, exponentially distributed.
    pub jitter: f64,
    /// Processor time for a frame that is sent to another host: system call, encryption of a short frame.
    pub send: f64,
    pub receive: f64,
    /// For each byte, at both ends: encryption and copies at 2.5 GB/s.
    pub byte: f64,
    /// On the wire: 25 Gbit/s.
    pub wire_byte: f64,
    /// Between an agent and a proc of its host, one way, and the agent's processor time for each frame.
    pub local_hop: f64,
    pub local_send: f64,
    /// Until an endpoint has answered.
    pub handle: f64,
    /// Processor time of a join and two streams, three TLS handshakes, at either end.
    pub handshake: f64,
    /// Of the client, for one certificate.
    pub sign: f64,
    /// Hosts notice that a neighbour is gone within this, evenly spread; the detector's own time is not counted.
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

/// Numbers that look random and are the same in each run.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Evenly from 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}
