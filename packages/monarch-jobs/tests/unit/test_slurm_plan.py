"""Plans of SLURM jobs, and what their constructor refuses. Nothing here runs a command of SLURM."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.job import SlurmJob, job_loads

PLANS = Path(__file__).parent / "plans"


def _everything() -> SlurmJob:
    return SlurmJob(
        {"trainers": 4, "a b": 1},
        python_exe="/opt/my env/bin/python",
        slurm_args=["--nice=3", "-C fast"],
        monarch_port=31000,
        job_name='a "job"',
        ntasks_per_node=8,
        time_limit="1-02:00:00",
        partition="gpu",
        log_dir="/shared/logs",
        exclusive=False,
        gpus_per_node=8,
        cpus_per_task=4,
        mem="64G",
        job_start_timeout=600,
        account="lab",
        qos="high",
        bind_to="0.0.0.0",
        gres="nvme:1",
        min_nodes=5,
        spares=2,
        requeue=True,
        job_dir="/shared/jobs",
    )


def _shared() -> SlurmJob:
    job = SlurmJob({}, job_dir="/shared/jobs")
    job.add_mesh("first", 2)
    job.add_mesh("second", 1)
    return job


CASES: dict[str, Callable[[], SlurmJob]] = {
    "slurm_least": lambda: SlurmJob({"hosts": 2}, job_dir="/shared/jobs"),
    "slurm_everything": _everything,
    "slurm_meshes": _shared,
    "slurm_heterogeneous": lambda: SlurmJob({"gpus": 2, "cpus": 1}, job_dir="/shared/jobs", mesh_args={"gpus": ["--gpus-per-node=8"]}),
}


@pytest.mark.parametrize("name", CASES)
def test_plan_equals_the_stored_one(name: str) -> None:
    """To take a change over: print(job.plan()) into the file, and read the difference."""
    plan = CASES[name]().plan()
    assert str(plan) == (PLANS / f"{name}.sh").read_text()
    assert plan == CASES[name]().plan()
    checked = subprocess.run(["bash", "-n"], input=plan.text, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("name", CASES)
def test_saved_job_has_the_same_plan(name: str) -> None:
    job = CASES[name]()
    again = job_loads(job.dumps())
    assert isinstance(again, SlurmJob) and again.plan() == job.plan() and again.can_run(job)


def test_job_cannot_run_a_different_plan() -> None:
    assert not SlurmJob({"hosts": 2}).can_run(SlurmJob({"hosts": 3}))
    assert SlurmJob({"hosts": 2}).can_run(SlurmJob({"hosts": 2}, join_timeout=5, job_start_timeout=9))


def test_directives_are_in_order() -> None:
    lines = [line for line in _everything().plan().text.splitlines() if line.startswith("#SBATCH")]
    assert lines[-2:] == ["#SBATCH --nice=3", "#SBATCH -C fast"]
    assert '#SBATCH --job-name="a \\"job\\""' in lines and "#SBATCH --nodes=5-7" in lines


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"meshes": {"a": 0}}, ValueError, "at least one host"),
        ({"meshes": {"a": "1"}}, TypeError, "is an int"),
        ({"meshes": {"": 1}}, ValueError, "empty"),
        ({"slurm_args": ["nice=3"]}, ValueError, "begins with '-'"),
        ({"slurm_args": "--nice=3"}, TypeError, "sequence"),
        ({"slurm_args": ["--nice=3\n#SBATCH --uid=0"]}, ValueError, "line break"),
        ({"job_name": "a\nrm -rf ~"}, ValueError, "job_name: has a line break"),
        ({"partition": ""}, ValueError, "partition: is empty"),
        ({"monarch_port": 0}, ValueError, "monarch_port"),
        ({"monarch_port": "22222"}, TypeError, "monarch_port"),
        ({"exclusive": "yes"}, TypeError, "exclusive"),
        ({"time_limit": "soon"}, ValueError, "time_limit: is no time"),
        ({"mem": "much"}, ValueError, "mem: is no amount"),
        ({"spares": -1}, ValueError, "spares"),
        ({"min_nodes": 3}, ValueError, "the meshes have 2 nodes"),
        ({"meshes": {"a": 2, "b": 2}, "min_nodes": 2}, ValueError, "without a node"),
        ({"mesh_args": {"b": ["--x"]}}, ValueError, "no mesh 'b'; the meshes are 'a'"),
        ({"mesh_args": {"a": ["x"]}}, ValueError, "begins with '-'"),
        ({"mesh_args": {"a": ["--x"]}, "spares": 1}, ValueError, "neither spares nor min_nodes"),
        ({"out_of_cluster": True}, ValueError, "via_ssh"),
        ({"via_ssh": "-oProxyCommand=x"}, ValueError, "via_ssh: is empty or begins with '-'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        SlurmJob(**{"meshes": {"a": 2}, **arguments})


def test_changes_that_are_refused() -> None:
    job = SlurmJob({"a": 1}, gpus_per_node=2)
    with pytest.raises(ValueError, match="a mesh 'a' already"):
        job.add_mesh("a", 1)
    with pytest.raises(ValueError, match="at least one host"):
        job.add_mesh("b", 0)
    with pytest.raises(ValueError, match="leave out gpus_per_node"):
        job.share_node(1, 1, "main")
    with pytest.raises(ValueError, match="without a mesh"):
        SlurmJob({}).plan()


def test_workers_listen_where_configured() -> None:
    def listens(**arguments: Any) -> str:
        text = SlurmJob({"a": 1}, **arguments).plan().text
        return next(line.partition("=")[2].strip("'") for line in text.splitlines() if line.startswith("export MONARCH_JOB_LISTEN"))

    assert listens() == "tcp://*:22222"
    assert listens(bind_to="10.0.0.1", monarch_port=7) == "tcp://10.0.0.1:7"
    assert listens(bind_to="fe80::1") == "tcp://[fe80::1]:22222"
    assert listens(bind_to="tls://ib0.node:9", monarch_port=7) == "tls://ib0.node:9"
    assert listens(bind_to="tcp://[fe80::1]:9") == "tcp://[fe80::1]:9"


@pytest.mark.parametrize("address", ["node:9", "10.0.0.1:9", "[fe80::1]:9", "*:0"])
def test_listening_host_with_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"bind_to: is a host without a port, which is monarch_port, or an address with one"):
        SlurmJob({"a": 1}, bind_to=address)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0", "tls://ib0.node", "tcp://[fe80::1]", "tcp://*:", "tcp://"])
def test_listening_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"bind_to: is an address without a port: write .*:22222, or the host alone"):
        SlurmJob({"a": 1}, bind_to=address)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:65536"])
def test_listening_address_with_a_wrong_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"bind_to: has a port above 65535"):
        SlurmJob({"a": 1}, bind_to=address)
