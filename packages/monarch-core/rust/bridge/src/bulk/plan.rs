//! Plans: operations that are submitted together, once or several times.

use std::sync::Arc;

use bulk::transfer::{self, Op, Operation};
use bulk::{Grid, sys};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use runtime::Node;

use super::ending::{Notice, Notify, cell, completion};
use super::handle::Handle;
use super::memory::BufferMemory;
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

/// The words of a row of a table.
const COLUMNS: usize = 9;

/// Local address, offset and grid of a row; `None` if it is invalid.
fn op_of(row: &[i64; COLUMNS]) -> Option<(usize, u64, Grid)> {
    let [local, offset, run, outer, outer_there, outer_here, inner, inner_there, inner_here] = *row;
    let positive = |n: i64| u64::try_from(n).ok();
    let grid = Grid {
        run: positive(run)?,
        counts: [positive(outer)?, positive(inner)?],
        there: [positive(outer_there)?, positive(inner_there)?],
        here: [outer_here, inner_here],
    };
    positive(offset)?.checked_add(grid.span()?)?;
    Some((usize::try_from(local).ok()?, positive(offset)?, grid))
}

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
            Ok(Op::contiguous(handle.get().buffer.clone(), what, local, offset, len))
        };
        let ops = ops.into_iter().map(one).collect::<PyResult<_>>()?;
        Ok(Plan { node: bulk.node.clone(), inner: transfer::Plan::new(bulk.inner.clone(), ops), keep })
    }

    /// Reads, or writes, given as tables: an object for each of them would take ten times as long. A row of a table has nine signed words:
    /// local address, offset in the buffer, bytes of a run; then for the outer and the inner dimension: the number of steps, and the bytes
    /// of one step in the buffer and in local memory. `keep` keeps all local memory alive.
    #[staticmethod]
    fn of_tables(bulk: &Bulk, write: bool, tables: Vec<(Bound<'_, Handle>, Bound<'_, PyAny>)>, keep: Py<PyAny>) -> PyResult<Self> {
        fork::check_not_forked()?;
        let what = if write { Operation::Write } else { Operation::Read };
        let mut ops = Vec::new();
        for (handle, table) in &tables {
            let rows = BufferMemory::new(table)?;
            for (i, row) in rows.words()?.chunks(COLUMNS).enumerate() {
                let found = <&[i64; COLUMNS]>::try_from(row).ok().and_then(op_of);
                let Some((local, offset, grid)) = found else {
                    return Err(PyValueError::new_err(format!(
                        "row {i} of a table of copies has no runs, overlapping ones, or a negative number"
                    )));
                };
                ops.push(Op { buffer: handle.get().buffer.clone(), what, local, offset, grid });
            }
        }
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
