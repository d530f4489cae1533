"""Every text of a failure in full: the culprit first, then the owners that passed it on, its traceback, its last output, and a hint."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any

import pytest
from fresh import lines as lines_of
from fresh import run

from monarch._core.errors import table as error_table
from monarch._core.errors.table import ROWS
from monarch.actor import (
    Actor,
    ActorError,
    BootstrapCommand,
    Channel,
    SpawnError,
    SupervisionError,
    UndeliverableMessageEnvelope,
    endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)

pytestmark = pytest.mark.usefixtures("fresh")

HOST = os.uname().nodename
HERE = os.path.abspath(__file__)
MODULE = "test_failure_texts"


def hint(code: str) -> str:
    return f"  hint: {ROWS[code].hint}"


# The hints for meshes that the script itself owns, and for a process that was killed.
BY_ROOT = f"  hint: {error_table.UNHANDLED_BY_ROOT}"
KILLED = f"  hint: {error_table.KILLED}"
EXITED = f"  hint: {error_table.EXITED}"


def traceback(function: str, line: str, error: str) -> list[str]:
    """The lines of one frame, which is the user's."""
    return [
        "  Traceback of where the remote call failed (most recent call last):",
        f'    File "{HERE}", line N, in {function}',
        f"      {line}",
        f"  {error}",
    ]


def shown(text: str) -> list[str]:
    """The lines of a text, without line numbers and the markers under a line that come with some versions of Python."""
    return [re.sub(r", line \d+, in ", ", line N, in ", line) for line in text.split("\n") if not re.fullmatch(r" *[~^]+", line)]


