//! The end of a process of the job, as a Python object.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wire::exit::{ExitReason, ProcEnd};

/// The end of a process of the job.
#[pyclass(frozen)]
pub struct ProcessEnd(pub ProcEnd);

#[pymethods]
impl ProcessEnd {
    /// The pid; 0 if it is not known.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The host of the process; empty if it is not known.
    #[getter]
    fn host(&self) -> &str {
        &self.0.host
    }

    /// The kind of its `ExitReason`.
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.reason.kind()
    }

    /// True if the process was stopped, which is no failure.
    #[getter]
    fn is_stop(&self) -> bool {
        self.0.reason.is_stop()
    }

    #[getter]
    fn exit_code(&self) -> Option<i32> {
        self.0.reason.exit_code()
    }

    #[getter]
    fn signal(&self) -> Option<i32> {
        self.0.reason.signal()
    }

    #[getter]
    fn core_dumped(&self) -> bool {
        matches!(self.0.reason, ExitReason::Signal { core_dumped: true, .. })
    }

    /// The text of the reason, for the kinds that have one. That of a stop begins with its bounds.
    #[getter]
    fn detail(&self) -> &str {
        self.0.reason.detail()
    }

    /// The meshes whose actors had begun but not ended their `__cleanup__` when the process died by itself.
    #[getter]
    fn cleaning(&self) -> Vec<u64> {
        self.0.cleaning.iter().map(|m| m.0).collect()
    }

    /// The last events of the process, for `events.decode`.
    #[getter]
    fn recent<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.recent)
    }

    /// The last lines that the process printed.
    #[getter]
    fn output(&self) -> Vec<String> {
        self.0.output.clone()
    }

    fn __repr__(&self) -> String {
        format!("<ProcessEnd {} pid {} {:?}>", self.kind(), self.0.pid, self.detail())
    }
}
