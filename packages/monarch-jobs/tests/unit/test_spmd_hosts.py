"""The hosts that a launch asks a scheduler for; nothing is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.job import job_loads
from monarch.job.kubernetes import ImageSpec
from monarch.job.spmd import SPMDJob, _of_command

NODES = {"resources": {"infra": "kubernetes", "cpus": 2}, "cluster_name": "c1", "python_exe": "python3"}
PODS = {"namespace": "team", "workload": "statefulset", "pod_template": {"spec": {"containers": [{"name": "worker", "image": "a:1"}]}}}
IMAGE = {"namespace": "team", "image_spec": ImageSpec("a:1", {"nvidia.com/gpu": 8}, enable_fuse=True)}
OPTIONS: list[tuple[str, dict[str, Any]]] = [("skypilot", NODES), ("kubernetes", PODS), ("kubernetes", IMAGE)]


@pytest.mark.parametrize(("scheduler", "options"), OPTIONS)
@pytest.mark.parametrize(("nodes", "count"), [("2", 2), ("1:3", 3)])
def test_as_many_hosts_as_the_launch_has(scheduler: str, options: dict[str, Any], nodes: str, count: int) -> None:
    command = ["torchrun", f"--nnodes={nodes}", "--nproc-per-node=2", "train.py"]
    job = _of_command(command, scheduler, dict(options))
    assert (job._sizes(), job.workspace) == ({"workers": count}, None)
    assert job.hosts_ is not None and job.hosts_.kind == scheduler
    plan = job.plan()
    assert plan.text.startswith(f"launch: {' '.join(command)}\n") and job.hosts_.plan().text in plan.text
    # This is the saved form; another process finds the same launch and hosts.
    found = job_loads(job.dumps())
    assert isinstance(found, SPMDJob) and found.plan() == plan and found.can_run(job)


@pytest.mark.parametrize(("scheduler", "options"), OPTIONS)
def test_options_of_no_scheduler(scheduler: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"scheduler_cfg\['queue'\]: no such option, there is: "):
        _of_command(["torchrun", "--nnodes=2", "train.py"], scheduler, {**options, "queue": "a"})
