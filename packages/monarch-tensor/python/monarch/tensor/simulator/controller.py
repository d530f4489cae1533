"""The controller of a mesh without workers: commands go to a log."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from monarch.actor import ProcMesh
from monarch.extension import promise
from monarch.extension.mesh import mesh_view
from monarch.extension.pickling import modes_off
from monarch.tensor._controller.controller import Controller
from monarch.tensor._controller.place_base import PlaceBase
from monarch.tensor._protocol.commands import RELEASE, Constant, Replay
from monarch.tensor._protocol.frames import current_site
from monarch.tensor._protocol.meta import get_meta
from monarch.tensor.errors import TensorMeshError
from monarch.tensor.simulator.work import Entry, Work, work_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.actor import Future
    from monarch.tensor._controller.propagate import Known
    from monarch.tensor._protocol.commands import Definition
    from monarch.tensor._protocol.frames import Site
    from monarch.tensor._protocol.layout import Layout
    from monarch.tensor._tensors.mesh import Stream


class SimulatedController(Controller):
    """Checks and propagates as that of real workers does, and keeps what it would send. `hosts` are those of the ranks, in their order."""

    has_workers = False

    def __init__(self, procs: ProcMesh | None, hosts: Sequence[Any] | None = None, sites: bool = False) -> None:
        self.hosts = () if hosts is None else tuple(hosts)
        self.log: list[Entry] = []
        self.sites = sites
        self._known: dict[int, Known] = {}
        # The work of each definition whose operands always have the same layouts; otherwise by definition and layouts.
        self._works: dict[Any, Work] = {}
        self._layouts: dict[int, Layout | None] = {}
        # Tensors of a recording have no number of the program.
        self._inner = itertools.count(-1, -1)
        self._last: PlaceBase | None = None
        super().__init__(procs)  # pyright: ignore[reportArgumentType]

    def _start(self, procs: ProcMesh | None) -> None:
        if procs is not None:
            self.hosts = mesh_view(procs).hosts
        self.size = len(self.hosts)
        self.workers = _NoWorkers()
        # A tensor that dies has no flusher to wake.
        self.awake = True
        # The log names them after their end.
        self._streams = {}

    # Commands

    def remember(self, key: tuple[Any, ...], known: Known) -> int:
        with self.lock:
            number = super().remember(key, known)
            self._known[number] = known
            return number

    def define_known(self, known: Known) -> int:
        number = super().define_known(known)
        self._known[number] = known
        return number

    def forget_definition(self, number: int) -> None:
        self._known.pop(number, None)
        self._works.pop(number, None)
        super().forget_definition(number)

    def emit(self, place: PlaceBase, definition: int, inputs: Sequence[int], constants: Sequence[Any], results: Sequence[int]) -> None:
        with self.lock:
            self._begin(place)
            site = current_site() if self.sites else ()
            self._log(place, definition, tuple(inputs), constants, tuple(results), site)
            self._outbox.keep_sites(self._outbox.operations, [site])
            self._outbox.operations += 1
            if self.recorder is not None:
                self.recorder.record(place, definition, inputs, constants, results)

    def emit_order(self, first: PlaceBase, then: PlaceBase) -> None:
        with self.lock:
            if self.recorder is not None:
                self.recorder.order(first, then)
            event = next(self._events)
            for place, what in ((first, "signal"), (then, "wait")):
                self._begin(place)
                self.log.append(Entry(what, place, (event,)))

    def emit_all(self, commands: Sequence[tuple[Any, ...]]) -> None:
        with self.lock:
            for command in commands:
                if len(command) == 5:
                    self.emit(*command)
                elif isinstance(command[1], PlaceBase):
                    self.emit_order(*command)
                else:
                    self.free(*command)

    def free(self, place: PlaceBase, numbers: Sequence[int]) -> None:
        with self.lock:
            self._begin(place)
            self._log_freed(place, numbers)
            self._freed.update(n for n in numbers if n in self._pins)

    def _begin(self, place: PlaceBase) -> None:
        if self.failed is not None:
            raise self.failed
        last = self._last
        if last is not place and last is not None and last.released:
            self._release(last)
        self._last = place
        if place.released:
            self._release(place)

    def _settle(self, place: PlaceBase) -> None:
        self._begin(place)

    def _free_dead(self, place: PlaceBase, numbers: list[int]) -> None:
        self._log_freed(place, numbers)

    def _log_freed(self, place: PlaceBase, numbers: Sequence[int]) -> None:
        # A tensor that was dropped dies later as well.
        freed = [n for n in numbers if n in self._layouts]
        for number in freed:
            del self._layouts[number]
        if freed:
            self.log.append(Entry("release", place, tuple(freed)))

    def _log(
        self, place: PlaceBase, number: int, inputs: tuple[int, ...], constants: Sequence[Any], results: tuple[int, ...], site: Site
    ) -> None:
        definition = self._known_definitions[number]
        if isinstance(definition, Replay):
            self._replayed(place, definition, inputs, results, site)
            return
        work = self._work(number, definition, inputs, constants)
        self._layouts.update(zip(results, work.outputs, strict=True))
        known = self._known.get(number)
        if known is not None:
            for index, layout in known.relaid:
                self._layouts[inputs[index]] = layout
        self.log.append(Entry(work, place, inputs, results, site=site, meta=get_meta()))

    def _work(self, number: int, definition: Definition, inputs: tuple[int, ...], constants: Sequence[Any]) -> Work:
        known = self._known.get(number)
        if known is not None:
            found = self._works.get(number)
            if found is None:
                found = self._works[number] = work_of(definition, known, self._layouts_of(inputs), constants)
            return found
        layouts = self._layouts_of(inputs)
        if isinstance(definition, Constant):
            value = constants[0]
            key: Any = ("constant", tuple(value.shape), value.dtype, value.device)
        else:
            key = (number, layouts)
        found = self._works.get(key)
        if found is None:
            if len(self._works) >= 65_536:
                self._works.clear()
            found = self._works[key] = work_of(definition, None, layouts, constants)
        return found

    def _layouts_of(self, numbers: Sequence[int]) -> tuple[Layout | None, ...]:
        return tuple(self._layouts.get(n) for n in numbers)

    def _replayed(self, place: PlaceBase, recording: Replay, inputs: tuple[int, ...], results: tuple[int, ...], site: Site) -> None:
        """The commands of a recording, one by one."""
        names = dict(zip(recording.formals, inputs, strict=True)) | dict(zip(recording.results, results, strict=True))
        made: list[int] = []

        def named(number: int) -> int:
            return names.get(number, number)

        for _, code, constants in recording.code:
            at = used = 0
            while at < len(code):
                head = code[at]
                if head == RELEASE:
                    self._log_freed(place, [named(n) for n in code[at + 2 : at + 2 + code[at + 1]]])
                    at += 2 + code[at + 1]
                    continue
                definition = self._known_definitions[head]
                middle = at + 1 + definition.inputs
                end = middle + len(definition.keep)
                for number in code[middle:end]:
                    if number not in names:
                        names[number] = next(self._inner)
                        made.append(names[number])
                values = constants[used : used + definition.constants]
                self._log(place, head, tuple(map(named, code[at + 1 : middle])), values, tuple(map(named, code[middle:end])), site)
                used += definition.constants
                at = end
        self._log_freed(place, made)

    # The answers of real workers

    def flush(self) -> None:
        """Takes note of what has died, so that the log is complete."""
        with self.lock:
            if self.failed is not None:
                raise self.failed
            self.end_forgotten()
            for place in self.living_places():
                if place.released:
                    self._release(place)
            self.dropped_groups.clear()
            self.orphans.clear()
            self._outbox.definitions.clear()
            self._outbox.targets.clear()
            self._outbox.forget.clear()

    def stir(self) -> None:
        """Does nothing: the log waits for nothing."""

    def wait(self) -> None:
        """Takes note of what has died. No command fails in a simulation."""
        self.flush()

    def worker(self, rank: int) -> Any:
        return self.workers

    def fetch(self, place: PlaceBase, rank: int, numbers: Sequence[int]) -> Future[Any]:
        """Zeros."""
        with self.lock:
            self.flush()
            self._last = place
            layouts = self._layouts_of(numbers)
            key = ("fetch", layouts)
            work = self._works.get(key)
            if work is None:
                work = self._works[key] = Work("fetch", "fetch", None, layouts, (), (), ())
            self.log.append(Entry(work, place, tuple(numbers), rank=rank, site=current_site() if self.sites else (), meta=get_meta()))
        with modes_off():
            values: list[Any] = [None if x is None else torch.zeros(x.shape, dtype=x.dtype) for x in layouts]
        ready = promise("a simulated fetch")
        ready.set_result(values)
        return ready.future

    # For what reads the log

    def ranks_of(self, place: PlaceBase) -> tuple[int, ...]:
        """The ranks that execute the commands of a place."""
        if place.mesh is not None:
            return place.mesh.ranks_in_order
        number = place.head[1]
        return next((ranks for ranks, n in self._targets.items() if n == number), tuple(range(self.size)))

    def streams(self) -> list[Stream]:
        """In the order of their first use."""
        return list(self._streams)


class _NoWorkers:
    """Stands where the actors of a mesh are."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TensorMeshError(
            "a simulated mesh has no workers, so that no function runs and gives no value. Give a remote function whose tensors are used "
            '`propagate=` as a function, or "cached"; replace it by a mock where the program needs the value itself.'
        )
