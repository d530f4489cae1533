"""The commands of a program as a graph, and as lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from monarch.tensor.simulator.trace import line_of, shown_meta
from monarch.tensor.simulator.work import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.tensor._controller.place_base import PlaceBase
    from monarch.tensor._protocol.layout import Layout
    from monarch.tensor.simulator.controller import SimulatedController
    from monarch.tensor.simulator.work import Entry


class _Names:
    """Numbers from 0 on in the order of first use: the controller's own ones depend on what it did before."""

    def __init__(self) -> None:
        self._found: dict[int, int] = {}

    def __call__(self, number: int) -> int:
        return self._found.setdefault(number, len(self._found))


def nodes_of(controller: SimulatedController, log: Sequence[Entry]) -> list[dict[str, Any]]:
    """The commands in the order of the program; tensors and events have numbers of their own."""
    tensors, events = _Names(), _Names()
    meshes: dict[PlaceBase, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for index, entry in enumerate(log):
        mesh = meshes.get(entry.place)
        if mesh is None:
            mesh = meshes[entry.place] = _mesh(controller, entry.place)
        node: dict[str, Any] = {"id": index, "stream": entry.place.stream.name, "mesh": mesh}
        work = entry.work
        if isinstance(work, Work):
            node |= {"kind": work.kind, "name": work.name}
            node["inputs"] = [_tensor(tensors(n), x) for n, x in zip(entry.inputs, work.inputs, strict=True)]
            node["outputs"] = [_tensor(tensors(n), x) for n, x in zip(entry.results, work.outputs, strict=True)]
            if entry.rank is not None:
                node["rank"] = entry.rank
            if entry.site:
                node["line"] = line_of(entry.site)
            if entry.meta is not None:
                node["meta"] = shown_meta(entry.meta)
        elif work == "release":
            node |= {"kind": work, "name": work, "inputs": [{"tensor": tensors(n)} for n in entry.inputs], "outputs": []}
        else:
            node |= {"kind": work, "name": work, "event": events(entry.inputs[0]), "inputs": [], "outputs": []}
        found.append(node)
    return found


def _mesh(controller: SimulatedController, place: PlaceBase) -> dict[str, Any]:
    if place.mesh is None:
        return {"ranks": list(controller.ranks_of(place))}
    grid = place.mesh.grid
    return {"labels": list(grid.labels), "offset": grid.offset, "sizes": list(grid.sizes), "strides": list(grid.strides)}


def _tensor(number: int, layout: Layout | None) -> dict[str, Any]:
    if layout is None:
        return {"tensor": number}
    return {"tensor": number, "shape": list(layout.shape), "dtype": str(layout.dtype).removeprefix("torch."), "device": str(layout.device)}


def graph_of(controller: SimulatedController) -> dict[str, Any]:
    """`nodes`, and `edges` from a command to one that waits for it.

    An edge of kind "data" goes from the last command that wrote the memory of an operand, and an edge of kind "order" from the command
    before on the same stream of some of the ranks, or from a signal to its wait.
    """
    with controller.lock:
        controller.flush()
        log = list(controller.log)
    edges: dict[tuple[int, int, str], None] = {}
    memory_of: dict[int, int] = {}
    written: dict[int, int] = {}
    signals: dict[int, int] = {}
    # By stream: the last command of each place that no later one covers.
    last: dict[int, dict[PlaceBase, int]] = {}
    sets: dict[PlaceBase, frozenset[int]] = {}
    for index, entry in enumerate(log):
        work = entry.work
        if isinstance(work, Work):
            for number in entry.inputs:
                origin = written.get(memory_of.get(number, number))
                if origin is not None:
                    edges[origin, index, "data"] = None
            for place in work.mutates:
                written[memory_of.get(entry.inputs[place], entry.inputs[place])] = index
            for number, source in zip(entry.results, work.sources, strict=True):
                memory = number if source is None else memory_of.get(entry.inputs[source], entry.inputs[source])
                memory_of[number] = memory
                if source is None or memory not in written:
                    written[memory] = index
        elif work == "signal":
            signals[entry.inputs[0]] = index
        elif work == "wait" and entry.inputs[0] in signals:
            edges[signals[entry.inputs[0]], index, "order"] = None
        ranks = sets.get(entry.place)
        if ranks is None:
            ranks = sets[entry.place] = frozenset(controller.ranks_of(entry.place))
        before = last.setdefault(entry.place.head[0], {})
        for place, node in list(before.items()):
            if not ranks.isdisjoint(sets[place]):
                edges[node, index, "order"] = None
                if sets[place] <= ranks:
                    del before[place]
        before[entry.place] = index
    found = [{"from": a, "to": b, "kind": kind} for a, b, kind in sorted(edges)]
    return {"nodes": nodes_of(controller, log), "edges": found}


def history_text(controller: SimulatedController) -> str:
    """The commands, one a line, as JSON."""
    with controller.lock:
        controller.flush()
        log = list(controller.log)
    return "".join(json.dumps(node, sort_keys=True) + "\n" for node in nodes_of(controller, log))
