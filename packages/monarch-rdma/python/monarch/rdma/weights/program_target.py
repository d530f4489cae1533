"""Weights for the tensors of a program, which its proc pulls into memory that both share; the program copies them from there."""

from __future__ import annotations

import pickle
from collections import deque
from threading import Event, Lock
from typing import TYPE_CHECKING, Any
from weakref import finalize

from monarch import extension
from monarch.extension.program import ProgramMesh, answer_in, program_link
from monarch.rdma.errors import RDMAError, RDMAPeerLostError, RDMATimeoutError
from monarch.rdma.weights.attaching import target_tensors
from monarch.rdma.weights.commit import Commit
from monarch.rdma.weights.program_source import HANDLER, late
from monarch.rdma.weights.shared_file import SharedFile
from monarch.rdma.weights.target import Target
from monarch.rdma.weights.waiting import Outcome, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.actor import Future
    from monarch.extension.channel import Message
    from monarch.extension.mesh import MeshView
    from monarch.extension.program import ProgramLink
    from monarch.rdma.weights.attaching import Wanted

# Seconds that an answer of the proc may take beyond the time-out of the call: its error has the reason.
_MORE = 1.0
# Targets of this process that were collected, by connection: the next one ends them in the proc. A finalizer must not wait for a lock.
_collected: deque[tuple[int, int]] = deque()


class ProgramPuller:
    """The target of a program."""

    def __init__(self, link: ProgramLink, wanted: Wanted, of: ProgramMesh | MeshView, into: Mapping[str, Any]) -> None:
        self.name = wanted.name
        self.version: int | None = None
        self.from_sources = self.from_targets = 0
        self._link = link
        # The proc numbers the targets of each connection, and they end with it.
        self._connection = link.connect()
        self._lock = Lock()
        # The proc has answered the last request. It may do one whose time was up later, and write the memory of both meanwhile.
        self._is_answered = Event()
        self._is_answered.set()
        tensors = target_tensors(into)
        found = [_collected.popleft() for _ in range(len(_collected))]
        collected = [number for connection, number in found if connection == self._connection]
        # The proc has handles of the runs of its client, and gets the members of other meshes.
        mesh = {"run": of.run_id, "ranks": of.ranks} if isinstance(of, ProgramMesh) else {"mesh": of[:2] + of[3:]}
        head = {"do": "attach", "wanted": wanted, "collected": collected, **mesh}
        answer = self._ask(head, f"attach to weights '{self.name}'", wanted.timeout, tensors.table.packed())
        self._number: int = answer.head["target"]
        # Also where this process cannot open the memory.
        finalize(self, _collected.append, (self._connection, self._number))
        self.nbytes: int = answer.head["nbytes"]
        # The proc of this program has made it.
        pieces = pickle.loads(answer.blob)
        self._commit = Commit(tensors, pieces, SharedFile.at(answer.head["staging"]).memory)

    def pull(self, timeout: float) -> int:
        what = f"pull of weights '{self.name}'"
        if not self._lock.acquire(timeout=timeout):
            raise RDMATimeoutError(f"{what}: time-out of {timeout:g} s: another pull of this target is in progress")
        try:
            found = self._ask({"do": "pull", "target": self._number, "timeout": timeout}, what, timeout).head
            self.from_sources, self.from_targets = found["from_sources"], found["from_targets"]
            version: int = found["version"]
            if version != self.version:
                self.version = None
                self._commit.run()
                self.version = version
            return version
        finally:
            self._lock.release()

    def wait(self, version: int) -> Future[int]:
        """What `version_of_all` is elsewhere."""
        head = {"to": HANDLER, "wait": next(numbers)}
        forgetting = {**head, "do": "forget"}
        outcome = Outcome(self.name, version, lambda: self._link.send(forgetting, lambda _: None, connection=self._connection))

        def answered(found: Message | OSError) -> None:
            try:
                newest = answer_in(found).head["version"]
            except RDMAError as e:
                outcome.set_exception(e)
            except ConnectionError as e:
                outcome.set_exception(_lost(f"wait for weights '{self.name}'", e))
            except BaseException as e:  # the reader of the future raises it
                outcome.set_exception(e)
            else:
                outcome.set_result(newest)

        self._link.send({**head, "do": "wait", "target": self._number, "version": version}, answered, connection=self._connection)
        return outcome.future()

    def _ask(self, head: dict[str, Any], what: str, timeout: float, blob: bytes = b"") -> Message:
        """The answer to a request, which is sent when the last one has its answer."""
        if not self._is_answered.wait(timeout):
            raise late(what, timeout, self._link, " the request before it")
        self._is_answered = Event()
        head = {"to": HANDLER, **head}
        try:
            return self._link.ask(head, blob, timeout=timeout + _MORE, connection=self._connection, is_answered=self._is_answered)
        except RDMAError:
            raise
        except TimeoutError:
            raise late(what, timeout, self._link) from None
        except ConnectionError as e:
            raise _lost(what, e) from None


def _lost(what: str, error: ConnectionError) -> RDMAPeerLostError:
    return RDMAPeerLostError(f"{what}: {error}", hint="the target has ended with the connection to the proc: attach again")


def attach(wanted: Wanted, of: ProgramMesh | MeshView, into: Mapping[str, Any], buffers: int) -> Target:
    link = program_link()
    if link is None:
        raise RDMAError(
            f"attach to weights '{wanted.name}': this process is no rank of a run, whose mesh `of` names",
            hint="in an actor, or in the client, of= takes a mesh: SPMDRun.procs()",
        )
    if buffers != 2:
        raise ValueError(f"buffers={buffers}: in the program of a run, bytes arrive in memory of its proc first: attach with buffers=2")
    extension.member()  # a fork is refused
    puller = ProgramPuller(link, wanted, of, into)
    return Target(puller, puller.wait)
