"""The log of a program, on a clock that the cost model advances."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from monarch.tensor._protocol.commands import Move, Reduce
from monarch.tensor.simulator.partition import Partition
from monarch.tensor.simulator.work import Work, bytes_of, bytes_of_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.tensor._protocol.layout import Layout
    from monarch.tensor.simulator.controller import SimulatedController
    from monarch.tensor.simulator.costs import CostModel
    from monarch.tensor.simulator.work import Entry


class Span(NamedTuple):
    """What a group does on a stream, in seconds. `entry` is the place in the log; `work` is None where the stream waits for another one."""

    group: int
    stream: int
    start: float
    end: float
    work: Work | None
    entry: int


class Totals(NamedTuple):
    """Of all commands with one name: how many there are, the seconds of one rank, and the bytes of the tensors of one rank."""

    commands: int
    seconds: float
    bytes: int


class Timeline:
    """What a program costs. All times are seconds from its first command.

    `members` are the ranks of each group: ranks of one group do the same at the same times. `busy` has the seconds in which a group's
    stream is at work, `end` the time of its last command, `operators` and `collectives` the totals by name, `peak` the greatest number of
    bytes of tensors that a rank of the group has at once, and `memory` how that number changes, as (time, bytes).
    """

    def __init__(self, controller: SimulatedController, costs: CostModel, spans: bool = False) -> None:
        with controller.lock:
            controller.flush()
            log = list(controller.log)
            self.streams = [stream.name for stream in controller.streams()]
        self.log: Sequence[Entry] = log
        self.partition = Partition(log, controller.hosts, controller.ranks_of)
        self.members = self.partition.members
        self.spans: list[Span] = []
        self.end: dict[tuple[int, int], float] = {}
        self.busy: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.operators: dict[str, Totals] = {}
        self.collectives: dict[str, Totals] = {}
        self._costs = costs
        self._seconds: dict[tuple[Work, int, bool], float] = {}
        self._keep = spans
        memory = _Memory()
        signals: dict[tuple[int, int], float] = {}
        for index, entry in enumerate(log):
            groups = self.partition.groups(entry)
            stream = entry.place.head[0]
            work = entry.work
            if isinstance(work, Work):
                self._execute(index, entry, work, stream, groups, memory)
            elif work == "release":
                for number in entry.inputs:
                    memory.release(number, {g: self.end.get((g, stream), 0.0) for g in groups})
            else:
                for group in groups:
                    now = self.end.get((group, stream), 0.0)
                    if work == "signal":
                        signals[group, entry.inputs[0]] = now
                        continue
                    then = max(now, signals.get((group, entry.inputs[0]), 0.0))
                    self.end[group, stream] = then
                    if spans and then > now:
                        self.spans.append(Span(group, stream, now, then, None, index))
        self.memory = [memory.of(group) for group in range(len(self.members))]
        self.peak = [max((size for _, size in steps), default=0) for steps in self.memory]

    @property
    def seconds(self) -> float:
        """When the last command has ended."""
        return max(self.end.values(), default=0.0)

    def peak_of(self, rank: int) -> int:
        """`peak` of the rank's group."""
        return self.peak[self.partition.of_rank[rank]]

    def _execute(self, index: int, entry: Entry, work: Work, stream: int, groups: tuple[int, ...], memory: _Memory) -> None:
        before = {g: self.end.get((g, stream), 0.0) for g in groups}
        starts: dict[int, float] = {}
        longest = 0.0
        definition = work.definition
        for group in groups:
            start, seconds = before[group], 0.0
            if isinstance(definition, Reduce | Move):
                # A rank that only has a part in the order of the command takes no time for it.
                for meeting in self.partition.meetings(definition, group):
                    start = max(start, *(before[g] for g in meeting.groups))
                    seconds = max(seconds, self._time(work, meeting.ranks, meeting.crossing))
            else:
                seconds = self._time(work, 1, False)
            starts[group] = start
            self.end[group, stream] = start + seconds
            self.busy[group, stream] += seconds
            longest = max(longest, seconds)
            if self._keep:
                self.spans.append(Span(group, stream, start, start + seconds, work, index))
        table = self.collectives if work.kind in ("collective", "move") else self.operators
        name = f"{work.name} {described_collective(definition)}" if isinstance(definition, Reduce) else work.name
        old = table.get(name, Totals(0, 0.0, 0))
        size = sum(map(bytes_of, work.inputs)) if work.kind in ("collective", "move") else work.bytes_moved
        table[name] = Totals(old.commands + 1, old.seconds + longest, old.bytes + (0 if work.is_free else size))
        self._allocate(entry, work, starts, memory)

    def _time(self, work: Work, ranks: int, crossing: bool) -> float:
        key = (work, ranks, crossing)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = self._costs.seconds(work, ranks, crossing)
        return found

    def _allocate(self, entry: Entry, work: Work, starts: dict[int, float], memory: _Memory) -> None:
        definition = work.definition
        holders = starts
        if isinstance(definition, Reduce) and definition.result is not None:
            holders = {g: starts[g] for g in self.partition.groups_of(definition.result)}
        elif isinstance(definition, Move):
            holders = {g: starts[g] for g in self.partition.groups_of(tuple(sorted(target for _, target in definition.routes)))}
        for number, layout, source in zip(entry.results, work.outputs, work.sources, strict=True):
            memory.add(number, layout, None if source is None else entry.inputs[source], holders)


class _Storage:
    __slots__ = ("groups", "size", "users")

    def __init__(self, size: int, groups: tuple[int, ...]) -> None:
        self.size = size
        self.groups = groups
        self.users = 1


class _Memory:
    """Bytes of tensors, by the numbers of their table."""

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}
        self._changes: defaultdict[int, list[tuple[float, int, int]]] = defaultdict(list)
        self._count = 0

    def add(self, number: int, layout: Layout | None, source: int | None, starts: dict[int, float]) -> None:
        if number in self._storages:
            # A recording makes surviving tensors again with each call.
            self.release(number, starts)
        shared = None if source is None else self._storages.get(source)
        if shared is not None:
            shared.users += 1
            self._storages[number] = shared
            return
        size = bytes_of_memory(layout)
        self._storages[number] = _Storage(size, tuple(starts))
        if size:
            for group, time in starts.items():
                self._change(group, time, size)

    def release(self, number: int, times: dict[int, float]) -> None:
        storage = self._storages.pop(number, None)
        if storage is None:
            return
        storage.users -= 1
        if not storage.users and storage.size:
            for group in storage.groups:
                if group in times:
                    self._change(group, times[group], -storage.size)

    def _change(self, group: int, time: float, size: int) -> None:
        self._count += 1
        self._changes[group].append((time, self._count, size))

    def of(self, group: int) -> list[tuple[float, int]]:
        """(time, bytes) after each change. Changes of one time are in the order of the program."""
        now = 0
        steps: list[tuple[float, int]] = []
        for time, _, size in sorted(self._changes[group]):
            now += size
            steps.append((time, now))
        return steps


def described_collective(command: Reduce) -> str:
    """As tables and traces have it: `sum over gpu`."""
    kind = {"stack": "all-to-all" if command.scatter else "stack"}.get(command.reduction, command.reduction)
    scatter = ", scattered" if command.scatter and command.reduction != "stack" else ""
    return f"{kind} over {', '.join(command.dims)}{scatter}"
