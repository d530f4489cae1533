//! Simulated time for tests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen)]
pub struct Simulation {
    inner: Arc<runtime::clock::Simulation>,
    /// What functions have raised and nobody has been told yet.
    errors: Arc<Mutex<Vec<PyErr>>>,
}

fn span(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("invalid time {seconds}: must be finite and not negative")))
}

impl Simulation {
    fn first_error(&self) -> PyResult<()> {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.is_empty() { Ok(()) } else { Err(errors.remove(0)) }
    }
}

#[pymethods]
impl Simulation {
    #[new]
    fn new() -> Self {
        Simulation { inner: runtime::clock::Simulation::new(), errors: Arc::default() }
    }

    /// Seconds since the beginning.
    fn now(&self) -> f64 {
        self.inner.now().as_secs_f64()
    }

    /// Runs `function()` so many seconds from now.
    fn later(&self, delay: f64, function: Py<PyAny>) -> PyResult<()> {
        let errors = self.errors.clone();
        let task = move || {
            Python::attach(|py| {
                if let Err(e) = function.call0(py) {
                    errors.lock().unwrap_or_else(PoisonError::into_inner).push(e);
                }
            });
        };
        self.inner.later(span(delay)?, Box::new(task));
        Ok(())
    }

    /// Runs until nothing is left to do; then raises the first error that there was.
    fn run(&self) -> PyResult<()> {
        self.inner.run();
        self.first_error()
    }

    /// Runs what is due within so many seconds, which then have passed.
    fn run_for(&self, seconds: f64) -> PyResult<()> {
        self.inner.run_for(span(seconds)?);
        self.first_error()
    }
}
