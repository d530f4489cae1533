//! The costs of casts and joins by the number of hosts: the real state machines on simulated time.
//!
//!     cargo run --release -p monarch-runtime --example scale [-- --costs FILE] [--quick]
//!
//! Prints one JSON object a line. The costs of links and processors are parameters (`costs.rs`). The CPU time of the root for its decisions
//! and frames is measured on this machine, without system calls and encryption, which are parameters.

mod casts;
mod costs;
mod joins;
mod world;

use casts::Answers;
use costs::Costs;
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let quick = words.iter().any(|w| w == "--quick");
    let costs = match words.iter().position(|w| w == "--costs").and_then(|at| words.get(at + 1)) {
        Some(file) => serde_json::from_slice(&std::fs::read(file)?)?,
        None => Costs::default(),
    };
    println!("{}", json!({"bench": "costs", "costs": costs}));
    let sizes: &[usize] = if quick { &[16, 64] } else { &[16, 64, 256, 1024, 4096] };
    for n in sizes {
        for answers in [Answers::Equal, Answers::Different] {
            println!("{}", casts::measure(*n, 16, answers, if quick { 3 } else { 21 }, &costs));
        }
        // The same cast without a tree.
        println!("{}", casts::measure(*n, *n as u32, Answers::Equal, 3, &costs));
        println!("{}", casts::measure_death(*n, 16, &costs));
        println!("{}", joins::measure(*n, 0, &costs));
        println!("{}", joins::measure(*n, *n / 100, &costs));
    }
    for fan_out in [2, 4, 8, 16, 32, 64] {
        let n = sizes[sizes.len() - 1];
        println!("{}", casts::measure(n, fan_out, Answers::Equal, 3, &costs));
    }
    Ok(())
}
