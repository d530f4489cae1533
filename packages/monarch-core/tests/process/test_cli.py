"""The `monarch` command: verbs of core and of other wheels, exit codes, findings of the doctor."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import installed_wheel

MAIN = "from monarch._core.cli import main; main()"

VERBS = """
import signal
import click

@click.command()
@click.argument("code", type=int)
def leave(code):
    click.echo("leaving")
    return code

@click.command()
def text():
    return "no exit code"

@click.command()
def wait():
    click.echo("waiting")
    while True:
        signal.pause()

@click.command()
def version():
    raise SystemExit(7)

def not_a_command():
    pass
"""
ENTRY_POINTS = """
[monarch.cli]
leave = other_verbs:leave
text = other_verbs:text
wait = other_verbs:wait
version = other_verbs:version
plain = other_verbs:not_a_command
broken = other_verbs_missing:command
"""


def environment(*folders: Path) -> dict[str, str]:
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}


def monarch(*arguments: str, folders: tuple[Path, ...] = (), cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(argv, env=environment(*folders), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def other_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed wheel that adds verbs, some of them bad."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "other_verbs.py").write_text(VERBS, encoding="utf-8")
    info = folder / "other_wheel-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-wheel\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    return folder


def test_version() -> None:
    plain, as_json = monarch("version"), monarch("version", "--json")
    assert (plain.returncode, as_json.returncode, plain.stderr, as_json.stderr) == (0, 0, "", "")
    found = json.loads(as_json.stdout)
    assert found["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"monarch-core", "cloudpickle", "click"} <= set(found)
    assert plain.stdout.splitlines() == [f"{name} {version}" for name, version in found.items()]


def test_doctor_looks_at_everything() -> None:
    done = monarch("doctor", "--json")
    assert done.stderr == ""
    lines = json.loads(done.stdout)
    # The findings depend on this machine. The test checks that each has a remedy, and that findings decide the exit code.
    assert all((line["todo"] or not line["finding"]) and line["text"] for line in lines)
    assert done.returncode == int(any(line["finding"] for line in lines))
    subjects = [line["subject"] for line in lines]
    assert {"open files", "processes", "locked memory", "memfd", "/dev/shm", "/dev/fuse", "clock", "Python", "packages"} <= set(subjects)
    # Other wheels may add lines.
    a_proc = lines[subjects.index("a proc")]
    assert not a_proc["finding"], a_proc


def test_doctor_measures_modules() -> None:
    done = monarch("doctor", "--preload", "colorsys,xml.dom", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found.pop("has_effect") is True and len(found) == 5 and all(value > 0 for value in found.values())
    done = monarch("doctor", "--preload", "os", "--preload", "colorsys")
    assert done.returncode == 0 and "with preload:    the first proc of a host starts in " in done.stdout


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
            1,
            "preload has no effect: the reason",
        ),
        ("raise ValueError('wrong')", 1, "cannot be imported: ValueError: wrong"),
        ("print('words'); raise SystemExit", 1, "cannot be imported: the interpreter ends with exit code 0"),
    ],
)
def test_doctor_names_modules_that_cannot_be_preloaded(tmp_path: Path, text: str, code: int, words: str) -> None:
    (tmp_path / "parrot_module.py").write_text(text)
    done = monarch("doctor", "--preload", "parrot_module", folders=(tmp_path,))
    assert done.returncode == code and words in done.stdout + done.stderr, done.stdout + done.stderr
    assert "parrot_module" in done.stdout + done.stderr


@pytest.mark.parametrize("names", ["not a-name", "", ","])
def test_doctor_refuses_names_of_no_module(names: str) -> None:
    done = monarch("doctor", "--preload", names)
    assert done.returncode == 2 and "--preload" in done.stderr.replace("preload:", "--preload:"), done.stderr


def test_doctor_lists_what_is_left_out(tmp_path: Path) -> None:
    words = "raise OSError('no dictionary')\n"
    settings = "from monarch.extension import Setting\nTAKEN = [Setting('exit_grace', 'duration', '1s', 'Time to say good-bye.')]\n"
    checks = "def lines():\n    yield ('parrot', 'can speak', '')\n    raise LookupError('lost for words')\n"
    groups = {
        "monarch.requests": {"words": "parrot_words:handler"},
        "monarch.settings": {"words": "parrot_settings:TAKEN"},
        "monarch.doctor": {"words": "parrot_checks:lines"},
    }
    modules = {"parrot_words": words, "parrot_settings": settings, "parrot_checks": checks}
    done = monarch("doctor", "--json", folders=(installed_wheel.install(tmp_path, "parrot", groups, modules),))
    assert (done.returncode, done.stderr) == (1, "")
    lines = json.loads(done.stdout)
    mine = [line for line in lines if "parrot" in line["text"] + line["subject"]]
    assert [line["subject"] for line in mine] == ["extensions", "extensions", "parrot", "words"]
    texts = [line["text"] for line in mine]
    for number, (group, error) in enumerate(
        [("monarch.requests", "OSError: no dictionary"), ("monarch.settings", "ValueError: configuration key `exit_grace` belongs to")]
    ):
        assert f"parrot 1.0: entry point 'words' of {group}" in texts[number] and error in texts[number] and "Traceback" in texts[number]
        assert "pip install -U parrot" in mine[number]["todo"]
    assert texts[2] == "can speak" and "LookupError: lost for words" in texts[3] and "parrot_checks.py" in texts[3]


def test_doctor_finds_a_low_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard})); {MAIN}"
    argv = [sys.executable, "-c", code, "doctor"]
    done = subprocess.run(argv, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "limit 100" in next(line for line in lines if line.startswith("! open files"))
    assert any(line.startswith("  open files     run `ulimit -n") for line in lines[lines.index("to do:") :])


def test_doctor_survives_code_of_other_wheels(tmp_path: Path) -> None:
    groups = {"monarch.requests": {"a": "parrot_words:handler", "b": "parrot_dies:handler"}, "monarch.doctor": {"words": "parrot_words:no"}}
    modules = {"parrot_words": "print('hello')\nhandler = 1\n", "parrot_dies": "import os\nos.kill(os.getpid(), 9)\n"}
    done = monarch("doctor", "--json", folders=(installed_wheel.install(tmp_path, "parrot", groups, modules),))
    assert done.returncode == 1 and done.stderr == "hello\n"
    (line,) = [line for line in json.loads(done.stdout) if "parrot" in line["text"]]
    assert line["text"] == "parrot 1.0: entry point 'b' of monarch.requests has ended its process (signal SIGKILL)"
    assert line["finding"] and line["todo"].startswith("remove or repair parrot: ")


def test_doctor_does_not_wait_for_a_hung_wheel(tmp_path: Path) -> None:
    folder = installed_wheel.install(
        tmp_path, "parrot", {"monarch.requests": {"a": "parrot_hangs:handler"}}, {"parrot_hangs": "import signal\nsignal.pause()\n"}
    )
    code = f"from monarch._core.observe import wheel_checks; wheel_checks.LOAD_TIMEOUT = 3; {MAIN}"
    argv = [sys.executable, "-c", code, "doctor"]
    done = subprocess.run(argv, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "! extensions     parrot 1.0: entry point 'a' of monarch.requests has not finished within 3 s" in done.stdout.splitlines()


def test_killed_doctor_leaves_no_hung_wheel(tmp_path: Path) -> None:
    groups, modules = (
        {"monarch.requests": {"a": "parrot_hangs:handler"}},
        {"parrot_hangs": "import signal\nprint('hung')\nsignal.pause()\n"},
    )
    folder = installed_wheel.install(tmp_path, "parrot", groups, modules)
    doctor = subprocess.Popen(
        [sys.executable, "-u", "-c", MAIN, "doctor"],
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert doctor.stderr is not None and "hung\n" in iter(doctor.stderr.readline, "")
    doctor.kill()
    # stderr ends when the process that hangs in the wheel ends.
    assert doctor.communicate(timeout=30)[1] == ""


def test_doctor_waits_for_no_process_of_wheels(tmp_path: Path) -> None:
    module = (
        "import os, signal\nif os.fork() == 0:\n    os.close(1)\n    os.close(2)\n    signal.alarm(50)\n    signal.pause()\nhandler = 1\n"
    )
    folder = installed_wheel.install(tmp_path, "parrot", {"monarch.requests": {"a": "parrot_forks:handler"}}, {"parrot_forks": module})
    code = f"from monarch._core.observe import wheel_checks; wheel_checks.LOAD_TIMEOUT = 1000; {MAIN}"
    argv = [sys.executable, "-c", code, "doctor", "--json"]
    done = subprocess.run(argv, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=40)
    assert not [line for line in json.loads(done.stdout) if "parrot" in line["text"]], done.stderr


@pytest.mark.parametrize("arguments", [(), ("no-such-verb",), ("version", "--no-such-option"), ("doctor", "extra")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = monarch(*arguments)
    assert done.returncode == 2
    assert "Usage: monarch" in done.stderr


def test_help_lists_all_verbs(other_wheel: Path) -> None:
    done = monarch("--help", folders=(other_wheel,))
    assert (done.returncode, done.stderr) == (0, "")
    listed = {line.split()[0]: line for line in done.stdout.partition("Commands:")[2].splitlines() if line}
    # The list also has the verbs of wheels that are installed here.
    assert {"debug", "doctor", "ps", "stack", "version", "worker", "leave", "text", "wait", "broken", "plain"} <= set(listed)
    assert "cannot be loaded" in listed["broken"]


@pytest.mark.parametrize("code", [0, 5])
def test_verb_of_another_wheel_decides_the_exit_code(other_wheel: Path, code: int) -> None:
    done = monarch("leave", str(code), folders=(other_wheel,))
    assert (done.returncode, done.stdout, done.stderr) == (code, "leaving\n", "")


def test_non_integer_result_is_no_exit_code(other_wheel: Path) -> None:
    done = monarch("text", folders=(other_wheel,))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verbs_of_core_cannot_be_replaced(other_wheel: Path) -> None:
    assert monarch("version", folders=(other_wheel,)).returncode == 0


@pytest.mark.parametrize("verb", ["broken", "plain"])
def test_unloadable_verb_names_its_wheel(other_wheel: Path, verb: str) -> None:
    done = monarch(verb, "--any", "thing", folders=(other_wheel,))
    assert done.returncode == 1
    assert f"the verb '{verb}' of other-wheel 1.0 cannot be loaded" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt_exits_with_130(other_wheel: Path) -> None:
    argv = [sys.executable, "-c", MAIN, "wait"]
    with subprocess.Popen(argv, env=environment(other_wheel), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert "Traceback" not in process.stderr.read()


def test_files_in_the_working_directory_replace_no_library(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(99)\n", encoding="utf-8")
    argv = [sys.executable, "-P", "-c", MAIN, "version", "--json"]
    done = subprocess.run(argv, env=environment(), cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_else_loads_click() -> None:
    code = "import sys, monarch.actor; monarch.actor.this_host; print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
