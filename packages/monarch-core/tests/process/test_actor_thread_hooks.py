"""Hooks of `threading.settrace` and `threading.setprofile` that raise on the thread of an actor, before the actor begins."""

from __future__ import annotations

import textwrap

import pytest
from fresh import run

SCRIPT = """
import sys, threading
from mesh_actors import Probe
from monarch.actor import Actor, SpawnError, endpoint, this_host, this_proc

def install():
    def hook(frame, event, arg):
        raise ValueError("the hook is broken")
    threading.{install}(hook)

def remove():
    threading.{install}(None)

class AsyncProbe(Actor):
    @endpoint
    async def pid(self):
        return 1

procs = this_host().spawn_procs(name="procs", bootstrap=install)
install()
try:
    for mesh in (procs, this_proc()):
        for kind in (Probe, AsyncProbe):
            try:
                mesh.spawn("one", kind).pid.call_one().get()
            except SpawnError as e:
                expected = "the thread of the actor has raised before the actor began: ValueError: the hook is broken"
                print(expected in str(e), e.failure.reason.kind)
finally:
    remove()
print(this_proc().spawn("two", AsyncProbe).pid.call_one().get())
"""


@pytest.mark.parametrize("install", ["settrace", "setprofile"])
def test_hook_that_raises_fails_the_spawn(install: str) -> None:
    done = run(textwrap.dedent(SCRIPT).replace("{install}", install))
    assert done.stdout == "True not_started\n" * 4 + "1\n"
    assert done.stderr == ""