class Error(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError("boo")

    @endpoint
    def exit_process(self) -> None:
        os._exit(7)

    @endpoint
    def leave(self) -> None:
        raise SystemExit(3)

    @endpoint
    def talk(self, count: int) -> None:
        for i in range(count):
            print("line", i, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def chained(self) -> None:
        try:
            raise KeyError("first")
        except KeyError as e:
            raise ValueError("second") from e


class Intermediate(Actor):
    """Owns the next level."""

    def __init__(self, procs: Any, depth: int) -> None:
        below = procs.spawn("error", Error) if depth == 0 else this_proc().spawn(f"level{depth}", Intermediate, procs, depth - 1)
        self.below: Any = below
        self.depth = depth

    @endpoint
    def bottom(self) -> Any:
        return self.below.bottom.call_one().get() if self.depth else self.below

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os._exit(1)


class Raising(Intermediate):
    def __supervise__(self, failure: Any) -> bool:
        raise LookupError("no idea")


@pytest.fixture(scope="module")
def procs(faults):
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


def pids_of(mesh: Any) -> list[int]:
    return list(mesh.pid.call().get().values())


def said(call: Any) -> list[str]:
    with pytest.raises(SupervisionError) as caught:
        call()
    return shown(str(caught.value))


def display(name: str, rank: int | None = None, cls: str = "Error", owner: str = "<root>", dim: str = "gpus") -> str:
    point = "" if rank is None else f"{{'{dim}': {rank}/2}}"
    return f"{owner}.<{MODULE}.{cls} {name}{point}>"


def report(actor: str, cause: str, pid: int, mark: str = "") -> str:
    return f"The actor {actor} and all its descendants have failed: {cause} (pid {pid} on {HOST}){mark}"


PROC = "the process this actor was running on"


def test_failure_report_and_its_short_form(procs, faults):
    mesh = procs.spawn("error", Error)
    pids = pids_of(mesh)
    mesh.slice(gpus=1).fail.broadcast()
    failure = faults.get()
    assert shown(failure.report()) == [
        report(display("error", 1), "ValueError: boo", pids[1]),
        *traceback("fail", 'raise ValueError("boo")', "ValueError: boo"),
        BY_ROOT,
    ]
    assert (
        str(failure)
        == repr(failure)
        == (
            f"MeshFailure(mesh_name={mesh._name.get()}, crashed_ranks=[1], event=Supervision event: actor {display('error', 1)} "
            f"failed: ValueError: boo (pid {pids[1]} on {HOST}))"
        )
    )
    assert said(lambda: mesh.pid.call().get()) == [
        "Endpoint call error.pid() failed, " + shown(failure.report())[0],
        *shown(failure.report())[1:],
    ]


def test_call_during_a_failure(procs, faults):
    mesh = procs.spawn("error", Error)
    pids = pids_of(mesh)
    assert said(lambda: mesh.slice(gpus=0).leave.call_one().get()) == [
        "Endpoint call error.leave() failed, " + report(display("error", 0), "SystemExit: 3", pids[0]),
        *traceback("leave", "raise SystemExit(3)", "SystemExit: 3"),
        BY_ROOT,
    ]


def test_killed_process_and_its_last_output(faults):
    mesh = this_host().spawn_procs({"gpus": 2})
    handle = mesh.spawn("error", Error)
    pids = pids_of(handle)
    assert said(lambda: handle.slice(gpus=0).exit_process.call_one().get()) == [
        "Endpoint call error.exit_process() failed, " + report(display("error", 0), f"{PROC} exited with non-zero code 7", pids[0]),
        EXITED,
    ]
    assert said(lambda: handle.slice(gpus=1).talk.call_one(25).get()) == [
        "Endpoint call error.talk() failed, " + report(display("error", 1), f"{PROC} failed: Killed(sig=9)", pids[1], " SIGKILL"),
        "  last output:",
        *[f"    line {i}" for i in range(5, 25)],
        KILLED,
    ]
    # The failure of a call that needs one of these procs now.
    late = mesh.spawn("late", Error)
    cause = f"error spawning actor mesh late: {PROC} exited with non-zero code 7 (pid {pids[0]} on {HOST})"
    assert said(lambda: late.initialized.get()) == [cause]
    assert said(lambda: late.slice(gpus=0).pid.call_one().get()) == [f"Endpoint call late.pid() failed, {cause}"]
    mesh.stop().get()


def test_chain_has_one_line_per_level(procs, faults):
    top = procs.slice(gpus=0).spawn("top", Intermediate, procs.rename(gpus="a_dim"), 2)
    bottom = top.bottom.call_one().get()
    pids = pids_of(bottom)
    owners = [display("top", cls="Intermediate")]
    for level in (2, 1):
        owners.append(display(f"level{level}", cls="Intermediate", owner=owners[-1]))
    nested = display("error", 1, owner=owners[-1], dim="a_dim")
    head = report(nested, "SystemExit: 3", pids[1])
    rest = [*traceback("leave", "raise SystemExit(3)", "SystemExit: 3"), hint("raised")]
    passed = [f"  {owner} failed because it did not handle a supervision event from its child" for owner in reversed(owners)]
    assert said(lambda: bottom.slice(a_dim=1).leave.call_one().get()) == [f"Endpoint call error.leave() failed, {head}", *rest]
    failure = faults.get()
    assert shown(failure.report()) == [head, *passed, *rest]
    assert said(lambda: top.pid.call_one().get()) == [f"Endpoint call top.pid() failed, {head}", *passed, *rest]
    names = []
    while failure is not None:
        names.append(failure.name)
        failure = failure.cause
    assert names == ["top", "level2", "level1", "error"]


def test_killed_nested_process(procs, faults):
    inner = this_host().spawn_procs({"a_dim": 2})
    top = procs.slice(gpus=0).spawn("top", Intermediate, inner, 0)
    bottom = top.bottom.call_one().get()
    pids = pids_of(bottom)
    os.kill(pids[0], signal.SIGKILL)
    owner = display("top", cls="Intermediate")
    failures = [faults.get(), faults.get()]
    by_name = {failure.name: failure for failure in failures}
    assert shown(by_name["top"].report()) == [
        report(display("error", 0, owner=owner, dim="a_dim"), f"{PROC} failed: Killed(sig=9)", pids[0], " SIGKILL"),
        f"  {owner} failed because it did not handle a supervision event from its child",
        KILLED,
    ]
    inner.stop().get()


def test_supervise_that_raised(procs, faults):
    top = procs.slice(gpus=0).spawn("bad", Raising, procs, 0)
    bottom, pid = top.bottom.call_one().get(), top.pid.call_one().get()
    pids = pids_of(bottom)
    bottom.slice(gpus=1).leave.broadcast()
    owner = display("bad", cls="Raising")
    first = [
        report(display("error", 1, owner=owner), "SystemExit: 3", pids[1]),
        *traceback("leave", "raise SystemExit(3)", "SystemExit: 3"),
    ]
    assert shown(faults.get().report()) == [
        report(owner, "LookupError: no idea", pid),
        *traceback("__supervise__", 'raise LookupError("no idea")', "LookupError: no idea"),
        "  This error occurred while handling another failure:",
        *["    " + line for line in first],
        BY_ROOT,
    ]


def test_stopped_mesh_and_stopped_procs():
    mesh = this_host().spawn_procs({"gpus": 2})
    one, two = mesh.spawn("one", Error), mesh.spawn("two", Error)
    pids = pids_of(one)
    one.stop("no more").get()
    for rank in (0, 1):
        assert said(lambda rank=rank: one.slice(gpus=rank).pid.call_one().get()) == [
            f"Endpoint call one.pid() failed, Supervision event: actor {display('one', rank)} has status: stopped: no more "
            f"(pid {pids[rank]} on {HOST})",
            hint("stopped"),
        ]
    mesh.stop("all of it").get()
    assert said(lambda: two.slice(gpus=1).pid.call_one().get()) == [
        f"Endpoint call two.pid() failed, Supervision event: actor {display('two', 1)} has status: stopped: all of it "
        f"(pid {pids[1]} on {HOST})",
        hint("stopped"),
    ]


def test_owner_that_vanished(procs, faults):
    with this_host().spawn_procs() as doomed:
        owner = doomed.spawn("owner", Intermediate, procs, 0)
        orphan = owner.bottom.call_one().get()
        pids = pids_of(orphan)
        with pytest.raises(SupervisionError):
            owner.die.call_one().get()
        shows = display("owner", cls="Intermediate")
        with pytest.raises(SupervisionError) as caught:
            while True:
                orphan.slice(gpus=1).pid.call_one().get()
        cause = f"timed out reaching controller {shows} for mesh error. Assuming controller's proc is dead"
        assert shown(str(caught.value)) == [
            "Endpoint call error.pid() failed, " + report(display("error", 1, owner=shows), cause, pids[1]),
            hint("orphaned"),
        ]


def test_failed_controller(faults):
    controller = get_or_spawn_controller("actor_1", Error).get()
    pid = controller.pid.call_one().get()
    with pytest.raises(SupervisionError):
        controller.leave.call_one().get()
    with pytest.raises(ActorError) as caught:
        get_or_spawn_controller("actor_1", Error).get()
    assert caught.value.message == "Failure on actor_1: " + report(display("actor_1"), "SystemExit: 3", pid)
    assert str(caught.value).startswith(caught.value.message)


def test_undeliverable_message(faults):
    class Opener(Actor):
        @endpoint
        def open(self) -> Any:
            port, self.receiver = Channel[int].open()
            return port

    class Sender(Actor):
        @endpoint
        def send(self, port: Any) -> None:
            port.send(1)

        @endpoint
        def pid(self) -> int:
            return os.getpid()

        def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> bool:
            back.send((envelope.sender(), envelope.dest(), envelope.error_msg()))
            return True

    back, returned = Channel.open()
    with this_host().spawn_procs() as ended:
        port = ended.spawn("opener", Opener).open.call_one().get()
    sender = this_proc().spawn("sender", Sender)
    sender.send.broadcast(port)
    who, dest, text = returned.recv().get()
    assert who == f"<root>.<{MODULE}.test_undeliverable_message.Sender sender>"
    assert text == f"undeliverable message for {dest} from {who} to {dest}: the process of its receiver has ended"


def test_actor_error(procs):
    mesh = procs.spawn("error", Error)
    pids = pids_of(mesh)
    with pytest.raises(ActorError) as caught:
        mesh.slice(gpus=1).chained.call_one().get()
    assert caught.value.message == "Actor call error.chained failed."
    assert shown(str(caught.value)) == [
        f"Actor call error.chained failed. ValueError: second at {display('error', 1)} (pid {pids[1]} on {HOST})",
        " Traceback of where the remote call failed (most recent call last):",
        f'  File "{HERE}", line N, in chained',
        '    raise KeyError("first")',
        "KeyError: 'first'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback of where the remote call failed (most recent call last):",
        f'  File "{HERE}", line N, in chained',
        '    raise ValueError("second") from e',
        "ValueError: second",
    ]
    assert str(caught.value) == f"{str(caught.value).split(chr(10), 1)[0]}\n {caught.value.exception_formatted}"


# ---- procs that do not start


def ends(kind: str) -> Any:
    def end() -> None:
        print("about to", kind, flush=True)
        if kind == "exit":
            os._exit(4)
        if kind == "leave":
            raise SystemExit(5)
        os.kill(os.getpid(), signal.SIGKILL)

    return end


@pytest.mark.parametrize(
    ("kind", "cause", "code"),
    [
        ("exit", f"{PROC} exited with non-zero code 4", "exit_code"),
        ("leave", f"{PROC} exited with non-zero code 5", "exit_code"),
        ("die", f"{PROC} failed: Killed(sig=9)", "signal"),
    ],
)
def test_bootstrap_that_ends_the_process(kind, cause, code):
    mesh = this_host().spawn_procs(bootstrap=ends(kind))
    with pytest.raises(SpawnError) as caught:
        mesh.initialized.get()
    assert shown(str(caught.value)) == [
        "1 of 1 procs did not start",
        f"  {sys.executable} (proc 0): {cause}",
        "    last output:",
        f"      about to {kind}",
        hint("procs_not_started"),
    ]
    assert caught.value.failure.reason.kind == code and caught.value.code == "spawn_failed"


def test_commands_that_end_at_once():
    def command(point: Any) -> BootstrapCommand | None:
        return None if point.rank == 1 else BootstrapCommand("/bin/sh", args=["-c", f"echo proc {point.rank}; exit {point.rank + 3}"])

    mesh = this_host().spawn_procs({"gpus": 3}, bootstrap_command=command)  # type: ignore[arg-type]
    with pytest.raises(SpawnError) as caught:
        mesh.initialized.get()
    expected = ["2 of 3 procs did not start"]
    for rank in (0, 2):
        expected += [
            f"  /bin/sh -c echo proc {rank}; exit {rank + 3} (proc {rank}): {PROC} exited with non-zero code {rank + 3}",
            "    last output:",
            f"      proc {rank}",
        ]
    assert shown(str(caught.value)) == [*expected, hint("procs_not_started")]
    mesh.stop().get()


def test_command_that_is_killed_before_it_is_ready():
    mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("/bin/sh", args=["-c", "kill -9 $$"]))
    with pytest.raises(SpawnError) as caught:
        mesh.initialized.get()
    assert shown(str(caught.value)) == [
        "1 of 1 procs did not start",
        f"  /bin/sh -c kill -9 $$ (proc 0): {PROC} failed: Killed(sig=9)",
        hint("procs_not_started"),
    ]


def test_program_that_is_not_there():
    mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("/no/such/program", args=["x"]))
    with pytest.raises(SpawnError) as caught:
        mesh.initialized.get()
    assert shown(str(caught.value)) == [
        "1 of 1 procs did not start",
        f"  /no/such/program x (proc 0): {PROC} exited with non-zero code 127",
        "    last output:",
        "      cannot run /no/such/program: No such file or directory",
        hint("procs_not_started"),
    ]


