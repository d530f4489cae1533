"""Breakpoints in actors, through the socket of the debug server."""

from __future__ import annotations

import inspect
import linecache
import os
import signal
import socket
import textwrap

import pytest
from debugged_actors import PDB, PROMPT, AsyncWorker, DebugLine, Initial, Plain, Worker, ranks_of, sessions
from eventually import eventually

from monarch.actor import ActorError, DebugSessionInfo, SupervisionError, debug_controller, this_host

SOURCE = inspect.getsourcefile(Worker)


@pytest.fixture(scope="module")
def procs(debug_server):
    with this_host().spawn_procs({"hosts": 2, "gpus": 2}) as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def nothing_stands_afterwards(debug_server):
    """A failing test must not affect the tests that count sessions."""
    yield
    while debug_controller().list.call_one(print_output=False).get():
        with DebugLine(debug_server) as made:
            made.ask("continue")


def line_of(method, text):
    lines, first = inspect.getsourcelines(method)
    return first + next(i for i, found in enumerate(lines) if text in found)


# ---- the list of sessions


def test_list_of_several_ranks(procs, debug_line):
    result = procs.spawn("worker", Worker).step.call(10)
    found = sessions(4)
    at = line_of(Worker.step._method, "self.double")
    assert [type(info) for info in found] == [DebugSessionInfo] * 4
    assert [(info.actor_name, info.rank, info.coords, info.hostname) for info in found] == [
        ("worker", 2 * host + gpu, {"hosts": host, "gpus": gpu}, socket.gethostname()) for host in (0, 1) for gpu in (0, 1)
    ]
    assert {info.function for info in found} == {"step"}
    assert all(at - 1 <= info.lineno <= at for info in found)
    for command in ("l", "list", "  list  "):
        text = debug_line.ask(command)
        assert ranks_of(text) == [0, 1, 2, 3]
        assert text.splitlines()[0].split() == ["actor", "rank", "coordinates", "host", "function", "line"]
        assert "hosts=1, gpus=0" in text
    assert debug_line.ask("c") == "4 sessions go on.\n"
    assert list(result.get().values()) == [20, 22, 24, 26]
    assert debug_controller().list.call_one(print_output=False).get() == []
    assert debug_line.ask("list") == "No debug sessions.\n"


