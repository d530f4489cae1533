"""`serve` and `run_spmd` on machines that ssh reaches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monarch.job.spmd import job_load, serve
from tools.sshd.hosts import SshHosts

NOTES = """
import os, sys
with open(os.path.join(os.path.dirname(__file__), "notes"), "a") as file:
    file.write(f"{os.environ['RANK']}/{os.environ['WORLD_SIZE']} {sys.argv[1:]}\\n")
"""


def notes(folder: Path) -> list[str]:
    found = sorted((folder / "notes").read_text().splitlines())
    (folder / "notes").unlink()
    return found


@pytest.mark.timeout(60)
def test_launch_runs_on_machines_again_and_again(hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NOTES)
    options = {"hosts": list(hosts.names), "python_exe": sys.executable, "ssh_args": hosts.ssh_args}
    command = ["torchrun", "--nproc-per-node=2", str(tmp_path / "train.py"), "x"]
    job = serve(command, "ssh", options)
    job.run_spmd()
    assert notes(tmp_path) == [f"{rank}/4 ['x']" for rank in range(4)]
    # The run uses an edited file, by a job that is read from its state.
    (tmp_path / "train.py").write_text(NOTES.replace("{os.environ['RANK']}", "edited {os.environ['RANK']}"))
    again = job_load(".monarch/job_state.json")
    again.run_spmd()
    assert notes(tmp_path) == [f"edited {rank}/4 ['x']" for rank in range(4)]
    # The job has one host of two; the previous job is killed.
    one = serve(["torchrun", "--nnodes=1", str(tmp_path / "train.py")], "ssh", options)
    one.run_spmd()
    assert notes(tmp_path) == ["edited 0/1 []"]
    one.kill()
    assert not list(tmp_path.glob("monarch-worker-*"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "scheduler_cfg: ssh needs 'hosts', a list of names as ssh knows them"),
        ({"hosts": "h0"}, "scheduler_cfg: ssh needs 'hosts'"),
        ({"hosts": ["h0"]}, r"scheduler_cfg\['hosts'\]: 1 of at least 2 that the launch needs"),
        ({"hosts": ["h0", "h1"], "port": 1}, r"scheduler_cfg\['port'\]: no such option, there is: python_exe, ssh_args, monarch_port"),
    ],
)
def test_wrong_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], text: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=text):
        serve(["torchrun", "--nnodes=2", "train.py"], "ssh", options)
