"""Unhandled failures in a kernel and in IPython at a terminal: the shell continues, and shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from eventually import SOURCE
from test_notebook import TIMEOUT, Kernel, folder, kernel

pytestmark = pytest.mark.timeout(TIMEOUT + 20)
__all__ = ["folder", "kernel"]

SETUP = f"""
import asyncio, os, threading, time
import monarch.actor
from monarch._core.process.current import current_process
from monarch.actor import Actor, SupervisionError, endpoint, this_host

class Bad(Actor):
    @endpoint
    def err(self):
        1 / 0
    @endpoint
    def ping(self):
        return "alive"

procs = this_host().spawn_procs({{"gpus": 2}})
bad, worse, good = (procs.spawn(name, Bad) for name in ("bad", "worse", "good"))
good.ping.call().get()
one, other = bad.slice(gpus=0), worse.slice(gpus=0)
precious = 42
{SOURCE}"""
# The wait is outside of a cell, so the shell neither shows nor handles a failure.
WAIT_IDLE = "eventually('a failure waits for a cell', lambda: current_process().display.cells.waiting)"
UNHANDLED = "Unhandled monarch error on the root actor"
INTERRUPTS = ("KeyboardInterrupt: ", "CancelledError: ")


def silently(kernel: Kernel, code: str) -> None:
    message = kernel.client.execute(code, silent=True, store_history=False)
    reply = kernel.client.get_shell_msg(timeout=TIMEOUT)
    while reply["parent_header"].get("msg_id") != message:
        reply = kernel.client.get_shell_msg(timeout=TIMEOUT)
    assert reply["content"]["status"] == "ok", reply["content"]
    for _ in kernel.events(message):
        pass


def survives(kernel: Kernel) -> None:
    """The values, the other actors, and the failed mesh are still there."""
    assert kernel.cell("precious, good.ping.call().get().values()")["result"] == "(42, ['alive', 'alive'])"
    refused = "try: one.ping.call_one().get()\nexcept SupervisionError as e: print('ZeroDivisionError' in str(e))"
    assert kernel.cell(refused) == {"stdout": "True\n"}
    assert kernel.cell("await procs.spawn('new', Bad).ping.call(); await procs.stop(); precious")["result"] == "42"


@pytest.mark.parametrize(
    "wait",
    [
        "threading.Event().wait()",
        "time.sleep(1000)",  # sleeps: to be interrupted
        "good.ping.call().get(); await asyncio.Event().wait()",
        "await asyncio.sleep(1000)",  # sleeps: to be interrupted
    ],
)
def test_failure_interrupts_the_running_cell(kernel: Kernel, wait: str):
    kernel.cell(SETUP)
    shown = kernel.cell("one.err.broadcast()\n" + wait)
    assert shown.get("error") in INTERRUPTS
    assert UNHANDLED in shown["stderr"] and "ZeroDivisionError: division by zero" in shown["stderr"]
    assert kernel.cell("1 + 1") == {"result": "2"}
    survives(kernel)


def test_failure_of_an_idle_kernel_is_shown_next(kernel: Kernel):
    kernel.cell(SETUP)
    silently(kernel, "one.err.broadcast()")
    silently(kernel, WAIT_IDLE)
    shown = kernel.cell("await asyncio.sleep(0); print('undisturbed')")
    assert shown["stdout"] == "undisturbed\n" and "error" not in shown
    assert shown["stderr"].count(UNHANDLED) == 1 and "ZeroDivisionError" in shown["stderr"]
    assert kernel.cell("1 + 1") == {"result": "2"}
    survives(kernel)


def test_many_failures_interrupt_a_cell_once(kernel: Kernel):
    kernel.cell(SETUP)
    cell = """
interrupts = 0
# The first interrupt comes in here, however late; another one would end the cell.
try:
    bad.err.broadcast()
    worse.err.broadcast()
    threading.Event().wait()
except KeyboardInterrupt:
    interrupts += 1
