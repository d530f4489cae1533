//! The extension module `monarch._core._native`: thin wrappers, one file for each Python noun.

mod actor;
mod bulk;
mod bytes;
mod call;
mod caller;
mod deadline;
mod events;
mod exit;
mod files;
mod fork;
mod gil;
mod hosts;
mod importable;
mod inspection;
mod loop_sleep;
mod open_code;
mod pending_call;
mod port;
mod process;
mod process_end;
mod promise;
mod protocol;
mod provided;
mod signal;
mod supervision;
mod system_event;
mod thread_limit;
mod timeline;
mod trace;
mod view;
mod watcher;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::actor::{ActorMailbox, set_thread_sender};
    #[pymodule_export]
    use crate::bytes::Mapped;
    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::caller::{Caller, Targets};
    #[pymodule_export]
    use crate::deadline::{current_deadline, enter_deadline, leave_deadline};
    #[pymodule_export]
    use crate::exit::{
        begin_exit, begin_leaving, block_if_exiting, exit_when_cleared, set_exit_code, set_parent_death_signal, set_runtime_thread,
    };
    #[pymodule_export]
    use crate::gil::hold_gil;
    #[pymodule_export]
    use crate::hosts::{Hosts, JoinFailure};
    #[pymodule_export]
    use crate::inspection::{agent_pid, agents, control_directory, inspect_agent};
    #[pymodule_export]
    use crate::loop_sleep::LoopSleep;
    #[pymodule_export]
    use crate::open_code::read_modules_unbuffered;
    #[pymodule_export]
    use crate::pending_call::{PendingCall, Result, Unanswered};
    #[pymodule_export]
    use crate::port::{PortMailbox, send_to_port, send_to_slot};
    #[pymodule_export]
    use crate::process::{Process, after_fork_in_child};
    #[pymodule_export]
    use crate::promise::native_promise;
    #[pymodule_export]
    use crate::provided::{provide_bulk_choice, provide_delivery_error, provide_per_rank, provide_pickling};
    #[pymodule_export]
    use crate::signal::{run_at_exit, was_interrupted};
    #[pymodule_export]
    use crate::supervision::Supervision;
    #[pymodule_export]
    use crate::thread_limit::thread_limit;
    #[pymodule_export]
    use crate::timeline::Timeline;
    #[pymodule_export]
    use crate::trace::{TraceContext, TraceEntry, begin_trace, enter_trace, leave_trace, trace_context};
    #[pymodule_export]
    use crate::watcher::LoopWatcher;

    #[pyo3::pymodule]
    mod bulk {
        #[pymodule_export]
        use crate::bulk::{BufferMemory, Bulk, BulkFailed, Handle, Message, Plan, SharedMemory};
    }

    #[pyo3::pymodule]
    mod events {
        #[pymodule_export]
        use crate::events::{
            Event, EventBatch, EventField, EventMemory, EventType, Ring, actor_end, decode, event_types, frame_refused, is_on, log_line,
            log_record, mesh_gone, mesh_made, metric_update, now, proc_start, span_enter, span_exit, supervision_delivered,
            supervision_handled, user_event,
        };
    }

    #[pyo3::pymodule]
    mod files {
        #[pymodule_export]
        use crate::files::{Blake3, FileDigest, blake3, digest_files, list_directories};
    }

    #[pyo3::pymodule]
    mod system {
        #[pymodule_export]
        use crate::process_end::ProcessEnd;
        #[pymodule_export]
        use crate::supervision::{Ask, Fail, Mark, Notify, Orphan};
        #[pymodule_export]
        use crate::system_event::{
            ActorFailed, CallAbandoned, CallOverdue, HostAudit, HostShutdown, JobEnded, LaunchProc, ProcUnresponsive, ProcsEnded, RootLost,
            SpawnActor, StacksWanted, StopProc, SystemRequest, UnreadError,
        };
    }

    #[pymodule_export]
    use crate::protocol::protocol;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyAnyMethods;
        crate::provided::prepare(module.py())?;
        crate::signal::prepare(module.py())?;
        crate::trace::prepare(module.py())?;
        crate::deadline::prepare(module.py())?;
        let sys = module.py().import("sys")?;
        let version = sys.getattr("version_info")?;
        let (major, minor): (u8, u8) = (version.getattr("major")?.extract()?, version.getattr("minor")?.extract()?);
        net::trust::set_python(format!("{major}.{minor}"));
        for inner in ["bulk", "events", "files", "protocol", "system"] {
            crate::importable::publish(&module.getattr(inner)?.cast_into()?, &format!("monarch._core._native.{inner}"))?;
        }
        crate::importable::publish(module, "monarch._core._native")
    }
}
