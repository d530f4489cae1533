//! The limit of threads, for the errors that Python raises.

use pyo3::prelude::*;

/// The limit on the threads of this user, as the end of the error of one that did not start; empty where the kernel applies none.
#[pyfunction]
pub fn thread_limit() -> String {
    net::thread_limit::text()
}
