"""Processor time of the server of a mount for each request that the kernel makes, by back end, on one processor and on two.

The store is in memory, and the kernel's names and pages are dropped before each walk. The measured time is the server's work for a request,
and the switches between the server and its reader. A switch between two processors costs several times as much, so both cases are shown.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import fs_reads
from fs_one import client
from fs_row import Row
from fs_served import served
from fs_tree import SMALL

BACKENDS = ("device", "pyfuse3")
_UNANSWERED = ("forget", "batch_forget", "interrupt")


def answering(source: Path, folder: Path, files: int, rounds: int) -> list[Row]:
    """A walk looks up and reads each file; `files` of them, at most 10,000, because the time of a request does not depend on it."""
    files = min(files, 10_000)
    store = tempfile.mkdtemp(dir="/dev/shm")
    os.environ["MONARCH_FS_STORE_DIR"] = store
    try:
        return [_row(name, source, folder, files, rounds) for name in BACKENDS]
    finally:
        shutil.rmtree(store, ignore_errors=True)
        del os.environ["MONARCH_FS_STORE_DIR"], os.environ["MONARCH_FS_BACKEND"]


def _row(name: str, source: Path, folder: Path, files: int, rounds: int) -> Row:
    os.environ["MONARCH_FS_BACKEND"] = name
    target = f"{folder}/mounted"
    costs: dict[int, list[float]] = {}
    with client(folder) as made:
        made.ask("mount", str(source), target, "hot", "as-is")
        made.ask("complete", target)
        for number in range(rounds + 1):
            for processor in sorted(os.sched_getaffinity(0))[:2]:
                fs_reads.drop_caches()
                with _placed(served(target).pid, processor):
                    before = served(target)
                    fs_reads.walked(f"{target}/{SMALL}", files)
                    did = served(target).since(before)
                answered = sum(n for kind, n in did.requests.items() if kind not in _UNANSWERED)
                if number:  # the first walk is the first for the tree too
                    costs.setdefault(processor, []).append(did.processor / max(answered, 1) * 1e6)
        made.ask("close", target)
    one, *other = (f"{statistics.median(found):.1f} us ({min(found):.1f} to {max(found):.1f})" for found in costs.values())
    text = f"{one}; on two processors {other[0]}" if other else one
    return Row(f"processor time of the server a request, back end `{name}`, reader and server on one processor", text, "20 us")


@contextmanager
def _placed(server: int, reader: int) -> Generator[None]:
    """Places the server on the first processor, and this process with its children on `reader`."""
    own = os.sched_getaffinity(0)
    threads = [int(name) for name in os.listdir(f"/proc/{server}/task")]
    for thread in threads:
        os.sched_setaffinity(thread, {min(own)})
    os.sched_setaffinity(0, {reader})
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
        for thread in threads:
            os.sched_setaffinity(thread, own)
