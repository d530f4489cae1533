"""`monarch.extension.debug`: sessions of the debugger for programs that are no actors."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from debugged_actors import PROMPT, sessions
from eventually import eventually

from monarch.actor import Actor, concurrent_endpoint, current_rank, this_host
from monarch.extension.debug import open_session


class Beside(Actor):
    """An actor beside a program: it passes the questions of the test on as the program's."""

    @concurrent_endpoint
    async def ask(self, text: str) -> tuple[str | None, bool]:
        rank = current_rank().rank
        session = await open_session("program", rank, dict(current_rank()), function="train", line=7)
        assert session.how.startswith("monarch debug")
        session.write("before\n")
        try:
            return await session.ask("(Pdb) ", text=text, function="train", line=8), session.is_second
        finally:
            session.close("the end\n")

    @concurrent_endpoint
    async def give_up(self) -> None:
        session = await open_session("program", 5, {})
        asked = asyncio.ensure_future(session.ask("(Pdb) "))
        await asyncio.sleep(0)
        asked.cancel()
        session.close()

    @concurrent_endpoint
    async def open_with_name(self, name: str) -> None:
        await open_session(name, 0, {})

    @concurrent_endpoint
    async def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def beside(debug_server):
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh.spawn("beside", Beside)


def test_lines_go_to_the_program(beside, debug_line):
    result = beside.ask.call("stands\n")
    sessions(2)
    shown = debug_line.ask("list")
    assert "program  0     gpus=0" in shown and "train     8" in shown
    assert "before\nstands\n" in debug_line.ask("attach program 1", "(Pdb) ")
    assert "the end\nThe session of program rank 1 is over." in debug_line.ask("next")
    debug_line.ask("continue")
    assert list(result.get().values()) == [(None, False), ("next", False)]


def test_second_session_of_a_rank_waits(beside, debug_line):
    first = beside.slice(gpus=0).ask.call_one("first\n")
    sessions(1)
    second = beside.slice(gpus=0).ask.call_one("second\n")
    sessions(2)
    debug_line.ask("attach program 0", "(Pdb) ")
    debug_line.ask("one", PROMPT)
    assert "second" in debug_line.ask("attach program 0", "(Pdb) ")
    debug_line.ask("two", PROMPT)
    assert (first.get(), second.get()) == (("one", False), ("two", True))


def test_question_that_is_given_up_leaves_no_session(beside, debug_line):
    beside.slice(gpus=0).give_up.call_one().get()
    # `close` waits for no answer: the list may come before it.
    eventually("the end of the session", lambda: "No debug sessions." in debug_line.ask("list"))


def test_name_of_other_characters_is_refused(beside):
    with pytest.raises(Exception, match="expected letters, digits"):
        beside.slice(gpus=0).open_with_name.call_one("two words").get()


def test_session_ends_with_its_process(debug_server, debug_line):
    with this_host().spawn_procs({"gpus": 1}) as mesh:
        actor = mesh.spawn("short", Beside)
        asked = actor.ask.call_one("")
        sessions(1)
        pid = actor.pid.call_one().get()
        debug_line.ask("attach program 0", "(Pdb) ")
        os.kill(pid, signal.SIGKILL)
        assert "The process has ended." in debug_line.until("is over.")
        with pytest.raises(RuntimeError):
            asked.get()
