//! The trace that the code of a thread or task belongs to (W3C Trace Context).
//!
//! It stands in a variable of Python's contexts, which tasks of an event loop have each for itself. Nothing looks at it until
//! something in this process has had a trace, or the library OpenTelemetry is there, whose current span counts more.

use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

use pyo3::exceptions::{PyException, PyImportError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use wire::Trace;

/// Something in this process has had a trace.
static TRACING: AtomicBool = AtomicBool::new(false);
/// Modules that had been imported when OpenTelemetry was last looked for.
static MODULES: AtomicIsize = AtomicIsize::new(0);
static HAS_OPENTELEMETRY: AtomicBool = AtomicBool::new(false);

/// What a module of Python gives us, filled when ours is loaded: a fork leaves it whole.
struct Names {
    variable: Py<PyAny>,
    modules: Py<PyDict>,
}

static NAMES: PyOnceLock<Names> = PyOnceLock::new();

pub fn prepare(py: Python<'_>) -> PyResult<()> {
    let make = || -> PyResult<Names> {
        let variable = py.import("_contextvars")?.getattr("ContextVar")?.call1(("monarch_trace",))?.unbind();
        let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.unbind();
        Ok(Names { variable, modules })
    };
    match NAMES.get_or_try_init(py, make) {
        // Where an interpreter's own modules cannot be read, nothing has a trace, and everything else works.
        Err(e) if !e.is_instance_of::<PyImportError>(py) => Err(e),
        _ => Ok(()),
    }
}

/// A sampled trace and a span of it.
#[pyclass(frozen, eq, hash, module = "monarch.extension.trace")]
#[derive(PartialEq, Eq, Hash)]
pub struct TraceContext(pub Trace);

#[pymethods]
impl TraceContext {
    #[new]
    fn new(trace_id: u128, span_id: u64) -> PyResult<Self> {
        if trace_id == 0 || span_id == 0 {
            return Err(PyValueError::new_err(format!("trace_id and span_id are not 0, got {trace_id} and {span_id}")));
        }
        Ok(TraceContext(Trace { id: trace_id, span: span_id }))
    }

    /// Of the value of a `traceparent` header; none if the trace is not sampled.
    #[classmethod]
    fn from_traceparent(_cls: &Bound<'_, PyType>, traceparent: &str) -> PyResult<Option<Self>> {
        match Trace::parse(traceparent) {
            Some(t) => Ok((!t.is_none()).then_some(TraceContext(t))),
            None => Err(PyValueError::new_err(format!("this is no traceparent: {:?}", traceparent.chars().take(80).collect::<String>()))),
        }
    }

    /// 16 bytes.
    #[getter]
    fn trace_id(&self) -> u128 {
        self.0.id
    }

    /// 8 bytes.
    #[getter]
    fn span_id(&self) -> u64 {
        self.0.span
    }

    /// The value of a `traceparent` header.
    #[getter]
    fn traceparent(&self) -> String {
        self.0.traceparent()
    }

    /// A new span of the same trace.
    fn child(&self) -> Self {
        TraceContext(self.0.child())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (u128, u64)) {
        (py.get_type::<TraceContext>(), (self.0.id, self.0.span))
    }

    fn __repr__(&self) -> String {
        format!("TraceContext({})", self.0.traceparent())
    }
}

/// The trace that this code belongs to.
pub fn current(py: Python<'_>) -> PyResult<Trace> {
    let Some(names) = NAMES.get(py) else { return Ok(Trace::NONE) };
    let otel = has_opentelemetry(py, names);
    if !otel && !TRACING.load(Ordering::Relaxed) {
        return Ok(Trace::NONE);
    }
    if otel {
        match of_opentelemetry(py, names) {
            Ok(Some(trace)) => return Ok(trace),
            // A call does not fail because of what is wrong with a library that it has no need of.
            Err(e) if !e.is_instance_of::<PyException>(py) => return Err(e),
            _ => {}
        }
    }
    let set = names.variable.bind(py).call_method1("get", (py.None(),))?;
    Ok(set.cast::<TraceContext>().map_or(Trace::NONE, |t| t.get().0))
}

/// An import shows in the number of modules.
fn has_opentelemetry(py: Python<'_>, names: &Names) -> bool {
    let modules = names.modules.bind(py);
    let count = modules.len() as isize;
    if MODULES.load(Ordering::Relaxed) != count {
        MODULES.store(count, Ordering::Relaxed);
        HAS_OPENTELEMETRY.store(modules.contains("opentelemetry.trace").unwrap_or(false), Ordering::Relaxed);
    }
    HAS_OPENTELEMETRY.load(Ordering::Relaxed)
}

/// Of the current span of OpenTelemetry; none if there is none, or the module is only half imported.
fn of_opentelemetry(py: Python<'_>, names: &Names) -> PyResult<Option<Trace>> {
    let Some(module) = names.modules.bind(py).get_item("opentelemetry.trace")? else { return Ok(None) };
    let Ok(get) = module.getattr("get_current_span") else { return Ok(None) };
    let context = get.call0()?.call_method0("get_span_context")?;
    if !context.getattr("is_valid")?.is_truthy()? {
        return Ok(None);
    }
    if context.getattr("trace_flags")?.extract::<u8>()? & 1 == 0 {
        return Ok(Some(Trace::NONE));
    }
    Ok(Some(Trace { id: context.getattr("trace_id")?.extract()?, span: context.getattr("span_id")?.extract()? }))
}

/// What was there before an `enter`.
pub struct Before {
    token: Py<PyAny>,
    events: [u64; 3],
}

/// From now on this thread's code, and its events, belong to the trace.
pub fn enter(py: Python<'_>, trace: Trace) -> PyResult<Option<Before>> {
    let Some(names) = NAMES.get(py) else { return Ok(None) };
    TRACING.store(true, Ordering::Relaxed);
    let token = names.variable.bind(py).call_method1("set", (TraceContext(trace),))?.unbind();
    Ok(Some(Before { token, events: events::set_trace(trace.words()) }))
}

pub fn leave(py: Python<'_>, before: Before) -> PyResult<()> {
    events::set_trace(before.events);
    let Some(names) = NAMES.get(py) else { return Ok(()) };
    names.variable.bind(py).call_method1("reset", (before.token,)).map(drop)
}

/// Records what `emit` does as part of the trace of this code.
pub fn recorded(py: Python<'_>, emit: impl FnOnce()) {
    // Who records has no use for what is wrong with a library's spans.
    let trace = if events::is_on() { current(py).unwrap_or_default() } else { Trace::NONE };
    events::in_trace(trace.words(), emit);
}

/// The trace that this code belongs to, if it belongs to a sampled one.
#[pyfunction]
pub fn trace_context(py: Python<'_>) -> PyResult<Option<TraceContext>> {
    Ok(Some(current(py)?).filter(|t| !t.is_none()).map(TraceContext))
}

/// From now on this code belongs to the trace, or to none; gives what `leave_trace` takes.
#[pyfunction]
#[pyo3(signature = (context))]
pub fn enter_trace<'py>(py: Python<'py>, context: Option<&Bound<'py, TraceContext>>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(names) = NAMES.get(py) else { return Ok(None) };
    TRACING.store(true, Ordering::Relaxed);
    names.variable.bind(py).call_method1("set", (context,)).map(Some)
}

/// Takes back an `enter_trace` of the same thread or task.
#[pyfunction]
pub fn leave_trace(py: Python<'_>, token: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(names) = NAMES.get(py) else { return Ok(()) };
    names.variable.bind(py).call_method1("reset", (token,)).map(drop)
}
