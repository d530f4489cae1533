"""Threads that wait for an item of their own process, and look-ups of names, from the frames of real threads."""

from __future__ import annotations

import linecache
import multiprocessing
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from eventually import eventually

from monarch._core.observe.lookups import lookups
from monarch._core.observe.supplies import supplies


def of_thread(thread: threading.Thread) -> dict[str, Any] | None:
    return next((one for one in supplies() if one["thread"] == thread.ident), None)


def waiting(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_thread_that_has_the_queue_supplies_it() -> None:
    batches: queue.Queue[int] = queue.Queue()
    go = threading.Event()

    class Loader:
        def __init__(self) -> None:
            self.batches = batches

        def load(self) -> None:
            go.wait()
            self.batches.put(1)

    loader = waiting(Loader().load)
    consumers = [waiting(batches.get), waiting(batches.get)]
    found = eventually("the consumer waits", lambda: of_thread(consumers[0]), lambda one: one is not None and bool(one["threads"]))
    # A thread that waits for the same queue supplies nothing; the thread of the test has made the queue.
    assert found is not None and found["kind"] == "queue" and set(found["threads"]) == {loader.ident, threading.get_ident()}
    batches.put(1)
    go.set()
    for thread in (loader, *consumers):
        thread.join()


def test_thread_that_makes_a_result_supplies_it() -> None:
    go = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        consumer = waiting(pool.submit(go.wait).result)
        [worker] = [one for one in threading.enumerate() if one.name.startswith("pool")]
        found = eventually("the consumer waits", lambda: of_thread(consumer), lambda one: one is not None and bool(one["threads"]))
        assert found == {"thread": consumer.ident, "kind": "result", "threads": [worker.ident], "programs": []}
        go.set()
    consumer.join()


def test_program_with_the_pipe_supplies_it() -> None:
    context = multiprocessing.get_context("spawn")
    results, given = context.Pipe(duplex=False)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[given.fileno()]) as loader:
        other = subprocess.Popen(["sleep", "60"])
        consumer = waiting(lambda: pytest.raises(EOFError, results.recv))
        found = eventually("the consumer waits", lambda: of_thread(consumer), lambda one: one is not None)
        assert found is not None and found["kind"] == "pipe" and found["programs"][0][0] == loader.pid
        assert other.pid not in [one[0] for one in found["programs"]]
        given.close()
        other.kill()
        other.wait()
        loader.communicate(b"")
    consumer.join()


@pytest.mark.parametrize(
    "code, line, shown",
    [
        (socket.getaddrinfo.__code__, 1, ("getaddrinfo", "store.example")),
        (compile("socket.gethostbyname(name)", "made_up.py", "exec"), 1, ("gethostbyname", "")),
        (compile("work()", "made_up.py", "exec"), 2, None),
    ],
)
def test_lookup_is_shown_with_its_name(monkeypatch: pytest.MonkeyPatch, code: CodeType, line: int, shown: tuple[str, str] | None) -> None:
    linecache.cache["made_up.py"] = (0, None, ["socket.gethostbyname(name)\n", "work()\n"], "made_up.py")
    frame = SimpleNamespace(f_code=code, f_lineno=line, f_locals={"host": b"store.example"})
    monkeypatch.setattr(sys, "_current_frames", lambda: {7: frame})
    found = lookups()
    assert [(one["function"], one["name"]) for one in found.get("threads", [])] == [shown] * (shown is not None)
    assert bool(found) == (shown is not None)


def test_name_servers_that_were_asked_are_shown() -> None:
    from monarch._core.observe.lookups import asked_servers

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("127.0.0.53", 53))
        assert "127.0.0.53" in asked_servers()