while len(bad.__core__.info.failed) + len(worse.__core__.info.failed) < 4:  # polls: the other failures come by themselves
    time.sleep(0.1)  # sleeps: between two looks
from monarch._core.process import root_fault
with root_fault._calling:
    pass
print(interrupts)
"""
    shown = kernel.cell(cell)
    assert shown["stdout"] == "1\n" and "error" not in shown
    later = kernel.cell("print('next')")
    assert later["stdout"] == "next\n"
    texts = shown["stderr"] + later.get("stderr", "")
    assert texts.count(UNHANDLED) == 4
    # The last report is shown with its first line only.
    assert texts.count("in err") == 3
    survives(kernel)


def test_each_cell_is_interrupted_for_its_own_failure(kernel: Kernel):
    kernel.cell(SETUP)
    for name in ("one", "other"):
        shown = kernel.cell(f"{name}.err.broadcast(); threading.Event().wait()")
        assert shown["error"] == "KeyboardInterrupt: " and shown["stderr"].count(UNHANDLED) == 1
    survives(kernel)


def test_cell_whose_callback_swallows_the_interrupt(kernel: Kernel):
    """The interpreter drops an exception of a weak reference's callback."""
    kernel.cell(SETUP)
    kernel.cell("""
import weakref
class Thing: pass
def callback(_):
    one.err.broadcast()
    threading.Event().wait()
""")
    shown = kernel.cell("reference = weakref.ref(Thing(), callback)\nthreading.Event().wait()")
    assert shown["error"] == "KeyboardInterrupt: " and shown["stderr"].count(UNHANDLED) == 1
    survives(kernel)


def test_hook_that_raises_in_a_kernel(kernel: Kernel):
    kernel.cell(SETUP)
    kernel.cell("def hook(failure): raise OSError('no pager')\nmonarch.actor.unhandled_fault_hook = hook")
    shown = kernel.cell("one.err.broadcast(); threading.Event().wait()")
    assert shown["error"] == "KeyboardInterrupt: " and "OSError: no pager" in shown["stderr"]
    survives(kernel)


def test_failure_that_a_cell_sees_interrupts_nothing(kernel: Kernel):
    kernel.cell(SETUP)
    shown = kernel.cell("one.err.broadcast()\ntry:\n    while True: await one.ping.call_one()\nexcept SupervisionError: print('seen')")
    assert shown == {"stdout": "seen\n"}
    assert kernel.cell("print('next')") == {"stdout": "next\n"}
    survives(kernel)


def ipython(folder: Path, *arguments: str, stdin: str = "") -> Any:
    command = [sys.executable, "-W", "ignore", "-m", "IPython", "--no-banner", "--simple-prompt", "--colors=NoColor", *arguments]
    environment = {**os.environ, "IPYTHONDIR": str(folder)}
    return subprocess.run(command, input=stdin, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def test_terminal_shell_goes_on_after_failures(folder: Path):
    (folder / "setup.py").write_text(SETUP)
    cells = [
        "exec(open('setup.py').read())",
        "one.err.broadcast(); threading.Event().wait()",
        "print('survived', precious)",
        "other.err.broadcast(); await asyncio.Event().wait()",
        "print('again', precious, good.ping.call().get().values())",
        "exit",
    ]
    done = ipython(folder, stdin="\n".join(cells) + "\n")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "survived 42" in done.stdout and "again 42 ['alive', 'alive']" in done.stdout
    assert done.stderr.count(UNHANDLED) == 2, (done.stdout, done.stderr)
    assert done.stdout.count("KeyboardInterrupt") + done.stderr.count("KeyboardInterrupt") >= 2


def test_script_in_ipython_ends_as_a_script(folder: Path):
    (folder / "script.py").write_text(SETUP + "one.err.broadcast(); threading.Event().wait()\nprint('never')\n")
    done = ipython(folder, "script.py")
    assert done.returncode == 1 and UNHANDLED in done.stderr and "never" not in done.stdout
