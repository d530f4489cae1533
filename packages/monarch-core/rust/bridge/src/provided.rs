//! The Python objects that native code uses, found before it needs them.
//!
//! An import from native code calls the `__import__` of the program, which may raise an exception or call an actor. So native code imports
//! nothing after this extension module is loaded: modules of `monarch._core` provide their objects when they are loaded, and a module of
//! the interpreter is used only if it is loaded already.

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{PyTypeInfo, intern};
use runtime::transfers::offers::Offers;

/// `sys.modules`.
static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
/// The functions that pickle and unpickle messages.
static PICKLING: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
/// The class of the error of a message that cannot be sent.
static DELIVERY_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
/// The class of arguments with a value for each rank, and the class of the error of a message with one.
static PER_RANK: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
/// The function that chooses the bulk transport of the process.
static CHOOSE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
/// `_asyncio._get_running_loop`.
static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Sets what this module needs, when the extension module is loaded. A fork finds it complete.
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    MODULES.get_or_try_init(py, || Ok(py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.unbind())).map(drop)
}

/// Provides the functions that pickle and unpickle messages.
#[pyfunction]
pub fn provide_pickling(py: Python<'_>, dumps: Py<PyAny>, loads: Py<PyAny>) {
    let _ = PICKLING.set(py, (dumps, loads));
}

/// Provides the class of the error of a message that cannot be sent.
#[pyfunction]
pub fn provide_delivery_error(py: Python<'_>, class_: Py<PyAny>) {
    let _ = DELIVERY_ERROR.set(py, class_);
}

/// Provides the class of arguments with a value for each rank, and the class of the error of a message with one.
#[pyfunction]
pub fn provide_per_rank(py: Python<'_>, class_: Py<PyAny>, error: Py<PyAny>) {
    let _ = PER_RANK.set(py, (class_, error));
}

/// Provides the function that chooses the bulk transport of the process, for its first large part to another host.
#[pyfunction]
pub fn provide_bulk_choice(py: Python<'_>, choose: Py<PyAny>) {
    let _ = CHOOSE.set(py, choose);
}

fn not_loaded() -> PyErr {
    PyRuntimeError::new_err("the Python modules of Monarch are not loaded")
}

/// `sys.modules`.
pub fn modules(py: Python<'_>) -> PyResult<&Bound<'_, PyDict>> {
    MODULES.get(py).map(|modules| modules.bind(py)).ok_or_else(not_loaded)
}

/// The module with this name if it is loaded.
pub fn loaded<'py>(py: Python<'py>, name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
    modules(py)?.get_item(name)
}

/// The function that pickles messages.
pub fn dumps(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    PICKLING.get(py).map(|(dumps, _)| dumps.bind(py)).ok_or_else(not_loaded)
}

/// The function that unpickles messages.
pub fn loads(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    PICKLING.get(py).map(|(_, loads)| loads.bind(py)).ok_or_else(not_loaded)
}

/// A `DeliveryError`. The caller adds the names of the sender and the receiver.
pub fn delivery_error(py: Python<'_>, why: String) -> PyErr {
    let made = DELIVERY_ERROR.get(py).ok_or_else(not_loaded).and_then(|class| class.bind(py).call1((why,)));
    made.map_or_else(|e| e, PyErr::from_value)
}

/// An error if an argument has a value for each rank. Only the type of each argument is compared, and no Python code runs.
pub fn check_no_per_rank(args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<()> {
    // The class does not exist before its first use.
    let Some((class, error)) = PER_RANK.get(args.py()) else { return Ok(()) };
    let is_per_rank = |item: Borrowed<'_, '_, PyAny>| item.get_type().as_ptr() == class.as_ptr();
    if args.iter_borrowed().any(is_per_rank) || !kwargs.is_empty() && kwargs.iter().any(|(_, item)| is_per_rank(item.as_borrowed())) {
        return Err(PyErr::from_value(error.bind(args.py()).call0()?));
    }
    Ok(())
}

/// Chooses the bulk transport, unless another thread is choosing it. An error of the choice fails no message: the next one tries again.
pub fn choose_bulk_transport(py: Python<'_>, offers: &Offers) -> PyResult<()> {
    let Some(choose) = CHOOSE.get(py) else { return Ok(()) };
    match offers.decide(|| choose.call0(py)) {
        Some(Err(e)) if !e.is_instance(py, &PyException::type_object(py)) => Err(e),
        _ => Ok(()),
    }
}

/// True if this thread runs an event loop.
pub fn loop_is_running(py: Python<'_>) -> PyResult<bool> {
    if RUNNING_LOOP.get(py).is_none() {
        // A thread without `asyncio` cannot run a loop. Another thread may be importing it.
        let Some(Ok(found)) = loaded(py, intern!(py, "_asyncio"))?.map(|m| m.getattr(intern!(py, "_get_running_loop"))) else {
            return Ok(false);
        };
        let _ = RUNNING_LOOP.set(py, found.unbind());
    }
    let running = RUNNING_LOOP.get(py).map(|get| get.call0(py)).transpose()?;
    Ok(running.is_some_and(|running| !running.is_none(py)))
}
