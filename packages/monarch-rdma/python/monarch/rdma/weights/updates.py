"""The versions that a trainer makes of its weights, in the process that has them."""

from __future__ import annotations

from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING

from monarch.rdma.weights.memories import wait_until
from monarch.rdma.weights.words import CLOSING, word

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from monarch.actor import Future
    from monarch.rdma.weights.memories import Memories
    from monarch.rdma.weights.table import Numbers


class Updates:
    """The weights of one name. `announced` has the words of readers; `wait` is how many seconds an update waits for them."""

    def __init__(self, name: str, memories: Memories, announced: Callable[[], list[Numbers]], wait: float) -> None:
        self.name = name
        self.version = -1
        self.updating = Lock()
        self.is_closed = False
        self.overdue = 0
        self._memories = memories
        self._announced = announced
        self._wait = wait

    def begin(self) -> None:
        """Before the weights change."""
        self._memories.begin(self._wait_for_readers)

    def end(self, version: int) -> None:
        """The weights are those of the version now."""
        self._memories.end(version, self._wait_for_readers)
        self.version = version
        self.arrived()

    def arrived(self) -> None:
        """There is a new version."""
        raise NotImplementedError

    def close(self) -> list[Future[None]]:
        """Ends the source; nothing reads it when the futures are done."""
        raise NotImplementedError

    def _wait_for_readers(self, version: int) -> None:
        """Waits for the readers that take this version: those that read it, and those that wait for any as old or older."""
        if not self._wait:
            return
        last = word(version, CLOSING)
        if not wait_until(lambda: not any(_up_to(values, last).any() for values in self._announced()), self._wait):
            # They must read anew. A reader that has stopped, or ended without a notice so far, delays no further step.
            count = 0
            for values in self._announced():
                late = _up_to(values, last)
                values[late] = 0
                count += int(late.sum())
            self.overdue += count
            if count:
                which = f"{count} reader{'s' * (count > 1)}"
                getLogger("monarch.rdma").warning("update of weights '%s': %s still read after %g s", self.name, which, self._wait)


def _up_to(values: NDArray[np.int64], last: int) -> NDArray[np.bool_]:
    """The announcements of this word and of smaller ones."""
    return (values != 0) & (values <= last)
