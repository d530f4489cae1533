"""`serve` and `run_spmd` on pods of a real cluster: reserved once, run many times, healed, and ended."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from kubernetes_jobs import PODS_S, Jobs

from monarch.job.spmd import SPMDJob, serve
from monarch.spmd import RestartPolicy, SPMDFailure
from tools.k8s.cluster import KubeCluster

# The path of the client's directory in the pods.
PLACE = "/project"
NAMES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
# Rank 0 listens at the address that the others dial: in pods, only the address of its pod works.
PROGRAM = f"""
import os, socket, sys
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        for connection in [server.accept()[0] for _ in range(world - 1)]:
            connection.close()
else:
    while True:  # polls: rank 0 may not listen yet
        try:
            socket.create_connection(place).close()
            break
        except ConnectionRefusedError:
            continue
print("FIRST", os.uname().nodename, *(os.environ[name] for name in {NAMES}), *sys.argv[1:])
"""
# The first attempt waits until the test disturbs it.
WAITS = """
import os, signal
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    print("waits", flush=True)
    signal.pause()
"""
RUN_AGAIN = """
from monarch.job import job_load
job_load(".monarch/job_state.json").run_spmd()
"""


@pytest.fixture
def jobs(cluster: KubeCluster, namespace: str, pod_template: dict[str, Any]) -> Jobs:
    return Jobs(cluster, namespace, pod_template)


@pytest.fixture
def served(jobs: Jobs, tmp_path: Path) -> Iterator[SPMDJob]:
    """A launch on two pods, which have the directory of the client by a mount."""
    (tmp_path / "source").mkdir()
    [container] = jobs.template["spec"]["containers"]
    container["securityContext"] = {"privileged": True}
    container["volumeMounts"].append({"name": "fuse", "mountPath": "/dev/fuse"})
    jobs.template["spec"]["volumes"].append({"name": "fuse", "hostPath": {"path": "/dev/fuse"}})
    options = {"namespace": jobs.namespace, "pod_template": jobs.template}
    command = ["torchrun", "--nnodes=2", "--nproc-per-node=2", f"{PLACE}/train.py", "--lr", "0.1"]
    job = serve(command, scheduler="kubernetes", scheduler_cfg=options)
    try:
        job.remote_mount(str(tmp_path / "source"), PLACE, python_exe=None)
        yield job
    finally:
        job.kill()


def uids(jobs: Jobs) -> set[str]:
    return {pod["metadata"]["uid"] for pod in jobs.pods()}


def lines(text: str) -> list[list[str]]:
    """What the ranks have printed, by rank, without their prefix."""
    found = re.findall(r"^\[(\d+)\] (.*)$", text, re.MULTILINE)
    return [line.split() for _, line in sorted(found, key=lambda one: int(one[0]))]


def expected(word: str, nodes: list[str], attempt: int = 0) -> list[list[str]]:
    return [[word, nodes[rank // 2], *f"{rank} {rank % 2} {rank // 2} 4 2 2 {attempt} --lr 0.1".split()] for rank in range(4)]


def test_launch_on_pods(jobs: Jobs, served: SPMDJob, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "source" / "train.py"
    program.write_text(PROGRAM)
    served.run_spmd()
    first = lines(capfd.readouterr().out)
    nodes = [first[0][1], first[2][1]]
    assert first == expected("FIRST", nodes) and [node[-2:] for node in nodes] == ["-0", "-1"]
    pods = uids(jobs)
    assert len(pods) == 2
    # The run is on the same pods, with an edited program.
    program.write_text(PROGRAM.replace("FIRST", "SECOND"))
    served.run_spmd()
    assert lines(capfd.readouterr().out) == expected("SECOND", nodes)
    # The run is in another process, which knows only the file.
    program.write_text(PROGRAM.replace("FIRST", "THIRD"))
    again = subprocess.run([sys.executable, "-c", RUN_AGAIN], capture_output=True, text=True, timeout=PODS_S, check=False)
    assert again.returncode == 0, again.stderr
    assert lines(again.stdout) == expected("THIRD", nodes)
    program.write_text("raise ValueError('bad')")
    with pytest.raises(SPMDFailure, match="raised ValueError: bad"):
        served.run_spmd()
    assert uids(jobs) == pods
    served.kill()
    assert jobs.objects() == []


def test_lost_pod_is_healed_during_a_run(jobs: Jobs, served: SPMDJob, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source" / "train.py").write_text(WAITS + PROGRAM)
    shown: list[str] = []

    def waiting() -> int:
        shown.append(capfd.readouterr().out)
        return "".join(shown).count("waits")

    policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(served.run_spmd, policy=policy)
        eventually("all ranks", waiting, lambda count: running.done() or count == 4, PODS_S)
        before, name = uids(jobs), served.status().hosts[0].name
        jobs.cluster.kubectl("delete", "pod", name, "-n", jobs.namespace, "--wait=false")
        running.result(2 * PODS_S)
    out, err = capfd.readouterr()
    found = [line for line in lines(out) if line != ["waits"]]
    assert found == expected("FIRST", [found[0][1], found[2][1]], attempt=1)
    assert "healed and restarted" in err and "all 2 hosts are there" in err
    # One pod is the other one, and the new one has the mount with the program.
    assert len(uids(jobs) & before) == 1
    status = served.status()
    assert [host.phase for host in status.hosts] == ["joined"] * 2 and status.hosts[0].name != name
    served.kill()
    assert jobs.objects() == []
