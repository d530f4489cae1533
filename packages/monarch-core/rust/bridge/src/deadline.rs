//! The deadline of the code that a thread or task runs.
//!
//! The deadline is the value of a Python context variable, of which each task of an event loop has its own: seconds on the clock of the
//! process, or None for code without one. The variable is not read until this process has had a deadline. From then on each message begins
//! with its own deadline or without one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use net::Poller;
use pyo3::exceptions::PyImportError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The longest deadline. A longer one means none, but a clock must be able to represent it.
const LONGEST: f64 = (1_u64 << 32) as f64;

/// Some code of this process has had a deadline.
static LIMITED: AtomicBool = AtomicBool::new(false);

static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Sets what this module needs, when the extension module is loaded.
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    let make = || Ok(py.import("_contextvars")?.getattr("ContextVar")?.call1(("monarch_deadline",))?.unbind());
    match VARIABLE.get_or_try_init(py, make) {
        // If an interpreter's own modules cannot be read, no code has a deadline, and everything else works.
        Err(e) if !PyErr::is_instance_of::<PyImportError>(&e, py) => Err(e),
        _ => Ok(()),
    }
}

/// The seconds on the clock of the process, which `time.monotonic` reads too.
fn seconds(poller: &Poller) -> f64 {
    if let Some(timeline) = poller.timeline() {
        return timeline.elapsed().as_secs_f64();
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to a structure of this function.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// The value of the variable.
fn current(py: Python<'_>) -> PyResult<Option<f64>> {
    if !LIMITED.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let Some(variable) = VARIABLE.get(py) else { return Ok(None) };
    variable.bind(py).call_method1(intern!(py, "get"), (py.None(),))?.extract()
}

/// The deadline of a call that begins now in this code: the earlier one of the deadline of the code and of `timeout` seconds from now.
pub fn of_call(py: Python<'_>, poller: &Poller, timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let left = current(py)?.map(|at| (at - seconds(poller)).max(0.0));
    let left = [left, timeout].into_iter().flatten().reduce(f64::min).filter(|left| *left < LONGEST);
    Ok(left.map(|left| poller.now() + Duration::from_secs_f64(left)))
}

/// The time that is left of a deadline.
pub fn left(poller: &Poller, at: Option<Instant>) -> Option<Duration> {
    at.map(|at| at.saturating_duration_since(poller.now()))
}

/// Begins the code of a new message with this deadline or with none. Before the first deadline of the process this is a single check.
#[inline]
pub fn begin(py: Python<'_>, poller: &Poller, at: Option<Instant>) -> PyResult<()> {
    if at.is_none() && !LIMITED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let at = at.map(|at| seconds(poller) + at.saturating_duration_since(poller.now()).as_secs_f64());
    enter(py, at).map(drop)
}

fn enter(py: Python<'_>, at: Option<f64>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(variable) = VARIABLE.get(py) else { return Ok(None) };
    if at.is_none() && !LIMITED.load(Ordering::Relaxed) {
        return Ok(None);
    }
    LIMITED.store(true, Ordering::Relaxed);
    variable.bind(py).call_method1(intern!(py, "set"), (at,)).map(Some)
}

/// The deadline of this code, in seconds on the clock of the process; `None` without one.
#[pyfunction]
pub fn current_deadline(py: Python<'_>) -> PyResult<Option<f64>> {
    current(py)
}

/// Sets the deadline of this code. Returns the token that `leave_deadline` takes.
#[pyfunction]
#[pyo3(signature = (at))]
pub fn enter_deadline(py: Python<'_>, at: Option<f64>) -> PyResult<Option<Bound<'_, PyAny>>> {
    enter(py, at)
}

/// Undoes an `enter_deadline` of the same context.
#[pyfunction]
#[pyo3(signature = (token))]
pub fn leave_deadline(py: Python<'_>, token: Option<Bound<'_, PyAny>>) -> PyResult<()> {
    match (VARIABLE.get(py), token) {
        (Some(variable), Some(token)) => variable.bind(py).call_method1(intern!(py, "reset"), (token,)).map(drop),
        _ => Ok(()),
    }
}
