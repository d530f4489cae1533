//! Threads that share a list of tasks: each takes the next task that no other thread has taken.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most threads. The file system serves several threads at once, and digests need processors; more threads were not faster on the machines
/// tried.
const MOST: usize = 8;
/// Least tasks for each thread: a thread costs about as much to start as this many look-ups in a warm cache.
const PER_THREAD: usize = 32;

/// The results of `work` for the numbers below `count`, in their order.
pub fn each<T: Send>(count: usize, per_thread: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (count / per_thread.max(1)).clamp(1, MOST.min(processors));
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    let run = || {
        let mut own = vec![];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            own.push((number, work(number)));
        }
        results.lock().unwrap_or_else(|e| e.into_inner()).append(&mut own);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If no thread can be started, this thread does all the work.
            let _ = std::thread::Builder::new().name("monarch-files".to_owned()).spawn_scoped(scope, run);
        }
        run();
    });
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// As `each`, for short tasks.
pub fn each_short<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    each(count, PER_THREAD, work)
}
