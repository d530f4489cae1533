"""A view of a job: it goes on and follows the hosts when the script has ended, the verbs find it, `umount` and `kill` end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from fs_gather_hosts import UNTIL

from tools.frozen import freeze

SCRIPT = """
import json, sys
from monarch.job import ProcessJob
job = ProcessJob(json.loads(sys.argv[3]))
job.gather_mount(sys.argv[1], sys.argv[2])
job.state()
"""
MAIN = "from monarch.extension.cli import main; main()"


class Place:
    """A working directory, a log on the hosts, and what a process needs to find its job there."""

    def __init__(self, path: Path) -> None:
        self.work, self.log, self.local = path / "work", path / "remote" / "out.log", path / "local"
        self.work.mkdir()
        self.log.parent.mkdir()
        self.log.write_text("first\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MONARCH_")},
            "MONARCH_HOME": str(path / "home"),
        }

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=28, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def script(self, **meshes: int) -> None:
        self.run(sys.executable, "-c", SCRIPT, str(self.log.parent), str(self.local), json.dumps(meshes))

    def verb(self, *arguments: str) -> str:
        return self.run(sys.executable, "-P", "-c", MAIN, *arguments)

    def read(self, script: str) -> str:
        """What another process prints; `t` is the mount point."""
        return self.run(sys.executable, "-S", "-c", f"import os, sys\nt = sys.argv[1]\n{UNTIL}\n{script}", str(self.local)).strip()

    def is_mounted(self) -> bool:
        with open("/proc/self/mounts") as f:
            return f" {self.local} " in f.read()


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    found = Place(tmp_path)
    try:
        yield found
    finally:
        found.verb("kill")
        assert not found.is_mounted()
        assert not os.listdir(tmp_path / "home/jobs")


def test_view_outlives_its_script_and_follows_the_host(place: Place) -> None:
    place.script(workers=2)
    assert place.read("print(sorted(os.listdir(t)), open(t + '/hosts_1/out.log').read())") == "['hosts_0', 'hosts_1'] first"
    with place.log.open("a") as f:
        f.write("second\n")
    place.read("until(lambda: open(t + '/hosts_0/out.log').read() == 'first\\nsecond\\n')")
    (listed,) = json.loads(place.verb("mounts", "--json"))
    assert (listed["kind"], listed["source"], listed["target"]) == ("gather", str(place.log.parent), str(place.local))
    assert (listed["shown"], listed["mounted"]) == (["workers"], True)
    assert place.verb("umount", str(place.local)) == f"{place.local} is unmounted\n"
    assert not place.is_mounted() and not place.local.exists()


def test_meshes_have_directories(place: Place) -> None:
    place.script(a=1, b=2)
    script = "print({k: sorted(os.listdir(t + '/' + k)) for k in sorted(os.listdir(t))})"
    assert place.read(script) == "{'a': ['hosts_0'], 'b': ['hosts_0', 'hosts_1']}"


def test_verb_shows_one_mesh_and_refuses_another_view(place: Place) -> None:
    place.run(sys.executable, "-c", "from monarch.job import ProcessJob\nProcessJob({'a': 1, 'b': 1}).state()")
    relative = os.path.relpath(place.local, place.work)
    assert place.verb("gather", str(place.log.parent), relative, "--mesh", "b") == f"{place.log.parent} is shown at {place.local}/b\n"
    assert place.read("print(os.listdir(t), open(t + '/b/hosts_0/out.log').read())") == "['b'] first"
    with pytest.raises(AssertionError, match="is shown at .*umount"):
        place.verb("gather", str(place.log.parent), relative)
    assert place.verb("umount", "--all") == f"{place.local} is unmounted\n"
    assert not place.is_mounted()


def test_next_script_mounts_a_view_that_was_unmounted(place: Place) -> None:
    place.script(workers=1)
    # A script that finds the view does not change it.
    place.script(workers=1)
    assert place.read("print(os.listdir(t))") == "['hosts_0']"
    place.run("umount", str(place.local))
    place.script(workers=1)
    assert place.read("print(os.listdir(t))") == "['hosts_0']"


def test_keeper_that_is_killed_leaves_no_mount(place: Place) -> None:
    place.script(workers=1)
    status = place.run(sys.executable, "-c", "from monarch.job import job_load, keeper_of\nprint(keeper_of(job_load()).status().pid)")
    os.kill(int(status), signal.SIGKILL)
    place.read("until(lambda: not os.path.ismount(t))")
    place.script(workers=1)
    assert place.read("print(os.listdir(t))") == "['hosts_0']"


SHOWN_AGAIN = """
def shown():
    try:
        return open(t + "/b/hosts_0/out.log").read()
    except OSError:
        return ""
until(lambda: shown() == "first\\n")
"""
WORKER = "from monarch.job import job_load\nprint(job_load().status().hosts[1].name.removeprefix('pid '))"


def test_view_of_the_verb_returns_with_healed_host(place: Place) -> None:
    place.run(sys.executable, "-c", "from monarch.job import ProcessJob\nProcessJob({'a': 1, 'b': 1}).state()")
    place.verb("gather", str(place.log.parent), str(place.local))
    os.killpg(int(place.run(sys.executable, "-c", WORKER)), signal.SIGKILL)
    assert place.verb("heal").startswith("replaced: b[0] ")
    place.read(SHOWN_AGAIN)
    assert place.verb("umount", str(place.local)) == f"{place.local} is unmounted\n"


def test_host_that_was_silent_is_served_again(place: Place, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "a.txt").write_text("one")
    place.run(sys.executable, "-c", "from monarch.job import ProcessJob\nProcessJob({'a': 1, 'b': 1}).state()")
    place.verb("gather", str(place.log.parent), str(place.local))
    place.verb("mount", str(source), str(target))
    [log] = (tmp_path / "home/jobs").glob("*/keeper/log")
    worker = int(place.run(sys.executable, "-c", WORKER))
    freeze(worker)
    place.read(f"until(lambda: 'silent for' in open({str(log)!r}).read())")
    os.kill(worker, signal.SIGCONT)
    (source / "a.txt").write_text("two")
    assert place.verb("refresh").startswith(f"{target}: ")
    assert place.run("cat", str(target / "a.txt")) == "two"
    # The next keeper shows the view of all hosts again.
    place.read(SHOWN_AGAIN)
    assert {row["state"] for row in json.loads(place.verb("mounts", "--json"))} == {"running"}


def test_outputs_of_a_command_are_in_the_view(place: Place) -> None:
    place.script(workers=2)
    argv = [sys.executable, "-P", "-c", MAIN, "exec", "--all", "--", "sh", "-c", "echo from $MONARCH_RANK_HOSTS"]
    done = subprocess.run(argv, cwd=place.work, env=place.environment, capture_output=True, text=True, timeout=28, check=False)
    assert done.returncode == 0, done.stderr
    where, _, run = done.stderr.splitlines()[-1].removeprefix("monarch: output by rank: ").rpartition("/")
    assert where == f"{place.local}/*/exec_outputs"
    assert sorted(done.stdout.splitlines()) == ["[0] from 0", "[1] from 1"]
    for rank in (0, 1):
        path = f"t + '/hosts_{rank}/exec_outputs/{run}/hosts_{rank}/stdout.txt'"
        assert place.read(f"until(lambda: os.path.exists({path}))\nprint(open({path}).read(), end='')") == f"from {rank}"
