"""`monarch demo`: half a minute with real processes: a mesh, calls, slices, a kill, and the error that names it.

It needs this machine only. What always holds: each shown line of code is the code that runs; the processes end with the command.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, cast

import click

from monarch._core.call.actor import Actor, endpoint
from monarch._core.call.future import Future
from monarch._core.errors.errors import SupervisionError
from monarch._core.hosts.here import this_host

# Seconds for a step before the demo ends with the error: a machine under load is slow, and never this slow.
_LONGEST = 60.0


class Counter(Actor):
    """The actor of the demo."""

    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self, number: int) -> int:
        self.count += number
        return self.count

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Demo:
    """Runs lines of code one after another and prints each with its result and its duration."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._names: dict[str, Any] = {"this_host": this_host, "Counter": Counter}

    def explain(self, text: str) -> None:
        """Prints a sentence before the lines that it is about."""
        click.echo(f"\n{click.style(text, bold=True)}")

    def run(self, code: str, fails: bool = False) -> None:
        """Runs a line and waits for its Future; prints the value of an expression, or the first line of the error of a line that fails.

        `ClickException` for the error of any other line.
        """
        click.echo(f"{click.style('>>>', fg='green')} {code}")
        name, is_assignment, expression = code.partition(" = ")
        before = time.perf_counter()
        try:
            found: Any = eval(expression if is_assignment else code, self._names)
            if isinstance(found, Future):
                found = cast("Future[Any]", found).get(timeout=_LONGEST)
        except Exception as error:
            if not (fails and isinstance(error, SupervisionError)):
                raise click.ClickException(str(error) or repr(error)) from None
            found = click.style(str(error).splitlines()[0], fg="red")
        spent = time.perf_counter() - before
        if is_assignment:
            self._names[name] = found
        else:
            click.echo(f"{found}   {click.style(f'{1000 * spent:.1f} ms', dim=True)}")
        time.sleep(self._pause)


def run(pause: float) -> int:
    """Shows everything once, with a pause in seconds after each line; gives the exit code."""
    demo = Demo(pause)
    demo.explain("Eight processes of this machine, as a mesh of two dimensions.")
    demo.run('procs = this_host().spawn_procs(per_host={"rows": 2, "columns": 4})')
    demo.run('counters = procs.spawn("counters", Counter)')
    demo.run("counters.pid.call()")
    demo.explain("A call reaches all actors; the answers have the shape of the mesh.")
    demo.run("counters.add.call(1)")
    demo.explain("A slice is a mesh.")
    demo.run("counters.slice(rows=1).add.call(10)")
    demo.run("counters.slice(rows=1, columns=3).add.call_one(100)")
    demo.explain("One process is killed in a call. The error names the actor, the rank, the process and the cause.")
    demo.run("counters.slice(rows=1, columns=3).die.call_one()", fails=True)
    demo.explain("Every other actor works.")
    demo.run("counters.slice(rows=0).add.call(1)")
    demo.explain("The processes end with their owner.")
    demo.run("procs.stop()")
    click.echo("\nnext: `monarch init FOLDER` writes a first project")
    return 0
