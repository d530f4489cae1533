//! Blocking without the GIL. Every blocking call of the bridge goes through `blocking` or `wait`, which the exit of the process ends: a
//! thread that must not continue is blocked for ever.

use std::cell::Cell as StdCell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use net::{Poller, WaitEnd, Waiter};
use pyo3::exceptions::{PyRuntimeError, PySystemExit};
use pyo3::prelude::*;

use crate::exit::{is_main_thread, park_if_exiting, shield_thread};
use crate::sender;
use crate::signal::{self, SignalPipe};

thread_local! {
    /// A weak reference and not an address: the poller of a simulated world can be followed by another one at the same address, with
    /// another eventfd.
    static WAITER: StdCell<Option<(Weak<Poller>, Arc<Waiter>)>> = const { StdCell::new(None) };
}

/// The waiter of this thread for blocking calls.
pub fn waiter(poller: &Arc<Poller>) -> Arc<Waiter> {
    shield_thread();
    WAITER.with(|w| {
        let (of, waiter) = match w.take() {
            Some(known) if std::ptr::eq(known.0.as_ptr(), Arc::as_ptr(poller)) => known,
            _ => (Arc::downgrade(poller), poller.waiter()),
        };
        w.set(Some((of, waiter.clone())));
        waiter
    })
}

/// Runs `f` without the GIL.
pub fn blocking<T: Send>(py: Python<'_>, f: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let r = f();
        park_if_exiting();
        r
    })
}

/// Waits until `ready` is true, and runs signal handlers when they are due; false after the deadline.
pub fn wait(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<bool> {
    wait_as(py, poller, waiter, deadline, true, ready)
}

/// Waits as `wait` does. With `lead`, the thread may read the sockets meanwhile.
pub fn wait_as(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    lead: bool,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<bool> {
    let wait = |done: &mut dyn FnMut() -> bool| {
        if lead { poller.wait(waiter, deadline, done) } else { poller.follow(waiter, deadline, done) }
    };
    wait_until(py, poller, waiter, wait, ready)?.ok_or_else(deadlock_error)
}

/// Waits as `wait` does, for an answer: the thread checks for itself from time to time, and a lost notification is recorded.
pub fn wait_for_answer(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<bool> {
    let wait = |done: &mut dyn FnMut() -> bool| match poller.wait_announced(waiter, deadline, done) {
        WaitEnd::Unannounced => {
            events::wakeup_lost(sender::id(), b"call", 0, 0);
            WaitEnd::Ready
        }
        end => end,
    };
    wait_until(py, poller, waiter, wait, ready)?.ok_or_else(deadlock_error)
}

/// The error of a wait that can never end.
fn deadlock_error() -> PyErr {
    PyRuntimeError::new_err("this would wait for ever: every thread of the universe waits, no message is in flight and no time-out is due")
}

/// Waits as `wait` does; `None` if nothing can happen any more, which can be known only in simulated time.
pub fn wait_quiet(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<Option<bool>> {
    wait_until(py, poller, waiter, |done| poller.wait(waiter, deadline, done), ready)
}

/// Waits by `wait` until `ready` is true, and runs signal handlers on the main thread; `None` if nothing can happen any more.
fn wait_until(
    py: Python<'_>,
    poller: &Arc<Poller>,
    waiter: &Arc<Waiter>,
    wait: impl Fn(&mut dyn FnMut() -> bool) -> WaitEnd + Sync,
    ready: impl Fn() -> bool + Sync,
) -> PyResult<Option<bool>> {
    let of_world;
    let pipe: Option<&SignalPipe> = if !is_main_thread() {
        None
    } else if poller.timeline().is_none() {
        signal::pipe(poller).map(|p| &**p)
    } else {
        of_world = signal::simulated_pipe(poller);
        of_world.as_deref()
    };
    loop {
        let before = match pipe {
            Some(p) => {
                let before = p.listen(py, waiter)?;
                // Handles the signals that arrived before the thread began to listen.
                py.check_signals().inspect_err(|_| SignalPipe::unlisten(py, before))?;
                Some(before)
            }
            None => None,
        };
        let mut done = || ready() || pipe.is_some_and(|p| p.tripped());
        let end = blocking(py, || wait(&mut done));
        if let Some(fd) = before {
            SignalPipe::unlisten(py, fd);
        }
        let signalled = pipe.is_some_and(|p| p.take());
        if signalled || end == WaitEnd::Interrupted {
            py.check_signals()?;
        }
        match end {
            WaitEnd::Ready if !signalled || ready() => return Ok(Some(true)),
            WaitEnd::TimedOut => return Ok(Some(false)),
            WaitEnd::Stuck => return Ok(None),
            WaitEnd::Killed => return Err(PySystemExit::new_err("the simulated process of this thread has been killed")),
            _ => {}
        }
    }
}

/// After `delay_secs`, a native thread takes the GIL of this process and keeps it for `hold_secs`.
#[pyfunction]
pub fn hold_gil(delay_secs: f64, hold_secs: f64) {
    let (delay, hold) = (Duration::from_secs_f64(delay_secs.max(0.0)), Duration::from_secs_f64(hold_secs.max(0.0)));
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        park_if_exiting();
        Python::attach(|_| std::thread::sleep(hold));
    });
}
