"""The emulated machine: a command's code and streams are those of the tool; its files are not, except in writable folders."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.project import ROOT
from tools.vm import missing


@pytest.mark.timeout(150)
def test_command_runs_in_the_machine(tmp_path):
    if why := missing():
        pytest.skip(why)
    kept = tmp_path / "kept"
    kept.mkdir()
    script = f"pwd; id -un; echo err >&2; echo $WORD >{kept}/file; touch {tmp_path}/lost; ls /sys/class/infiniband; exit 7"
    argv = [sys.executable, "-m", "tools.vm", "run", "--timeout", "120", "--writable", str(kept), "sh", "-c", script]
    env = {"PATH": "/usr/bin:/bin", "WORD": "it's a $word", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == [str(tmp_path), "root", "rxe0", "rxe1"] and done.stderr == "err\n"
    assert (kept / "file").read_text() == "it's a $word\n" and not (tmp_path / "lost").exists()


def test_missing_programs_are_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    assert "qemu-system-x86_64, busybox" in missing() and "`tools/system_packages.sh vm`" in missing()
