"""Memory that is given back: the allocator of a collector, the ends of arenas; without glibc nothing of that happens."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Generator

import pytest

from monarch.telemetry._arrow import pa
from monarch.telemetry._collector import allocator


def _gives(library: object) -> Callable[[None], object]:
    def load(_: None) -> object:
        return library

    return load


@pytest.fixture
def pool() -> Generator[None, None, None]:
    before = pa.default_memory_pool()
    yield
    pa.set_memory_pool(before)


@pytest.mark.usefixtures("pool")
def test_columns_come_from_the_allocator_of_the_system() -> None:
    asked: list[tuple[int, ...]] = []

    class Library:
        def mallopt(self, *arguments: int) -> int:
            asked.append(arguments)
            return 1

        def malloc_trim(self, *arguments: int) -> int:
            asked.append(arguments)
            return 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", _gives(Library()))
        allocator.prepare()
        allocator.give_back()
    assert (pa.default_memory_pool().backend_name, asked) == ("system", [(-8, 2), (0,)])


def test_memory_of_the_arrow_pool_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Pool:
        def release_unused(self) -> None:
            asked.append("release_unused")

    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    monkeypatch.setattr(ctypes, "CDLL", _gives(object()))
    allocator.give_back()
    assert asked == ["release_unused"]


@pytest.mark.usefixtures("pool")
def test_allocator_without_release_functions_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", _gives(object()))
    allocator.prepare()
    allocator.give_back()
    allocator.give_back_ends()
    assert pa.default_memory_pool().backend_name == "system"


# Blocks of a size that was once mapped separately come from the arena of the thread, and remain at its end when they are freed.
_ENDS = """
import ctypes, os, threading
from monarch.telemetry._collector import allocator

library = ctypes.CDLL(None)
library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
library.free.argtypes = (ctypes.c_void_p,)
library.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

def used(count, size):
    blocks = [library.malloc(size) for _ in range(count)]
    for block in blocks:
        library.memset(block, 1, size)
    for block in blocks:
        library.free(block)

def private():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private"))

used(1, 8 << 20)
together = threading.Barrier(2)
def work():
    together.wait()
    used(200, 50_000)
    together.wait()
before = private()
alive = len(os.listdir("/proc/self/task"))
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
# A joined thread may still have its arena.
while len(os.listdir("/proc/self/task")) > alive:  # polls: only the kernel has the end of a thread
    pass
allocator.give_back()
kept = private() - before
allocator.give_back_ends()
print(kept, private() - before)
"""


def test_memory_of_thread_arenas_is_released() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDS], check=True, capture_output=True, text=True)
    kept, left = map(int, done.stdout.split())
    if kept < 8_000:
        pytest.skip(f"the allocator of this machine keeps {kept} KiB of 20,000")
    assert left < 3_000


def test_threads_that_cannot_start_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = threading.Thread.start, [0]

    def start(thread: threading.Thread) -> None:
        count[0] += 1
        if count[0] > 2:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    allocator.give_back_ends()
    assert count == [3]
