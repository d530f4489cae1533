"""A mount of a job: it goes on when the script has ended, the next script refreshes it, the verbs find it, `kill` unmounts it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from job_reader import Reader
from monarch.job import ProcessJob

job = ProcessJob({"a": 1, "b": 1})
job.remote_mount(sys.argv[1], sys.argv[2], python_exe="bin/python")
state = job.state()
print(json.dumps([state[name].spawn_procs().spawn("reader", Reader).read.call_one(sys.argv[2]).get() for name in ("a", "b")]))
"""
PLAIN_SCRIPT = """
import sys
from monarch.job import ProcessJob

job = ProcessJob({"a": 1})
job.remote_mount(sys.argv[1], sys.argv[2], python_exe=None)
job.state()
"""
OTHER_CLIENT = """
import sys
from monarch.actor import this_host
from monarch.fs import mount

with mount(this_host(), sys.argv[1], sys.argv[2]):
    print("mounted", flush=True)
    sys.stdin.read()
"""
READER = """
import sys
from monarch.actor import Actor, endpoint

class Reader(Actor):
    @endpoint
    def read(self, target):
        with open(target + "/a.txt") as f:
            return [f.read(), sys.executable]
"""
ENTRIES = {
    "monarch.job_feature": {"remote_mount": "monarch.fs._jobs.remote_mount:RemoteMountFeature"},
    "monarch.keeper": {"mount": "monarch.fs._jobs.kept_mount:KeptMount"},
    "monarch.cli": {name: f"monarch.fs._cli:{name}" for name in ("mount", "mounts", "refresh", "umount")},
}


class Place:
    """A working directory with a source, and what a process needs to find its job there."""

    def __init__(self, path: Path) -> None:
        self.work, self.source, self.target = path / "work", path / "source", path / "target"
        self.work.mkdir()
        (self.source / "bin").mkdir(parents=True)
        (self.source / "bin/python").symlink_to(sys.executable)
        (self.source / "a.txt").write_text("one")
        site = path / "site"
        info = site / "job_mount-1.dist-info"
        info.mkdir(parents=True)
        (site / "job_reader.py").write_text(READER)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: job-mount\nVersion: 1\n")
        lines: list[str] = []
        for group, entries in ENTRIES.items():
            # A checkout that was installed before these were declared.
            known = {entry.name for entry in importlib.metadata.entry_points(group=group)}
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items() if name not in known)]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MONARCH_")},
            "PYTHONPATH": str(site),
            "MONARCH_HOME": str(path / "home"),
            "MONARCH_FS_STORE_DIR": str(path / "store"),
        }

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=28, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def script(self) -> list[list[str]]:
        found: list[list[str]] = json.loads(self.run(sys.executable, "-c", SCRIPT, str(self.source), str(self.target)))
        return found

    def verb(self, *arguments: str) -> str:
        return self.run(sys.executable, "-P", "-c", "from monarch.extension.cli import main; main()", *arguments)

    def shown(self) -> str:
        # In another process: a read of a mount without a server must not block this one.
        return self.run("cat", str(self.target / "a.txt"))


def is_mounted(target: str) -> bool:
    with open("/proc/self/mounts") as f:
        return f" {target} " in f.read()


def test_mount_outlives_the_script(tmp_path: Path) -> None:
    place = Place(tmp_path)
    python = str(place.target / "bin/python")
    try:
        assert place.script() == [["one", python]] * 2
        assert place.shown() == "one"
        (place.source / "a.txt").write_text("two more")
        assert place.shown() == "one"
        assert place.verb("refresh", str(place.target)).startswith(f"{place.target}: 1 changed, ")
        assert place.shown() == "two more"
        (place.source / "a.txt").write_text("and three")
        # The next script finds the mount, and refreshes it.
        assert place.script() == [["and three", python]] * 2
        (mounted,) = json.loads(place.verb("mounts", "--json"))
        assert (mounted["target"], sorted(mounted["generation"])) == (str(place.target), ["a", "b"])
    finally:
        place.verb("kill")
    with open("/proc/self/mounts") as f:
        assert str(tmp_path) not in f.read()
    assert not os.listdir(tmp_path / "home/jobs")


def test_mounts_come_back_when_the_keeper_was_killed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    other = str(tmp_path / "other")
    try:
        place.run(sys.executable, "-c", PLAIN_SCRIPT, str(place.source), str(place.target))
        place.verb("mount", str(place.source), other)
        [log] = (tmp_path / "home/jobs").glob("*/keeper/lock")
        pid = int(log.read_text())
        with open(os.pidfd_open(pid), "rb") as ended:
            os.kill(pid, signal.SIGKILL)
            assert select.select([ended], [], [], 20.0)[0]
        (place.source / "a.txt").write_text("two")
        assert place.verb("refresh", other).startswith(f"{other}: ")
        assert place.run("cat", f"{other}/a.txt") == "two"
        # The command waits for the mount that the keeper restores.
        assert place.verb("refresh", str(place.target)).startswith(f"{place.target}: ")
        assert place.shown() == "two"
        # The service of the killed keeper also uses the mount, until its lease ends.
        assert place.verb("umount", other) == f"{other} is unmounted\n"
        assert not is_mounted(other)
    finally:
        place.verb("kill")
    # The other mount has a grace period when the services of the killed keeper end with the hosts.
    with open("/proc/self/mounts") as f:
        changed = select.poll()
        changed.register(f, select.POLLPRI)
        while str(tmp_path) in f.read():
            assert changed.poll(20_000)
            f.seek(0)


@pytest.mark.parametrize("name", ["target", "$SUBDIR"])
def test_mount_that_another_client_uses_is_named(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    asked, shown = str(tmp_path / name), str(tmp_path / name.replace("$SUBDIR", "hosts_0"))
    argv = [sys.executable, "-c", OTHER_CLIENT, str(place.source), shown]
    try:
        place.run(sys.executable, "-c", PLAIN_SCRIPT, str(place.source), asked)
        with subprocess.Popen(argv, env=place.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None and other.stdout.readline() == "mounted\n"
            with pytest.raises(AssertionError, match=rf"{re.escape(shown)} is still mounted on a\[0\] .*: another client uses it"):
                place.verb("umount", asked)
            other.communicate()
        assert not is_mounted(shown)
        with pytest.raises(AssertionError, match="nothing is mounted at"):
            place.verb("umount", asked)
    finally:
        place.verb("kill")


def test_source_without_an_interpreter_is_refused_before_submission(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.source / "bin/python").unlink()
    with pytest.raises(AssertionError, match="python_exe bin/python is no executable below"):
        place.script()
    assert os.listdir(place.work) == []
