//! `monarch._core._native.events`: the types of events, the recording of events, and the rings that events are read from.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ::events::{Batch, Columns, Field, Reader, Record, TABLE, Value, type_of};
use pyo3::exceptions::PyOSError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::trace::{TraceContext, recorded};
use crate::view::{Memory, fill};

/// A field of a type of events.
#[pyclass(frozen)]
pub struct EventField(&'static Field);

#[pymethods]
impl EventField {
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    /// `id`, `count`, `bytes`, `ns`, `float`, `name` or `text`.
    #[getter]
    fn unit(&self) -> &'static str {
        self.0.unit.word()
    }

    #[getter]
    fn about(&self) -> &'static str {
        self.0.about
    }
}

/// A type of events.
#[pyclass(frozen)]
pub struct EventType(&'static ::events::EventType);

#[pymethods]
impl EventType {
    #[getter]
    fn number(&self) -> u16 {
        self.0.number
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    #[getter]
    fn about(&self) -> &'static str {
        self.0.about
    }

    #[getter]
    fn emitted(&self) -> bool {
        self.0.emitted
    }

    #[getter]
    fn fields(&self) -> Vec<EventField> {
        self.0.fields.iter().map(EventField).collect()
    }

    fn __repr__(&self) -> String {
        format!("<EventType {}>", self.0.name)
    }
}

/// All types of events, in the order of their numbers.
#[pyfunction]
pub fn event_types() -> Vec<EventType> {
    TABLE.iter().map(EventType).collect()
}

/// An event of a process.
#[pyclass(frozen)]
pub struct Event(Record);

#[pymethods]
impl Event {
    #[getter]
    fn name(&self) -> String {
        // An event type of a later version, from a process that has another version installed.
        type_of(self.0.kind).map_or_else(|| format!("type {}", self.0.kind), |t| t.name.to_owned())
    }

    /// The number of the event among those of its process, from 0.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    /// The time in nanoseconds since the epoch.
    #[getter]
    fn time(&self) -> u64 {
        self.0.time
    }

    /// The kernel's id of the thread that recorded the event.
    #[getter]
    fn thread(&self) -> u32 {
        self.0.thread
    }

    /// The trace of the event, with the span in progress.
    #[getter]
    fn trace(&self) -> Option<TraceContext> {
        let [high, low, span] = self.0.trace;
        (high | low != 0).then(|| TraceContext(wire::Trace { id: u128::from(high) << 64 | u128::from(low), span }))
    }

    /// The fields by name; `None` for a text that was overwritten before it was read.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (field, value) in type_of(self.0.kind).map_or(&[][..], |t| t.fields).iter().zip(&self.0.fields) {
            let value = match value {
                Value::Number(n) => n.into_pyobject(py)?.into_any(),
                Value::Float(x) => x.into_pyobject(py)?.into_any(),
                Value::Text(text) => PyString::new(py, text).into_any(),
                Value::Lost => py.None().into_bound(py),
            };
            fields.set_item(field.name, value)?;
        }
        Ok(fields)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Event {} {}>", self.name(), self.fields(py)?.repr()?))
    }
}

/// The ring of a process, opened for reading.
#[pyclass(frozen)]
pub struct Ring(Mutex<Reader>);

impl Ring {
    fn reader(&self) -> std::sync::MutexGuard<'_, Reader> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Ring {
    /// Maps the ring of a process of this host. Raises `OSError` if the file is not a ring.
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let opened = File::open(&path).and_then(|file| Reader::open(file.as_raw_fd()));
        opened.map(|r| Ring(Mutex::new(r))).map_err(|e| PyOSError::new_err(format!("cannot read events of {}: {e}", path.display())))
    }

    #[getter]
    fn proc(&self) -> u64 {
        self.reader().proc()
    }

    #[getter]
    fn pid(&self) -> u32 {
        self.reader().pid()
    }

    #[getter]
    fn capacity(&self) -> u64 {
        self.reader().capacity()
    }

    #[getter]
    fn written(&self) -> u64 {
        self.reader().written()
    }

    #[getter]
    fn changes(&self) -> u64 {
        self.reader().changes()
    }

    #[getter]
    fn lost(&self) -> u64 {
        self.reader().lost()
    }

    fn skip_to_last(&self, events: usize) {
        self.reader().skip_to_last(events);
    }

    /// The next events, `most` at most; with `ended`, the process writes no more events. Runs without the GIL.
    fn drain(&self, py: Python<'_>, most: usize, ended: bool) -> EventBatch {
        EventBatch(Arc::new(py.detach(|| self.reader().drain(most, ended))))
    }
}

