"""Notebooks, with a real kernel: awaiting and waiting in cells, output in the running cell, restarts and interrupts."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh import run
from fresh_script import wait_for_end
from notebook_kernel import TIMEOUT, Kernel

from tools.notebook import execute

pytestmark = pytest.mark.timeout(TIMEOUT + 20)

WORKER = """
import os, threading
from monarch.actor import Actor, endpoint, this_host

class Worker(Actor):
    @endpoint
    def version(self):
        return 1
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def say(self, *lines):
        for line in lines:
            print(line)
    @endpoint
    def complain(self, text):
        import sys
        print(text, file=sys.stderr)
    @endpoint
    def block(self):
        print("blocked")
        threading.Event().wait()

procs = this_host().spawn_procs({"gpus": 2})
workers = procs.spawn("workers", Worker)
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for the kernels' files and sockets of a test; its path is short, because socket paths are limited."""
    path = Path(tempfile.mkdtemp(prefix="nb-"))
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def kernel(folder: Path) -> Iterator[Kernel]:
    made = Kernel(folder)
    yield made
    made.close()


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def test_notebook_runs_with_actors(folder):
    """The notebook runs without a browser: each cell stores the output of its run."""
    redefined = WORKER.replace("return 1", "return 2").rpartition("procs =")[0]
    cells = [
        WORKER,
        "(await workers.version.call()).values()",
        "workers.version.call().get().values()",
        "await workers.say.call('from the third cell')",
        "await workers.complain.call('on the other stream')",
        "workers.say.broadcast('from the fifth cell'); await workers.version.call();",
        redefined + "(await workers.version.call()).values(), (await procs.spawn('again', Worker).version.call()).values()",
        "for number in range(200): print(number); workers.say.broadcast(f'line {number}')\nawait workers.version.call();",
    ]
    notebook = execute(cells, folder, TIMEOUT)
    shown: list[dict[str, str]] = []
    for cell in notebook.cells:
        shown.append({})
        for output in cell.outputs:
            assert output["output_type"] != "error", output["traceback"]
            kind = output.get("name", "result")
            shown[-1][kind] = shown[-1].get(kind, "") + (output["text"] if "text" in output else output["data"]["text/plain"])
    assert shown[0] == {}
    assert shown[1] == {"result": "[1, 1]"}
    # The loop of the kernel runs in the thread of the cell.
    assert shown[2].keys() <= {"result", "stderr"} and shown[2]["result"] == "[1, 1]"
    assert "active event loop" in shown[2].get("stderr", "active event loop") and "as_asyncio" in shown[2].get("stderr", "as_asyncio")
    assert lines(shown[3].pop("stdout")) == ["[0] from the third cell", "[1] from the third cell"]
    assert lines(shown[4].pop("stderr")) == ["[0] on the other stream", "[1] on the other stream"]
    assert lines(shown[5].pop("stdout")) == ["[0] from the fifth cell", "[1] from the fifth cell"]
    assert shown[6] == {"result": "([1, 1], [2, 2])"}
    printed = lines(shown[7]["stdout"])
    expected = lines("\n".join(f"{number}\n[0] line {number}\n[1] line {number}" for number in range(200)))
    # The kernel and the processes print at the same time; their output was there, and complete, when the cell ended.
    assert printed == expected


def test_restart_and_kill_end_what_the_kernel_owned(kernel):
    pids: list[int] = []
    for _ in range(2):
        shown = kernel.cell(WORKER + "(await workers.pid.call()).values() + [os.getpid()]")
        own = [int(pid) for pid in re.findall(r"\d+", shown["result"])]
        assert len(set(own)) == 3 and not set(own) & set(pids)
        zygote = kernel.cell("from monarch._core.process.current import current_process; current_process().native.zygote_pid()")
        pids += [*own, int(zygote["result"])]
        if len(pids) == 4:
            kernel.restart()
        else:
            kernel.manager.shutdown_kernel(now=True)
        assert all(wait_for_end(pid) for pid in pids)


@pytest.mark.parametrize("wait", ["workers.block.call().get()", "await workers.block.call()"])
def test_interrupt(kernel, wait):
    assert kernel.cell(WORKER + "(await workers.version.call()).values()") == {"result": "[1, 1]"}
    cell = kernel.begin(wait)
    seen: list[tuple[str, str]] = []
    text = ""
    for kind, shown in kernel.events(cell):
        seen.append((kind, shown))
        if kind == "stdout":
            text += shown
            # The lines are shown while the cell runs, and both actors are in the endpoint now.
            if lines(text) == ["[0] blocked", "[1] blocked"]:
                kernel.manager.interrupt_kernel()
                # A kernel in an `await` notices the interrupt with its next message.
                kernel.client.kernel_info()
    assert [shown for kind, shown in seen if kind == "error"] in (["KeyboardInterrupt: "], ["CancelledError: "])
    # These two actors are blocked, everything else continues.
    others = "others = procs.spawn('others', Worker); (await others.version.call()).values(), others.version.call().get().values()"
    assert kernel.cell(others)["result"] == "([1, 1], [1, 1])"
    assert lines(kernel.cell("await others.say.call('here')")["stdout"]) == ["[0] here", "[1] here"]
    assert (
        kernel.cell("await procs.stop(); this_host().spawn_procs().spawn('new', Worker).version.call().get().values()")["result"] == "[1]"
    )


def test_shutdown_context_in_a_kernel(kernel):
    """The kernel continues without its client."""
    kernel.cell(WORKER + "await workers.version.call();")
    assert kernel.cell("from monarch.actor import shutdown_context\nawait shutdown_context()\nprint('over')") == {"stdout": "over\n"}
    assert kernel.cell("1 + 1") == {"result": "2"}


def test_without_a_notebook_ipython_is_not_imported():
    done = run("""
        import importlib.util, sys
        from mesh_actors import Probe
        from monarch.actor import this_host
        assert importlib.util.find_spec("IPython") is not None
        inside = this_host().spawn_procs().spawn("probe", Probe).evaluate.call_one("[m for m in sys.modules if 'IPython' in m]").get()
        print(inside, [m for m in sys.modules if "IPython" in m or m == "monarch._core.observe.notebook"])
    """)
    assert (done.stdout, done.stderr) == ("[] []\n", "")


def test_ipython_without_a_kernel(folder):
    """In the shell at a terminal, and if IPython is only imported, output keeps its usual destination."""
    code = """
        import os, sys
        import IPython
        from mesh_actors import Probe
        from monarch.actor import this_host
        probe = this_host().spawn_procs().spawn("probe", Probe)
        probe.say.call("plain").get()
        sys.stdout.flush()
    """
    done = run(code, env={"IPYTHONDIR": str(folder)})
    assert (done.stdout, done.stderr) == ("[0] plain\n", "")
    assert os.listdir(folder) == []
