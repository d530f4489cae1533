//! The clock of a simulated world, and the threads that it waits for.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use net::Poller;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use runtime::operations::{signals, wait};

use crate::gil::Gil;

/// The clock of a simulated world, and its poller while the world runs.
#[pyclass(frozen)]
pub struct Timeline {
    pub inner: Arc<net::Timeline>,
    running: Mutex<Option<(Arc<Poller>, JoinHandle<()>)>>,
}

/// A time in seconds as a duration.
fn span(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("invalid time {seconds}: must be finite and not negative")))
}

impl Timeline {
    pub fn poller(&self) -> PyResult<Arc<Poller>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map(|(p, _)| p.clone()).ok_or_else(|| PyRuntimeError::new_err("the universe is not running"))
    }

    fn wake(&self) {
        if let Ok(p) = self.poller() {
            p.wake();
        }
    }

    /// Sleeps for `time`, or without it until nothing can happen any more; false if nothing can happen any more.
    fn pause(&self, py: Python<'_>, time: Option<Duration>) -> PyResult<bool> {
        let poller = self.poller()?;
        let deadline = time.map(|t| poller.now() + t);
        wait::pause(&Gil(py), &poller, deadline)
    }
}

#[pymethods]
impl Timeline {
    #[new]
    fn new(seed: u64) -> Self {
        Timeline { inner: net::Timeline::new(seed), running: Mutex::new(None) }
    }

    /// The seconds since the beginning of the simulated time.
    fn now(&self) -> f64 {
        self.inner.elapsed().as_secs_f64()
    }

    /// Checks a time. Raises `ValueError` if it is negative, NaN or infinite.
    #[staticmethod]
    fn check(seconds: f64) -> PyResult<()> {
        span(seconds).map(drop)
    }

    /// Advances the clock while no thread runs on it.
    fn advance(&self, seconds: f64) -> PyResult<()> {
        self.inner.move_to(self.inner.elapsed() + span(seconds)?);
        Ok(())
    }

    /// Starts the thread that reads the sockets and advances the clock.
    fn start(&self) -> PyResult<()> {
        let failed = |e: std::io::Error| PyOSError::new_err(format!("cannot start a universe: {e}"));
        let poller = Poller::simulated(self.inner.clone()).map_err(failed)?;
        let theirs = poller.clone();
        let thread = runtime::threads::spawn_joinable("monarch-universe", move || theirs.run()).map_err(failed)?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some((poller, thread));
        Ok(())
    }

    /// Ends the thread that `start` has started.
    fn stop(&self, py: Python<'_>) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((poller, thread)) = running {
            poller.stop();
            signals::forget(&poller);
            py.detach(|| drop(thread.join()));
        }
    }

    /// A new number for the threads of one process.
    fn new_group(&self) -> u64 {
        self.inner.new_group()
    }

    /// Makes time wait for one more thread that is about to start, or for work that is done elsewhere.
    fn enroll(&self, group: u64) {
        self.inner.enroll(group);
    }

    fn dismiss(&self, group: u64) {
        self.inner.dismiss(group);
        self.wake();
    }

    /// Makes this thread the enrolled one. With `root`, it is notified when nothing can happen any more.
    #[pyo3(signature = (group, root=false))]
    fn enter(&self, group: u64, root: bool) {
        self.inner.enter(group, root);
    }

    /// Ends the part of this thread in the simulation. The thread that enrolled it dismisses it.
    fn step_out(&self) {
        self.inner.leave();
    }

    /// Ends the threads of the group, each at its next wait.
    fn kill(&self, group: u64) {
        self.inner.kill(group);
        self.wake();
    }

    fn is_dead(&self, group: u64) -> bool {
        self.inner.is_dead(group)
    }

    /// Ends a thread that has entered.
    fn leave(&self) {
        if let Some(group) = self.inner.leave() {
            self.dismiss(group);
        }
    }

    /// Lets `seconds` seconds pass for this thread.
    fn sleep(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.pause(py, Some(span(seconds)?)).map(drop)
    }

    /// Waits until nothing can happen any more. It is called on the thread of the root.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        self.pause(py, None).map(drop)
    }
}
