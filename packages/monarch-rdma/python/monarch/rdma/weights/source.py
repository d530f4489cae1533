"""Weights that a process publishes."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monarch import extension
from monarch.rdma.weights.arguments import check_number
from monarch.rdma.weights.words import LAST

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from monarch.rdma.weights.updates import Updates


class Source:
    """The weights that this rank publishes; made by `Weights.publish`. They end with `close`, with a `with` block, or with the process."""

    __slots__ = ("__core__", "_pid")

    def __init__(self, core: Updates) -> None:
        self.__core__ = core
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return self.__core__.name

    @property
    def version(self) -> int:
        """The newest version of this rank: 0 after `publish`."""
        return self.__core__.version

    @property
    def overdue(self) -> int:
        """How often an update has stopped waiting for a reader, because the time of `publish(wait=...)` was up. Each is logged, too."""
        return self.__core__.overdue

    @contextmanager
    def update(self, version: int | None = None) -> Generator[None]:
        """The block changes the weights; at its end they are the next version of this rank.

        All ranks of the mesh update in the same order; a version is whole when all of them have it. If the block raises, there is no new
        version.

        Args:
            version: a step number that is larger than the last one; by default the next number.

        Raises:
            TypeError: `version` is no whole number.
            ValueError: `version` is not larger, or beyond 61 bits, or a tensor has another layout than at `publish`.
            RDMAPeerLostError: in the program of a run: its connection to the proc has ended.
            RuntimeError: the source is closed, another update is in progress, or this process is a fork of the one that publishes.

        ```python
        import numpy as np
        from monarch.rdma.weights import Weights

        weights = {"layer": np.zeros(4)}
        with Weights.publish("example", weights) as source:
            with source.update():
                weights["layer"] += 1
            assert source.version == 1
        ```
        """
        core = self.__core__
        new = core.version + 1 if version is None else check_number("version", version)
        if new <= core.version:
            raise ValueError(f"update of weights '{core.name}': version {new} is not larger than {core.version}")
        if new > LAST:
            raise ValueError(f"update of weights '{core.name}': version {new} is larger than {LAST}")
        extension.member()  # a fork, which shares the words that readers see, is refused
        if not core.updating.acquire(blocking=False):
            raise RuntimeError(f"an update of weights '{core.name}' is in progress")
        try:
            if core.is_closed:
                raise RuntimeError(f"the source of weights '{core.name}' is closed")
            core.begin()
            yield
            extension.member()  # the block may have forked
            core.end(new)
        finally:
            core.updating.release()

    def close(self) -> None:
        """Ends the source: targets can no longer pull from it. A second close does nothing.

        Raises:
            RDMATimeoutError: in the program of a run: its proc has not answered within 60 s, or before an earlier deadline.
            RuntimeError: this process is a fork of the one that publishes.
        """
        if os.getpid() != self._pid:
            extension.member()  # refuses
        if not self.__core__.is_closed:
            for future in self.__core__.close():
                future.get()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Source of weights '{self.name}', version {self.version}>"
