"""Snapshots: the state of each rank in the memory of its host and of the next ones, for the attempt after a failure."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, Any

from monarch.extension import promise
from monarch.extension.program import ProgramLink, program_link
from monarch.spmd.errors import SPMDError
from monarch.spmd.snapshot_file import SnapshotFile, check_memory, pack

if TYPE_CHECKING:
    from monarch.actor import Future
    from monarch.extension.channel import Message

# The most saves that have not ended: one that is being copied, and one that waits.
_MOST_UNDER_WAY = 2


class Snapshots:
    """Keeps states of this rank in the memory of hosts, for programs that `run` or `monarch run` has started.

    Every rank saves its own state, for the same steps as all others. A snapshot is complete when all ranks have saved it. Snapshots are in
    memory of the rank's own host, and as copies on the next hosts of the mesh. A host needs room for `(keep + 4) * (1 + copies)` states of
    each of its ranks. They end with the run, and replace no checkpoints on disk.

    Args:
        keep: the number of complete snapshots.
        copies: the number of other hosts with a copy.
        replicated: the state of all ranks is the same, as with DDP: a snapshot is complete when one rank has saved it, also for a world of
            another size, and ranks whose part is missing receive that of another rank.

    Raises `SPMDError` in a process that is not part of a run.

    ```python
    from pathlib import Path

    from monarch.actor import this_host
    from monarch.spmd import run

    Path("train.py").write_text('''
    from monarch.spmd import Snapshots

    snapshots = Snapshots(keep=2)
    step, state = snapshots.restore() or (0, {"weight": 0.0})
    while step < 3:
        state["weight"] += 0.5
        step += 1
        snapshots.save(step, state)
    ''')
    run(this_host(), ["torchrun", "--nproc-per-node=1", "train.py"]).result.get()
    ```
    """

    def __init__(self, *, keep: int = 2, copies: int = 1, replicated: bool = False) -> None:
        for name, value in (("keep", keep), ("copies", copies)):
            if not isinstance(value, int) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{name}={value!r}: expected a number, not {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name}={value}: expected a number from 1 on")
        link = program_link()
        if link is None:
            raise SPMDError("snapshots need a run: start this program with monarch.spmd.run or `monarch run`", code="snapshots_unavailable")
        self._link = link
        self._settings = {"keep": keep, "copies": copies, "replicated": bool(replicated)}
        self._threads = _processors()
        self._lock = threading.Condition()
        self._under_way: dict[int, SnapshotFile] = {}
        self._held: dict[int, SnapshotFile] = {}
        self._unused: list[SnapshotFile] = []

    def save(self, step: int, state: Mapping[str, Any]) -> Future[None]:
        """Copies the state and returns; the future is done when the copies on other hosts are whole.

        The state may hold whatever messages may: tensors (those of a GPU are copied to the CPU), arrays, values that pickle. It waits while
        two earlier saves are not done. `SPMDError` where memory does not suffice, here or, from the future, on the next host.
        """
        if not hasattr(step, "__index__") or isinstance(step, bool):
            raise TypeError(f"step={step!r}: expected a number, not {type(step).__name__}")
        step = index(step)
        if step < 0:
            raise ValueError(f"step={step}: expected a number from 0 on")
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"state={type(state).__name__}: expected a mapping of names to values")
        _check_process(self._link)
        packed = pack(dict(state))
        saved = promise(f"the snapshot of step {step}")
        with self._lock:
            self._lock.wait_for(lambda: len(self._under_way) < _MOST_UNDER_WAY and step not in self._under_way)
            file = self._unused.pop() if self._unused else SnapshotFile()
            self._under_way[step] = file
        try:
            more = packed.nbytes - file.nbytes
            if more > 0:
                check_memory(more, f"the snapshot of step {step}", "the memory of this host")
            file.write(packed, self._threads)
        except BaseException:
            with self._lock:
                self._unused.append(self._under_way.pop(step))
                self._lock.notify_all()
            raise

        def ended(found: Message | OSError) -> None:
            answer = _answer(found)
            error = answer.get("error")
            with self._lock:
                self._held[step] = self._under_way.pop(step)
                if error is None:
                    # The keeper has dropped the other files, and their pages exist.
                    kept = {*answer["kept"], *self._under_way}
                    self._unused += [self._held.pop(old) for old in list(self._held) if old not in kept]
                self._lock.notify_all()
            if error is None:
                saved.set_result(None)
            else:
                saved.set_exception(SPMDError(error, code="snapshot_failed"))

        self._link.send({"do": "save", "step": step, "path": file.path, **self._settings}, ended)
        return saved.future

    def restore(self) -> tuple[int, dict[str, Any]] | None:
        """The newest snapshot of the attempts before that all ranks have saved: its step and the state of this rank; None if there is none.

        All ranks of an attempt get the same step. Tensors come back on the CPU. Without `replicated` the world must have as many ranks as
        the one that saved, and each gets its own state. `SPMDError` where the hosts that have the state are lost meanwhile, where their
        copies have other bytes than this rank has saved, and where the state does not unpickle.
        """
        _check_process(self._link)
        answers: list[Mapping[str, Any]] = []
        there = threading.Event()

        def ended(found: Message | OSError) -> None:
            answers.append(_answer(found))
            there.set()

        self._link.send({"do": "restore", "replicated": self._settings["replicated"]}, ended)
        there.wait()
        answer = answers[0]
        if "error" in answer:
            raise SPMDError(answer["error"], code=answer.get("code", "snapshot_failed"))
        if answer["path"] is None:
            return None
        file = SnapshotFile.at(answer["path"])
        try:
            return answer["step"], file.read()
        except SPMDError:
            raise
        except Exception as error:
            raise SPMDError(
                f"the snapshot of step {answer['step']} does not unpickle: {type(error).__name__}: {error}; what a state holds of this "
                f"program's classes and modules has to be defined before restore() is called",
                code="snapshot_failed",
            ) from error


def _check_process(link: ProgramLink) -> None:
    if os.getpid() != link.pid:
        raise SPMDError("these snapshots belong to the process that this one was forked from", code="snapshots_unavailable")


def _answer(found: Message | OSError) -> Mapping[str, Any]:
    if isinstance(found, OSError):
        return {"error": f"the run of this program does not answer: {found.strerror or found}"}
    return found.head


def _processors() -> int:
    """How many of the processors of this host are for this rank, at least 1."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, len(os.sched_getaffinity(0)) // max(1, int(ranks) if ranks.isdecimal() else 1))
