"""What an inspection shows of waits: calls in flight of threads and of coroutines, and failures of owned meshes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from eventually import eventually

import monarch.actor
from monarch.actor import Actor, Channel, Port, SupervisionError, endpoint, this_host
from monarch.extension.inspection import InspectedJob, add_report, host_stacks, inspect_jobs


class Held(Actor):
    """Answers `hold_open` when its gate is opened."""

    @endpoint
    def hold_open(self, begun: Port[Any]) -> None:
        mine, gate = Channel[None].open()
        begun.send(mine)
        gate.recv().get()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open_files(self, number: int) -> None:
        self.files = [os.open(os.devnull, os.O_RDONLY) for _ in range(number)]

    @endpoint
    def read_sources(self) -> list[str]:
        import linecache

        return list(linecache.cache)


class Caller(Actor):
    @endpoint
    async def call_through(self, other: Any, begun: Port[Any]) -> None:
        await other.hold_open.call_one(begun)


def answers(member: str) -> list[Any]:
    return [one for proc in host_stacks()["procs"] if proc["answer"] for one in proc["answer"].get(member, [])]


def own_answer() -> dict[str, Any]:
    return next(proc["answer"] for proc in host_stacks()["procs"] if proc["pid"] == os.getpid())


@pytest.mark.parametrize("part, name", [("kernel_waits", "kernel_waits"), ("raised", "raised"), ("process_groups", "groups")])
def test_part_that_raises_is_left_out_alone(part: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise IndexError("a line of another form")

    with this_host().spawn_procs(name="reports"):  # a job has an agent
        monkeypatch.setattr(f"monarch._core.observe.waits.{part}", broken)
        own = own_answer()
    assert own["left_out"][name] == "IndexError: a line of another form"
    assert own["resources"]["memory"] and "waits" in own


def test_looks_that_cannot_be_loaded_end_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with this_host().spawn_procs(name="reports"):
        monkeypatch.setitem(sys.modules, "monarch._core.observe.waits", None)
        own = own_answer()
        assert own["threads"] and own["left_out"]["waits"].startswith("ModuleNotFoundError")


def waiting(found: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    return next((one for one in answers("waits") if found(one)), None)


def test_thread_and_coroutine_that_wait_are_shown() -> None:
    with this_host().spawn_procs({"procs": 2}, name="waits") as procs:
        held, caller = procs.slice(procs=1).spawn("held", Held), procs.slice(procs=0).spawn("caller", Caller)
        begun, gates = Channel[Any].open()
        call = caller.call_through.call_one(held, begun)
        thread = threading.Thread(target=call.get, daemon=True)
        thread.start()
        gate = gates.recv().get()
        eventually("the thread waits", lambda: waiting(lambda one: one.get("endpoint") == "call_through") is not None)
        of_thread = waiting(lambda one: one.get("endpoint") == "call_through")
        assert of_thread is not None
        assert (of_thread["thread"], of_thread["name"], of_thread["late"], of_thread["blocks"]) == (thread.ident, "caller", 1, True)
        of_task = waiting(lambda one: one.get("endpoint") == "hold_open")
        assert of_task is not None
        assert (of_task["name"], of_task["size"], of_task["blocks"]) == ("held", 1, True)
        assert any(name == "Caller.call_through" for _, _, name in of_task["frames"])
        [[rank, uid]] = of_task["ranks"]
        procs_by_uid = {proc["uid"]: proc["name"] for proc in host_stacks()["procs"]}
        assert rank == 0 and "'procs': 1/2" in procs_by_uid[uid]
        gate.send(None)
        thread.join()
        assert waiting(lambda one: one.get("endpoint") in ("call_through", "hold_open")) is None


def test_look_does_not_read_its_own_source() -> None:
    with this_host().spawn_procs({"procs": 1}, name="looks") as procs:
        held = procs.spawn("held", Held)
        held.pid.call_one().get()
        eventually("the proc answers", lambda: all(proc["answer"] for proc in host_stacks()["procs"]))
        assert not [file for file in held.read_sources.call_one().get() if file.endswith("/observe/waits.py")]


def test_all_of_many_procs_are_asked() -> None:
    with this_host().spawn_procs({"procs": 100}, name="many") as procs:
        procs.initialized.get()
        # More than are asked at a time.
        eventually("each proc answers", lambda: len([proc for proc in host_stacks()["procs"] if proc["answer"]]) > 100)


def test_thread_that_works_has_processor_time() -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            sum(range(1000))

    def ran() -> int:
        for proc in host_stacks()["procs"]:
            for one in (proc["answer"] or {}).get("threads", []):
                if one["name"] == "worker of the test":
                    return int(one["ran"] or 0)
        return 0

    thread = threading.Thread(target=work, name="worker of the test", daemon=True)
    thread.start()
    try:
        first = eventually("the thread has run", ran)
        eventually("the thread has run longer", ran, lambda now: now > first)
    finally:
        ended.set()
        thread.join()


def test_failure_of_an_owned_mesh_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    procs = this_host().spawn_procs({"procs": 2}, name="failing")
    held = procs.spawn("killed_while_held", Held)
    pid = held.slice(procs=1).pid.call_one().get()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError):
        held.slice(procs=1).pid.call_one().get()

    def failures() -> list[Any]:
        return [one for one in answers("failures") if one["name"] == "killed_while_held"]

    # The call may fail before the owner of the mesh has its failure, and a busy client reads its stacks without the GIL.
    found = eventually("the failure is shown", failures)
    assert [(one["kind"], one["signal"], one["rank"], one["size"], one["pid"]) for one in found] == [("signal", 9, 1, 2, pid)]
    procs.stop().get()


def test_newest_of_many_failures_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    monkeypatch.setattr("monarch._core.observe.waits._MOST_FAILURES", 4)
    monkeypatch.setattr("monarch._core.observe.waits._SHARE", 1)
    meshes = [this_host().spawn_procs({"procs": 3}, name=f"many{number}").spawn(f"many{number}", Held) for number in range(3)]
    for mesh in meshes:
        for pid in mesh.pid.call().get().values():
            os.kill(pid, signal.SIGKILL)
        for rank in range(3):
            with pytest.raises(SupervisionError):
                mesh.slice(procs=rank).pid.call_one().get()

    def names() -> list[str]:
        return [one["name"] for one in answers("failures")]

    # The meshes of procs have failed, too. Older failures have no room.
    eventually("the newest failures are shown", names, lambda seen: seen == ["many1", "many1", "many2", "many2"])


def test_stopped_proc_is_not_waited_for() -> None:
    def stacks() -> dict[str, Any] | None:
        # Agents wait for two seconds for procs that may still answer.
        with suppress(OSError):
            return host_stacks(timeout=1.5)
        return None

    with this_host().spawn_procs({"procs": 2}, name="stopping") as procs:
        stopped, other = (procs.slice(procs=rank).spawn("held", Held).pid.call_one().get() for rank in range(2))
        os.kill(stopped, signal.SIGSTOP)
        try:
            seen = eventually("an answer comes in time", stacks)
        finally:
            os.kill(stopped, signal.SIGCONT)
    rows = {proc["pid"]: proc for proc in seen["procs"]}
    assert (rows[stopped]["kernel"], rows[stopped]["answer"]) == ("T", None)
    assert rows[other]["answer"] is not None


def test_own_job_is_among_the_inspected_jobs() -> None:
    def own() -> list[InspectedJob]:
        return [one for one in inspect_jobs() if one.pid == os.getpid()]

    with this_host().spawn_procs(name="seen") as procs:
        procs.initialized.get()
        [job] = own()
        assert job.error is None and not job.is_agent and job.state is not None and job.stacks is not None
        assert "<root>.<seen>" in {proc["name"] for proc in job.state["procs"]}


def test_resources_of_a_process_are_shown() -> None:
    with this_host().spawn_procs(name="resources") as procs:
        held = procs.spawn("held", Held)
        held.open_files.call_one(300).get()
        uid = next(proc["uid"] for proc in host_stacks()["procs"] if proc["pid"] == held.pid.call_one().get())
        found = next(proc["answer"]["resources"] for proc in host_stacks()["procs"] if proc["uid"] == uid)
        assert found["descriptors"]["number"] > 300 and [os.devnull, 300] in [
            [name, min(n, 300)] for name, n in found["descriptors"]["targets"]
        ]
        assert found["memory"]["resident"] > 1 << 20 and found["threads"]["number"] >= 2 and len(found["clock"]) == 2
        assert {"/dev/shm"} <= {one["folder"] for one in found["file_systems"]} and found["connections"] == []


def test_stopped_program_of_a_process_is_shown() -> None:
    from monarch._core.observe.resources import resources

    with subprocess.Popen(["sleep", "60"]) as program:
        os.kill(program.pid, signal.SIGSTOP)
        try:
            eventually("the program is stopped", lambda: [program.pid, "sleep"] in resources()["programs"]["stopped"])
            assert resources()["programs"]["number"] >= 1
        finally:
            program.kill()


def test_stopped_agent_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch._core import _native
    from monarch._core.observe import inspection

    def asked(*words: object) -> bytes:
        raise AssertionError("a stopped process was asked")

    monkeypatch.setattr(_native, "inspect_agent", asked)
    monkeypatch.setattr(_native, "agent_pid", lambda agent: 7)
    monkeypatch.setattr(inspection, "why_stopped", lambda pid: "it is stopped by a signal")
    monkeypatch.setattr(inspection, "agents", lambda: [5])
    assert inspection.look(inspection.STATE) == [inspection.Look(5, None, "it is stopped by a signal", 7)]


@pytest.mark.parametrize("given, asked", [({"pid": 7}, [5]), ({"number": 6}, [6]), ({}, [5, 6]), ({"pid": 9}, [5, 6]), ({"number": 9}, [])])
def test_only_the_given_job_is_asked(monkeypatch: pytest.MonkeyPatch, given: dict[str, int], asked: list[int]) -> None:
    from monarch._core import _native
    from monarch._core.observe import inspection

    seen = set[int]()

    def answered(agent: int, me: int, what: int, timeout: float) -> bytes:
        seen.add(agent)
        return b'{"agent_pid": 1, "procs": []}'

    monkeypatch.setattr(_native, "inspect_agent", answered)
    monkeypatch.setattr(_native, "agent_pid", lambda agent: agent + 2)
    monkeypatch.setattr(inspection, "agents", lambda: [5, 6])
    assert sorted(one.number for one in inspect_jobs(**given)) == sorted(seen) == asked


def test_report_of_a_wheel_is_shown() -> None:
    def broken() -> object:
        raise ValueError("no report")

    def ends() -> object:
        raise SystemExit(3)

    released = threading.Event()
    add_report("test.told", lambda: [os.getpid()])
    add_report("test.broken", broken)
    add_report("test.unfit", object)
    add_report("test.ends", ends)
    add_report("test.late", released.wait)
    add_report("test.long", lambda: "x" * 1_000_000)
    own = own_answer()
    assert {name: told for name, told in own["reports"].items() if name.startswith("test.")} == {"test.told": [os.getpid()]}
    left_out = {name.removeprefix("report test."): reason for name, reason in own["left_out"].items()}
    assert left_out["broken"] == "ValueError: no report" and left_out["ends"] == "SystemExit: 3"
    assert left_out["late"] == "it has not returned" and left_out["long"] == "it has more than 262,144 characters"
    assert left_out["unfit"].startswith("TypeError: ")
    released.set()
    eventually("the report has returned", lambda: "test.late" in own_answer()["reports"])
    with pytest.raises(TypeError, match="expected a function"):
        add_report("test.none", None)  # pyright: ignore[reportArgumentType]
