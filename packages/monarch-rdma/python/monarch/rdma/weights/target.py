"""Tensors of a process that take the weights of others."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Protocol

from monarch import extension
from monarch.rdma.weights.arguments import check_number, time_limit
from monarch.rdma.weights.words import LAST

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future


class Core(Protocol):
    """What pulls: a `Puller`, or the proc of a program."""

    name: str
    version: int | None
    nbytes: int
    from_sources: int
    from_targets: int

    def pull(self, timeout: float) -> int:
        """Pulls the newest version, and returns its number."""
        ...


class Target:
    """The tensors into which weights are pulled; made by `Weights.attach`. Calls from several threads run one after the other."""

    __slots__ = ("__core__", "_wait")

    def __init__(self, core: Core, wait: Callable[[int], Future[int]]) -> None:
        self.__core__ = core
        self._wait = wait

    @property
    def name(self) -> str:
        return self.__core__.name

    @property
    def version(self) -> int | None:
        """The version that the tensors have; None before the first pull, and after a failed one that has no second buffer."""
        return self.__core__.version

    @property
    def nbytes(self) -> int:
        """Bytes that a pull moves."""
        return self.__core__.nbytes

    @property
    def from_sources(self) -> int:
        """Bytes that pulls have read from the sources so far."""
        return self.__core__.from_sources

    @property
    def from_targets(self) -> int:
        """Bytes that pulls have read from other targets so far."""
        return self.__core__.from_targets

    def pull(self, *, timeout: float = 60) -> Future[int]:
        """Copies the newest whole version into the tensors, unless they have it.

        The tensors change when all bytes have arrived; until then, and after an error, they keep the version that they have. With
        `buffers=1` they change while bytes arrive.

        Args:
            timeout: seconds for all of it; a deadline that is earlier counts.

        Returns:
            A Future of the version. The copy starts at the call, and goes on if no thread waits for it.

        Raises:
            RDMAPeerLostError: from the Future: a source has died; the text has its rank.
            RDMAReleasedError: from the Future: a source was closed.
            RDMATimeoutError: from the Future: the time is up.
            RDMAError: from the Future: as for `RDMABuffer.read_into`.

        ```python
        import numpy as np
        from monarch.actor import Actor, endpoint, this_host
        from monarch.rdma.weights import Weights

        class Trainer(Actor):
            @endpoint
            def publish(self) -> None:
                self.source = Weights.publish("policy", {"layer": np.arange(4.0)})

        with this_host().spawn_procs({"procs": 1}) as procs:
            trainers = procs.spawn("trainers", Trainer)
            trainers.publish.call().get()
            mine = {"layer": np.zeros(4)}
            target = Weights.attach("policy", of=trainers, into=mine)
            assert target.pull().get() == target.version == 0
            assert mine["layer"].tolist() == [0, 1, 2, 3]
        ```
        """
        seconds, core = time_limit(timeout), self.__core__
        promise = extension.promise(f"pull of weights '{core.name}'")

        def run() -> None:
            try:
                promise.set_result(core.pull(seconds))
            except BaseException as e:  # the reader of the future raises it
                promise.set_exception(e)

        Thread(target=run, name=f"pull {core.name}", daemon=True).start()
        return promise.future

    def wait(self, version: int) -> Future[int]:
        """The future is done when all ranks of the source have this version or a later one; its value is the newest that all have.

        Nothing is copied. `get(timeout=...)` bounds the wait, and a deadline ends it.

        Args:
            version: a number of `update`.

        Returns:
            A Future of the newest version.

        Raises:
            RDMAPeerLostError: from the Future: a source has died.
            NotPublishedError: from the Future: a source was closed.
            RDMATimeoutError: from the Future: the deadline has passed.
            TypeError: `version` is no whole number.
            ValueError: `version` is beyond 61 bits.

        ```python
        import numpy as np
        from monarch.actor import Actor, endpoint, this_host
        from monarch.rdma.weights import Weights

        class Trainer(Actor):
            @endpoint
            def publish(self) -> None:
                self.weights = {"layer": np.zeros(4)}
                self.source = Weights.publish("policy", self.weights)
            @endpoint
            def train(self) -> None:
                with self.source.update():
                    self.weights["layer"] += 1

        with this_host().spawn_procs({"procs": 1}) as procs:
            trainers = procs.spawn("trainers", Trainer)
            trainers.publish.call().get()
            target = Weights.attach("policy", of=trainers, into={"layer": np.zeros(4)})
            later = target.wait(1)
            trainers.train.call().get()
            assert later.get() == 1
        ```
        """
        least = check_number("version", version)
        if least > LAST:
            raise ValueError(f"wait for weights '{self.name}': version {least} is larger than {LAST}")
        return self._wait(least)

    def __repr__(self) -> str:
        return f"<Target of weights '{self.name}', version {self.version}>"