/// A column for Python: name, format, offset in the memory of its type, and number of bytes.
type ColumnRow = (&'static str, char, usize, usize);
/// The events of a type: the type's number, the number of events, their memory, and the columns in it.
type TypeRow = (u16, usize, Py<EventMemory>, Vec<ColumnRow>);

/// Events that were drained from a ring.
#[pyclass(frozen)]
pub struct EventBatch(Arc<Batch>);

#[pymethods]
impl EventBatch {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The events as objects.
    fn events(&self) -> Vec<Event> {
        self.0.decode().into_iter().map(Event).collect()
    }

    /// A row for each type that occurs: its number, the number of events, their memory and the columns in it. Runs without the GIL.
    fn columns(&self, py: Python<'_>) -> PyResult<Vec<TypeRow>> {
        let all = py.detach(|| self.0.columns());
        let row = |of: Columns| {
            let columns = of.columns().iter().map(|c| (c.name, c.format, c.offset, c.bytes)).collect();
            Ok((of.kind, of.rows, Py::new(py, EventMemory(Source::Columns(of)))?, columns))
        };
        all.into_iter().map(row).collect()
    }

    /// The texts that columns refer to: their offsets as numbers of 32 bits, and their bytes.
    fn texts(&self) -> (EventMemory, EventMemory) {
        (EventMemory(Source::Offsets(self.0.clone())), EventMemory(Source::Texts(self.0.clone())))
    }
}

/// The owner of the memory that a buffer views.
enum Source {
    Columns(Columns),
    Offsets(Arc<Batch>),
    Texts(Arc<Batch>),
}

/// Memory that Python buffers view without a copy. It is never written again.
#[pyclass(frozen)]
pub struct EventMemory(Source);

impl EventMemory {
    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Source::Columns(of) => of.bytes(),
            Source::Offsets(batch) => {
                let offsets = batch.texts().offsets();
                // SAFETY: the offsets are initialised integers, and their bytes may be read as bytes.
                unsafe { std::slice::from_raw_parts(offsets.as_ptr().cast(), size_of_val(offsets)) }
            }
            Source::Texts(batch) => batch.texts().bytes(),
        }
    }
}

#[pymethods]
impl EventMemory {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: std::ffi::c_int) -> PyResult<()> {
        let bytes = slf.get().bytes();
        let memory = Memory { address: bytes.as_ptr(), len: bytes.len(), is_readonly: true };
        // SAFETY: the object keeps the memory alive.
        unsafe { fill(&slf, &memory, view, flags) }
    }

    fn __len__(&self) -> usize {
        self.bytes().len()
    }
}

/// Decodes the last events of a proc, which are a part of its exit report.
#[pyfunction]
pub fn decode(recent: &[u8]) -> Vec<Event> {
    runtime::agent::recordings::decode(recent).into_iter().map(Event).collect()
}

/// True if this process records its events.
#[pyfunction]
pub fn is_on() -> bool {
    ::events::is_on()
}

/// The time in nanoseconds on the clock of `span_exit`; 0 while nothing is recorded.
#[pyfunction]
pub fn now() -> u64 {
    ::events::now_if_on()
}

// Texts come from users: characters that are not valid Unicode are replaced, and no text is refused.

#[pyfunction]
pub fn proc_start(id: u64, mesh: &Bound<'_, PyString>, rank: u64) {
    ::events::proc_begins(id, mesh.to_string_lossy().as_bytes(), rank);
}

