//! The threads that copy.
//!
//! There are as many threads as increase the throughput, started on demand and ended when idle. A thread that waits for an owner does not
//! count, and another one is started: an owner that does not answer delays no other one.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use net::lock::lock;

/// Most threads that copy. More threads are not faster, because memory is the limit.
const COPYING: usize = 4;
/// Most threads in total, including those that wait for owners.
const MOST: usize = 64;
/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(5);

/// A piece of work for a thread of the pool.
type Task = Box<dyn FnOnce() + Send>;

/// The waiting tasks, and the threads: all, idle ones, and those that wait for an owner.
#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    threads: usize,
    idle: usize,
    waiting: usize,
}

/// The threads of one process that copy.
pub struct Pool {
    state: Mutex<State>,
    more: Condvar,
    /// Most threads that copy at the same time.
    pub width: usize,
}

/// Starts a thread that takes no signals: signals are for the interpreter's main thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: sigset operations on a local set; the mask is inherited by the new thread and then restored.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let made = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        made.map(drop).map_err(net::thread_limit::named)
    }
}

impl Pool {
    pub fn new() -> Arc<Pool> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Arc::new(Pool { state: Mutex::default(), more: Condvar::new(), width: cores.min(COPYING) })
    }

    /// Runs the task on a thread of the pool, or here if no thread can be started.
    pub fn run(self: &Arc<Self>, task: Task) {
        let mut state = lock(&self.state);
        state.tasks.push_back(task);
        let wanted = state.idle < state.tasks.len() && state.threads.saturating_sub(state.waiting) < self.width && state.threads < MOST;
        if !wanted {
            drop(state);
            self.more.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let pool = self.clone();
        if spawn("monarch-copy", move || pool.work()).is_err() {
            let mut state = lock(&self.state);
            state.threads -= 1;
            // Other threads of the pool take the task, if there are any.
            let task = if state.threads == 0 { state.tasks.pop_front() } else { None };
            drop(state);
            if let Some(task) = task {
                task();
            }
        }
    }

    /// Runs `f`, which may wait for another process.
    pub fn wait<T>(self: &Arc<Self>, f: impl FnOnce() -> T) -> T {
        {
            let mut state = lock(&self.state);
            state.waiting += 1;
            if !state.tasks.is_empty() && state.idle == 0 && state.threads < MOST {
                state.threads += 1;
                let pool = self.clone();
                if spawn("monarch-copy", move || pool.work()).is_err() {
                    state.threads -= 1;
                }
            }
        }
        let r = f();
        lock(&self.state).waiting -= 1;
        r
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                task();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (next, timeout) = self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timeout.timed_out() && state.tasks.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
