//! What the housekeeping thread is told, as Python gets it.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::SystemEvent;
use wire::exit::{ExitReason, ProcEnd};

/// How a proc ended, as Python gets it: pid, started, host, kind, number, detail, core dumped, meshes in clean-up, last events, output.
pub type End = (u32, bool, String, &'static str, i32, String, bool, Vec<u64>, Recent, Vec<String>);

/// The last events of a proc, to decode when somebody asks for them.
#[derive(IntoPyObject)]
#[pyo3(transparent)]
pub struct Recent(std::borrow::Cow<'static, [u8]>);

pub fn describe(end: ProcEnd) -> End {
    let (kind, number, detail, core) = match end.reason {
        ExitReason::Returned => ("returned", 0, String::new(), false),
        ExitReason::ExitCode(n) => ("exit_code", n, String::new(), false),
        ExitReason::Signal { signal, core_dumped } => ("signal", signal, String::new(), core_dumped),
        ExitReason::Stopped(why) => ("stopped", 0, why, false),
        ExitReason::NotStarted(why) => ("not_started", 0, why, false),
        ExitReason::Oom { signal, cgroup } => ("oom", signal, cgroup, false),
        ExitReason::HostLost(why) => ("host_lost", 0, why, false),
        ExitReason::LinkLost(why) => ("link_lost", 0, why, false),
    };
    let cleaning = end.cleaning.into_iter().map(|m| m.0).collect();
    (end.pid, end.started, end.host, kind, number, detail, core, cleaning, Recent(end.recent.into()), end.output)
}

pub fn event(py: Python<'_>, e: SystemEvent) -> PyResult<Py<PyAny>> {
    let bytes = |b: Vec<u8>| PyBytes::new(py, &b).unbind();
    let tuple = match e {
        SystemEvent::SpawnActor { from, mailbox, spec } => ("spawn", from.0, mailbox.0, bytes(spec)).into_pyobject(py)?.into_any(),
        SystemEvent::StopProc { grace_ms, reason } => ("stop", grace_ms as f64 / 1e3, reason).into_pyobject(py)?.into_any(),
        SystemEvent::ProcsEnded { ends } => {
            let ends: Vec<(u64, End)> = ends.into_iter().map(|(uid, end)| (uid.0, describe(end))).collect();
            ("ended", ends).into_pyobject(py)?.into_any()
        }
        SystemEvent::Request { from, kind, slot, body } => ("request", from.0, kind, slot.0, bytes(body)).into_pyobject(py)?.into_any(),
        SystemEvent::Ping { .. } => return Ok(py.None()),
        SystemEvent::Stacks { ticket } => ("stacks", ticket).into_pyobject(py)?.into_any(),
        SystemEvent::Unresponsive { uid, evidence, stacks } => {
            ("unresponsive", uid.0, evidence, bytes(stacks)).into_pyobject(py)?.into_any()
        }
        SystemEvent::Abandoned { mesh } => ("abandoned", mesh.0).into_pyobject(py)?.into_any(),
        SystemEvent::RootLost => ("root_lost",).into_pyobject(py)?.into_any(),
        SystemEvent::Audit(a) => ("audit", a.what, a.peer, a.detail, a.count).into_pyobject(py)?.into_any(),
        SystemEvent::Shutdown { from, slot } => ("shutdown", from.0, slot.0).into_pyobject(py)?.into_any(),
        SystemEvent::JobEnded { here } => ("job_ended", here.0).into_pyobject(py)?.into_any(),
        SystemEvent::Launch { uid, setup } => ("launch", uid.0, bytes(setup)).into_pyobject(py)?.into_any(),
    };
    Ok(tuple.unbind())
}