#[pyfunction]
pub fn actor_end(mesh: u64, actor: &Bound<'_, PyString>, kind: &Bound<'_, PyString>, detail: &Bound<'_, PyString>) {
    ::events::actor_has_ended(mesh);
    ::events::actor_end(mesh, actor.to_string_lossy().as_bytes(), kind.to_string_lossy().as_bytes(), detail.to_string_lossy().as_bytes());
}

#[pyfunction]
pub fn supervision_delivered(mesh: u64, rank: u64, owner: &Bound<'_, PyString>, kind: &Bound<'_, PyString>) {
    ::events::supervision_delivered(mesh, rank, owner.to_string_lossy().as_bytes(), kind.to_string_lossy().as_bytes());
}

#[pyfunction]
pub fn frame_refused(proc: u64, what: &Bound<'_, PyString>, bytes: u64) {
    ::events::frame_refused(proc, what.to_string_lossy().as_bytes(), bytes);
}

#[pyfunction]
pub fn supervision_handled(mesh: u64, rank: u64, owner: &Bound<'_, PyString>, handled: bool) {
    ::events::supervision_handled(mesh, rank, owner.to_string_lossy().as_bytes(), u64::from(handled));
}

#[pyfunction]
pub fn log_line(name: &Bound<'_, PyString>, level: u64, fields: &Bound<'_, PyString>) {
    recorded(name.py(), || ::events::log_line(name.to_string_lossy().as_bytes(), level, fields.to_string_lossy().as_bytes()));
}

#[pyfunction]
pub fn log_record(actor: u64, logger: &Bound<'_, PyString>, level: u64, line: &Bound<'_, PyString>) {
    let (py, logger, line) = (logger.py(), logger.to_string_lossy(), line.to_string_lossy());
    recorded(py, || ::events::log_record(actor, logger.as_bytes(), level, line.as_bytes()));
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn mesh_made(
    mesh: u64,
    parent: u64,
    class_name: &Bound<'_, PyString>,
    name: &Bound<'_, PyString>,
    creator: &Bound<'_, PyString>,
    shape: &Bound<'_, PyString>,
    offset: u64,
    dims: &Bound<'_, PyString>,
) {
    let [class, name, creator, shape, dims] = [class_name, name, creator, shape, dims].map(|text| text.to_string_lossy());
    let [class, name, creator, shape, dims] = [&class, &name, &creator, &shape, &dims].map(|text| text.as_bytes());
    ::events::mesh_begins(mesh, parent, class, name, creator, shape, offset, dims);
}

#[pyfunction]
pub fn mesh_gone(mesh: u64) {
    ::events::mesh_has_ended(mesh);
}

#[pyfunction]
pub fn user_event(name: &Bound<'_, PyString>, fields: &Bound<'_, PyString>) {
    recorded(name.py(), || ::events::user_event(name.to_string_lossy().as_bytes(), fields.to_string_lossy().as_bytes()));
}

#[pyfunction]
pub fn span_enter(span: u64, parent: u64, name: &Bound<'_, PyString>, fields: &Bound<'_, PyString>) {
    let (py, name, fields) = (name.py(), name.to_string_lossy(), fields.to_string_lossy());
    recorded(py, || ::events::span_enter(span, parent, name.as_bytes(), fields.as_bytes()));
}

#[pyfunction]
pub fn span_exit(span: u64, name: &Bound<'_, PyString>, duration: u64, failed: bool) {
    recorded(name.py(), || ::events::span_exit(span, name.to_string_lossy().as_bytes(), duration, u64::from(failed)));
}

#[pyfunction]
pub fn metric_update(
    meter: &Bound<'_, PyString>,
    name: &Bound<'_, PyString>,
    kind: &Bound<'_, PyString>,
    amount: f64,
    attributes: &Bound<'_, PyString>,
) {
    let (py, meter, name) = (name.py(), meter.to_string_lossy(), name.to_string_lossy());
    let (kind, attributes) = (kind.to_string_lossy(), attributes.to_string_lossy());
    recorded(py, || ::events::metric_update(meter.as_bytes(), name.as_bytes(), kind.as_bytes(), amount, attributes.as_bytes()));
}
