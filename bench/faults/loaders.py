"""Programs with a rank that gets no data, because of what its own loader does."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.faults.program import Fault, rest
from monarch.actor import Actor, current_rank, endpoint, this_host


def _read(path: str) -> bytes:
    """A part of the data set. A pipe without a writer stands for a store that does not answer."""
    with open(path, "rb") as file:
        return file.read()


def _send(results: Connection, path: str) -> None:
    results.send_bytes(_read(path))


class Trainer(Actor):
    """Trains with batches that a thread or a program loads."""

    @endpoint
    def step(self, rank: int, path: str) -> int:
        batches: queue.Queue[bytes] = queue.Queue(8)
        part = path if current_rank().rank == rank else __file__
        threading.Thread(target=self.load, args=(batches, part), name="loader", daemon=True).start()
        return len(batches.get())

    def load(self, batches: queue.Queue[bytes], part: str) -> None:
        batches.put(_read(part))

    @endpoint
    def step_with_program(self, rank: int, path: str) -> int:
        results, given = multiprocessing.get_context("fork").Pipe(duplex=False)
        part = path if current_rank().rank == rank else __file__
        loader = multiprocessing.get_context("fork").Process(target=_send, args=(given, part), daemon=True)
        loader.start()
        return len(results.recv_bytes())

    @endpoint
    def load_library(self) -> None:
        """Takes longer on a busy machine than the limit of a rank that waits."""
        import torch.utils.data  # noqa: F401

    @endpoint
    def step_of_dataset(self, rank: int, path: str) -> int:
        from torch.utils.data import DataLoader

        part = path if current_rank().rank == rank else __file__
        parts: Any = [part] * 8
        nbytes = 0
        for batch in DataLoader(parts, batch_size=1, num_workers=2, collate_fn=_loaded):
            nbytes += len(batch)
        return nbytes


def _loaded(parts: list[str]) -> bytes:
    return b"".join(map(_read, parts))


def _starved(step: str, with_library: bool = False) -> None:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    os.mkfifo(folder / "part-7")
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    if with_library:
        trainers.load_library.call().get()
    rest(getattr(trainers, step).call(2, str(folder / "part-7")))


def starving_loader() -> None:
    """The thread that loads the batches of one rank waits for a store."""
    _starved("step")


def starving_program() -> None:
    """The program that loads the batches of one rank waits for a store."""
    _starved("step_with_program")


def starving_dataset() -> None:
    """Both programs of a `DataLoader` of PyTorch wait for a store."""
    _starved("step_of_dataset", with_library=True)


_WAITS = r"trainer rank 2 .*has waited for (an item of a queue|data of a pipe) in loaders\.py:\d+ in "
FAULTS = (
    Fault("starving_loader", starving_loader, rf"thread loader of .* rank 2 stands in loaders\.py:\d+ in _read, and {_WAITS}step for", 6.0),
    Fault(
        "starving_program",
        starving_program,
        rf"the program \S+ \(pid \d+\) supplies nothing \(state S in .*, and {_WAITS}step_with_program for",
        6.0,
    ),
    Fault(
        "starving_dataset",
        starving_dataset,
        rf"the program \S+ \(pid \d+\) and 1 more supply nothing \(state S in .*, and {_WAITS}step_of_dataset for",
        20.0,  # each program imports PyTorch
        module="torch",
    ),
)
