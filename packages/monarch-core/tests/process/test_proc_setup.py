"""Hooks of other wheels for new procs: their contributions, their places, and the outcome of hooks that raise or hang."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from fresh import run
from worker_processes import Workers

from tools import installed_wheel

# Records its calls, by process, in a file whose path is given to it.
GOOD = """
import json, os
from monarch.extension import member

def note(setup, what, **more):
    path = setup.get("good.notes").decode()
    with open(path, "a") as f:
        f.write(json.dumps({"what": what, "pid": os.getpid(), "mesh": setup.name, "size": setup.size, **more}) + "\\n")

def contribute(setup):
    setup.set("good.notes", os.environ["NOTES"].encode())
    setup.set_variable("GOOD_ONES", "3")
    setup.set_variable("NOT_FOR_PROCS", None)
    note(setup, "contribute")

def start(setup):
    note(setup, "start", rank=int(member().rank), ones=os.environ.get("GOOD_ONES"), actors="actors" in globals())

def stop(setup):
    note(setup, "stop", rank=int(member().rank))
"""
ACTOR = """
import logging, os, sys
from monarch.actor import Actor, MonarchError, endpoint, this_host

class Probe(Actor):
    @endpoint
    def variable(self, name):
        return os.environ.get(name)

    @endpoint
    def pid(self):
        return os.getpid()