def test_interpreter_that_is_not_there(faults):
    """No user code has run, so no hint names `os._exit`."""
    actor = this_host().with_python_executable("/no/such/python").spawn_procs().spawn("error", Error)
    text = said(lambda: actor.leave.call_one().get())
    assert text[-3:] == [
        "  last output:",
        "    cannot run /no/such/python: No such file or directory",
        f"  hint: {error_table.NOT_RUN}",
    ]


# ---- at the root


def test_text_at_the_root():
    done = run(
        """
        import threading
        from monarch.actor import Actor, endpoint, this_host
        class Child(Actor):
            @endpoint
            def error(self):
                raise ValueError("boo")
        try:
            this_host().spawn_procs().spawn("child", Child).error.broadcast()
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
        """,
        check=False,
    )
    assert done.returncode == 1 and done.stdout == ""
    found = [re.sub(r"PID=\d+|pid \d+", "pid P", line) for line in shown(done.stderr)]
    script = re.search(r'File "(.*)", line', done.stderr)[1]
    assert re.fullmatch(rf"Unhandled monarch error on the root actor, hostname={HOST}, pid P at time \d+-\d+-\d+ \d+:\d+:\d+:", found[0])
    assert found[1:] == [
        f"The actor <root>.<__main__.Child child> and all its descendants have failed: ValueError: boo (pid P on {HOST})",
        "  Traceback of where the remote call failed (most recent call last):",
        f'    File "{script}", line N, in error',
        '      raise ValueError("boo")',
        "  ValueError: boo",
        BY_ROOT,
        "",
    ]
    assert lines_of(done.stderr)[-1] == BY_ROOT
