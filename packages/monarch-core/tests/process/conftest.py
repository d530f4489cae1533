"""Fixtures of the tests that are clients themselves: pytest's process is the root of all meshes that they spawn."""

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
    """Replaces the fault hook: a failure may reach the root after its test is over, and the usual hook would end the run in another test.

    Tests of the hook set a hook of their own, or run a script of their own.
    """
    # The hook is never restored: the last test's failure may come when pytest is done.
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
    """Takes the failures that a test leaves. Failures come in order, so the arrival of a failure of this fixture marks the end of the
    others.
    """
    yield
    this_proc().spawn("last", Last).fail.broadcast()
    while faults.get().name != "last":  # polls: the queue waits
        pass


@pytest.fixture(params=["sent", "fetched"])
def moved(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Large messages between hosts go through the agents, or their receivers pull them."""
    from monarch._core.process.current import current_process
    from tools import bulk_transports

    bulk_transports.use(bulk_transports.install(tmp_path, bulk_transports.LEAST if request.param == "fetched" else None), monkeypatch)
    yield request.param
    current_process().native.set_offer_size(-1)


@pytest.fixture(scope="module")
def debug_server() -> Iterator[tuple[str, int]]:
    """The address of the debug server, on any free port."""
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
