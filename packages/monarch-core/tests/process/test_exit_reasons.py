"""The reason of a process's end from the kernel: exit code, signal, core dump, out of memory, and the failure that the owner gets."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from memory_cgroup import Cgroup, memory_cgroup

from monarch._core.observe.inspection import STATE
from monarch._core.process.current import current_process
from monarch.actor import Actor, ExitReason, MeshFailure, SupervisionError, endpoint, this_host

pytestmark = pytest.mark.usefixtures("fresh")

HOST = os.uname().nodename


class Mortal(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def leave(self, code: int) -> None:
        os._exit(code)

    @endpoint
    def kill(self, number: int) -> None:
        os.kill(os.getpid(), number)

    @endpoint
    def abort(self) -> None:
        os.abort()

    @endpoint
    def crash(self, folder: str) -> None:
        """Crashes in native code, with a core dump if the kernel writes any."""
        import ctypes
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        os.chdir(folder)
        ctypes.string_at(0)

    @endpoint
    def grow(self) -> None:
        kept: list[bytearray] = []
        while True:
            kept.append(bytearray(b"x" * (4 << 20)))


def end_of(handle: Any, faults: Any, call: Callable[[], Any]) -> tuple[MeshFailure, str]:
    """The failure that the caller and the owner get, which must be equal."""
    with pytest.raises(SupervisionError) as caught:
        call()
    failure = faults.get()
    assert caught.value.failure == failure and caught.value.code == failure.reason.kind
    for back in (pickle.loads(pickle.dumps(failure)), MeshFailure.from_wire(failure.to_wire())):
        assert back == failure and back.reason == failure.reason and back.report() == failure.report()
    return failure, str(caught.value)


@pytest.mark.parametrize(
    ("method", "argument", "reason", "cause"),
    [
        ("leave", 7, ExitReason("exit_code", code=7), "exited with non-zero code 7"),
        ("leave", 0, ExitReason("returned"), "exited with code 0 while actors were running"),
        ("kill", signal.SIGKILL, ExitReason("signal", signal=9), "failed: Killed(sig=9)"),
        ("kill", signal.SIGTERM, ExitReason("signal", signal=15), "failed: Killed(sig=15)"),
    ],
)
def test_fields_of_a_failure(faults, method, argument, reason, cause):
    mesh = this_host().spawn_procs({"gpus": 2})
    handle = mesh.spawn("mortal", Mortal)
    pids = list(handle.pid.call().get().values())
    failure, text = end_of(handle, faults, lambda: getattr(handle.slice(gpus=1), method).call_one(argument).get())
    assert failure.reason == reason and failure.reason.core_dumped is False and failure.reason.detail is None
    assert (failure.reason.code, failure.reason.signal) == (reason.code, reason.signal)
    actor = "<root>.<test_exit_reasons.Mortal mortal{'gpus': 1/2}>"
    assert (failure.name, failure.actor, failure.crashed_ranks, failure.mesh) == ("mortal", actor, [1], None)
    assert (failure.mesh_name, failure.host, failure.pid, failure.cause) == (handle._name.get(), HOST, pids[1], None)
    name = "" if reason.signal is None else " " + signal.Signals(reason.signal).name
    assert text.split("\n")[0] == (
        f"Endpoint call mortal.{method}() failed, The actor {actor} and all its descendants have failed: "
        f"the process this actor was running on {cause} (pid {pids[1]} on {HOST}){name}"
    )
    mesh.stop().get()


def core_is_dumped(folder: Path) -> bool:
    """Whether the kernel here dumps the core of such a process."""
    pid = os.fork()
    if pid == 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        os.chdir(folder)
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    return os.WCOREDUMP(os.waitpid(pid, 0)[1])


def test_crash_in_native_code(faults, tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "other").mkdir()
    expected = core_is_dumped(tmp_path / "other")
    mesh = this_host().spawn_procs()
    handle = mesh.spawn("mortal", Mortal)
    failure, text = end_of(handle, faults, lambda: handle.crash.call_one(str(tmp_path / "ours")).get())
    assert failure.reason == ExitReason("signal", signal=signal.SIGSEGV, core_dumped=expected)
    assert re.search(r"failed: Killed\(sig=11\) \(pid \d+ on \S+\) SIGSEGV\n", text)
    mesh.stop().get()


def test_abort_without_a_core(faults):
    mesh = this_host().spawn_procs(bootstrap=_no_core)
    handle = mesh.spawn("mortal", Mortal)
    failure, text = end_of(handle, faults, lambda: handle.abort.call_one().get())
    assert failure.reason == ExitReason("signal", signal=signal.SIGABRT, core_dumped=False)
    assert "failed: Killed(sig=6)" in text and ") SIGABRT\n" in text
    mesh.stop().get()


def _no_core() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# ---- out of memory


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    with memory_cgroup(192) as made:
        yield made


def test_out_of_memory(cgroup, faults, tmp_path):
    mesh = this_host().spawn_procs({"gpus": 2}, bootstrap_command=cgroup.enter_by(tmp_path / "enter"))
    handle = mesh.spawn("mortal", Mortal)
    pids = list(handle.pid.call().get().values())
    failure, text = end_of(handle, faults, lambda: handle.slice(gpus=0).grow.call_one().get())
    assert failure.reason == ExitReason("oom", signal=9, detail=cgroup.name)
    assert text.split("\n") == [
        "Endpoint call mortal.grow() failed, The actor <root>.<test_exit_reasons.Mortal mortal{'gpus': 0/2}> and all its descendants "
        "have failed: the process this actor was running on failed: Killed(sig=9), "
        f"out of memory in cgroup {cgroup.name} (pid {pids[0]} on {HOST}) SIGKILL",
        "  hint: raise the memory limit of that cgroup, or put fewer procs on a host",
    ]
    # A kill by another process, in the same cgroup, does not count as out of memory.
    failure, text = end_of(handle, faults, lambda: handle.slice(gpus=1).kill.call_one(signal.SIGKILL).get())
    assert failure.reason == ExitReason("signal", signal=9) and "out of memory" not in text
    mesh.stop().get()


def _cgroup_as_seen(pid: int) -> str | None:
    """The memory cgroup in which the agent has last seen a proc."""
    native = current_process().native
    cell = native.inspect(STATE)
    cell.wait(0, 10.0)
    (result,) = cell.results()
    return next(proc["cgroup"] for proc in json.loads(result.raw())["procs"] if proc["pid"] == pid)


def test_out_of_memory_after_a_move(cgroup, faults):
    mesh = this_host().spawn_procs({"gpus": 2})
    handle = mesh.spawn("mortal", Mortal)
    pids = list(handle.pid.call().get().values())
    for pid in pids:
        (cgroup.folder / "cgroup.procs").write_text(str(pid))
    # The agent checks its procs at intervals.
    eventually("the agent has seen the move", lambda: {_cgroup_as_seen(pid) for pid in pids}, lambda seen: seen == {cgroup.name})
    failure, text = end_of(handle, faults, lambda: handle.slice(gpus=0).grow.call_one().get())
    assert failure.reason == ExitReason("oom", signal=9, detail=cgroup.name)
    assert f"out of memory in cgroup {cgroup.name} (pid {pids[0]} on {HOST}) SIGKILL" in text
    failure, text = end_of(handle, faults, lambda: handle.slice(gpus=1).kill.call_one(signal.SIGKILL).get())
    assert failure.reason == ExitReason("signal", signal=9) and "out of memory" not in text
    mesh.stop().get()
