"""When commands reach the workers: also those that nothing waits for."""

import threading
import time
from pathlib import Path

import pytest
import torch

from monarch.tensor import coalescing, inspect, remote
from monarch.tensor._controller import controller

pytestmark = pytest.mark.timeout(180)


@remote
def note(path):
    with open(path, "a") as f:
        f.write("x")


def eventually(what, holds):
    # The time limit of the test is that of the wait.
    while not holds():  # polls: what workers write has no event
        time.sleep(0.001)  # sleeps: between two looks
    assert holds(), what


@pytest.mark.parametrize("before", [0, 1, 7, 8, 300, 3_000])
def test_unawaited_command_is_executed(mesh, tmp_path: Path, before):
    """After nothing, after a few commands, and after a burst, during which the second thread of the controller looks seldom."""
    path = tmp_path / "noted"
    t = torch.ones(3)
    for _ in range(before):
        t = t + 1
    note.broadcast(str(path))
    eventually("both workers have written", lambda: path.exists() and path.stat().st_size == 2)
    assert inspect(t).tolist() == [before + 1.0] * 3


def test_command_of_a_slow_program_is_not_delayed(mesh, tmp_path: Path):
    path = tmp_path / "noted"
    path.touch()
    for i in range(1, 40):
        note.broadcast(str(path))
        eventually("each call has come", lambda n=i: path.stat().st_size == 2 * n)


def test_inside_of_coalescing_nothing_is_sent(mesh):
    sent = []
    send = mesh.controller._run
    t = torch.ones(3)
    mesh.check()
    with coalescing():
        mesh.controller._run = lambda *args: (sent.append(args), send(*args))
        for _ in range(3 * controller.BATCH_COMMANDS):
            t = t + 1
        eventually("the thread that sends what is old waits for the end of the block", lambda: not mesh.controller.awake)
        assert sent == []
    assert len(sent) == 1
    mesh.controller._run = send
    assert inspect(t).tolist() == [3.0 * controller.BATCH_COMMANDS + 1] * 3


def test_displaced_signature_is_defined_again(mesh, monkeypatch):
    """Between the look at the table and the command, other threads issue whatever they like."""
    monkeypatch.setattr(controller, "_SIGNATURES", 8)
    mesh.controller.cache.clear()
    t = torch.ones(3)
    assert inspect(t * 2).tolist() == [2.0] * 3
    emit = mesh.controller.emit

    def others():
        with mesh.activate():
            for n in range(1, 8):
                torch.zeros(3, n)
            mesh.check()

    def late(*args):
        monkeypatch.setattr(mesh.controller, "emit", emit)
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
        emit(*args)

    first = next(iter(mesh.controller.cache))
    monkeypatch.setattr(mesh.controller, "emit", late)
    doubled = t * 2
    assert first not in mesh.controller.cache
    assert inspect(doubled).tolist() == [2.0] * 3


def test_displaced_signatures_are_forgotten_by_the_workers(mesh, monkeypatch):
    monkeypatch.setattr(controller, "_SIGNATURES", 8)
    mesh.controller.cache.clear()
    for n in range(100):
        assert inspect(torch.zeros(n)).shape == (n,)
    # The definitions in the table, those that have just gone, and others that the mesh has used.
    assert len(mesh.controller._known_definitions) - len(mesh.controller.kept) < 60
