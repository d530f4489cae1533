//! The trace that the code of a thread or task belongs to (W3C Trace Context).
//!
//! It stands in a variable of Python's contexts, which tasks of an event loop have each for itself. Nothing looks at it until
//! something in this process has had a trace, or the library OpenTelemetry is there, whose current span counts more. From then on
//! each message begins with its own trace or with none: code of the message before may have entered one that it has not left.

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};

use pyo3::exceptions::{PyException, PyImportError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyInt, PyString, PyType};
use wire::Trace;

/// Something in this process has had a trace.
static TRACING: AtomicBool = AtomicBool::new(false);
/// Modules that had been imported when OpenTelemetry was last looked for.
static MODULES: AtomicIsize = AtomicIsize::new(0);
static HAS_OPENTELEMETRY: AtomicBool = AtomicBool::new(false);
/// Numbers the messages that have begun since; code of none has 0.
static MESSAGES: AtomicU64 = AtomicU64::new(1);

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
    fn new(trace_id: &Bound<'_, PyAny>, span_id: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (id, span) = (number("trace_id", trace_id, 128)?, number("span_id", span_id, 64)?);
        Ok(TraceContext(Trace { id, span: span as u64 }))
    }

    /// Of the value of a `traceparent` header; none if the trace is not sampled.
    #[classmethod]
    fn from_traceparent(_cls: &Bound<'_, PyType>, traceparent: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Ok(text) = traceparent.cast::<PyString>() else {
            return Err(refused_type("traceparent", traceparent, "a str")?);
        };
        let text = text.to_string_lossy();
        match Trace::parse(&text) {
            Some(t) => Ok((!t.is_none()).then_some(TraceContext(t))),
            None => Err(PyValueError::new_err(format!("this is no traceparent: {:?}", text.chars().take(80).collect::<String>()))),
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

/// A number above 0 of so many bits.
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

/// A value of the variable: a trace or none, and the message that the code belongs to, with its tasks.
#[pyclass(frozen)]
struct Entered {
    trace: Trace,
    message: u64,
}

/// What takes an `enter_trace` back.
#[pyclass(frozen)]
pub struct TraceEntry {
    token: Py<PyAny>,
    message: u64,
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
    Ok(entered(py, names)?.0)
}

/// The trace and the message of the variable.
fn entered(py: Python<'_>, names: &Names) -> PyResult<(Trace, u64)> {
    let set = names.variable.bind(py).call_method1("get", (py.None(),))?;
    Ok(set.cast::<Entered>().map_or((Trace::NONE, 0), |e| (e.get().trace, e.get().message)))
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

/// From now on this code is that of a new message of this trace, or of none. Until something has had a trace, this is one test.
#[inline]
pub fn begin(py: Python<'_>, trace: Option<&Trace>) -> PyResult<()> {
    if trace.is_none() && !TRACING.load(Ordering::Relaxed) {
        return Ok(());
    }
    let message = MESSAGES.fetch_add(1, Ordering::Relaxed);
    enter(py, trace, message).map(drop)
}

/// Gives the token of the variable.
fn enter<'py>(py: Python<'py>, trace: Option<&Trace>, message: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(names) = NAMES.get(py) else { return Ok(None) };
    TRACING.store(true, Ordering::Relaxed);
    let entered = Entered { trace: trace.copied().unwrap_or(Trace::NONE), message };
    names.variable.bind(py).call_method1("set", (entered,)).map(Some)
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

/// From now on this code is that of a new message of this trace, or of none, whatever the code before has entered.
#[pyfunction]
#[pyo3(signature = (context))]
pub fn begin_trace(py: Python<'_>, context: Option<&Bound<'_, TraceContext>>) -> PyResult<()> {
    begin(py, context.map(|c| &c.get().0))
}

/// From now on this code belongs to the trace, or to none; gives what `leave_trace` takes.
#[pyfunction]
#[pyo3(signature = (context))]
pub fn enter_trace(py: Python<'_>, context: Option<&Bound<'_, TraceContext>>) -> PyResult<Option<TraceEntry>> {
    let Some(names) = NAMES.get(py) else { return Ok(None) };
    let (_, message) = entered(py, names)?;
    let token = enter(py, context.map(|c| &c.get().0), message)?;
    Ok(token.map(|token| TraceEntry { token: token.unbind(), message }))
}

/// Takes back an `enter_trace`. A generator that a later message or another task leaves has entered nothing there, and takes nothing back.
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
