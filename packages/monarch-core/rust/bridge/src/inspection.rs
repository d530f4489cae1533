//! The inspection of a job from a process that is no part of the job.

use std::io;
use std::time::Duration;

use net::control_socket::OtherUser;
use net::dial::error_text;
use pyo3::exceptions::{PyOSError, PyPermissionError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::operations::agent_query;
use runtime::peers::external_process;
use wire::ProcUid;

use crate::gil;

/// The uids of the agents that listen on this machine. With abstract socket names, agents of other users are included.
#[pyfunction]
pub fn agents(py: Python<'_>) -> Vec<u64> {
    gil::blocking(py, external_process::agents).into_iter().map(|uid| uid.0).collect()
}

/// The pid of the agent with this uid, which need not answer; `None` if it cannot be reached.
#[pyfunction]
pub fn agent_pid(py: Python<'_>, agent: u64) -> Option<i32> {
    gil::blocking(py, || external_process::pid(ProcUid(agent)).ok().filter(|pid| *pid > 0))
}

/// The directory of this user's control sockets. It may not exist.
#[pyfunction]
pub fn control_directory() -> String {
    net::control_socket::of_user().to_string_lossy().into_owned()
}

/// Sends an inspection request to the agent with this uid; returns its answer as JSON. Raises `PermissionError` for the agent of another
/// user, and another `OSError` without an answer within `timeout` seconds.
#[pyfunction]
pub fn inspect_agent<'py>(py: Python<'py>, agent: u64, me: u64, what: u8, timeout: f64) -> PyResult<Bound<'py, PyBytes>> {
    let timeout = Duration::from_secs_f64(timeout);
    let body = gil::blocking(py, || {
        let fd = external_process::dial(ProcUid(agent), ProcUid(me)).map_err(|e| unreachable(&e))?;
        agent_query::inspect(fd, what, timeout).map_err(PyOSError::new_err)
    });
    body.map(|b| PyBytes::new(py, &b))
}

fn unreachable(e: &io::Error) -> PyErr {
    let text = format!("cannot reach it: {}", error_text(e));
    if OtherUser::is_cause_of(e) { PyPermissionError::new_err(text) } else { PyOSError::new_err(text) }
}
