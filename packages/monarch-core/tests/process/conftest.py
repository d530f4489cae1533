"""What all tests share that are clients themselves: pytest's process is the root of everything that they spawn."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch.actor import Actor, debug_controller, endpoint, this_proc


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> None:
    """A failure may reach the root after the test that wanted it is over, and the usual hook would end the run in another one.

    Tests that are about the hook put their own in its place, or run a script of their own.
    """
    # For good: that of the last test may come when pytest is done.
    monarch.actor.unhandled_fault_hook = lambda failure: None


class Last(Actor):
    @endpoint
    def fail(self) -> None:
        raise RuntimeError("the last failure of a test")


@pytest.fixture(scope="module")
def faults():
    """Failures that reach the root, in order."""
    found: queue.Queue[Any] = queue.Queue()
    before = monarch.actor.unhandled_fault_hook
    monarch.actor.unhandled_fault_hook = found.put
    yield found
    monarch.actor.unhandled_fault_hook = before


@pytest.fixture
def fresh(faults):
    """Takes what a test leaves: failures come in order, so one of our own tells that no more are to come."""
    yield
    this_proc().spawn("last", Last).fail.broadcast()
    while faults.get().name != "last":  # polls: the queue waits
        pass


@pytest.fixture(params=["sent", "fetched"])
def moved(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Large messages between hosts go through the agents, or are fetched by their receivers."""
    from monarch._core.process.current import current_process
    from tools import movers

    movers.use(movers.install(tmp_path, movers.LEAST if request.param == "fetched" else None), monkeypatch)
    yield request.param
    current_process().native.lend_from(-1)


@pytest.fixture(scope="module")
def debug_server() -> Iterator[tuple[str, int]]:
    """Its address; whatever port is free."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_DEBUG_SERVER_PORT", "0")
        yield debug_controller().serve.call_one().get()


@pytest.fixture
def debug_line(debug_server: tuple[str, int]) -> Iterator[Any]:
    """A client of the debug server."""
    from debugged_actors import DebugLine

    with DebugLine(debug_server) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root and the program mount")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is refused here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)
