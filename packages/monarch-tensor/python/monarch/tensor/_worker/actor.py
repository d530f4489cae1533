"""The actor that executes a controller's commands on one rank."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import torch

from monarch.actor import Actor, current_rank, endpoint
from monarch.tensor._protocol.commands import decode
from monarch.tensor._protocol.failures import Failure
from monarch.tensor._protocol.results import describe_results
from monarch.tensor._worker import handoff
from monarch.tensor._worker.executor import Executor
from monarch.tensor._worker.groups import Groups
from monarch.tensor._worker.poison import PoisonedElsewhere, poison_among

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.actor import Port
    from monarch.extension import HostId, ProcId
    from monarch.tensor._protocol.commands import Definition


# Seconds for which a stopped actor may continue with its messages. A clean-up has 3 s in all.
_DRAIN_SECONDS = 1.0


class Worker(Actor):
    """One of each activated proc. Its endpoints return at once; the streams execute."""

    def __init__(
        self,
        local: Sequence[tuple[int, int]],
        listener: Any,
        session: str,
        procs: Sequence[ProcId],
        hosts: Sequence[HostId],
    ) -> None:
        rank = current_rank().rank
        place, count = local[rank]
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(place), WORLD_SIZE=str(len(local)), LOCAL_WORLD_SIZE=str(count))
        if torch.cuda.is_available():
            torch.cuda.set_device(place % torch.cuda.device_count())
        if count > 1 and "OMP_NUM_THREADS" not in os.environ:
            # The ranks of a host share its processors: each would use all of them, and spin while it waits for its threads.
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
        self._groups = Groups(session, rank, procs, hosts)
        self._session = session
        self._last = 0
        self._executor = Executor(rank, socket.gethostname(), self._groups, listener.report.broadcast, session)
        handoff.opened(session)

    @endpoint
    def run(
        self,
        serial: int,
        data: bytes,
        constants: list[Any],
        definitions: list[tuple[int, Definition]],
        targets: list[Any],
        forget: list[int],
    ) -> None:
        # An interrupted controller sends again a batch that it may have sent.
        if serial <= self._last:
            return
        self._last = serial
        self._executor.take(decode(data, constants), definitions, targets, forget)

    @endpoint(explicit_response_port=True)
    def mark(self, port: Port[list[Failure]]) -> None:
        """Answers when all streams have executed what came before, with the failures since the last mark."""
        executor = self._executor

        def passed() -> None:
            failures, executor.unmarked = executor.unmarked, []
            executor.reports = 0
            port.send(failures)

        executor.after_all(passed)

    @endpoint(explicit_response_port=True)
    def fetch(self, port: Port[Any], stream: int, numbers: tuple[int, ...]) -> None:
        """Answers with copies on the CPU, when the stream has come here."""
        # Copies in any case: the stream continues while the answer is in flight.
        self._answer(port, stream, numbers, "fetch_shard", lambda values: [_copy(v) for v in values])

    @endpoint(explicit_response_port=True)
    def invoke(
        self,
        port: Port[Any],
        stream: int,
        moment: int,
        function: tuple[bytes, ...] | str,
        name: str,
        template: Any,
        numbers: tuple[int, ...],
    ) -> None:
        """Answers with what a remote function returns, when the stream has come here."""
        self._answer(port, stream, numbers, name, lambda values: self._executor.called(template, values, [], function, moment), True)

    @endpoint(explicit_response_port=True)
    def describe(self, port: Port[Any], stream: int, number: int) -> None:
        """Answers with the pytree of what a remote function returned, its tensors as layouts."""
        self._answer(port, stream, (number,), "describe", lambda values: tuple(describe_results(values[0])))

    def _answer(
        self,
        port: Port[Any],
        stream: int,
        numbers: tuple[int, ...],
        name: str,
        make: Callable[[list[Any]], Any],
        takes_poison: bool = False,
    ) -> None:
        """Sends what `make` gives for entries of the table when the stream has come here, or the `Failure` in its place."""
        executor = self._executor

        def read() -> None:
            executor.reports = 0
            if executor.broken is not None:
                port.send(executor.broken)
                return
            values = [executor.table.get(n) for n in numbers]
            poison = poison_among(values)
            if poison is not None and not takes_poison:
                port.send(poison.failure)
                return
            try:
                port.send(make(values))
            except PoisonedElsewhere as e:
                port.send(e.failure)
            except BaseException as e:
                # Also `SystemExit`: it ends the function, and nothing else.
                port.send(executor.failure(e, -1, name))

        executor.stream(stream).put(read)

    @endpoint
    def withdraw(self, number: int) -> None:
        """An actor does not get a tensor that was handed over for it."""
        handoff.withdrawn(self._session, number)

    @endpoint
    def resume(self, numbers: list[int]) -> None:
        """No stream waits for the end of the message of these tensors."""
        handoff.uncertain([(self._session, number) for number in numbers])

    @endpoint
    def undelivered(self, key: int, error: Exception) -> None:
        """The results of an endpoint that were to become tensors do not come."""
        handoff.undelivered(self._session, key, error)

    @endpoint
    def drop_group(self, name: str) -> None:
        """Closes the process groups of this name when all streams have come here."""
        self._executor.after_all(lambda: self._groups.drop(name))

    @endpoint
    def drop_stream(self, number: int) -> None:
        """Ends a stream after its commands."""
        self._executor.drop_stream(number)

    @endpoint
    def size_of_table(self) -> int:
        return len(self._executor.table)

    def __cleanup__(self, error: Exception | None) -> None:
        if error is None:
            # An actor handles earlier messages in the same way before it stops.
            self._executor.drain(_DRAIN_SECONDS)
        handoff.closed(self._session)
        # The groups close first: a stream may wait in a collective of one.
        self._groups.close()
        self._executor.close()


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    raise TypeError(f"a fetched value is a tensor, not {type(value).__name__}")
