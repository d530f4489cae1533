"""Ctrl-C, and signals whose handlers use tensors themselves, between any two lines of what issues and sends commands."""

import sys
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from monarch.tensor import coalescing, fetch_shard, get_active_mesh, inspect, remote
from monarch.tensor._controller import outbox

pytestmark = pytest.mark.timeout(180)

# Modules that issue and send commands, and that pickle and unpickle messages.
OWN = ("_controller/controller.py", "_controller/outbox.py", "_protocol/commands.py")
FILES = (*OWN, "_tensors/fetch.py", "pickle/tensor.py", "utils/_python_dispatch.py")
# Functions that no signal interrupts. The first instruction of an `__exit__` is out of reach of its own code.
ATOMIC = ("_take", "commit", "__exit__")


class At:
    """Does something at the n-th line of these files on this thread, once."""

    def __init__(self, n: int, action: Any, files: tuple[str, ...] = FILES) -> None:
        self.left = n
        self.action: Any = action
        self.files = files

    def __call__(self, frame, event, arg):
        return self.line if frame.f_code.co_filename.endswith(self.files) else None

    def line(self, frame, event, arg):
        if event == "line" and self.action is not None and frame.f_code.co_name not in ATOMIC:
            self.left -= 1
            if not self.left:
                action, self.action = self.action, None
                action()
        return self.line

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    @property
    def done(self):
        return self.action is None


def interrupt():
    raise KeyboardInterrupt


def points(most, step):
    """Numbers of lines, until a test breaks off as there are no more."""
    return range(1, most, step)


def issue(t, count):
    """Additions with a batch of their own, and what they have become."""
    for _ in range(count):
        t.add_(1)
        yield


def test_interrupted_commands_are_neither_lost_nor_repeated(mesh):
    t = torch.zeros(1)
    inspect(t)
    for n in points(3_000, 7):
        expected = int(inspect(t))
        with suppress(KeyboardInterrupt), At(n, interrupt) as at:
            for _ in issue(t, 12):
                expected += 1
            inspect(t)
        # The result of the interrupted operation itself may be there or not.
        assert int(inspect(t)) - expected in (0, 1), n
        assert get_active_mesh() == mesh and len(_get_current_dispatch_mode_stack()) == 1
        if not at.done:
            break
    assert 100 < n < 2_900


def test_definitions_of_an_interrupted_batch_are_sent(mesh):
    for n in points(3_000, 11):
        with suppress(KeyboardInterrupt), At(n, interrupt) as at:
            # The shapes are new: the batch has their definitions.
            t = torch.zeros(n + 1, 2)
            inspect(t.add_(1))
        for _ in range(2):
            t = torch.zeros(n + 1, 2)
            assert inspect(t.add_(1)).sum() == 2 * (n + 1), n
        if not at.done:
            break
    assert 50 < n < 2_900


@pytest.mark.parametrize("what", ["fetch", "operation", "same tensor", "check"])
def test_signal_handler_may_use_tensors(mesh, what):
    t, other = torch.zeros(1), torch.zeros(1)
    inspect(other.add_(1) + t)
    handled = 0

    def handler():
        nonlocal handled
        handled += 1
        # A handler that runs within a dispatch has no mode: it activates the mesh itself, as a program without knowledge of it must.
        with mesh.activate():
            if what == "same tensor":
                t.add_(1)
            else:
                other.add_(1)
            if what == "fetch":
                fetch_shard(other)
            elif what == "check":
                mesh.check()

    issued = 0
    for n in points(2_000, 5):
        with At(n, handler, OWN) as at:
            for _ in issue(t, 10):
                issued += 1
            mesh.controller.flush()
        expected = issued + (handled if what == "same tensor" else 0)
        assert int(inspect(t)) == expected, n
        assert int(inspect(other)) == 1 + (0 if what == "same tensor" else handled), n
        if not at.done:
            break
    assert handled > 20


def test_ctrl_c_during_calls_and_blocks_is_safe(mesh):
    @remote(propagate=lambda x: x)
    def added(x):
        return x + 1

    files = (*OWN, "_tensors/fetch.py", "_functions/recording.py")
    for n in points(2_000, 3):
        with suppress(KeyboardInterrupt), At(n, interrupt, files) as at, coalescing():
            inspect(added(torch.ones(2)))
        assert not mesh.controller.held
        assert inspect(added(torch.ones(2))).tolist() == [2.0, 2.0]
        if not at.done:
            break
    assert n > 50


def test_batch_that_is_sent_again_runs_once(mesh):
    t = torch.zeros(1)
    inspect(t)
    send = mesh.controller._run

    def interrupted(*args):
        send(*args)
        raise KeyboardInterrupt

    # The thread that sends old commands is blocked.
    with mesh.controller.lock:
        mesh.controller._run = interrupted
        with pytest.raises(KeyboardInterrupt):
            inspect(t.add_(1))
        mesh.controller._run = send
    t.add_(1)
    assert inspect(t).item() == 2.0


def test_unknown_command_is_no_silent_loss(procs, monkeypatch):
    from monarch.actor import this_host
    from monarch.tensor import RemoteException

    own = this_host().spawn_procs({"gpus": 1})
    with own.activate():
        t = torch.zeros(1)
        inspect(t)
        monkeypatch.setattr(outbox, "segments_of", _with_unknown_definition(outbox.segments_of))
        t.add_(1)
        with pytest.raises(RemoteException, match="the definition 123456 of a command is not known: the commands after it are lost"):
            inspect(t)
        with pytest.raises(RemoteException, match="123456"):
            inspect(torch.ones(1))
    own.stop().get()


def _with_unknown_definition(segments_of):
    def changed(entries, first):
        return segments_of([(e[0], 123_456, *e[2:]) if len(e) == 6 else e for e in entries], first)

    return changed
