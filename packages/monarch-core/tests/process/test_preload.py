"""Procs with imported modules: forked from an interpreter that has imported them once, with the same results as without."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path

import pytest
from eventually import eventually
from fresh_script import run

from monarch._core.process.current import current_process
from monarch.actor import Actor, endpoint, this_host
from monarch.config import configured


class Probe(Actor):
    @endpoint
    def has(self, name: str) -> bool:
        return name in sys.modules

    @endpoint
    def interpreter(self, name: str) -> int:
        """The process that has imported the module."""
        return sys.modules[name].PID  # type: ignore[attr-defined]

    @endpoint
    def state(self) -> dict[str, object]:
        import random

        handlers = {int(n): str(signal.getsignal(n)) for n in (signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)}
        blocked = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        environment = {k: v for k, v in os.environ.items() if k != "MONARCH_PRELOAD_FDS"}
        streams = [sys.stdout.line_buffering, sys.stdout.write_through, sys.stdin.read()]
        random.seed(3)
        return {
            "argv": sys.argv,
            "path": sys.path,
            "cwd": os.getcwd(),
            "environment": environment,
            "handlers": handlers,
            "blocked": blocked,
            "streams": streams,
            "main": sorted(vars(sys.modules["__main__"])),
            "random": random.random(),
            "umask": os.umask(os.umask(0)),
            "is_group": os.getpgid(0) == os.getpid(),
        }

    @endpoint
    def draw(self, module: str = "random", generator: str = "random") -> float:
        """A number of `module.random()`, or of a generator in a module."""
        found = getattr(sys.modules[module], generator)
        return found() if module == "random" else found.random()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules on the import path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(f"import os\nPID = os.getpid()\n{textwrap.dedent(text)}")
    return name


@contextlib.contextmanager
def probes(count: int = 2, **options: object) -> Generator[Probe, None, None]:
    with this_host().spawn_procs({"procs": count}, **options) as procs:  # type: ignore[arg-type]
        yield procs.spawn("probe", Probe)


def interpreters(name: str, count: int = 2) -> set[int]:
    with probes(count, preload=[name]) as mesh:
        assert mesh.has.call(name).get().values() == [True] * count
        return set(mesh.interpreter.call(name).get().values())


def test_procs_find_the_module_imported(folder: Path):
    name = write(folder, "preload_plain", "")
    (first,) = interpreters(name, 3)
    # The interpreter serves the next mesh too.
    assert interpreters(name) == {first}


def test_many_forks_at_once(folder: Path):
    name = write(folder, "preload_many", "")
    assert len(interpreters(name, 30)) == 1


def test_setting_holds_for_all_procs(folder: Path):
    name = write(folder, "preload_setting", "")
    with configured(preload=name), probes() as mesh:
        assert mesh.has.call(name).get().values() == [True, True]
    with configured(preload=name), probes(preload=[]) as mesh:
        assert mesh.has.call(name).get().values() == [False, False]


def test_state_is_that_of_other_procs(folder: Path):
    name = write(folder, "preload_state", "")
    with probes(1) as plain, probes(1, preload=[name]) as mesh:
        assert mesh.has.call_one(name).get()
        assert mesh.state.call_one().get() == plain.state.call_one().get()


def test_random_states_differ(folder: Path):
    name = write(folder, "preload_random", "import random")
    with probes(3, preload=[name]) as mesh:
        assert len(set(mesh.draw.call().get().values())) == 3


def test_generators_are_those_of_fresh_interpreters(folder: Path):
    name = write(folder, "preload_generators", "import random\nOWN = random.Random()\nOWN.random()\nSEEDED = random.Random(5)")
    with probes(3, preload=[name]) as mesh:
        assert mesh.has.call(name).get().values() == [True] * 3
        assert len(set(mesh.draw.call(name, "OWN").get().values())) == 3
        assert mesh.draw.call(name, "SEEDED").get().values() == [random.Random(5).random()] * 3


def test_changed_code_is_imported_again(folder: Path):
    name = write(folder, "preload_changed", "")
    first = interpreters(name)
    write(folder, "preload_changed", "VALUE = 1")
    assert interpreters(name) != first


@pytest.mark.parametrize("name", ["os", "sys", "importlib.util", "xml.dom"])
def test_module_of_the_interpreter_is_no_changed_code(name: str):
    with probes(preload=[name]) as mesh:
        assert mesh.has.call(name).get().values() == [True, True]


def test_module_that_appears_before_the_imported_one(folder: Path):
    name = write(folder, "preload_shadowed", "")
    first = interpreters(name)
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("import os\nPID = os.getpid()\n")
    assert interpreters(name) != first


def test_file_that_always_changes(folder: Path, capfd: pytest.CaptureFixture[str]):
    text = "import threading, time\nos.register_at_fork(before=lambda: os.utime(__file__, (time.time(), time.time())))"
    name = write(folder, "preload_unsteady", text)
    with probes(preload=[name]) as mesh:
        assert mesh.has.call(name).get().values() == [False, False]
    printed = capfd.readouterr()
    assert f"{name}.py changes again and again" in printed.err + printed.out


def test_changed_environment_makes_another_interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch):
    name = write(folder, "preload_environment", "")
    first = interpreters(name)
    monkeypatch.setenv("PRELOAD_TEST", "1")
    assert interpreters(name) != first


UNCARRIED = {
    "thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True, name='helper').start()",
        "has started 1 thread",
    ),
    "process": ("import subprocess\nKEPT = subprocess.Popen(['sleep', '20'])", "has started the process"),
    "fork": ("if os.fork() == 0:\n    os._exit(0)\nos.wait()", "forks the process"),
    "both": ("os.fork()", "forks the process"),
    "socket": ("import socket\nKEPT = socket.socket()", "has opened a socket"),
    "file": ("KEPT = open(__file__)", "open, which a fork does not carry"),
    "memory": ("import mmap\nKEPT = mmap.mmap(-1, 4096)", "has mapped shared memory"),
    "timer": ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 1000)", "has set a timer"),
    "seed": ("import random\nrandom.seed(1)", "random state of random"),
    "exit": ("import sys\nsys.exit(3)", "exits with 3"),
    "end": ("os._exit(5)", "has ended the interpreter with exit code 5"),
    "kill": ("os.kill(os.getpid(), 9)", "has ended the interpreter by signal 9"),
    "error": ("raise ValueError('wrong')", "ValueError: wrong"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "handler": (
        "def wrong():\n    raise ValueError('in fork')\nos.register_at_fork(after_in_child=wrong)",
        "its handler wrong of a fork fails",
    ),
    "hang": ("import threading\nos.register_at_fork(after_in_child=threading.Event().wait)", "a handler of a fork hangs"),
    "death": ("os.register_at_fork(after_in_child=lambda: os._exit(1))", "a handler of a fork ends the process"),
    "replaced": ("os.execvp('sleep', ['sleep', '60'])", "has ended the interpreter by signal 9"),
    "closed": ("import threading\nos.closerange(3, 1000)\nthreading.Event().wait()", "has ended the interpreter by signal 9"),
    "directory": ("os.chdir('/')", "changes the working directory"),
    "arguments": ("import sys\nsys.argv.append('more')", "changes the arguments of the program"),
    "stream": ("import io, sys\nsys.stdout = io.StringIO()", "changes the standard streams"),
    "redirected": ("os.dup2(os.open(os.devnull, os.O_WRONLY), 1)", "closes or redirects stdout"),
    "blocked": ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])", "changes the blocked signals"),
    "collector": ("import gc\ngc.disable()", "changes the state of the garbage collector"),
    "path": ("import sys\nsys.path.insert(0, '/nowhere')", "changes the begin of the import path"),
    "generator": ("import numpy.random\nKEPT = numpy.random.default_rng()", "has a random generator of NumPy"),
}


@pytest.mark.parametrize("case", UNCARRIED)
def test_module_that_cannot_be_carried_is_named(folder: Path, case: str, capfd: pytest.CaptureFixture[str]):
    text, expected = UNCARRIED[case]
    name = write(folder, f"preload_{case}", text)
    for _ in range(2):
        with probes(preload=[name, "decimal"]) as mesh:
            assert mesh.has.call(name).get().values() == [False, False]
    printed = capfd.readouterr()
    shown = printed.err + printed.out
    assert shown.count("preload has no effect") == 1, shown
    assert name in shown and expected in shown


def test_changes_of_modules_reach_each_proc(folder: Path):
    text = "import sys\nos.environ['PRELOAD_TEST'] = '1'\ndel os.environ['PRELOAD_GONE']\nsys.path.append('/added')"
    name = write(folder, "preload_changes", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRELOAD_GONE", "1")
        with probes(1, preload=[name]) as mesh:
            assert mesh.has.call_one(name).get()
            state = mesh.state.call_one().get()
    assert state["environment"].get("PRELOAD_TEST") == "1" and "PRELOAD_GONE" not in state["environment"]
    assert state["path"] == [*sys.path, "/added"]


def test_processes_of_a_refused_module_end(folder: Path):
    name = write(
        folder, "preload_leaves", f"import subprocess\nopen({str(folder / 'pid')!r}, 'x').write(str(subprocess.Popen(['sleep', '60']).pid))"
    )
    with probes(1, preload=[name]) as mesh:
        assert not mesh.has.call_one(name).get()
        stat = Path(f"/proc/{(folder / 'pid').read_text()}/stat")
        # A child of the test's container may stay a zombie.
        eventually("the end", lambda: stat.exists() and stat.read_text().rpartition(")")[2].split()[0], lambda state: state in (False, "Z"))


def test_ignored_signals_of_the_client_are_reset():
    script = """
    import signal
    for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    class Probe(Actor):
        @endpoint
        def handlers(self):
            import sys
            handlers = [signal.getsignal(number) for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGHUP)]
            return "decimal" in sys.modules, [handler is signal.SIG_DFL for handler in handlers]

    with this_host().spawn_procs({"procs": 1}, preload=["decimal"]) as procs:
        assert procs.spawn("probe", Probe).handlers.call_one().get() == (True, [True] * 3)
    """
    run(script)


def test_requests_beyond_the_limit_wait(folder: Path):
    name = write(folder, "preload_many_more", "")
    assert len(interpreters(name, 70)) == 1


def test_missing_module_is_named(capfd: pytest.CaptureFixture[str]):
    with probes(preload=["preload_missing"]) as mesh:
        assert mesh.has.call("preload_missing").get().values() == [False, False]
    printed = capfd.readouterr()
    assert "No module named 'preload_missing'" in printed.err + printed.out


def test_import_that_hangs_is_bounded(folder: Path, capfd: pytest.CaptureFixture[str]):
    name = write(folder, "preload_hang", "import threading\nthreading.Event().wait()")
    with configured(host_spawn_ready_timeout="4s"), probes(preload=[name]) as mesh:
        assert mesh.has.call(name).get().values() == [False, False]
    printed = capfd.readouterr()
    assert f"the import of {name} has not ended after 2 s" in printed.err + printed.out


def test_printed_text_appears_in_each_proc(folder: Path, capfd: pytest.CaptureFixture[str]):
    name = write(folder, "preload_prints", "print('hello from the import')")
    with probes(preload=[name]) as mesh:
        mesh.has.call(name).get()
    assert capfd.readouterr().out.count("hello from the import") == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_interpreter_that_is_hit_harms_no_proc(folder: Path, number: int):
    name = write(folder, f"preload_hit_{int(number)}", "")
    with probes(preload=[name]) as kept:
        (pid,) = set(kept.interpreter.call(name).get().values())
        os.kill(pid, number)
        assert kept.has.call(name).get().values() == [True, True]
        with probes(preload=[name]) as mesh:
            # These may have been requested from the interpreter before its end was noticed.
            assert len(mesh.has.call(name).get().values()) == 2
        (again,) = interpreters(name)
        assert (again == pid) == (number == signal.SIGSTOP)
        assert kept.has.call(name).get().values() == [True, True]


def test_interpreter_that_is_killed_amid_forks(folder: Path):
    name = write(folder, "preload_amid", "")
    (pid,) = interpreters(name)
    for _ in range(4):
        procs = this_host().spawn_procs({"procs": 4}, preload=[name])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        mesh = procs.spawn("probe", Probe)
        assert len(mesh.has.call(name).get().values()) == 4
        found = mesh.has.call(name).get().values()
        pid = next(iter(set(mesh.interpreter.call(name).get().values())), pid) if all(found) else pid
        procs.stop().get()


def test_proc_is_stopped_amid_the_imports(folder: Path):
    name = write(folder, "preload_slow", "import threading\nthreading.Event().wait(3)")
    procs = this_host().spawn_procs({"procs": 2}, preload=[name])
    procs.stop().get()
    with probes(1, preload=[name]) as mesh:
        assert mesh.has.call_one(name).get()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"preload": "torch"}, "expected a list of names"),
        ({"preload": [1]}, "is no name of a module"),
        ({"preload": ["not a module"]}, "is no name of a module"),
        ({"preload": 3}, "expected a list of names"),
    ],
)
def test_wrong_modules_are_refused(options: dict[str, object], error: str):
    with pytest.raises((TypeError, ValueError), match=error):
        this_host().spawn_procs({"procs": 1}, **options)  # type: ignore[arg-type]


def test_import_that_exhausts_the_memory(folder: Path, capfd: pytest.CaptureFixture[str]):
    name = write(folder, "preload_large", "DATA = bytearray(1 << 32)")
    with probes(1):
        zygote = current_process().native.zygote_pid()
        before = resource.prlimit(zygote, resource.RLIMIT_AS, (1 << 31, resource.RLIM_INFINITY))
        try:
            with probes(preload=[name]) as mesh:
                assert mesh.has.call(name).get().values() == [False, False]
        finally:
            resource.prlimit(zygote, resource.RLIMIT_AS, before)
    printed = capfd.readouterr()
    assert f"the import of {name} fails: MemoryError" in printed.err + printed.out


def test_interpreter_without_descriptors_harms_no_proc(folder: Path):
    name = write(folder, "preload_descriptors", "")
    with probes(1, preload=[name]) as mesh:
        pid = mesh.interpreter.call_one(name).get()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, 5))
    with probes(3, preload=[name]) as mesh:
        assert mesh.has.call(name).get().values() == [False] * 3
