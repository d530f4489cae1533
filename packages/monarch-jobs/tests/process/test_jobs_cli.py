"""The verbs: what they print, and their exit codes: 0, 1 failed, 2 usage, 3 no such job, 4 job ended, 130 Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from command import monarch, start

HERE = Path(__file__).parents[1]
NONE = "monarch: .monarch/job_state.json: no such job\nhint: `monarch apply MODULE.ATTRIBUTE`, or the script, makes one\n"
SPECS = """
import os, signal
from file_job import FileJob
from monarch.job import LocalJob, ProcessJob

job = FileJob("alloc", 2, "trainers")
local = LocalJob(("a", "b"))
process = ProcessJob({"a": 2})

class Slow(FileJob):
    def _create(self, client_script):
        super()._create(client_script)
        os.write(1, b"submitted\\n")
        signal.pause()

slow = Slow("alloc")
"""


@pytest.fixture(autouse=True)
def specs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "specs.py").write_text(SPECS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), str(HERE)))))


def test_help_lists_the_verbs_and_a_guide() -> None:
    code, out, err = monarch("--help")
    assert (code, err) == (0, "")
    for verb in ("apply", "context", "heal", "kill", "logs", "status"):
        assert f"\n  {verb} " in out
    assert "cannot be loaded" not in out
    guide = out[out.index("Job reuse:") :]
    assert "--per-host" in guide


def test_without_a_job() -> None:
    for verb in ("status", "logs", "heal"):
        assert monarch(verb) == (3, "", NONE)
    assert monarch("kill") == (0, "nothing to kill\n", "")
    code, out, err = monarch("apply")
    assert (code, out) == (3, "")
    assert err.startswith("monarch: no current job is set\n")
    assert not os.path.exists(".monarch")


@pytest.mark.parametrize(
    "arguments",
    [
        ("apply", "specs"),
        ("apply", "specs.nothing"),
        ("apply", "nowhere.job"),
        ("apply", "specs.SPECS"),
        ("apply", "specs.job", "--as", "slurm"),
        ("status", "--nothing"),
        ("heal", "--timeout", "0"),
        ("logs", "--rank", "x"),
        ("logs", "--system", "--keeper"),
        ("context", "create"),
    ],
)
def test_usage(arguments: tuple[str, ...]) -> None:
    code, out, err = monarch(*arguments)
    assert (code, out) == (2, ""), err
    assert "Usage: monarch" in err
    assert not os.path.exists(".monarch")


def test_plans_touch_nothing() -> None:
    assert monarch("apply", "specs.job", "--plan") == (0, "trainers: 2\n", "")
    code, out, _ = monarch("apply", "specs.job", "--plan", "--as", "process")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["trainers[0]", "trainers[1]"]
    assert sorted(os.listdir()) == ["__pycache__", "specs.py"] or sorted(os.listdir()) == ["specs.py"]


def test_verbs_follow_a_job_through_its_life() -> None:
    code, out, err = monarch("apply", "specs.job")
    assert (code, err) == (0, "")
    assert ": trainers (1) ready after " in out
    (name,) = os.listdir("alloc")
    title = f"FileJob job {name[:8]}"
    assert out.startswith(title)
    # The allocation is the same, now with the current spec.
    assert monarch("apply")[0] == 0
    assert os.listdir("alloc") == [name]
    assert monarch("status") == (0, f"{title}: running\n", "")
    code, out, err = monarch("status", "--json")
    assert json.loads(out) == {"job": title, "phase": "running", "detail": "", "hosts": [], "keeper": None}
    assert monarch("heal") == (0, "no host is lost\n", "")
    assert monarch("logs") == (0, "", "")
    os.unlink(f"alloc/{name}")
    assert monarch("status") == (4, f"{title}: ended (its file is gone)\n", "")
    assert monarch("kill") == (0, f"{title}: killed\n", "")
    assert monarch("kill") == (0, "nothing to kill\n", "")
    assert monarch("status")[0] == 3


def test_interrupted_submission_is_cancelled() -> None:
    with start("apply", "specs.slow") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "submitted\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(), process.stdout.read(), process.stderr.read()) == (130, "", "")
    assert os.listdir("alloc") == []


def test_status_watch_ends_with_ctrl_c_and_job() -> None:
    assert monarch("apply", "specs.job")[0] == 0
    with start("status", "--watch") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().endswith(": running\n")
        process.send_signal(signal.SIGINT)
        assert (process.wait(), process.stderr.read()) == (130, "")
    with start("status", "--watch", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["phase"] == "running"
        os.unlink(f"alloc/{os.listdir('alloc')[0]}")
        assert [json.loads(line)["phase"] for line in process.stdout][-1] == "ended"
        assert process.wait() == 4


def test_logs_of_scripts_are_followed_to_their_end() -> None:
    Path("script.py").write_text("import sys\nprint('one', flush=True)\nopen('gate').read()\nprint('two')\nsys.exit('three')\n")
    os.mkfifo("gate")
    from monarch.job import LocalJob

    job = LocalJob()
    job.apply("script.py")
    with start("logs", "-f") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "one\n"
        with open("gate", "w"):
            pass
        assert job.process is not None
        assert job.process.wait() == 1
        assert (process.stdout.read(), process.stderr.read(), process.wait()) == ("two\n", "three\n", 0)
    assert monarch("logs") == (0, "one\ntwo\n", "three\n")
    assert monarch("logs", "--rank", "3") == (0, "", "")
    code, _, err = monarch("logs", "--mesh", "x")
    assert (code, "there is: client" in err) == (2, True)
    assert monarch("status")[0] == 4
    job.kill()


def test_contexts() -> None:
    assert monarch("context", "ls") == (0, "No contexts.\n", "")
    assert monarch("context", "create", "two") == (0, "", "")
    assert monarch("context", "ls") == (0, "  two  (no job)\n", ""), "it is not switched to"
    for name in ("one", "two"):
        assert monarch("context", "use", name) == (0, "", "")
        assert monarch("apply", "specs.job")[0] == 0
    assert monarch("context", "ls") == (0, "  one\n* two\n", "")
    assert len(os.listdir("alloc")) == 2
    assert monarch("context", "use", "one") == (0, "", "")
    assert monarch("kill", "two")[0] == 0
    assert len(os.listdir("alloc")) == 1
    assert monarch("status")[0] == 0
    code, out, _ = monarch("context", "ls", "--json")
    assert json.loads(out) == [{"name": "one", "active": True, "job": True}, {"name": "two", "active": False, "job": False}]
    assert monarch("context", "rm", "x") == (3, "", "monarch: no context 'x', there is: one, two\n")
    assert monarch("kill", "x")[0] == 3
    assert monarch("context", "rm", "one") == (0, "", "")
    assert os.listdir("alloc") == []
    for verb in ("create", "use"):
        assert monarch("context", verb, "../x")[0] == 1
    assert monarch("status")[0] == 3


def test_using_a_context_keeps_a_plain_state_file() -> None:
    assert monarch("apply", "specs.job")[0] == 0
    state = Path(".monarch/default/state.json").read_bytes()
    shutil.rmtree(".monarch")
    os.mkdir(".monarch", 0o700)
    Path(".monarch/job_state.json").write_bytes(state)
    os.chmod(".monarch/job_state.json", 0o600)
    assert monarch("context", "use", "other") == (0, "", "")
    assert monarch("context", "ls") == (0, "  default\n* other  (no job)\n", "")
    assert Path(".monarch/default/state.json").read_bytes() == state


def test_export_and_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert monarch("apply", "specs.job")[0] == 0
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse\n")
    options = ("--passphrase-file", str(secret))
    code, _, err = monarch("context", "export", "-o", "x.sealed", *options)
    assert (code, "is open to others" in err) == (1, True)
    secret.chmod(0o600)
    assert monarch("context", "export", "-o", "x.sealed", *options) == (0, "", "")
    assert os.stat("x.sealed").st_mode & 0o077 == 0
    assert monarch("context", "export", "-o", "x.sealed", *options)[0] == 1
    assert b"trainers" not in Path("x.sealed").read_bytes()
    assert monarch("context", "import", "x.sealed", "--name", "copy", *options) == (0, "", "")
    assert monarch("context", "ls") == (0, "* copy\n  default\n", "")
    # Its spec was saved too, and so its class is found.
    assert monarch("status")[0] == 0
    secret.write_text("wrong\n")
    code, _, err = monarch("context", "import", "x.sealed", "--name", "other", *options)
    assert (code, "the passphrase is wrong" in err) == (1, True)
    assert monarch("context", "rm", "copy") == (0, "", "")
    assert os.listdir("alloc") == []


def test_planted_pickle_is_refused() -> None:
    import pickle

    os.makedirs(".monarch/default", 0o700)
    os.symlink("default/state.json", ".monarch/job_state.json")
    Path(".monarch/default/state.json").write_bytes(pickle.dumps({}))
    for verb in ("status", "kill", "logs", "heal"):
        code, out, err = monarch(verb)
        assert (code, out) == (1, "")
        assert "is a pickle, and loading one would run" in err


LOADED = """
import sys
from monarch.extension.cli import main
sys.argv[1:] = {arguments!r}
try:
    main()
except SystemExit:
    pass
print("loaded", *sys.modules)
"""


@pytest.mark.parametrize("arguments", [["context", "ls"], ["status"], ["kill"], ["logs"]])
def test_verbs_start_without_heavy_libraries(arguments: list[str]) -> None:
    code = LOADED.format(arguments=arguments)
    with start(argv=[sys.executable, "-P", "-c", code]) as process:
        out, _ = process.communicate(timeout=25)
    loaded = out[out.index("loaded ") :].split()
    assert "monarch.job" in loaded
    assert {"pydantic", "asyncio", "monarch._core._native", "numpy"} & set(loaded) == set()
