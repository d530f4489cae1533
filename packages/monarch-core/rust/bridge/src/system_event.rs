//! Events for the housekeeping thread as Python objects: one class for each kind.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::SystemEvent;
use wire::ProcUid;
use wire::control::DrainLimits;

use crate::process_end::ProcessEnd;

macro_rules! classes {
    ($($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$about])*
            #[pyclass(frozen, get_all)]
            pub struct $name {
                $($(#[$field_about])* $field: $type,)*
            }
        )*
    };
}

classes! {
    /// An actor is to be spawned in this process.
    SpawnActor { sender: u64, mailbox: u64, spec: Py<PyBytes>, }
    /// This proc is to end. `drain` has the limits in seconds for a message of an actor, and for all messages of an actor.
    StopProc { drain: Option<(f64, f64)>, reason: String, }
    /// Processes have ended, of one cause.
    ProcsEnded { ends: Vec<(u64, Py<ProcessEnd>)>, }
    /// An actor of a mesh that this process owns has failed, according to the process `sender`.
    ActorFailed { sender: u64, mesh: u64, rank: u32, failure: Py<PyBytes>, }
    /// A process sends a request. The answer goes to the call id `slot`.
    SystemRequest { sender: u64, kind: u16, slot: u64, body: Py<PyBytes>, }
    /// An inspection has requested the stacks of all threads.
    StacksWanted { ticket: u64, }
    /// The deadline of a message in progress has passed: `place_found` takes the line of code in which it is.
    CallOverdue { mesh: u64, number: u64, }
    /// Python does not run in a proc of this agent, or runs again if `silence_reason` is empty. `stacks` are JSON or empty.
    ProcUnresponsive { proc: u64, silence_reason: String, stacks: Py<PyBytes>, }
    /// A failed call was dropped before its failure was seen.
    CallAbandoned { mesh: u64, }
    /// An error of an endpoint that no thread has read. `answer` is the packed error.
    UnreadError { answer: Py<PyBytes>, }
    /// The agent of this proc has ended.
    RootLost {}
    /// A member has joined, attached, was refused, or is lost. `count` is the number of such events since the last report.
    HostAudit { what: &'static str, peer: String, detail: String, count: u64, }
    /// Sent to an agent: a client requests the end of the host.
    HostShutdown { sender: u64, slot: u64, }
    /// Sent to an agent: a client has ended, with all its processes here. `host` is the uid of this host in the client's job.
    JobEnded { host: u64, }
    /// Sent to the client of a simulated world: a proc is to be started in this process.
    LaunchProc { proc: u64, setup: Py<PyBytes>, }
}

/// The limits from Python: in seconds, for a message of an actor and for all messages of an actor.
pub fn drain_limits((message, actor): (f64, f64)) -> DrainLimits {
    DrainLimits { message_ms: (message * 1e3) as u64, actor_ms: (actor * 1e3) as u64 }
}

pub fn event(py: Python<'_>, e: SystemEvent) -> PyResult<Py<PyAny>> {
    let bytes = |b: &[u8]| PyBytes::new(py, b).unbind();
    Ok(match e {
        SystemEvent::SpawnActor { from, mailbox, spec } => {
            Py::new(py, SpawnActor { sender: from.0, mailbox: mailbox.0, spec: bytes(&spec) })?.into_any()
        }
        SystemEvent::StopProc { drain, reason, .. } => {
            let drain = drain.map(|limits| (limits.message_ms as f64 / 1e3, limits.actor_ms as f64 / 1e3));
            Py::new(py, StopProc { drain, reason })?.into_any()
        }
        SystemEvent::ProcsEnded { ends } => {
            let end = |(uid, end): (ProcUid, _)| Ok((uid.0, Py::new(py, ProcessEnd(end))?));
            let ends = ends.into_iter().map(end).collect::<PyResult<_>>()?;
            Py::new(py, ProcsEnded { ends })?.into_any()
        }
        SystemEvent::ActorFailed { from, member, failure } => {
            Py::new(py, ActorFailed { sender: from.0, mesh: member.mesh.0, rank: member.rank, failure: bytes(&failure) })?.into_any()
        }
        SystemEvent::Request { from, kind, call_id, body } => {
            Py::new(py, SystemRequest { sender: from.0, kind, slot: call_id.0, body: bytes(&body) })?.into_any()
        }
        SystemEvent::Ping { .. } => py.None(),
        SystemEvent::Stacks { ticket } => Py::new(py, StacksWanted { ticket })?.into_any(),
        SystemEvent::Overdue { mailbox, number } => Py::new(py, CallOverdue { mesh: mailbox.0, number })?.into_any(),
        SystemEvent::Unresponsive { uid, cause, stacks } => {
            Py::new(py, ProcUnresponsive { proc: uid.0, silence_reason: cause, stacks: bytes(&stacks) })?.into_any()
        }
        SystemEvent::Abandoned { mesh } => Py::new(py, CallAbandoned { mesh: mesh.0 })?.into_any(),
        SystemEvent::UnreadError { answer } => Py::new(py, UnreadError { answer: bytes(&answer) })?.into_any(),
        SystemEvent::RootLost => Py::new(py, RootLost {})?.into_any(),
        SystemEvent::Audit(a) => Py::new(py, HostAudit { what: a.what, peer: a.peer, detail: a.detail, count: a.count })?.into_any(),
        SystemEvent::Shutdown { from, call_id } => Py::new(py, HostShutdown { sender: from.0, slot: call_id.0 })?.into_any(),
        SystemEvent::JobEnded { here } => Py::new(py, JobEnded { host: here.0 })?.into_any(),
        SystemEvent::Launch { uid, setup } => Py::new(py, LaunchProc { proc: uid.0, setup: bytes(&setup) })?.into_any(),
    })
}
