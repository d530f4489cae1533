"""The ends of processes that this one knew, as far as its housekeeping thread has handled them."""

from __future__ import annotations

from monarch._core.process.recent import RecentMap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from monarch._core._native import Process as NativeProcess
    from monarch._core._native.system import ProcessEnd


class ProcEnds:
    """The ends of processes. Recent ones have their reasons; of older ones only the native runtime knows that they have ended."""

    __slots__ = ("_native", "_recent")

    def __init__(self, native: NativeProcess) -> None:
        self._native = native
        # The native runtime keeps the reasons of the last 4096 ended processes, and only the fact of the end for earlier ones.
        self._recent = RecentMap()

    def update(self, ends: Iterable[tuple[int, ProcessEnd]]) -> None:
        self._recent.update(ends)

    def route(self, places: list[tuple[int, int]], here: int = 0) -> None:
        """Records the hosts of processes; some of the hosts are lost. A process that was lost with a host that is back has not ended."""
        lost = self._native.route(places, here)
        for proc, _ in places:
            if proc in self._recent and self._native.ended(proc) is None:
                self._recent.pop(proc)
        self._recent.update(lost)

    def get(self, proc: int) -> ProcessEnd | None:
        """The end of this process, or None."""
        return self._recent.get(proc) or self._native.ended_long_ago(proc)

    def __contains__(self, proc: int) -> bool:
        return self.get(proc) is not None

    def __getitem__(self, proc: int) -> ProcessEnd:
        end = self.get(proc)
        if end is None:
            raise KeyError(proc)
        return end

    def __bool__(self) -> bool:
        return len(self._recent) > 0
