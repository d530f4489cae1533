"""Locks for which threads wait, and their holders, from the frames of real threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from eventually import eventually

from monarch._core.observe.held_locks import Locks

_module_lock = threading.Lock()


class Shared:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reentrant = threading.RLock()
        self.condition = threading.Condition()
        self.end = threading.Event()

    def hold(self) -> None:
        with self.lock, self.reentrant, self.condition, _module_lock:
            self.end.wait()

    def enter(self) -> None:
        with self.lock:
            return

    def acquire(self) -> None:
        self.reentrant.acquire()
        self.reentrant.release()

    def of_condition(self) -> None:
        with self.condition:
            return

    def of_module(self) -> None:
        with _module_lock:
            return

    def second_of_two(self) -> None:
        with nullcontext(), self.lock:
            return


@pytest.fixture
def shared() -> Iterator[Shared]:
    shared = Shared()
    threads = [threading.Thread(target=shared.hold, name="hold", daemon=True)]
    threads[0].start()
    eventually("the holder has all locks", lambda: shared.lock.locked() and _module_lock.locked())
    yield shared
    shared.end.set()
    threads[0].join()


def _locks() -> tuple[Locks, dict[int, list[Any]]]:
    stacks: dict[int, list[Any]] = {}
    for ident, frame in sys._current_frames().items():
        found = stacks.setdefault(ident, [])
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
    return Locks(stacks), stacks


def _wait(thread: threading.Thread) -> dict[str, Any] | None:
    locks, stacks = _locks()
    return locks.wait(thread.ident or 0, stacks.get(thread.ident or 0, []))


@pytest.mark.parametrize("method", ["enter", "acquire", "of_condition", "of_module", "second_of_two"])
def test_waiting_thread_has_its_holder(shared: Shared, method: str) -> None:
    run: Callable[[], None] = getattr(shared, method)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(f"{method} waits for a lock", lambda: _wait(thread) is not None)
    found = _wait(thread)
    assert found is not None
    names = {one.ident: one.name for one in threading.enumerate()}
    assert names[found["holder"]] == "hold"
    assert found["held_at"][2] == "Shared.hold"
    shared.end.set()
    thread.join()


def test_wait_for_an_event_has_no_lock(shared: Shared) -> None:
    [holder] = [one for one in threading.enumerate() if one.name == "hold"]
    assert _wait(holder) is None
