//! The trace of the code that a thread or task runs (W3C Trace Context).
//!
//! The trace is the value of a Python context variable, of which each task of an event loop has its own. The variable is not read until
//! this process has had a trace, or has imported OpenTelemetry, whose current span takes precedence. From then on each message begins with
//! its own trace or without one: the code of the previous message may have entered a trace that it has not left.

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};

use pyo3::exceptions::{PyException, PyImportError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyInt, PyString, PyType};
use wire::Trace;

use crate::provided;

/// Some code of this process has had a trace.
static TRACING: AtomicBool = AtomicBool::new(false);
/// The number of imported modules when OpenTelemetry was last searched for.
static MODULES: AtomicIsize = AtomicIsize::new(0);
/// OpenTelemetry is imported.
static HAS_OPENTELEMETRY: AtomicBool = AtomicBool::new(false);
/// The number of the next message that begins. Code outside messages has 0.
static MESSAGES: AtomicU64 = AtomicU64::new(1);

/// Python objects that this module needs. They are set when the extension module is loaded, so a fork finds them complete.
struct Names {
    variable: Py<PyAny>,
}

static NAMES: PyOnceLock<Names> = PyOnceLock::new();

/// Sets what this module needs, when the extension module is loaded.
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    let make = || -> PyResult<Names> {
        let variable = py.import("_contextvars")?.getattr("ContextVar")?.call1(("monarch_trace",))?.unbind();
        Ok(Names { variable })
    };
    match NAMES.get_or_try_init(py, make) {
        // If an interpreter's own modules cannot be read, no code has a trace, and everything else works.
        Err(e) if !e.is_instance_of::<PyImportError>(py) => Err(e),
        _ => Ok(()),
    }
}

/// A sampled trace, and a span of it.
#[pyclass(frozen, eq, hash, module = "monarch.extension.trace")]
#[derive(PartialEq, Eq, Hash)]
pub struct TraceContext(pub Trace);

#[pymethods]
impl TraceContext {
    #[new]
    fn new(trace_id: &Bound<'_, PyAny>, span_id: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (id, span) = (number("trace_id", trace_id, 128)?, number("span_id", span_id, 64)?);
        Ok(TraceContext(Trace { id, span: span as u64 }))
    }

    /// The trace of the value of a `traceparent` header; `None` if the trace is not sampled.
    #[classmethod]
    fn from_traceparent(_cls: &Bound<'_, PyType>, traceparent: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Ok(text) = traceparent.cast::<PyString>() else {
            return Err(refused_type("traceparent", traceparent, "a str")?);
        };
        let text = text.to_string_lossy();
        match Trace::parse(&text) {
            Some(t) => Ok((!t.is_none()).then_some(TraceContext(t))),
            None => Err(PyValueError::new_err(format!("not a traceparent: {:?}", text.chars().take(80).collect::<String>()))),
        }
    }

    /// The id of the trace, of 16 bytes.
    #[getter]
    fn trace_id(&self) -> u128 {
        self.0.id
    }

    /// The id of the span, of 8 bytes.
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

/// Checks a positive number of at most `bits` bits.
fn number(name: &str, value: &Bound<'_, PyAny>, bits: u32) -> PyResult<u128> {
    if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        return Err(refused_type(name, value, "an int")?);
    }
    match value.extract::<u128>() {
        Ok(n) if n > 0 && n >> (bits - 1) <= 1 => Ok(n),
        _ => Err(PyValueError::new_err(format!("{name}={}: expected 1 to 2**{bits} - 1", value.repr()?))),
    }
}

fn refused_type(name: &str, value: &Bound<'_, PyAny>, wanted: &str) -> PyResult<PyErr> {
    Ok(PyTypeError::new_err(format!("{name}={}: expected {wanted}, not {}", value.repr()?, value.get_type().name()?)))
}

/// A value of the context variable: a trace or none, and the message to which the code and its tasks belong.
#[pyclass(frozen)]
struct Entered {
    trace: Trace,
    message: u64,
}

/// The argument of `leave_trace`.
#[pyclass(frozen)]
pub struct TraceEntry {
    token: Py<PyAny>,
    message: u64,
}

/// The trace of this code.
pub fn current(py: Python<'_>) -> PyResult<Trace> {
    let Some(names) = NAMES.get(py) else { return Ok(Trace::NONE) };
    let otel = has_opentelemetry(py)?;
    if !otel && !TRACING.load(Ordering::Relaxed) {
        return Ok(Trace::NONE);
    }
    if otel {
        match of_opentelemetry(py) {
            Ok(Some(trace)) => return Ok(trace),
            // A call does not fail because of an error in a library that it does not need.
            Err(e) if !e.is_instance_of::<PyException>(py) => return Err(e),
            _ => {}
        }
    }
    Ok(entered(py, names)?.0)
}

