"""The simulator of a mesh, and its estimates."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from monarch.actor import ProcMesh, Slice
from monarch.extension import end_of
from monarch.extension.mesh import mesh_view
from monarch.tensor._controller.controllers import controller_of
from monarch.tensor._tensors.mesh import DeviceMesh
from monarch.tensor.simulator.controller import SimulatedController
from monarch.tensor.simulator.costs import CostModel
from monarch.tensor.simulator.graph import graph_of, history_text
from monarch.tensor.simulator.timeline import Timeline
from monarch.tensor.simulator.trace import report, trace_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

_SIMULATE = ("simulate", "simulate_with_real")
_TRACE = ("stream_only", "everything")


class Simulator:
    """A mesh of `hosts` x `gpus` ranks that are not there.

    `mesh` is a `DeviceMesh` with the dimensions "host" and "gpu", for the same programs as a mesh of workers: calls are checked and shapes
    propagated as there, and the commands are kept. Fetches give zeros. A function whose result depends on workers, as that of
    `remote(propagate="inspect")`, is `TensorMeshError`. `costs` is the model of time.

    | argument | meaning |
    |---|---|
    | `simulate_mode` | "simulate"; "simulate_with_real" is `NotImplementedError` |
    | `trace_mode` | "stream_only": the commands that take time; "everything": all commands with operands and lines, waits, memory |
    | `upload_trace` | True is `NotImplementedError`: the trace is a file |
    | `trace_path` | where `display` writes the trace |
    | `command_history_path` | where `display` writes the commands as lines of JSON, if it is given |
    | `group_workers` | whether the trace has a process for each group of ranks with equal times, and not for each rank |
    | `build_ir` | whether `export_ir` is used |
    """

    def __init__(
        self,
        hosts: int,
        gpus: int,
        *,
        simulate_mode: str = "simulate",
        trace_mode: str = "stream_only",
        upload_trace: bool = False,
        trace_path: str = "trace.json",
        command_history_path: str | None = None,
        group_workers: bool = False,
        build_ir: bool = False,
        costs: CostModel | None = None,
    ) -> None:
        for name, count in (("hosts", hosts), ("gpus", gpus)):
            if not isinstance(count, int) or isinstance(count, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"Simulator: {name} is a number of them, not {count!r}")
        if hosts < 1 or gpus < 1:
            raise ValueError(f"Simulator: expected one host and one GPU at least, got hosts={hosts}, gpus={gpus}")
        if costs is not None and not isinstance(costs, CostModel):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Simulator: costs is a CostModel, not {costs!r}")
        if simulate_mode not in _SIMULATE:
            raise ValueError(f"Simulator: simulate_mode is one of {', '.join(map(repr, _SIMULATE))}, not {simulate_mode!r}")
        if trace_mode not in _TRACE:
            raise ValueError(f"Simulator: trace_mode is one of {', '.join(map(repr, _TRACE))}, not {trace_mode!r}")
        if simulate_mode == "simulate_with_real":
            raise NotImplementedError(
                "Simulator(simulate_mode='simulate_with_real'): a simulated mesh has no workers beside it. Run the program on a mesh of "
                "procs, and on `Simulator.mesh` by itself."
            )
        if upload_trace:
            raise NotImplementedError(
                f"Simulator(upload_trace=True): the trace is not uploaded anywhere. Open trace_path={trace_path!r} in a viewer "
                "of Chrome traces."
            )
        self.trace_mode = trace_mode
        self.trace_path = trace_path
        self.command_history_path = command_history_path
        self.group_workers = group_workers
        self.build_ir = build_ir
        self.costs = costs or CostModel()
        names = [f"host{rank // gpus}" for rank in range(hosts * gpus)]
        self._controller = SimulatedController(None, names, sites=trace_mode == "everything")
        self.mesh = DeviceMesh(self._controller, ("host", "gpu"), Slice.new_row_major([hosts, gpus]))

    def estimate(self) -> Timeline:
        """What the commands so far cost."""
        return Timeline(self._controller, self.costs)

    def trace(self) -> str:
        """The trace of the commands so far, as JSON of Chrome's trace viewer."""
        return trace_text(Timeline(self._controller, self.costs, spans=True), self.trace_mode == "everything", self.group_workers)

    def display(self) -> None:
        """Prints what the commands so far cost, and writes the trace, and the history of commands if it has a path."""
        timeline = Timeline(self._controller, self.costs, spans=True)
        text = trace_text(timeline, self.trace_mode == "everything", self.group_workers)
        Path(self.trace_path).write_text(text, encoding="utf-8")
        if self.command_history_path is not None:
            Path(self.command_history_path).write_text(history_text(self._controller), encoding="utf-8")
        print(report(timeline))

    def export_ir(self) -> dict[str, Any]:
        """The commands so far as a graph: `nodes` and `edges`, of dicts and lists only. `ValueError` without `build_ir=True`."""
        if not self.build_ir:
            raise ValueError("export_ir: the graph is there with Simulator(..., build_ir=True)")
        return graph_of(self._controller)


def estimate(mesh: DeviceMesh, costs: CostModel | None = None) -> Timeline:
    """What the commands of a simulated mesh, and of all meshes of its procs, cost so far. `TypeError` for a mesh with workers."""
    controller = getattr(mesh, "controller", None)
    if not isinstance(mesh, DeviceMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"estimate: expected a simulated mesh, which `simulated(procs)` activates, not {mesh!r}")
    if not isinstance(controller, SimulatedController):
        raise TypeError(f"estimate: {mesh!r} has workers, and is not simulated")
    return Timeline(controller, costs or CostModel())


_lock = threading.Lock()
_of_fakes: WeakKeyDictionary[Any, SimulatedController] = WeakKeyDictionary()


def simulated(procs: Any) -> AbstractContextManager[DeviceMesh]:
    """What `procs.activate()` gives, without workers: for `patch_tensor_engine`.

    `procs` is a mesh of procs, or anything with `sizes`, such as a stand-in for one. The same procs, and their slices while a simulated
    mesh is active, have one controller, so that tensors outlive an activation.
    """
    if isinstance(procs, ProcMesh):
        if any(end_of(proc) is not None for proc in mesh_view(procs).procs):
            raise RuntimeError(f"{procs!r} cannot be activated: its procs have ended")
        controller, ndslice = controller_of(procs, SimulatedController)
        return DeviceMesh(controller, list(procs.sizes), ndslice).activate()
    sizes = getattr(procs, "sizes", None)
    if not isinstance(sizes, dict):
        raise TypeError(f"simulated: expected a mesh of procs, or something with its sizes by dimension, not {type(procs).__name__}")
    given = cast("dict[Any, Any]", sizes)
    named = {str(k): int(v) for k, v in given.items()}
    ndslice = Slice.new_row_major(list(named.values()))
    with _lock:
        controller = _of_fakes.get(procs)
        if controller is None:
            controller = _of_fakes[procs] = SimulatedController(None, _hosts(list(named), list(named.values())))
    return DeviceMesh(controller, list(named), ndslice).activate()


def _hosts(labels: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """The host of each rank: that of the dimension "hosts" or "host", if there is one."""
    count = 1
    for size in sizes:
        count *= size
    label = next((x for x in ("hosts", "host") if x in labels), None)
    if label is None:
        return ["host0"] * count
    step = 1
    for size in sizes[labels.index(label) + 1 :]:
        step *= size
    return [f"host{rank // step % sizes[labels.index(label)]}" for rank in range(count)]
