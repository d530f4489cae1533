//! Prints the cost of an event in nanoseconds, off and on, as JSON: `cargo run --release -p monarch-events --example cost`.

use std::hint::black_box;
use std::time::Instant;

const EVENTS: u32 = 1_000_000;
const ROUNDS: usize = 9;

/// The median cost of several rounds.
fn cost(mut emit: impl FnMut(u64)) -> f64 {
    let round = |emit: &mut dyn FnMut(u64)| {
        let begin = Instant::now();
        (0..u64::from(EVENTS)).for_each(|n| emit(black_box(n)));
        begin.elapsed().as_nanos() as f64 / f64::from(EVENTS)
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round(&mut emit)).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn numbers(n: u64) {
    events::queue_depth(n, n);
}

fn message(n: u64) {
    events::message_sent(n, black_box(b"train_step"), 3, n, n, n, n, 0, 0, black_box(b""));
}

fn main() {
    let empty = cost(|n| _ = black_box(n));
    let off = [cost(numbers), cost(message)];
    let Ok(Some(_fd)) = events::start(1, events::DEFAULT_CAPACITY) else { return eprintln!("no shared memory") };
    let on = [cost(numbers), cost(message), cost(|n| events::user_event(b"step", &n.to_le_bytes()))];
    let clock = cost(|_| _ = black_box(events::now()));
    println!(
        "{{\"loop_ns\": {empty:.2}, \"off\": {{\"numbers_ns\": {:.2}, \"message_ns\": {:.2}}}, \"clock_ns\": {clock:.1}, \
         \"on\": {{\"numbers_ns\": {:.1}, \"message_ns\": {:.1}, \"text_ns\": {:.1}}}}}",
        off[0], off[1], on[0], on[1], on[2]
    );
}