def test_list_prints(procs, capfd, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("printed", Worker).step.call_one(1)
    sessions()
    assert len(debug_controller().list.call_one().get()) == 1
    assert capfd.readouterr().out.splitlines()[-1].startswith("printed  0")
    debug_line.ask("c")
    result.get()


def test_wait_pending_session(procs, debug_line):
    waiting = debug_controller().wait_pending_session.call_one()
    result = procs.slice(hosts=0, gpus=1).spawn("awaited", Worker).step.call_one(1)
    assert waiting.get() is None
    assert debug_controller().wait_pending_session.call_one().get() is None
    debug_line.ask("continue")
    assert result.get() == 2


# ---- attach, step, detach


def test_steps_and_looks_around(procs, debug_line):
    result = procs.spawn("stepped", Worker).step.call(10)
    sessions(4)
    text = debug_line.ask("attach stepped 2", PDB)
    assert text.startswith("Attached to stepped rank 2")
    assert f"> {SOURCE}(" in text
    assert debug_line.ask("p x, y", PDB) == "(10, 12)\n"
    assert debug_line.ask("print('a'); print('b')", PDB) == "a\nb\n"
    assert "y = self.double(y)" in debug_line.ask("list", PDB)
    # The stack has no frame of the runtime.
    assert debug_line.ask("where", PDB).count("()\n") == 1
    assert debug_line.ask("up", PDB) == "*** Oldest frame\n"
    debug_line.ask("b self.double", PDB)
    # This comes last: showing a stack makes pdb of Python 3.11 forget assignments.
    assert debug_line.ask("!y = 100", PDB) == ""
    assert "double()" in debug_line.ask("c", PDB)
    assert debug_line.ask("args", PDB).splitlines()[-1] == "y = 100"
    assert "step()" in debug_line.ask("up", PDB)
    assert debug_line.ask("detach").endswith("Detached from stepped rank 2.\n")
    assert next(info for info in sessions() if info.rank == 2).function == "double"
    assert debug_line.ask("attach stepped 2", PDB).count("\n") > 1
    debug_line.ask("clear", PDB)
    assert debug_line.ask("c").endswith("The session of stepped rank 2 is over.\n")
    assert ranks_of(debug_line.ask("list")) == [0, 1, 3]
    debug_line.ask("c")
    assert list(result.get().values()) == [20, 22, 200, 26]


def test_attaching_again_repeats_the_last_output(procs, debug_line, debug_server):
    result = procs.slice(hosts=0, gpus=0).spawn("again", Worker).step.call_one(3)
    sessions()
    first = debug_line.ask("a again 0", PDB)
    debug_line.ask("detach")
    assert debug_line.ask("a again 0", PDB) == first
    debug_line.ask("p 'looked at'", PDB)
    debug_line.ask("detach")
    with DebugLine(debug_server) as other:
        text = other.ask("attach again 0", PDB)
        assert text.splitlines()[1:] == ["'looked at'"]
        other.ask("c")
    assert result.get() == 6


def test_empty_line_repeats_the_last_pdb_command(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("repeated", Worker).step.call_one(3)
    sessions()
    debug_line.ask("a repeated 0", PDB)
    assert debug_line.ask("p 5", PDB) == debug_line.ask("", PDB) == "5\n"
    debug_line.ask("c")
    assert result.get() == 6


def test_two_breakpoints_of_one_call_are_one_session(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("twice", Worker).twice.call_one()
    sessions()
    assert "the first" in debug_line.ask("a twice 0", PDB)
    debug_line.send("c")
    debug_line.until(PROMPT)
    sessions()
    assert "the second" in debug_line.ask("a twice 0", PDB)
    assert debug_line.ask("p word", PDB) == "'between'\n"
    debug_line.ask("c")
    assert result.get() == "between"


def test_steps_over_another_breakpoint(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("over", Worker).twice.call_one()
    sessions()
    debug_line.ask("a over 0", PDB)
    seen = ""
    while not seen.startswith("the second"):
        seen = debug_line.ask("n", PDB)
    debug_line.ask("c")
    assert result.get() == "between"


def test_stepping_past_the_end_ends_the_session(procs, debug_line):
    worker = procs.slice(hosts=0, gpus=0).spawn("past", Worker)
    result = worker.step.call_one(3)
    sessions()
    debug_line.ask("a past 0", PDB)
    debug_line.ask("b self.explode", PDB)
    debug_line.send("r")
    assert "--Return--" in debug_line.until(PDB)
    debug_line.send("s")
    assert "is over" in debug_line.until(PROMPT)
    assert result.get() == 6
    # Its breakpoints are removed with the session.
    assert isinstance(worker.pid.call_one().get(), int)


def test_nested_breakpoint_is_passed_over(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("nested", Worker).nested.call_one()
    sessions()
    debug_line.ask("a nested 0", PDB)
    assert debug_line.ask("p self.stop_again()", PDB).splitlines() == [
        "*** breakpoint() in a command of the debugger: passed over",
        "'went on'",
    ]
    debug_line.ask("c")
    assert result.get() == 2


def test_quit_in_pdb_ends_the_call(procs, debug_line):
    worker = procs.slice(hosts=0, gpus=0).spawn("quit", Worker)
    result = worker.step.call_one(1)
    sessions()
    debug_line.ask("a quit 0", PDB)
    assert "is over" in debug_line.ask("q")
    with pytest.raises(ActorError, match="BdbQuit"):
        result.get()
    assert debug_controller().list.call_one(print_output=False).get() == []
    assert isinstance(worker.pid.call_one().get(), int)


def test_interact_and_commands(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("interact", Worker).step.call_one(3)
    sessions()
    debug_line.ask("a interact 0", PDB)
    debug_line.ask("interact", ">>> ")
    assert debug_line.ask("print(x + 1)", ">>> ") == "4\n"
    debug_line.ask("for i in range(2):", "... ")
    debug_line.ask("    print(i)", "... ")
    assert debug_line.ask("", ">>> ") == "0\n1\n"
    debug_line.ask("exit()", PDB)
    debug_line.ask("b self.double", PDB)
    debug_line.ask("commands", "(com) ")
    debug_line.ask("p 'at the breakpoint'", "(com) ")
    debug_line.ask("end", PDB)
    assert "'at the breakpoint'" in debug_line.ask("c", PDB)
    assert "cannot be run again" in debug_line.ask("run", PDB)
    # The actor continues with its breakpoint cleared.
    debug_line.ask("detach")
    assert debug_line.ask("continue") == "1 session goes on.\n"
    assert result.get() == 6


def test_output_of_others_is_not_taken(procs, debug_line, capfd):
    result = procs.slice(hosts=0, gpus=0).spawn("console", Worker).print_both.call_one()
    sessions()
    debug_line.ask("a console 0", PDB)
    assert debug_line.ask("print('to the debugger')", PDB) == "to the debugger\n"
    debug_line.ask("c")
    result.get()
    procs.slice(hosts=0, gpus=0).spawn("plain", Plain).answer.call_one().get()
    assert "to the debugger" not in capfd.readouterr().out


def test_much_output(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("much", Worker).step.call_one(3)
    sessions()
    debug_line.ask("a much 0", PDB)
    text = debug_line.ask("for i in range(2000): print('line', i, 'x' * 100)", PDB)
    assert [int(row.split()[1]) for row in text.splitlines()] == list(range(2000))
    assert debug_line.ask("!import sys; n = sys.stdout.write('y' * 100000)", PDB) == "y" * 100000
    debug_line.ask("c")
    assert result.get() == 6


# ---- exceptions


def test_post_mortem_precedes_the_error_of_the_call(procs, debug_line):
    result = procs.spawn("dying", Worker).fail.call([2])
    sessions(4)
    assert "4 sessions" in debug_line.ask("continue")
    # Sessions of breakpoints are listed until their actors run again.
    eventually("the post-mortem is the only session", lambda: [(info.rank, info.function) for info in sessions()] == [(2, "explode")])
    text = debug_line.ask("attach dying 2", PDB)
    assert "ValueError: bad rank" in text
    assert debug_line.ask("p text", PDB) == "'bad rank'\n"
    assert "fail()" in debug_line.ask("up", PDB)
    assert debug_line.ask("up", PDB) == "*** Oldest frame\n"
    assert debug_line.ask("p wrong", PDB) == "[2]\n"
    assert "is over" in debug_line.ask("c")
    with pytest.raises(ActorError, match="bad rank"):
        result.get()


def test_post_mortem_needs_a_breakpoint_in_the_call(procs, debug_line):
    worker = procs.slice(hosts=0, gpus=0).spawn("careless", Worker)
    with pytest.raises(ActorError, match="no breakpoint"):
        worker.fail_at_once.call_one().get()
    result = worker.fail.call_one([])
    sessions()
    debug_line.ask("c")
    assert result.get() == "fine"
    with pytest.raises(ActorError, match="no breakpoint"):
        worker.fail_at_once.call_one().get()


# ---- other kinds of code


def test_async_endpoint(procs, debug_line):
    worker = procs.slice(hosts=0, gpus=0).spawn("loop", AsyncWorker)
    result = worker.step.call_one(1)
    sessions()
    text = debug_line.ask("attach loop 0", PDB)
    assert "step()" in text
    assert debug_line.ask("up", PDB) == "*** Oldest frame\n"
    seen = ""
    while "return x" not in seen:
        seen = debug_line.ask("n", PDB)
    assert debug_line.ask("p x", PDB) == "2\n"
    # Some versions of Python stop once more at the return of a coroutine.
    assert "is over" in debug_line.ask("c")
    assert result.get() == 2
    assert isinstance(worker.pid.call_one().get(), int)


def test_concurrent_endpoint(procs, debug_line):
    worker = procs.slice(hosts=0, gpus=0).spawn("concurrent", AsyncWorker)
    results = [worker.beside.call_one(fail) for fail in (False, True)]
    sessions()
    assert "beside()" in debug_line.ask("attach concurrent 0", PDB)
    eventually("the prompt of the endpoint", lambda: debug_line.ask("p fail, 'beside'", PDB), lambda text: "beside" in text)
    debug_line.ask("c")
    # The other session continues; the order of tasks is the loop's.
    sessions()
    debug_line.ask("continue")
    (info,) = sessions()
    assert info.function == "beside"
    assert "KeyError: 'beside'" in debug_line.ask("attach concurrent 0", PDB)
    debug_line.ask("c")
    assert results[0].get() == "beside"
    with pytest.raises(ActorError, match="beside"):
        results[1].get()


def test_task_of_an_async_endpoint(procs, debug_line):
    worker = procs.slice(hosts=0, gpus=0).spawn("tasks", AsyncWorker)
    result = worker.in_task.call_one()
    sessions()
    assert "body()" in debug_line.ask("attach tasks 0", PDB)
    assert debug_line.ask("up", PDB) == "*** Oldest frame\n"
    debug_line.ask("c")
    assert result.get() == "from a task"
    result = worker.fail_in_task.call_one()
    sessions()
    debug_line.ask("continue")
    sessions()
    assert "KeyError: 'task'" in debug_line.ask("attach tasks 0", PDB)
    debug_line.ask("c")
    with pytest.raises(ActorError, match="task"):
        result.get()


def test_thread_of_an_actor(procs, debug_line):
    with this_host().spawn_procs({"one": 1}) as alone:
        result = alone.spawn("threads", Worker).in_thread.call_one()
        sessions()
        assert "body()" in debug_line.ask("attach threads 0", PDB)
        debug_line.ask("c")
        assert result.get() == ["from a thread"]


def test_explicit_port(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("port", Worker).through_port.call_one()
    sessions()
    assert "through_port()" in debug_line.ask("attach port 0", PDB)
    debug_line.ask("c")
    assert result.get() == "sent"


def test_init(procs, debug_line, fresh):
    built = procs.slice(hosts=0, gpus=0).spawn("initial", Initial, False)
    assert sessions()[0].function == "__init__"
    debug_line.ask("c")
    assert built.read.call_one().get() == "built"
    broken = procs.slice(hosts=0, gpus=0).spawn("initial", Initial, True)
    sessions()
    debug_line.ask("c")
    sessions()
    assert "ValueError: in __init__" in debug_line.ask("attach initial 0", PDB)
    debug_line.ask("c")
    with pytest.raises(SupervisionError, match="in __init__"):
        broken.read.call_one().get()


def test_by_value_code_shows_its_source(procs, debug_line):
    source = textwrap.dedent(
        """
        class Cell(Actor):
            @endpoint
            def step(self):
                word = "of the cell"
                breakpoint()
                return word
        """
    )
    name = "<cell-of-a-test>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace = {"__name__": "__main__"}
    exec("from monarch.actor import Actor, endpoint", namespace)
    exec(compile(source, name, "exec"), namespace)
    result = procs.slice(hosts=0, gpus=0).spawn("cell", namespace["Cell"]).step.call_one()
    sessions()
    assert "-> return word" in debug_line.ask("attach cell 0", PDB)
    assert 'word = "of the cell"' in debug_line.ask("l", PDB)
    debug_line.ask("c")
    assert result.get() == "of the cell"


def test_name_that_the_prompt_cannot_take(procs, debug_line):
    result = procs.slice(hosts=0, gpus=0).spawn("Odd Name (1)", Worker).step.call_one(1)
    assert sessions()[0].actor_name == "oddname1"
    debug_line.ask("attach oddname1 0", PDB)
    debug_line.ask("c")
    assert result.get() == 2


def test_second_actor_of_the_same_name_and_rank(procs, debug_line, capfd):
    one = procs.slice(hosts=0, gpus=0)
    results = [one.spawn("same", Worker).step.call_one(x) for x in (1, 2)]
    assert [info.rank for info in sessions(2)] == [0, 0]
    first = debug_line.ask("attach same 0", PDB)
    assert first
    x = int(debug_line.ask("p x", PDB))
    debug_line.ask("c")
    debug_line.ask("attach same 0", PDB)
    assert int(debug_line.ask("p x", PDB)) == 3 - x
    debug_line.ask("c")
    assert [result.get() for result in results] == [2, 4]
    # The output of a proc arrives by another route.
    said: list[str] = []

    def printed() -> str:
        said.append(capfd.readouterr().err)
        return "".join(said)

    text = eventually("the line of the proc", printed, lambda text: "comes after it" in text)
    assert "Debug session for rank 0 already exists for actor same" in text


# ---- the rest of the process continues


def test_process_of_a_session_stays_responsive(procs, debug_line):
    one = procs.slice(hosts=0, gpus=0)
    results = [one.spawn("sync", Worker).step.call_one(1), one.spawn("async", AsyncWorker).step.call_one(1)]
    sessions(2)
    assert one.spawn("beside", Plain).answer.call_one().get() == 42
    one.spawn("stopped beside", Plain).stop().get()
    debug_line.ask("c")
    assert [result.get() for result in results] == [2, 2]


def test_killed_process_ends_its_session(debug_line, faults):
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        worker = mesh.spawn("killed", Worker)
        pid = worker.slice(gpus=0).pid.call_one().get()
        results = [worker.slice(gpus=rank).step.call_one(1) for rank in (0, 1)]
        sessions(2)
        debug_line.ask("attach killed 0", PDB)
        os.kill(pid, signal.SIGKILL)
        assert "The process has ended.\nThe session of killed rank 0 is over.\n" in debug_line.until(PROMPT)
        with pytest.raises(SupervisionError, match="sig=9"):
            results[0].get()
        assert ranks_of(debug_line.ask("list")) == [1]
        debug_line.ask("c")
        assert results[1].get() == 2
        assert faults.get().name == "killed"


def test_procs_stop_with_a_session(debug_line, monkeypatch):
    from monarch.config import configured

    with configured(stop_grace_period="0.1s", stop_actor_timeout="0.1s", process_exit_timeout="0.5s"):
        mesh = this_host().spawn_procs({"gpus": 2})
        results = [mesh.spawn("ends", Worker).step.call(1), mesh.spawn("ends-too", AsyncWorker).step.call(1)]
        sessions(4)
        mesh.stop().get()
        for result in results:
            with pytest.raises(SupervisionError):
                result.get()
    eventually("no session is left", lambda: ranks_of(debug_line.ask("list")), lambda ranks: not ranks)
