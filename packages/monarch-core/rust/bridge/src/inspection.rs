//! The inspection of a job from a process that is no part of the job.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use net::control_socket::OtherUser;
use net::dial::error_text;
use pyo3::exceptions::{PyOSError, PyPermissionError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::peers::external_process::{self, other_version};
use wire::frame::PREFIX;
use wire::{Control, Frame, ProcUid};

use crate::gil;

/// The largest answer: a frame with a greater length is malformed.
const LONGEST: usize = 1 << 30;

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
    let deadline = Instant::now() + Duration::from_secs_f64(timeout);
    let body = gil::blocking(py, || {
        let fd = external_process::dial(ProcUid(agent), ProcUid(me)).map_err(|e| unreachable(&e))?;
        ask(fd, what, deadline).map_err(PyOSError::new_err)
    });
    body.map(|b| PyBytes::new(py, &b))
}

fn unreachable(e: &io::Error) -> PyErr {
    let text = format!("cannot reach it: {}", error_text(e));
    if OtherUser::is_cause_of(e) { PyPermissionError::new_err(text) } else { PyOSError::new_err(text) }
}

/// Sends the request to an agent, and reads frames until the answer.
fn ask(fd: OwnedFd, what: u8, deadline: Instant) -> Result<Vec<u8>, String> {
    let mut stream = std::os::unix::net::UnixStream::from(fd);
    let question = Frame::Control(Control::Inspect { id: 1, what }).encode();
    stream.write_all(&question).map_err(|e| format!("it does not listen: {e}"))?;
    loop {
        let head: [u8; 4] = read(&mut stream, 4, deadline)?.try_into().unwrap_or_default();
        let len = u32::from_le_bytes(head) as usize;
        if !(PREFIX - 4..LONGEST).contains(&len) {
            return Err(format!("its answer has a frame of {len} bytes, which is too long"));
        }
        let frame = [head.to_vec(), read(&mut stream, len, deadline)?].concat();
        match Frame::decode(&frame[4..]) {
            Ok(Frame::Control(Control::Inspected { id: 1, body })) => return Ok(body),
            Ok(other) => other_version(&other).map_or(Ok(()), Err)?,
            Err(e) => return Err(format!("its answer is malformed: {e}")),
        }
    }
}

/// Reads `len` bytes before the deadline.
fn read(stream: &mut std::os::unix::net::UnixStream, len: usize, deadline: Instant) -> Result<Vec<u8>, String> {
    let (mut bytes, mut at) = (vec![0; len], 0);
    while at < len {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it does not answer in time".to_owned());
        }
        stream.set_read_timeout(Some(left)).map_err(|e| e.to_string())?;
        match stream.read(&mut bytes[at..]) {
            Ok(0) => return Err("it closed the connection: it runs another version, or has just ended".to_owned()),
            Ok(n) => at += n,
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted) => {}
            Err(e) => return Err(format!("it cannot be read from: {e}")),
        }
    }
    Ok(bytes)
}