/// The trace and the message in the context variable.
fn entered(py: Python<'_>, names: &Names) -> PyResult<(Trace, u64)> {
    let set = names.variable.bind(py).call_method1("get", (py.None(),))?;
    Ok(set.cast::<Entered>().map_or((Trace::NONE, 0), |e| (e.get().trace, e.get().message)))
}

/// True if OpenTelemetry is imported. It is searched for only when the number of modules has changed.
fn has_opentelemetry(py: Python<'_>) -> PyResult<bool> {
    let modules = provided::modules(py)?;
    let count = modules.len() as isize;
    if MODULES.load(Ordering::Relaxed) != count {
        MODULES.store(count, Ordering::Relaxed);
        HAS_OPENTELEMETRY.store(modules.contains(intern!(py, "opentelemetry.trace")).unwrap_or(false), Ordering::Relaxed);
    }
    Ok(HAS_OPENTELEMETRY.load(Ordering::Relaxed))
}

/// The trace of OpenTelemetry's current span; `None` if there is no span, or the module is only half imported.
fn of_opentelemetry(py: Python<'_>) -> PyResult<Option<Trace>> {
    let Some(module) = provided::loaded(py, intern!(py, "opentelemetry.trace"))? else { return Ok(None) };
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

/// Begins the code of a new message with this trace or with none. Before the first trace of the process this is a single check.
#[inline]
pub fn begin(py: Python<'_>, trace: Option<&Trace>) -> PyResult<()> {
    if trace.is_none() && !TRACING.load(Ordering::Relaxed) {
        return Ok(());
    }
    let message = MESSAGES.fetch_add(1, Ordering::Relaxed);
    enter(py, trace, message).map(drop)
}

/// Sets the context variable; returns its token.
fn enter<'py>(py: Python<'py>, trace: Option<&Trace>, message: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(names) = NAMES.get(py) else { return Ok(None) };
    TRACING.store(true, Ordering::Relaxed);
    let entered = Entered { trace: trace.copied().unwrap_or(Trace::NONE), message };
    names.variable.bind(py).call_method1("set", (entered,)).map(Some)
}

/// Runs `emit`, whose events become a part of the trace of this code.
pub fn recorded(py: Python<'_>, emit: impl FnOnce()) {
    // An error in a library's spans does not concern the recording of events.
    let trace = if events::is_on() { current(py).unwrap_or_default() } else { Trace::NONE };
    events::in_trace(trace.words(), emit);
}

/// The trace of this code; `None` if there is none or it is not sampled.
#[pyfunction]
pub fn trace_context(py: Python<'_>) -> PyResult<Option<TraceContext>> {
    Ok(Some(current(py)?).filter(|t| !t.is_none()).map(TraceContext))
}

/// Begins the code of a new message with this trace or with none, whichever trace the earlier code has entered.
#[pyfunction]
#[pyo3(signature = (context))]
pub fn begin_trace(py: Python<'_>, context: Option<&Bound<'_, TraceContext>>) -> PyResult<()> {
    begin(py, context.map(|c| &c.get().0))
}

/// Enters the trace, or none. Returns the argument of `leave_trace`.
#[pyfunction]
#[pyo3(signature = (context))]
pub fn enter_trace(py: Python<'_>, context: Option<&Bound<'_, TraceContext>>) -> PyResult<Option<TraceEntry>> {
    let Some(names) = NAMES.get(py) else { return Ok(None) };
    let (_, message) = entered(py, names)?;
    let token = enter(py, context.map(|c| &c.get().0), message)?;
    Ok(token.map(|token| TraceEntry { token: token.unbind(), message }))
}

/// Undoes an `enter_trace`. A generator that ends in a later message or another task has entered no trace there, so nothing is undone.
#[pyfunction]
#[pyo3(signature = (entry))]
pub fn leave_trace(py: Python<'_>, entry: Option<&Bound<'_, TraceEntry>>) -> PyResult<()> {
    let (Some(names), Some(entry)) = (NAMES.get(py), entry) else { return Ok(()) };
    if entered(py, names)?.1 != entry.get().message {
        return Ok(());
    }
    match names.variable.bind(py).call_method1("reset", (&entry.get().token,)) {
        Err(e) if !e.is_instance_of::<PyValueError>(py) => Err(e),
        _ => Ok(()),
    }
}