"""


def site_with(folder: Path, **hooks: str) -> Path:
    """A folder with a wheel of each hook, by name; the source may begin with the name of another target."""
    for name, source in hooks.items():
        installed_wheel.install(folder, f"wheel-{name}", {"monarch.process": {name: f"hook_{name}"}}, {f"hook_{name}": source})
    return folder


def program(code: str, site: Path, **environment: str) -> Any:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return run(ACTOR + textwrap.dedent(code), env={"PYTHONPATH": path, "NOTES": str(site / "notes"), **environment})


def notes(site: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (site / "notes").read_text().splitlines()]


@pytest.mark.parametrize("method", ["auto", "exec"])
def test_hooks_run_before_and_after_start_and_end(method: str, tmp_path: Path) -> None:
    code = """
        procs = this_host().spawn_procs({"gpus": 2}, name="hooked")
        probe = procs.spawn("probe", Probe)
        assert probe.variable.call("GOOD_ONES").get().values() == ["3", "3"]
        assert probe.variable.call("NOT_FOR_PROCS").get().values() == [None, None]
        assert "GOOD_ONES" not in os.environ and os.environ["NOT_FOR_PROCS"] == "x"
        print(os.getpid(), *probe.pid.call().get().values())
        procs.stop().get()
    """
    done = program(code, site_with(tmp_path, good=GOOD), MONARCH_SPAWN_METHOD=method, NOT_FOR_PROCS="x")
    assert (done.returncode, done.stderr) == (0, "")
    client, *pids = map(int, done.stdout.split())
    found = notes(tmp_path)
    assert found[0] == {"what": "contribute", "pid": client, "mesh": "hooked", "size": 2}
    for rank, pid in enumerate(pids):
        mine = [(note["what"], note["rank"]) for note in found if note["pid"] == pid]
        assert mine == [("start", rank), ("stop", rank)]
    assert all(note["ones"] == "3" for note in found if note["what"] == "start") and len(found) == 5


def test_killed_proc_has_no_orderly_end(tmp_path: Path) -> None:
    code = """
        import signal
        procs = this_host().spawn_procs(name="hooked")
        probe = procs.spawn("probe", Probe)
        os.kill(probe.pid.call_one().get(), signal.SIGKILL)
        try:
            probe.pid.call_one().get()
        except MonarchError:
            print("gone")
    """
    done = program(code, site_with(tmp_path, good=GOOD))
    assert done.stdout == "gone\n"
    assert [note["what"] for note in notes(tmp_path)] == ["contribute", "start"]


def test_hooks_run_in_the_order_of_their_names(tmp_path: Path) -> None:
    source = """
        class Hook:
            def contribute(self, setup):
                setup.set("NAME", (setup.get("LAST") or b"") + b"NAME")
                print("contribute NAME", setup.get("a"), flush=True)
            def start(self, setup):
                print("start NAME", setup.get("a"), setup.get("b"), flush=True)
            def stop(self, setup):
                print("stop NAME", flush=True)
        hook = Hook()
    """
    for name, last in (("b", "a"), ("a", "b")):
        text = textwrap.dedent(source).replace("NAME", name).replace("LAST", last)
        installed_wheel.install(tmp_path, f"wheel-{name}", {"monarch.process": {name: f"hook_{name}:hook"}}, {f"hook_{name}": text})
    done = program("procs = this_host().spawn_procs(); procs.initialized.get(); procs.stop().get()", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    values = "b'a' b'ab'"
    said = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]
    assert said == ["contribute a b'a'", "contribute b b'a'", f"start a {values}", f"start b {values}", "stop b", "stop a"]


@pytest.mark.parametrize("part", ["contribute", "start", "stop"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise LookupError('no dictionary')", "LookupError: no dictionary"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})", "Mute: <exception str() failed>"),
        ("threading.Event().wait()", "TimeLimit: PART: not done within 0.2 s"),
    ],
)
def test_failing_hook_is_named_and_left_out(part: str, body: str, text: str, tmp_path: Path) -> None:
    bad = f"import threading\nlimit = 0.2\ndef {part}(setup):\n    {body}\n"
    code = """
        for _ in range(2):
            procs = this_host().spawn_procs(name="hooked")
            assert procs.spawn("probe", Probe).variable.call_one("GOOD_ONES").get() == "3"
            procs.stop().get()
    """
    done = program(code, site_with(tmp_path, bad=bad, good=GOOD))
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    # Each proc is another process; in the client the hook is left out for good.
    assert output.count("left out: wheel-bad 1.0: entry point 'bad' of monarch.process (hook_bad): ") == (1 if part == "contribute" else 2)
    assert text.replace("PART", part) in output and "hook_bad.py" in output and f"in {part}" in output
    assert [note["what"] for note in notes(tmp_path)] == ["contribute", "start", "stop"] * 2


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("contribute = None", "has none of the functions contribute, start and stop"),
        ("def contribute(setup): setup.set('good.notes', b'mine')", ""),
        ("def contribute(setup): setup.set('word', 'text')", "TypeError: ProcSetup.set('word', ...): expected a text and bytes"),
        ("def contribute(setup): setup.set_variable('A=B', 'x')", "ValueError: ProcSetup.set_variable('A=B', 'x'): that cannot be"),
        ("def contribute(setup): setup.set_variable('A', 'a\\0')", "ValueError: ProcSetup.set_variable('A', 'a\\x00'): that cannot be"),
        ("def contribute(setup): setup.set_variable('A', 'a\\ud800')", "it has a surrogate at position 1, which cannot be encoded"),
        ("def contribute(setup): setup.set_variable('\\ud800', None)", "it has a surrogate at position 0, which cannot be encoded"),
        ("def contribute(setup):\n  setup.set_variable('GOOD_ONES', '4')\n  raise OSError('no')", "OSError: no"),
    ],
)
def test_values_of_a_failed_hook_do_not_count(source: str, text: str, tmp_path: Path) -> None:
    code = """
        procs = this_host().spawn_procs(name="hooked")
        assert procs.spawn("probe", Probe).variable.call_one("GOOD_ONES").get() == "3"
        procs.stop().get()
    """
    if not text:
        # This hook comes first by its name: then the other one fails.
        source, code = source.replace("mine", str(tmp_path / "other").replace("\\", "/")), code.replace('== "3"', "is None")
        text = "ValueError: ProcSetup.set('good.notes', ...): the value is set already"
    done = program(code, site_with(tmp_path, bad=source, good=GOOD))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("left out: wheel-") == 1 and text in done.stderr


@pytest.mark.parametrize("method", ["auto", "exec"])
def test_variable_outside_the_locale_arrives(method: str, tmp_path: Path) -> None:
    hook = "def contribute(setup):\n    setup.set_variable('BYTES', '\\udcff')\n"
    code = """
        procs = this_host().spawn_procs(name="hooked")
        assert ascii(procs.spawn("probe", Probe).variable.call_one("BYTES").get()) == r"'\\udcff'"
    """
    done = program(code, site_with(tmp_path, bytes=hook), MONARCH_SPAWN_METHOD=method)
    assert (done.returncode, done.stderr) == (0, "")


def test_variable_read_at_interpreter_start_is_set(tmp_path: Path) -> None:
    hook = "def contribute(setup):\n    setup.set_variable('PYTHONHASHSEED', '7')\n    setup.set_variable('CHOSEN', 'by the wheel')\n"
    code = """
        from monarch.actor import BootstrapCommand

        class Hash(Actor):
            @endpoint
            def of(self, text):
                return hash(text), os.environ["CHOSEN"]

        procs = this_host().spawn_procs(name="hooked")
        first, chosen = procs.spawn("hash", Hash).of.call_one("word").get()
        again = this_host().spawn_procs(name="again", bootstrap_command=BootstrapCommand(sys.executable, env={"CHOSEN": "by the user"}))
        second, other = again.spawn("hash", Hash).of.call_one("word").get()
        assert first == second and (chosen, other) == ("by the wheel", "by the user")
    """
    done = program(code, site_with(tmp_path, seed=hook))
    assert (done.returncode, done.stderr) == (0, "")


def test_hook_missing_on_another_host_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    site.mkdir()
    site_with(site, good=GOOD)
    code = """
        import json
        from monarch.actor import attach_to_workers
        hosts = attach_to_workers(workers=json.loads(os.environ["WORKERS"]))
        procs = hosts.spawn_procs(name="hooked")
        assert procs.spawn("probe", Probe).variable.call_one("GOOD_ONES").get() == "3"
        procs.stop().get()
        hosts.shutdown().get()
    """
    with Workers(1) as workers:
        # The folder is on the client's path, which procs on other hosts take over if they have the folder.
        done = program(code, site, WORKERS=json.dumps(workers.addresses))
    assert done.returncode == 0, done.stderr
    assert [note["what"] for note in notes(site)] == ["contribute", "start", "stop"]
    assert len({note["pid"] for note in notes(site)}) == 2
    # A proc that does not find the wheel logs that.
    code = "from monarch._core.hosts import spawn\nspawn.own_paths = lambda: []\n" + textwrap.dedent(code)
    with Workers(1) as workers:
        done = program(code, site, WORKERS=json.dumps(workers.addresses))
    assert done.returncode == 0, done.stderr
    text = "left out: wheel-good 1.0: entry point 'good' of monarch.process (?): ModuleNotFoundError: the spawner of this proc has"
    # Procs of a worker log at their worker.
    assert text in capfd.readouterr().err


def test_hook_that_ends_its_process_fails_the_spawn(tmp_path: Path) -> None:
    code = """
        procs = this_host().spawn_procs(name="hooked")
        try:
            procs.initialized.get()
        except MonarchError as e:
            assert "1 of 1 procs did not start" in str(e) and "exited with non-zero code 7" in str(e), e
            print("reported")
        monarch.actor.unhandled_fault_hook = lambda failure: None
    """
    done = program(
        "import monarch.actor\n" + textwrap.dedent(code), site_with(tmp_path, dies="import os\ndef start(setup):\n    os._exit(7)\n")
    )
    assert (done.returncode, done.stdout) == (0, "reported\n")


def test_without_hooks_nothing_of_them_is_loaded() -> None:
    code = """
        procs = this_host().spawn_procs()
        class Loaded(Actor):
            @endpoint
            def modules(self):
                return [name for name in sys.modules if name.endswith(("proc_setup", "process.time_limit", "config.installed"))]
        assert procs.spawn("loaded", Loaded).modules.call_one().get() == []
        assert not {"monarch._core.hosts.proc_setup", "monarch._core.process.time_limit"} & set(sys.modules)
    """
    done = run(ACTOR + textwrap.dedent(code))
    assert (done.returncode, done.stderr) == (0, "")
