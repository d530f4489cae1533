//! Plans: operations that are submitted together, once or several times.

use std::sync::Arc;

use bulk::sys;
use bulk::transfer::{self, Op, Operation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use runtime::Node;

use super::ending::{Notice, Notify, cell, completion};
use super::handle::Handle;
use super::registry::Bulk;
use crate::fork;
use crate::gil;
use crate::pending_call::PendingCall;

/// Operations that are prepared once.
#[pyclass(frozen)]
pub struct Plan {
    node: Arc<Node>,
    inner: Arc<transfer::Plan>,
    keep: Py<PyAny>,
}

/// Handle, operation, local address, bytes, offset, and two operands.
type PlannedOp<'py> = (Bound<'py, Handle>, u8, usize, u64, u64, u64, u64);

#[pymethods]
impl Plan {
    /// The numbers of operations: 0 reads, 1 writes, 2 adds, 3 compares and swaps. `keep` keeps all local memory alive.
    #[new]
    fn new(bulk: &Bulk, ops: Vec<PlannedOp<'_>>, keep: Py<PyAny>) -> PyResult<Self> {
        fork::check_not_forked()?;
        let one = |(handle, what, local, len, offset, a, b): PlannedOp<'_>| {
            let what = match what {
                0 => Operation::Read,
                1 => Operation::Write,
                2 => Operation::FetchAdd { add: a },
                3 => Operation::CompareSwap { compare: a, swap: b },
                _ => return Err(PyValueError::new_err("no such operation")),
            };
            Ok(Op { buffer: handle.get().buffer.clone(), what, local, len, offset })
        };
        let ops = ops.into_iter().map(one).collect::<PyResult<_>>()?;
        Ok(Plan { node: bulk.node.clone(), inner: transfer::Plan::new(bulk.inner.clone(), ops), keep })
    }

    /// Finds the transports to the buffers, as far as possible within `timeout` seconds.
    fn open(&self, py: Python<'_>, timeout: f64) {
        gil::blocking(py, || self.inner.open(sys::deadline(timeout)));
    }

    /// True while a submit has not ended.
    fn in_flight(&self) -> bool {
        self.inner.in_flight()
    }

    /// Starts all operations, after those of an earlier submit if they have not ended.
    fn submit(&self, py: Python<'_>, timeout: f64, most: u64, notify: Option<Notify<'_>>) -> PyResult<PendingCall> {
        fork::check_not_forked()?;
        let cell = cell(&self.node);
        let mut done = completion(&cell);
        if let Some(notify) = notify {
            done = Notice::new(&self.node, notify)?.before(done);
        }
        self.inner.submit(sys::deadline(timeout), most, Box::new(self.keep.clone_ref(py)), done);
        Ok(cell)
    }
}
