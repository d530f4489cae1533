"""Which messages have rows: all of a proc while they are few, and every n-th by its id above that, n being a power of two."""

from __future__ import annotations

from typing import Any

from monarch.telemetry._arrow import pa, pc

# The most messages of a proc in a second.
MOST_A_SECOND = 10_000
_MOST_WEIGHT = 1 << 20


class Sampling:
    """The weight of each proc: for how many messages a row stands. `most` None: no message is left out."""

    def __init__(self, most: int | None = MOST_A_SECOND) -> None:
        self._most = most
        self._weights: dict[int, int] = {}
        # By proc: the current second, and the number of its messages.
        self._counted: dict[int, tuple[int, int]] = {}

    def change(self, most: int | None) -> None:
        """Another limit from now on."""
        self._most = most
        if most is None:
            self._weights.clear()

    @property
    def weight(self) -> int:
        """The largest of all procs."""
        return max(self._weights.values(), default=1)

    def count(self, procs: Any, times: Any) -> None:
        """Messages were received, at these times in microseconds: the rate decides the weight of what comes after."""
        if self._most is None:
            return
        seconds = pc.divide(times, 1_000_000)
        counted = (
            pa.table([procs, seconds], ["proc", "second"]).group_by(["proc", "second"], use_threads=False).aggregate([([], "count_all")])
        )
        rows = zip(*(counted.column(name).to_pylist() for name in ("proc", "second", "count_all")), strict=True)
        for proc, second, number in sorted(rows, key=lambda row: row[1]):
            before, sum_of = self._counted.get(proc, (second, 0))
            if second == before:
                number += sum_of
            self._counted[proc] = (second, number)
            weight = 1
            while number > weight * self._most and weight < _MOST_WEIGHT:
                weight *= 2
            now = self._weights.get(proc, 1)
            if weight > now or second > before:
                self._weights[proc] = weight
                if weight == 1:
                    del self._weights[proc]

    def forget(self, proc: int) -> None:
        """A proc has ended."""
        self._weights.pop(proc, None)
        self._counted.pop(proc, None)

    def mask(self, procs: Any, ids: Any) -> Any:
        """Which of these messages have rows."""
        if not self._weights:
            return pa.repeat(pa.scalar(True), len(ids))
        known = pa.array(list(self._weights), pa.uint64())
        masks = pa.array([weight - 1 for weight in self._weights.values()], pa.uint64())
        bits = pc.fill_null(masks.take(pc.index_in(procs, value_set=known)), pa.scalar(0, pa.uint64()))
        return pc.equal(pc.bit_wise_and(ids, bits), pa.scalar(0, pa.uint64()))
